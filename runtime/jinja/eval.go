package jinja

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Limits on what a template can make a rendering cost.
const (
	baseSteps    = 2_000_000 // evaluations
	baseBytes    = 64 << 20  // of texts and lists that are made
	stepsPerItem = 10_000    // more for every value of the variables: templates look back from message to message
	bytesPerByte = 2_000     // and for every byte of text: they add up what was said
	mostSteps    = 100_000_000
	mostBytes    = 4 << 30
	scanUnit     = 1024    // bytes that are read for the price of a step
	itemBytes    = 16      // of an item of a list
	maxEvalDepth = 2000    // evaluations inside each other
	maxRange     = 100_000 // numbers of range(), as in Jinja's sandbox
)

// Errors that a rendering ends with, or a loop catches.
var (
	errBudget   = &Error{What: "the template asks for too much work or text", Unsupported: true}
	errDeep     = &Error{What: fmt.Sprintf("more than %d evaluations inside each other", maxEvalDepth), Unsupported: true}
	errBreak    = errors.New("break")
	errContinue = errors.New("continue")
)

// Render is the text that the template makes of the variables. now is the time
// that strftime_now tells. The error is an *Error.
func (t *Template) Render(vars *Dict, now time.Time) (string, error) {
	e := newEval(vars)
	e.now = now
	for _, k := range vars.keys {
		if name, ok := k.(string); ok {
			e.scope.vars[name], _ = vars.Get(k)
		}
	}
	if err := e.run(t.body); err != nil {
		return "", lined(0, err)
	}
	return e.out.String(), nil
}

// scope is the variables of a block; names that it lacks are looked for around it.
type scope struct {
	vars map[string]Value
	up   *scope
}

func (s *scope) get(name string) (Value, bool) {
	for ; s != nil; s = s.up {
		if v, ok := s.vars[name]; ok {
			return v, true
		}
	}
	v, ok := globals[name]
	return v, ok
}

// eval is one rendering.
type eval struct {
	scope    *scope
	out      strings.Builder
	now      time.Time
	captured string // the text that a filter or set block rendered
	steps    int    // that are left
	bytes    int    // that may still be made
	depth    int
}

func newEval(vars Value) *eval {
	items, bytes := weigh(vars, 0)
	return &eval{
		scope: &scope{vars: map[string]Value{}},
		steps: min(baseSteps+stepsPerItem*items, mostSteps),
		bytes: baseBytes + min(bytesPerByte*bytes, mostBytes),
	}
}

// weigh is how many values there are, and how much text.
func weigh(v Value, depth int) (items, bytes int) {
	if depth > maxNesting {
		return 1, 0
	}
	add := func(v Value) {
		i, b := weigh(v, depth+1)
		items, bytes = items+i, bytes+b
	}
	switch v := v.(type) {
	case string:
		bytes = len(v)
	case *List:
		for _, x := range v.Items {
			add(x)
		}
	case *Dict:
		for _, x := range v.items {
			add(x)
		}
	}
	return items + 1, bytes
}

func (e *eval) spend(steps int) error {
	if e.steps -= steps; steps < 0 || e.steps < 0 {
		return errBudget
	}
	return nil
}

// make pays for n bytes before they are made.
func (e *eval) make(n int) error {
	if e.bytes -= n; n < 0 || e.bytes < 0 {
		return errBudget
	}
	return nil
}

// list pays for a list of n items.
func (e *eval) list(n int) error {
	if n > e.bytes/itemBytes {
		return errBudget
	}
	return e.make(n * itemBytes)
}

// scan pays for reading a text.
func (e *eval) scan(v Value) error {
	s, _ := v.(string)
	return e.spend(1 + len(s)/scanUnit)
}

// enter counts a level of nesting; the caller undoes it with e.depth--.
func (e *eval) enter() error {
	if e.depth++; e.depth > maxEvalDepth {
		return errDeep
	}
	return e.spend(1)
}

func (e *eval) value(x expr) (Value, error) {
	err := e.enter()
	defer func() { e.depth-- }()
	if err != nil {
		return nil, err
	}
	return x.eval(e)
}

func (e *eval) run(nodes []node) error {
	err := e.enter()
	defer func() { e.depth-- }()
	for _, n := range nodes {
		if err != nil {
			return err
		}
		if err = e.spend(1); err == nil {
			err = n.exec(e)
		}
	}
	return err
}

// inside runs f in a scope of its own.
func (e *eval) inside(f func() error) error {
	outer := e.scope
	e.scope = &scope{vars: map[string]Value{}, up: outer}
	err := f()
	e.scope = outer
	return err
}

// capture is what nodes print.
func (e *eval) capture(nodes []node) (string, error) {
	out := e.out
	e.out = strings.Builder{}
	err := e.run(nodes)
	s := e.out.String()
	e.out = out
	return s, err
}

