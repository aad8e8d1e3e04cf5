package jinja

import (
	"errors"
	"fmt"
	"strings"
)

// The expressions.
type (
	constant struct{ v Value }
	nameExpr struct{ name string }
	listExpr struct {
		items []expr
		tuple bool
	}
	dictExpr struct {
		keys, values []expr
		line         int
	}
	condExpr struct {
		test, yes, no expr // no is nil without an else
		line          int
	}
	logicExpr struct {
		and  bool
		x, y expr
	}
	notExpr     struct{ x expr }
	compareExpr struct {
		x    expr
		ops  []string
		ys   []expr
		line int
	}
	concatExpr struct {
		parts []expr
		line  int
	}
	binaryExpr struct {
		op   string
		x, y expr
		line int
	}
	signExpr struct {
		negative bool
		x        expr
		line     int
	}
	attrExpr struct {
		x    expr
		name string
		line int
	}
	itemExpr struct {
		x, key expr
		line   int
	}
	sliceExpr struct {
		x     expr
		parts [3]expr // nil: left out
		line  int
	}
	callArg struct {
		name   string
		x      expr
		spread int // 1: *x, 2: **x
	}
	callExpr struct {
		f    expr
		args []callArg
		line int
	}
	filterExpr struct {
		callExpr
		name string
		x    expr
	}
	testExpr struct {
		callExpr
		name    string
		x       expr
		negated bool
	}
	captured struct{}
)

func (x constant) eval(*eval) (Value, error) { return x.v, nil }

func (x *captured) eval(e *eval) (Value, error) { return e.captured, nil }

func (x *nameExpr) eval(e *eval) (Value, error) {
	if v, ok := e.scope.get(x.name); ok {
		return v, nil
	}
	return Undefined{what: fmt.Sprintf("'%s' is undefined", x.name)}, nil
}

func (x *listExpr) eval(e *eval) (Value, error) {
	l := &List{Items: make([]Value, len(x.items)), tuple: x.tuple}
	for i, item := range x.items {
		var err error
		if l.Items[i], err = e.value(item); err != nil {
			return nil, err
		}
	}
	return l, nil
}

func (x *dictExpr) eval(e *eval) (Value, error) {
	d := NewDict()
	for i := range x.keys {
		k, err := e.value(x.keys[i])
		if err != nil {
			return nil, err
		}
		v, err := e.value(x.values[i])
		if err != nil {
			return nil, err
		}
		if !d.Set(k, v) {
			return nil, lined(x.line, fmt.Errorf("a %s cannot be a key", typeName(k)))
		}
	}
	return d, nil
}

// test is the truth of x.
func (e *eval) test(x expr) (bool, error) {
	v, err := e.value(x)
	return truth(v), err
}

func (x *condExpr) eval(e *eval) (Value, error) {
	yes, err := e.test(x.test)
	switch {
	case err != nil:
		return nil, err
	case yes:
		return e.value(x.yes)
	case x.no != nil:
		return e.value(x.no)
	}
	return Undefined{what: fmt.Sprintf("the inline if-expression on line %d evaluated to false and no else section was defined", x.line)}, nil
}

func (x *logicExpr) eval(e *eval) (Value, error) {
	v, err := e.value(x.x)
	if err != nil || truth(v) != x.and {
		return v, err
	}
	return e.value(x.y)
}

func (x *notExpr) eval(e *eval) (Value, error) {
	v, err := e.test(x.x)
	return !v, err
}

func (x *compareExpr) eval(e *eval) (Value, error) {
	a, err := e.value(x.x)
	if err != nil {
		return nil, err
	}
	for i, op := range x.ops {
		b, err := e.value(x.ys[i])
		if err != nil {
			return nil, err
		}
		ok, err := e.holds(op, a, b)
		if err != nil || !ok {
			return false, lined(x.line, err)
		}
		a = b
	}
	return true, nil
}

func (x *concatExpr) eval(e *eval) (Value, error) {
	var b strings.Builder
	for _, part := range x.parts {
		v, err := e.value(part)
		if err != nil {
			return nil, err
		}
		s, err := e.text(v)
		if err == nil {
			err = e.make(len(s))
		}
		if err != nil {
			return nil, lined(x.line, err)
		}
		b.WriteString(s)
	}
	return b.String(), nil
}

func (x *binaryExpr) eval(e *eval) (Value, error) {
	a, err := e.value(x.x)
	if err != nil {
		return nil, err
	}
	b, err := e.value(x.y)
	if err != nil {
		return nil, err
	}
	v, err := e.binary(x.op, a, b)
	return v, lined(x.line, err)
}

