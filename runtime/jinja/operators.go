package jinja

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

func (e *eval) holds(op string, a, b Value) (bool, error) {
	if err := errors.Join(e.scan(a), e.scan(b)); err != nil {
		return false, errBudget
	}
	switch op {
	case "==", "!=":
		same, err := e.equal(a, b, 0)
		return same == (op == "=="), err
	case "in", "not in":
		in, err := e.contains(b, a)
		return in == (op == "in"), err
	}
	c, err := e.compare(a, b, 0)
	return map[string]bool{"<": c < 0, "<=": c <= 0, ">": c > 0, ">=": c >= 0}[op], err
}

// contains is Python's v in c.
func (e *eval) contains(c, v Value) (bool, error) {
	switch c := c.(type) {
	case string:
		s, ok := v.(string)
		if !ok {
			return false, fmt.Errorf("'in <string>' requires string as left operand, not %s", typeName(v))
		}
		return strings.Contains(c, s), nil
	case *List:
		for _, item := range c.Items {
			if same, err := e.equal(item, v, 0); same || err != nil {
				return same, err
			}
		}
		return false, nil
	case *Dict:
		if _, ok := hashKey(v); !ok {
			return false, fmt.Errorf("a %s cannot be a key", typeName(v))
		}
		_, ok := c.Get(v)
		return ok, nil
	case Undefined:
		return false, nil
	}
	return false, fmt.Errorf("argument of type '%s' is not iterable", typeName(c))
}

var errOverflow = &Error{What: "an integer of more than 64 bits", Unsupported: true}

func (e *eval) binary(op string, a, b Value) (Value, error) {
	for _, v := range []Value{a, b} {
		if u, ok := v.(Undefined); ok {
			return nil, u.err()
		}
	}
	if s, ok := a.(string); ok && op == "%" {
		return e.percent(s, b)
	}
	if op == "+" {
		switch x := a.(type) {
		case string:
			if y, ok := b.(string); ok {
				if err := e.make(len(x) + len(y)); err != nil {
					return nil, err
				}
				return x + y, nil
			}
		case *List:
			if y, ok := b.(*List); ok && x.tuple == y.tuple {
				if err := e.list(len(x.Items) + len(y.Items)); err != nil {
					return nil, err
				}
				items := append(append(make([]Value, 0, len(x.Items)+len(y.Items)), x.Items...), y.Items...)
				return &List{Items: items, tuple: x.tuple}, nil
			}
		}
	}
	ai, af, aInt, aNum := number(a)
	bi, bf, bInt, bNum := number(b)
	if op == "*" && aInt != bInt {
		if aInt {
			a, b, bi, aInt = b, a, ai, false
		}
		if v, ok, err := e.repeat(a, bi); ok {
			return v, err
		}
	}
	switch {
	case !aNum || !bNum:
		return nil, fmt.Errorf("unsupported operand type(s) for %s: '%s' and '%s'", op, typeName(a), typeName(b))
	case aInt && bInt && op != "/":
		return integers(op, ai, bi)
	}
	return floats(op, af, bf)
}

// repeat is a string or list n times; false for what cannot be repeated.
func (e *eval) repeat(v Value, n int64) (Value, bool, error) {
	n = max(n, 0)
	switch v := v.(type) {
	case string:
		if v == "" {
			return "", true, nil
		}
		if n > int64(e.bytes/len(v)) {
			return nil, true, errBudget
		}
		if err := e.make(len(v) * int(n)); err != nil {
			return nil, true, err
		}
		return strings.Repeat(v, int(n)), true, nil
	case *List:
		if len(v.Items) > 0 && n > int64(e.bytes/len(v.Items)) {
			return nil, true, errBudget
		}
		out := &List{tuple: v.tuple}
		if err := e.list(len(v.Items) * int(n)); err != nil {
			return nil, true, err
		}
		for i := int64(0); i < n && len(v.Items) > 0; i++ {
			out.Items = append(out.Items, v.Items...)
		}
		return out, true, nil
	}
	return nil, false, nil
}

var errDivision = errors.New("division by zero")

func integers(op string, a, b int64) (Value, error) {
	c := int64(0)
	switch op {
	case "+":
		c = a + b
		if (c > a) != (b > 0) && b != 0 {
			return nil, errOverflow
		}
	case "-":
		c = a - b
		if (c < a) != (b > 0) && b != 0 {
			return nil, errOverflow
		}
	case "*":
		c = a * b
		if a != 0 && (c/a != b || a == -1 && b == math.MinInt64) {
			return nil, errOverflow
		}
	case "//", "%":
		if b == 0 {
			return nil, errDivision
		}
		if b == -1 {
			if op == "%" {
				return int64(0), nil
			}
			return integers("-", 0, a)
		}
		q, r := a/b, a%b
		if r != 0 && (r < 0) != (b < 0) { // Python rounds down
			q, r = q-1, r+b
		}
		if op == "%" {
			return r, nil
		}
		return q, nil
	case "**":
		if b < 0 {
			if a == 0 {
				return nil, errDivision
			}
			return math.Pow(float64(a), float64(b)), nil
		}
		f := math.Pow(float64(a), float64(b))
		if math.Abs(f) >= 1<<62 {
			return nil, errOverflow
		}
		for c = 1; b > 0; b >>= 1 {
			if b&1 == 1 {
				c *= a
			}
			a *= a
		}
	}
	return c, nil
}

