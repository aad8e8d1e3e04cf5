package jinja

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// globals are the functions that every template can call.
var globals = map[string]Value{}

func init() {
	for name, f := range map[string]func(*eval, *args) (Value, error){
		"range": rangeFunc, "dict": dictFunc, "namespace": namespaceFunc, "joiner": joinerFunc, "cycler": cyclerFunc,
		"raise_exception": raise, "strftime_now": strftimeNow,
	} {
		globals[name] = &Func{name, f}
	}
}

func rangeFunc(e *eval, a *args) (Value, error) {
	var n [3]int64
	if len(a.pos) < 1 || len(a.pos) > 3 {
		return nil, fmt.Errorf("range takes 1 to 3 arguments, not %d", len(a.pos))
	}
	for i, v := range a.pos {
		k, _, isInt, _ := number(v)
		if !isInt {
			return nil, fmt.Errorf("'%s' object cannot be interpreted as an integer", typeName(v))
		}
		n[i] = k
	}
	start, stop, step := n[0], n[1], int64(1)
	switch len(a.pos) {
	case 1:
		start, stop = 0, n[0]
	case 3:
		step = n[2]
	}
	if step == 0 {
		return nil, errors.New("range() arg 3 must not be zero")
	}
	l := &List{}
	for i := start; step > 0 && i < stop || step < 0 && i > stop; {
		if len(l.Items) == maxRange {
			return nil, &Error{What: fmt.Sprintf("range of more than %d numbers", maxRange), Unsupported: true}
		}
		l.Items = append(l.Items, i)
		next := i + step
		if (next > i) != (step > 0) {
			break // beyond 64 bits
		}
		i = next
	}
	return l, e.spend(len(l.Items))
}

// dictFunc is dict(mapping or pairs, name=value).
func dictFunc(e *eval, a *args) (Value, error) {
	d := NewDict()
	if len(a.pos) > 1 {
		return nil, fmt.Errorf("dict expected at most 1 argument, got %d", len(a.pos))
	}
	for _, v := range a.pos {
		if from, ok := v.(*Dict); ok {
			for _, k := range from.keys {
				x, _ := from.Get(k)
				d.Set(k, x)
			}
			continue
		}
		pairs, err := e.iterate(v)
		if err != nil {
			return nil, err
		}
		for _, p := range pairs {
			kv, err := e.iterate(p)
			if err != nil {
				return nil, err
			}
			if len(kv) != 2 || !d.Set(kv[0], kv[1]) {
				return nil, errors.New("dict() takes pairs of a key and a value")
			}
		}
	}
	for _, k := range a.named {
		d.Set(k, a.values[k])
	}
	return d, e.spend(len(d.keys))
}

func namespaceFunc(e *eval, a *args) (Value, error) {
	d, err := dictFunc(e, a)
	if err != nil {
		return nil, err
	}
	return &namespace{d.(*Dict)}, nil
}

func joinerFunc(_ *eval, a *args) (Value, error) {
	sep, used := a.at(0, "sep", ", "), false
	return &Func{"joiner", func(*eval, *args) (Value, error) {
		if !used {
			used = true
			return "", nil
		}
		return sep, nil
	}}, nil
}

func cyclerFunc(_ *eval, a *args) (Value, error) {
	items, at := a.pos, 0
	if len(items) == 0 {
		return nil, errors.New("at least one item has to be provided")
	}
	ns := &namespace{NewDict("current", items[0])}
	ns.attrs.Set("next", &Func{"next", func(*eval, *args) (Value, error) {
		v := items[at]
		at = (at + 1) % len(items)
		ns.attrs.Set("current", items[at])
		return v, nil
	}})
	ns.attrs.Set("reset", &Func{"reset", func(*eval, *args) (Value, error) {
		at = 0
		ns.attrs.Set("current", items[0])
		return nil, nil
	}})
	return ns, nil
}

// raise is raise_exception: the template refuses what it was given.
func raise(e *eval, a *args) (Value, error) {
	s, err := e.text(a.at(0, "message", ""))
	if err != nil {
		return nil, err
	}
	return nil, &Error{What: s, Raised: true}
}

func strftimeNow(e *eval, a *args) (Value, error) {
	format, ok := a.at(0, "format", nil).(string)
	if !ok {
		return nil, errors.New("strftime_now takes a format")
	}
	return strftime(e.now, format)
}

