// Package jinja renders the templates that chat models carry, as Python's
// Jinja2 does in Hugging Face's sandbox: same white space, same numbers, same
// JSON. A template reads no files, changes no values that it was given, and
// cannot run for ever.
package jinja

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A Value is nil (None), bool, int64, float64, string, *List, *Dict, Undefined
// or something that a template can call or ask for attributes.
type Value = any

// Undefined is what a name that does not exist evaluates to: empty as text and
// in loops, an error in arithmetic.
type Undefined struct {
	what string // of the error when it is used
}

// List is a Python list or tuple; templates do not change it.
type List struct {
	Items []Value
	tuple bool
}

// NewList is a list of values.
func NewList(items ...Value) *List { return &List{Items: items} }

// Dict is a Python dict: it keeps the order of its keys. Keys are strings,
// numbers, bools or None.
type Dict struct {
	keys  []Value
	items map[Value]Value // by hashKey
}

// NewDict is a dict of pairs: key, value, key, value.
func NewDict(pairs ...Value) *Dict {
	d := &Dict{items: map[Value]Value{}}
	for i := 0; i+1 < len(pairs); i += 2 {
		d.Set(pairs[i], pairs[i+1])
	}
	return d
}

// hashKey makes equal keys the same: 1, 1.0 and True are.
func hashKey(k Value) (Value, bool) {
	switch k := k.(type) {
	case nil, string, int64:
		return k, true
	case bool:
		if k {
			return int64(1), true
		}
		return int64(0), true
	case float64:
		if n := int64(k); float64(n) == k {
			return n, true
		}
		return k, true
	}
	return nil, false
}

// Set puts a value under a key; false if the key can be none.
func (d *Dict) Set(key, v Value) bool {
	h, ok := hashKey(key)
	if !ok {
		return false
	}
	if _, old := d.items[h]; !old {
		d.keys = append(d.keys, key)
	}
	d.items[h] = v
	return true
}

// Get is the value under a key.
func (d *Dict) Get(key Value) (Value, bool) {
	h, ok := hashKey(key)
	if !ok {
		return nil, false
	}
	v, ok := d.items[h]
	return v, ok
}

// Keys is the keys in order; the caller must not change them.
func (d *Dict) Keys() []Value { return d.keys }

// namespace is the one kind of value whose attributes a template may set.
type namespace struct{ attrs *Dict }

// Func is a function that a template can call.
type Func struct {
	name string
	call func(e *eval, a *args) (Value, error)
}

// args is what a function is called with.
type args struct {
	pos    []Value
	named  []string // in order
	values map[string]Value
}

// at is the argument at a position or of a name, else what is given.
func (a *args) at(i int, name string, otherwise Value) Value {
	if i >= 0 && i < len(a.pos) {
		return a.pos[i]
	}
	if v, ok := a.values[name]; ok {
		return v
	}
	return otherwise
}

// truth is Python's bool(v).
func truth(v Value) bool {
	switch v := v.(type) {
	case nil, Undefined:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case *List:
		return len(v.Items) > 0
	case *Dict:
		return len(v.keys) > 0
	}
	return true
}

// typeName is Python's name of a value's type.
func typeName(v Value) string {
	switch v := v.(type) {
	case nil:
		return "NoneType"
	case bool:
		return "bool"
	case int64:
		return "int"
	case float64:
		return "float"
	case string:
		return "str"
	case *List:
		if v.tuple {
			return "tuple"
		}
		return "list"
	case *Dict:
		return "dict"
	case Undefined:
		return "Undefined"
	case *namespace:
		return "Namespace"
	}
	return "function"
}

// number is a value as a number: bools are 0 and 1.
func number(v Value) (i int64, f float64, isInt, ok bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return 1, 1, true, true
		}
		return 0, 0, true, true
	case int64:
		return v, float64(v), true, true
	case float64:
		return 0, v, false, true
	}
	return 0, 0, false, false
}

// maxNesting bounds how deep a value is looked into.
const maxNesting = 1000

var errNesting = fmt.Errorf("a value is nested more than %d deep", maxNesting)

// within pays for a look at a value that is nested so deep.
func (e *eval) within(depth int) error {
	if depth > maxNesting {
		return errNesting
	}
	return e.spend(1)
}

// equal is Python's a == b.
func (e *eval) equal(a, b Value, depth int) (bool, error) {
	if err := e.within(depth); err != nil {
		return false, err
	}
	ai, af, aInt, aNum := number(a)
	bi, bf, bInt, bNum := number(b)
	if aNum || bNum {
		if aInt && bInt {
			return ai == bi, nil
		}
		return aNum && bNum && af == bf, nil
	}
	switch a := a.(type) {
	case nil:
		return b == nil, nil
	case string:
		s, ok := b.(string)
		return ok && a == s, nil
	case Undefined:
		_, ok := b.(Undefined)
		return ok, nil
	case *List:
		l, ok := b.(*List)
		if !ok || len(a.Items) != len(l.Items) || a.tuple != l.tuple {
			return false, nil
		}
		for i := range a.Items {
			if same, err := e.equal(a.Items[i], l.Items[i], depth+1); !same || err != nil {
				return false, err
			}
		}
		return true, nil
	case *Dict:
		d, ok := b.(*Dict)
		if !ok || len(a.keys) != len(d.keys) {
			return false, nil
		}
		for k, v := range a.items {
			w, ok := d.items[k]
			if !ok {
				return false, nil
			}
			if same, err := e.equal(v, w, depth+1); !same || err != nil {
				return false, err
			}
		}
		return true, nil
	}
	switch b.(type) {
	case *namespace, *Func, *loop:
		return a == b, nil // the same object
	}
	return false, nil
}