func (e *eval) print(s string) error {
	if err := e.make(len(s)); err != nil {
		return err
	}
	e.out.WriteString(s)
	return nil
}

// lined says in which line an error happened, if it does not yet.
func lined(line int, err error) error {
	var known *Error
	switch {
	case err == nil, err == errBreak, err == errContinue:
		return err
	case !errors.As(err, &known):
		return &Error{Line: line, What: err.Error()}
	case known.Line == 0 && line > 0:
		at := *known
		at.Line = line
		return &at
	}
	return known
}

// The nodes.
type (
	data   string
	output struct {
		x    expr
		line int
	}
	ifNode struct {
		tests     []expr
		bodies    [][]node
		otherwise []node
	}
	forNode struct {
		target          target
		iter, test      expr
		body, otherwise []node
		recursive       bool
		line            int
	}
	jump    struct{ err error }
	setNode struct {
		target target
		value  expr
		body   []node // where block
		block  bool
		line   int
	}
	macroNode struct {
		name     string
		params   []string
		defaults []expr // nil: none
		body     []node
		varargs  bool // the body asks for what no parameter takes
		kwargs   bool
		line     int
	}
	callNode struct {
		macroNode // the caller
		call      *callExpr
	}
	filterNode struct {
		value expr
		body  []node
		line  int
	}
	withNode struct {
		targets []target
		values  []expr
		body    []node
	}
)

func (n data) exec(e *eval) error { return e.print(string(n)) }

func (n *output) exec(e *eval) error {
	v, err := e.value(n.x)
	if err != nil {
		return lined(n.line, err)
	}
	s, err := e.text(v)
	if err == nil {
		err = e.print(s)
	}
	return lined(n.line, err)
}

func (n *ifNode) exec(e *eval) error {
	for i, test := range n.tests {
		v, err := e.value(test)
		if err != nil {
			return err
		}
		if truth(v) {
			return e.run(n.bodies[i])
		}
	}
	return e.run(n.otherwise)
}

func (n jump) exec(*eval) error { return n.err }

func (n *setNode) exec(e *eval) error {
	if n.block {
		err := e.inside(func() (err error) {
			e.captured, err = e.capture(n.body)
			return err
		})
		if err != nil {
			return err
		}
	}
	v, err := e.value(n.value)
	if err != nil {
		return lined(n.line, err)
	}
	return lined(n.line, e.assign(n.target, v))
}

func (e *eval) assign(t target, v Value) error {
	switch {
	case t.parts != nil:
		items, err := e.iterate(v)
		if err != nil {
			return err
		}
		if len(items) != len(t.parts) {
			return fmt.Errorf("%d values for %d names", len(items), len(t.parts))
		}
		for i, p := range t.parts {
			if err := e.assign(p, items[i]); err != nil {
				return err
			}
		}
	case t.attr != "":
		ns, _ := e.scope.get(t.name)
		if n, ok := ns.(*namespace); ok {
			n.attrs.Set(t.attr, v)
			return nil
		}
		return fmt.Errorf("cannot assign attribute '%s' on %s, which is no namespace", t.attr, typeName(ns))
	default:
		e.scope.vars[t.name] = v
	}
	return nil
}

func (n *withNode) exec(e *eval) error {
	values := make([]Value, len(n.values))
	for i, x := range n.values {
		var err error
		if values[i], err = e.value(x); err != nil {
			return err
		}
	}
	return e.inside(func() error {
		for i, t := range n.targets {
			if err := e.assign(t, values[i]); err != nil {
				return err
			}
		}
		return e.run(n.body)
	})
}

func (n *filterNode) exec(e *eval) error {
	return e.inside(func() (err error) {
		if e.captured, err = e.capture(n.body); err != nil {
			return err
		}
		return (&output{n.value, n.line}).exec(e)
	})
}

// loop is the variable of that name.
type loop struct {
	items []Value
	i     int
	depth int
	last  []Value                          // of changed()
	again func(items Value) (Value, error) // of a recursive loop
}

func (n *forNode) exec(e *eval) error {
	v, err := e.value(n.iter)
	if err != nil {
		return lined(n.line, err)
	}
	return n.over(e, v, 1)
}

