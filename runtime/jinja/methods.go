package jinja

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// unsafeMethods change their object, which the sandbox forbids.
var unsafeMethods = map[string]bool{}

func init() {
	for kind, names := range map[string]string{
		"dict": "clear pop popitem setdefault update",
		"list": "append clear extend insert pop remove reverse sort",
	} {
		for _, n := range strings.Fields(names) {
			unsafeMethods[kind+"."+n] = true
		}
	}
}

// method is a method of a string, list or dict; nil if there is none.
func method(v Value, name string) *Func {
	var f func(*eval, *args) (Value, error)
	switch v := v.(type) {
	case string:
		if m := stringMethods[name]; m != nil {
			f = func(e *eval, a *args) (Value, error) {
				if err := e.scan(v); err != nil {
					return nil, err
				}
				return m(e, v, a)
			}
		}
	case *Dict:
		if m := dictMethods[name]; m != nil {
			f = func(e *eval, a *args) (Value, error) {
				if err := e.list(len(v.keys)); err != nil {
					return nil, err
				}
				return m(v, a)
			}
		}
	case *List:
		f = listMethod(v, name)
	}
	if f == nil {
		return nil
	}
	return &Func{name, f}
}

var dictMethods = map[string]func(*Dict, *args) (Value, error){
	"items": func(d *Dict, _ *args) (Value, error) { return pairs(d), nil },
	"keys":  func(d *Dict, _ *args) (Value, error) { return &List{Items: slices.Clone(d.keys)}, nil },
	"values": func(d *Dict, _ *args) (Value, error) {
		l := &List{}
		for _, k := range d.keys {
			v, _ := d.Get(k)
			l.Items = append(l.Items, v)
		}
		return l, nil
	},
	"get": func(d *Dict, a *args) (Value, error) {
		if v, ok := d.Get(a.at(0, "key", nil)); ok {
			return v, nil
		}
		return a.at(1, "default", nil), nil
	},
	"copy": func(d *Dict, _ *args) (Value, error) { return d, nil }, // nothing can change either
}

func listMethod(l *List, name string) func(*eval, *args) (Value, error) {
	find := func(e *eval, a *args) (n, at int64, err error) {
		at = -1
		if err := e.spend(1); err != nil {
			return 0, 0, err
		}
		for i, v := range l.Items {
			same, err := e.equal(v, a.at(0, "value", nil), 0)
			if err != nil {
				return 0, 0, err
			}
			if same {
				if n++; at < 0 {
					at = int64(i)
				}
			}
		}
		return n, at, nil
	}
	switch name {
	case "count":
		return func(e *eval, a *args) (Value, error) { n, _, err := find(e, a); return n, err }
	case "index":
		return func(e *eval, a *args) (Value, error) {
			_, at, err := find(e, a)
			if err == nil && at < 0 {
				err = errors.New("the value is not in the list")
			}
			return at, err
		}
	case "copy":
		return func(*eval, *args) (Value, error) { return l, nil }
	}
	return nil
}

type stringMethod func(e *eval, s string, a *args) (Value, error)

var stringMethods map[string]stringMethod