// compare is -1, 0 or 1 as Python orders two values.
func (e *eval) compare(a, b Value, depth int) (int, error) {
	if err := e.within(depth); err != nil {
		return 0, err
	}
	ai, af, aInt, aNum := number(a)
	bi, bf, bInt, bNum := number(b)
	switch {
	case aInt && bInt:
		return order(ai, bi), nil
	case aNum && bNum:
		return order(af, bf), nil
	}
	switch x := a.(type) {
	case string:
		if y, ok := b.(string); ok {
			return strings.Compare(x, y), nil // UTF-8 sorts as code points do
		}
	case *List:
		if y, ok := b.(*List); ok && x.tuple == y.tuple {
			for i := range min(len(x.Items), len(y.Items)) {
				same, err := e.equal(x.Items[i], y.Items[i], depth+1)
				if err != nil {
					return 0, err
				}
				if !same {
					return e.compare(x.Items[i], y.Items[i], depth+1)
				}
			}
			return order(len(x.Items), len(y.Items)), nil
		}
	}
	for _, v := range []Value{a, b} {
		if u, ok := v.(Undefined); ok {
			return 0, u.err()
		}
	}
	return 0, fmt.Errorf("'%s' and '%s' cannot be ordered", typeName(a), typeName(b))
}

func order[T int | int64 | float64](a, b T) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func (u Undefined) err() error { return fmt.Errorf("%s", u.what) }

// text is Python's str(v).
func (e *eval) text(v Value) (string, error) {
	switch v := v.(type) {
	case string:
		return v, nil
	case Undefined:
		return "", nil
	}
	var b strings.Builder
	err := e.repr(&b, v, 0)
	return b.String(), err
}

// repr writes Python's repr(v).
func (e *eval) repr(b *strings.Builder, v Value, depth int) error {
	if err := e.within(depth); err != nil {
		return err
	}
	switch v := v.(type) {
	case nil:
		b.WriteString("None")
	case bool:
		b.WriteString(map[bool]string{true: "True", false: "False"}[v])
	case int64:
		b.WriteString(strconv.FormatInt(v, 10))
	case float64:
		b.WriteString(floatText(v))
	case string:
		quote(b, v)
	case *List:
		open, end := "[", "]"
		if v.tuple {
			open, end = "(", ")"
			if len(v.Items) == 1 {
				end = ",)"
			}
		}
		b.WriteString(open)
		for i, x := range v.Items {
			if i > 0 {
				b.WriteString(", ")
			}
			if err := e.repr(b, x, depth+1); err != nil {
				return err
			}
		}
		b.WriteString(end)
	case *Dict:
		b.WriteString("{")
		for i, k := range v.keys {
			if i > 0 {
				b.WriteString(", ")
			}
			if err := e.repr(b, k, depth+1); err != nil {
				return err
			}
			b.WriteString(": ")
			x, _ := v.Get(k)
			if err := e.repr(b, x, depth+1); err != nil {
				return err
			}
		}
		b.WriteString("}")
	case Undefined:
		b.WriteString("Undefined")
	default:
		b.WriteString("<" + typeName(v) + ">")
	}
	return nil
}

// floatText is Python's repr of a float.
func floatText(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 0):
		return strings.TrimPrefix(strings.ToLower(strconv.FormatFloat(f, 'g', -1, 64)), "+")
	}
	s := strconv.FormatFloat(f, 'e', -1, 64)
	_, e, _ := strings.Cut(s, "e")
	if exp, _ := strconv.Atoi(e); exp < -4 || exp >= 16 {
		return s
	}
	s = strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// quote writes Python's repr of a string.
func quote(b *strings.Builder, s string) {
	q := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		q = '"'
	}
	b.WriteByte(q)
	for _, r := range s {
		switch {
		case r == '\\' || r == rune(q):
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == ' ' || unicode.IsGraphic(r) && !unicode.Is(unicode.Zs, r):
			b.WriteRune(r)
		case r < 0x100:
			fmt.Fprintf(b, `\x%02x`, r)
		case r < 0x10000:
			fmt.Fprintf(b, `\u%04x`, r)
		default:
			fmt.Fprintf(b, `\U%08x`, r)
		}
	}
	b.WriteByte(q)
}

// space is Python's str.isspace of a character.
func space(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }

func ascii(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}