func (n *forNode) over(e *eval, v Value, depth int) error {
	items, err := e.iterate(v)
	if err != nil {
		return lined(n.line, err)
	}
	if n.test != nil {
		var kept []Value
		for _, item := range items {
			err := e.inside(func() error {
				if err := e.assign(n.target, item); err != nil {
					return err
				}
				ok, err := e.value(n.test)
				if err == nil && truth(ok) {
					kept = append(kept, item)
				}
				return err
			})
			if err != nil {
				return lined(n.line, err)
			}
		}
		items = kept
	}
	l := &loop{items: items, depth: depth}
	if n.recursive {
		l.again = func(items Value) (Value, error) {
			out := e.out
			e.out = strings.Builder{}
			err := e.enter()
			if err == nil {
				err = n.over(e, items, depth+1)
			}
			e.depth--
			s := e.out.String()
			e.out = out
			return s, err
		}
	}
	for i, item := range items {
		l.i = i
		err := e.inside(func() error {
			if err := e.spend(1); err != nil {
				return err
			}
			e.scope.vars["loop"] = l
			if err := e.assign(n.target, item); err != nil {
				return lined(n.line, err)
			}
			return e.run(n.body)
		})
		if err == errBreak {
			break
		}
		if err != nil && err != errContinue {
			return err
		}
	}
	if len(items) == 0 {
		return e.inside(func() error { return e.run(n.otherwise) })
	}
	return nil
}

func (l *loop) attr(name string) (Value, bool) {
	n, i := int64(len(l.items)), int64(l.i)
	neighbour := func(at int64, what string) Value {
		if at < 0 || at >= n {
			return Undefined{what: "there is no " + what + " item"}
		}
		return l.items[at]
	}
	switch name {
	case "index":
		return i + 1, true
	case "index0":
		return i, true
	case "revindex":
		return n - i, true
	case "revindex0":
		return n - i - 1, true
	case "first":
		return i == 0, true
	case "last":
		return i == n-1, true
	case "length":
		return n, true
	case "depth":
		return int64(l.depth), true
	case "depth0":
		return int64(l.depth - 1), true
	case "previtem":
		return neighbour(i-1, "previous"), true
	case "nextitem":
		return neighbour(i+1, "next"), true
	case "cycle":
		return &Func{"cycle", func(e *eval, a *args) (Value, error) {
			if len(a.pos) == 0 {
				return nil, errors.New("no items for cycling given")
			}
			return a.pos[l.i%len(a.pos)], nil
		}}, true
	case "changed":
		return &Func{"changed", func(e *eval, a *args) (Value, error) {
			same, err := e.equal(&List{Items: a.pos}, &List{Items: l.last}, 0)
			changed := l.last == nil || !same
			l.last = append([]Value{}, a.pos...)
			return changed, err
		}}, true
	}
	return nil, false
}

func (n *macroNode) exec(e *eval) error {
	e.scope.vars[n.name] = n.function(e.scope)
	return nil
}

// function is the macro as a value; it sees the variables of where it was defined.
func (n *macroNode) function(home *scope) *Func {
	return &Func{n.name, func(e *eval, a *args) (Value, error) {
		outer := e.scope
		e.scope = &scope{vars: map[string]Value{}, up: home}
		defer func() { e.scope = outer }()
		extra, rest := NewDict(), &List{tuple: true}
		if len(a.pos) > len(n.params) {
			rest.Items = a.pos[len(n.params):]
		}
		for i, p := range n.params {
			v, named := a.values[p]
			switch {
			case i < len(a.pos) && named:
				return nil, fmt.Errorf("macro '%s' got argument '%s' twice", n.name, p)
			case i < len(a.pos):
				v = a.pos[i]
			case named:
			case n.defaults[i] != nil:
				var err error
				if v, err = e.value(n.defaults[i]); err != nil {
					return nil, err
				}
			default:
				v = Undefined{what: fmt.Sprintf("parameter '%s' was not provided", p)}
			}
			e.scope.vars[p] = v
		}
		for _, name := range a.named {
			if _, isParam := e.scope.vars[name]; !isParam {
				extra.Set(name, a.values[name])
			}
		}
		caller, called := extra.Get("caller")
		if called {
			e.scope.vars["caller"] = caller
		}
		if len(rest.Items) > 0 && !n.varargs {
			return nil, fmt.Errorf("macro '%s' takes not more than %d argument(s)", n.name, len(n.params))
		}
		for _, k := range extra.keys {
			if k != "caller" && !n.kwargs {
				return nil, fmt.Errorf("macro '%s' takes no keyword argument '%s'", n.name, k)
			}
		}
		e.scope.vars["varargs"], e.scope.vars["kwargs"] = rest, extra
		s, err := e.capture(n.body)
		return s, lined(n.line, err)
	}}
}

func (n *callNode) exec(e *eval) error {
	a, err := e.arguments(n.call.args)
	if err != nil {
		return lined(n.line, err)
	}
	f, err := e.value(n.call.f)
	if err != nil {
		return lined(n.line, err)
	}
	if a.values == nil {
		a.values = map[string]Value{}
	}
	a.named = append(a.named, "caller")
	a.values["caller"] = n.function(e.scope)
	v, err := e.call(f, a)
	if err != nil {
		return lined(n.line, err)
	}
	s, err := e.text(v)
	if err != nil {
		return lined(n.line, err)
	}
	return e.print(s)
}