// directives are strftime's, as Go's layouts or as functions.
var directives = map[byte]any{
	'a': "Mon", 'A': "Monday", 'b': "Jan", 'B': "January", 'h': "Jan", 'd': "02", 'e': "_2", 'H': "15", 'I': "03", 'm': "01", 'M': "04", 'p': "PM",
	'S': "05", 'y': "06", 'Y': "2006", 'Z': "MST", 'z': "-0700", 'j': "002", 'F': "2006-01-02", 'T': "15:04:05", 'R': "15:04", 'D': "01/02/06",
	'c': "Mon Jan _2 15:04:05 2006", 'x': "01/02/06", 'X': "15:04:05",
	'f': func(t time.Time) string { return fmt.Sprintf("%06d", t.Nanosecond()/1000) },
	'w': func(t time.Time) string { return fmt.Sprint(int(t.Weekday())) },
	'u': func(t time.Time) string { return fmt.Sprint((int(t.Weekday())+6)%7 + 1) },
	's': func(t time.Time) string { return fmt.Sprint(t.Unix()) },
	'%': func(time.Time) string { return "%" },
	'n': func(time.Time) string { return "\n" },
	't': func(time.Time) string { return "\t" },
}

// strftime formats a time in the C locale; %-d drops leading zeros.
func strftime(t time.Time, format string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		bare := format[i] == '-' && i+1 < len(format)
		if bare {
			i++
		}
		var s string
		switch d := directives[format[i]].(type) {
		case string:
			s = t.Format(d)
		case func(time.Time) string:
			s = d(t)
		default:
			return "", &Error{What: fmt.Sprintf("strftime_now with %%%c", format[i]), Unsupported: true}
		}
		if bare {
			if s = strings.TrimLeft(s, "0 "); s == "" {
				s = "0"
			}
		}
		b.WriteString(s)
	}
	return b.String(), nil
}

// tests are what may follow "is".
var tests map[string]func(e *eval, v Value, a *args) (bool, error)

func init() {
	is := func(f func(Value) bool) func(*eval, Value, *args) (bool, error) {
		return func(e *eval, v Value, _ *args) (bool, error) {
			return f(v), nil
		}
	}
	compared := func(op string) func(*eval, Value, *args) (bool, error) {
		return func(e *eval, v Value, a *args) (bool, error) { return e.holds(op, v, a.at(0, "other", nil)) }
	}
	remainder := func(f func(v, n int64) (bool, error)) func(*eval, Value, *args) (bool, error) {
		return func(e *eval, v Value, a *args) (bool, error) {
			i, _, ok, _ := number(v)
			n, _, nOK, _ := number(a.at(0, "num", int64(2)))
			if !ok || !nOK || n == 0 {
				return false, fmt.Errorf("'%s' is no integer that can be divided", typeName(v))
			}
			return f(i, n)
		}
	}
	kindOf := func(names ...string) func(*eval, Value, *args) (bool, error) {
		return is(func(v Value) bool {
			for _, n := range names {
				if typeName(v) == n {
					return true
				}
			}
			return false
		})
	}
	defined := func(v Value) bool { _, u := v.(Undefined); return !u }
	cased := func(fold func(string) string) func(*eval, Value, *args) (bool, error) {
		return func(e *eval, v Value, _ *args) (bool, error) {
			s, err := e.text(v)
			return s == fold(s) && strings.ToLower(s) != strings.ToUpper(s), err
		}
	}
	tests = map[string]func(*eval, Value, *args) (bool, error){
		"defined": is(defined), "undefined": is(func(v Value) bool { return !defined(v) }),
		"none": kindOf("NoneType"), "boolean": kindOf("bool"), "integer": kindOf("int"), "float": kindOf("float"),
		"number": kindOf("bool", "int", "float"), "string": kindOf("str"), "mapping": kindOf("dict"),
		"sequence": kindOf("str", "list", "tuple", "dict"), "iterable": kindOf("str", "list", "tuple", "dict", "Undefined"),
		"callable": is(func(v Value) bool { _, ok := v.(*Func); return ok }),
		"true":     is(func(v Value) bool { return v == true }), "false": is(func(v Value) bool { return v == false }),
		"even": remainder(func(v, _ int64) (bool, error) { return v%2 == 0, nil }), "odd": remainder(func(v, _ int64) (bool, error) { return v%2 != 0, nil }),
		"divisibleby": remainder(func(v, n int64) (bool, error) { return v%n == 0, nil }),
		"lower":       cased(strings.ToLower), "upper": cased(strings.ToUpper),
		"sameas": func(e *eval, v Value, a *args) (bool, error) {
			w := a.at(0, "other", nil)
			if typeName(v) != typeName(w) {
				return false, nil
			}
			switch v.(type) {
			case *List, *Dict, *namespace, *Func, *loop:
				return v == w, nil
			}
			return e.equal(v, w, 0)
		},
		"filter": is(func(v Value) bool { s, ok := v.(string); return ok && filters[s] != nil }),
		"test":   is(func(v Value) bool { s, ok := v.(string); return ok && tests[s] != nil }),
		"in":     func(e *eval, v Value, a *args) (bool, error) { return e.holds("in", v, a.at(0, "seq", nil)) },
	}
	for op, names := range map[string][]string{"==": {"eq", "equalto"}, "!=": {"ne"}, "<": {"lt", "lessthan"}, "<=": {"le"}, ">": {"gt", "greaterthan"}, ">=": {"ge"}} {
		for _, n := range append(names, op) {
			tests[n] = compared(op)
		}
	}
}