func init() {
	plain := func(f func(string) string) stringMethod {
		return func(e *eval, s string, _ *args) (Value, error) { return f(s), nil }
	}
	all := func(f func(rune) bool) stringMethod {
		return func(e *eval, s string, _ *args) (Value, error) {
			return s != "" && strings.IndexFunc(s, func(r rune) bool { return !f(r) }) < 0, nil
		}
	}
	cased := func(fold func(string) string) stringMethod {
		return func(e *eval, s string, _ *args) (Value, error) {
			return s == fold(s) && strings.ToLower(s) != strings.ToUpper(s), nil
		}
	}
	stripped := func(left, right bool) stringMethod {
		return func(e *eval, s string, a *args) (Value, error) { return strip(s, a.at(0, "chars", nil), left, right) }
	}
	padded := func(side int, fill string) stringMethod {
		return func(e *eval, s string, a *args) (Value, error) {
			if c, ok := a.at(1, "fillchar", fill).(string); ok && utf8.RuneCountInString(c) == 1 {
				return e.pad(s, a.at(0, "width", nil), c, side)
			}
			return nil, errors.New("the fill character must be exactly one character long")
		}
	}
	stringMethods = map[string]stringMethod{
		"upper": plain(strings.ToUpper), "lower": plain(strings.ToLower), "casefold": plain(strings.ToLower),
		"title": plain(title), "capitalize": plain(capitalize), "swapcase": plain(swapcase),
		"strip": stripped(true, true), "lstrip": stripped(true, false), "rstrip": stripped(false, true),
		"isdigit": all(unicode.IsDigit), "isdecimal": all(unicode.IsDigit), "isnumeric": all(unicode.IsNumber), "isalpha": all(unicode.IsLetter),
		"isalnum": all(func(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) }), "isspace": all(space),
		"islower": cased(strings.ToLower), "isupper": cased(strings.ToUpper),
		"ljust": padded(1, " "), "rjust": padded(0, " "), "center": padded(2, " "),
		"zfill": func(e *eval, s string, a *args) (Value, error) {
			sign := ""
			if s != "" && (s[0] == '-' || s[0] == '+') {
				sign, s = s[:1], s[1:]
			}
			width, _ := a.at(0, "width", int64(0)).(int64)
			v, err := e.pad(s, width-int64(len(sign)), "0", 0)
			if err != nil {
				return nil, err
			}
			return sign + v.(string), nil
		},
		"startswith": affix(strings.HasPrefix), "endswith": affix(strings.HasSuffix),
		"removeprefix": one2(func(s, x string) Value { return strings.TrimPrefix(s, x) }),
		"removesuffix": one2(func(s, x string) Value { return strings.TrimSuffix(s, x) }),
		"count": one2(func(s, x string) Value {
			if x == "" {
				return int64(count(s) + 1)
			}
			return int64(strings.Count(s, x))
		}),
		"find":  search(strings.Index, false),
		"rfind": search(strings.LastIndex, false),
		"index": search(strings.Index, true), "rindex": search(strings.LastIndex, true),
		"partition": one2(func(s, x string) Value {
			if i := strings.Index(s, x); i >= 0 {
				return &List{Items: []Value{s[:i], x, s[i+len(x):]}, tuple: true}
			}
			return &List{Items: []Value{s, "", ""}, tuple: true}
		}),
		"rpartition": one2(func(s, x string) Value {
			if i := strings.LastIndex(s, x); i >= 0 {
				return &List{Items: []Value{s[:i], x, s[i+len(x):]}, tuple: true}
			}
			return &List{Items: []Value{"", "", s}, tuple: true}
		}),
		"split": split(false), "rsplit": split(true), "splitlines": splitlines,
		"join": func(e *eval, s string, a *args) (Value, error) {
			items, err := e.iterate(a.at(0, "iterable", nil))
			if err != nil {
				return nil, err
			}
			return e.join(items, s, func(v Value) (string, error) {
				x, ok := v.(string)
				if !ok {
					return "", fmt.Errorf("join: expected str instance, %s found", typeName(v))
				}
				return x, nil
			})
		},
		"replace": func(e *eval, s string, a *args) (Value, error) {
			old, ok1 := a.at(0, "old", nil).(string)
			with, ok2 := a.at(1, "new", nil).(string)
			if !ok1 || !ok2 {
				return nil, errors.New("replace() takes two strings")
			}
			return e.replace(s, old, with, a.at(2, "count", nil))
		},
		"format": formatMethod,
	}
}

// one2 is a method with one string as argument.
func one2(f func(s, x string) Value) stringMethod {
	return func(e *eval, s string, a *args) (Value, error) {
		x, ok := a.at(0, "", nil).(string)
		if !ok {
			return nil, fmt.Errorf("must be str, not %s", typeName(a.at(0, "", nil)))
		}
		return f(s, x), nil
	}
}

// affix takes a string or a tuple of strings.
func affix(has func(s, x string) bool) stringMethod {
	return func(e *eval, s string, a *args) (Value, error) {
		options := []Value{a.at(0, "", nil)}
		if l, ok := options[0].(*List); ok && l.tuple {
			options = l.Items
		}
		for _, v := range options {
			x, ok := v.(string)
			if !ok {
				return nil, fmt.Errorf("first arg must be str or a tuple of str, not %s", typeName(v))
			}
			if has(s, x) {
				return true, nil
			}
		}
		return false, nil
	}
}

// search gives positions in characters.
func search(index func(s, x string) int, must bool) stringMethod {
	return func(e *eval, s string, a *args) (Value, error) {
		x, ok := a.at(0, "", nil).(string)
		if !ok || len(a.pos) != 1 {
			return nil, errors.New("a search takes one string")
		}
		i := index(s, x)
		if i < 0 {
			if must {
				return nil, errors.New("substring not found")
			}
			return int64(-1), nil
		}
		return int64(utf8.RuneCountInString(s[:i])), nil
	}
}