func (x *signExpr) eval(e *eval) (Value, error) {
	v, err := e.value(x.x)
	if err != nil {
		return nil, err
	}
	if u, ok := v.(Undefined); ok {
		return nil, lined(x.line, u.err())
	}
	i, f, isInt, ok := number(v)
	switch {
	case !ok:
		return nil, lined(x.line, fmt.Errorf("bad operand type for a sign: '%s'", typeName(v)))
	case isInt && x.negative:
		v, err = integers("-", 0, i)
		return v, lined(x.line, err)
	case isInt:
		return i, nil
	case x.negative:
		return -f, nil
	}
	return f, nil
}

func (x *attrExpr) eval(e *eval) (Value, error) {
	v, err := e.value(x.x)
	if err != nil {
		return nil, err
	}
	out, err := attribute(v, x.name)
	return out, lined(x.line, err)
}

func (x *itemExpr) eval(e *eval) (Value, error) {
	v, err := e.value(x.x)
	if err != nil {
		return nil, err
	}
	k, err := e.value(x.key)
	if err != nil {
		return nil, err
	}
	out, err := item(v, k)
	return out, lined(x.line, err)
}

func (x *sliceExpr) eval(e *eval) (Value, error) {
	v, err := e.value(x.x)
	if err != nil {
		return nil, err
	}
	var parts [3]Value
	for i, p := range x.parts {
		if p != nil {
			if parts[i], err = e.value(p); err != nil {
				return nil, err
			}
		}
	}
	out, err := e.slice(v, parts)
	return out, lined(x.line, err)
}

// arguments evaluates what a call passes.
func (e *eval) arguments(list []callArg) (*args, error) {
	a := &args{}
	name := func(k string, v Value) error {
		if a.values == nil {
			a.values = map[string]Value{}
		}
		if _, twice := a.values[k]; twice {
			return fmt.Errorf("argument '%s' is given twice", k)
		}
		a.named = append(a.named, k)
		a.values[k] = v
		return nil
	}
	for _, arg := range list {
		v, err := e.value(arg.x)
		if err != nil {
			return nil, err
		}
		switch {
		case arg.spread == 1:
			items, err := e.iterate(v)
			if err != nil {
				return nil, err
			}
			a.pos = append(a.pos, items...)
		case arg.spread == 2:
			d, ok := v.(*Dict)
			if !ok {
				return nil, fmt.Errorf("argument after ** must be a mapping, not %s", typeName(v))
			}
			for _, k := range d.keys {
				s, ok := k.(string)
				if !ok {
					return nil, errors.New("keywords must be strings")
				}
				v, _ := d.Get(k)
				if err := name(s, v); err != nil {
					return nil, err
				}
			}
		case arg.name != "":
			if err := name(arg.name, v); err != nil {
				return nil, err
			}
		default:
			a.pos = append(a.pos, v)
		}
	}
	return a, nil
}

func (x *callExpr) eval(e *eval) (Value, error) {
	f, err := e.value(x.f)
	if err != nil {
		return nil, err
	}
	a, err := e.arguments(x.args)
	if err != nil {
		return nil, lined(x.line, err)
	}
	v, err := e.call(f, a)
	return v, lined(x.line, err)
}

func (e *eval) call(f Value, a *args) (Value, error) {
	if err := e.enter(); err != nil {
		return nil, err
	}
	defer func() { e.depth-- }()
	switch f := f.(type) {
	case *Func:
		return f.call(e, a)
	case *loop:
		if f.again == nil || len(a.pos) != 1 {
			return nil, errors.New("a loop without 'recursive' cannot be called")
		}
		return f.again(a.pos[0])
	case Undefined:
		return nil, f.err()
	}
	return nil, fmt.Errorf("'%s' object is not callable", typeName(f))
}

func (x *filterExpr) eval(e *eval) (Value, error) {
	v, err := e.value(x.x)
	if err != nil {
		return nil, err
	}
	a, err := e.arguments(x.args)
	if err == nil {
		v, err = e.filter(x.name, v, a)
	}
	return v, lined(x.line, err)
}

func (e *eval) filter(name string, v Value, a *args) (Value, error) {
	f := filters[name]
	if f == nil {
		return nil, &Error{What: fmt.Sprintf("unknown filter '%s'", name), Unsupported: true}
	}
	if err := e.scan(v); err != nil {
		return nil, err
	}
	return f(e, v, a)
}

func (x *testExpr) eval(e *eval) (Value, error) {
	v, err := e.value(x.x)
	if err != nil {
		return nil, err
	}
	a, err := e.arguments(x.args)
	if err != nil {
		return nil, lined(x.line, err)
	}
	ok, err := e.is(x.name, v, a)
	return ok != x.negated, lined(x.line, err)
}

func (e *eval) is(name string, v Value, a *args) (bool, error) {
	t := tests[name]
	if t == nil {
		return false, &Error{What: fmt.Sprintf("unknown test '%s'", name), Unsupported: true}
	}
	if err := e.spend(1); err != nil {
		return false, err
	}
	return t(e, v, a)
}