func floats(op string, a, b float64) (Value, error) {
	if b == 0 && (op == "/" || op == "//" || op == "%") {
		return nil, errDivision
	}
	switch op {
	case "+":
		return a + b, nil
	case "-":
		return a - b, nil
	case "*":
		return a * b, nil
	case "/":
		return a / b, nil
	case "//":
		return math.Floor(a / b), nil
	case "%":
		r := math.Mod(a, b)
		if r != 0 && (r < 0) != (b < 0) {
			r += b
		}
		return r, nil
	}
	return math.Pow(a, b), nil
}

// attribute is v.name: a method before an item of that name.
func attribute(v Value, name string) (Value, error) {
	if out, ok, err := member(v, name); ok || err != nil {
		return out, err
	}
	if d, ok := v.(*Dict); ok {
		if out, ok := d.Get(name); ok {
			return out, nil
		}
	}
	return missing(v, name), nil
}

func missing(v Value, name string) Undefined {
	kind := typeName(v) + " object"
	return Undefined{what: fmt.Sprintf("'%s' has no attribute '%s'", kind, name)}
}

// member is what v itself offers under a name.
func member(v Value, name string) (Value, bool, error) {
	switch v := v.(type) {
	case Undefined:
		return nil, true, v.err()
	case *namespace:
		out, ok := v.attrs.Get(name)
		return out, ok, nil
	case *loop:
		out, ok := v.attr(name)
		return out, ok, nil
	case *Func:
		if name == "name" {
			return v.name, true, nil
		}
		return nil, false, nil
	}
	if unsafeMethods[typeName(v)+"."+name] {
		return Undefined{what: fmt.Sprintf("access to attribute '%s' of '%s' object is unsafe", name, typeName(v))}, true, nil
	}
	if f := method(v, name); f != nil {
		return f, true, nil
	}
	return nil, false, nil
}

// item is v[k]: an item before a method of that name.
func item(v, k Value) (Value, error) {
	if u, ok := v.(Undefined); ok {
		return nil, u.err()
	}
	switch c := v.(type) {
	case *Dict:
		if out, ok := c.Get(k); ok {
			return out, nil
		}
	case *List, string:
		if i, _, isInt, _ := number(k); isInt {
			n := int64(count(c))
			if i < 0 {
				i += n
			}
			if i < 0 || i >= n {
				return Undefined{what: fmt.Sprintf("%s object has no element %d", typeName(v), i)}, nil
			}
			if l, ok := c.(*List); ok {
				return l.Items[i], nil
			}
			s := c.(string)
			if !ascii(s) {
				return string([]rune(s)[i]), nil
			}
			return s[i : i+1], nil
		}
	}
	if name, ok := k.(string); ok {
		if out, ok, err := member(v, name); ok || err != nil {
			return out, err
		}
		return missing(v, name), nil
	}
	return Undefined{what: fmt.Sprintf("%s object has no such element", typeName(v))}, nil
}

// count is Python's len of a string, list or dict.
func count(v Value) int {
	switch v := v.(type) {
	case string:
		return utf8.RuneCountInString(v)
	case *List:
		return len(v.Items)
	case *Dict:
		return len(v.keys)
	}
	return 0
}

func (e *eval) slice(v Value, parts [3]Value) (Value, error) {
	if u, ok := v.(Undefined); ok {
		return nil, u.err()
	}
	s, isString := v.(string)
	l, isList := v.(*List)
	if !isString && !isList {
		return Undefined{what: fmt.Sprintf("%s object cannot be sliced", typeName(v))}, nil
	}
	n := count(v)
	if err := errors.Join(e.scan(v), e.list(n)); err != nil {
		return nil, errBudget
	}
	var at [3]int
	for i, p := range parts {
		k, _, isInt, _ := number(p)
		if p != nil && !isInt {
			return nil, errors.New("slice indices must be integers or None")
		}
		at[i] = int(max(min(k, math.MaxInt32), math.MinInt32))
	}
	step := at[2]
	if parts[2] == nil {
		step = 1
	}
	if step == 0 {
		return nil, errors.New("slice step cannot be zero")
	}
	low, high := 0, n // where an index may lie
	if step < 0 {
		low, high = -1, n-1
	}
	bound := func(i, otherwise int) int {
		if parts[i] == nil {
			return otherwise
		}
		if at[i] < 0 {
			return max(at[i]+n, low)
		}
		return min(at[i], high)
	}
	start, stop := bound(0, low), bound(1, high)
	if step < 0 {
		start, stop = bound(0, high), bound(1, low)
	}
	if isString && step == 1 && ascii(s) {
		return s[start:max(start, stop)], nil
	}
	var runes []rune
	if isString {
		runes = []rune(s)
	}
	out := &List{tuple: isList && l.tuple}
	var b strings.Builder
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		if isString {
			b.WriteRune(runes[i])
		} else {
			out.Items = append(out.Items, l.Items[i])
		}
	}
	if isString {
		return b.String(), nil
	}
	return out, nil
}

// iterate is the items of a value: keys of a dict, characters of a string.
func (e *eval) iterate(v Value) ([]Value, error) {
	switch v := v.(type) {
	case *List:
		return v.Items, nil
	case *Dict:
		return v.keys, nil
	case string:
		if err := e.spend(len(v)); err != nil {
			return nil, err
		}
		out := make([]Value, 0, len(v))
		for _, r := range v {
			out = append(out, string(r))
		}
		return out, nil
	case Undefined:
		return nil, nil
	}
	return nil, fmt.Errorf("'%s' object is not iterable", typeName(v))
}
