package jinja

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// filters are what may follow "|".
var filters map[string]func(e *eval, v Value, a *args) (Value, error)

func init() {
	str := func(f func(string) string) func(*eval, Value, *args) (Value, error) {
		return func(e *eval, v Value, _ *args) (Value, error) {
			s, err := e.text(v)
			return f(s), err
		}
	}
	filters = map[string]func(*eval, Value, *args) (Value, error){
		"tojson": tojson, "items": itemsFilter, "dictsort": dictsort, "default": defaultFilter, "d": defaultFilter,
		"join": join, "first": first, "last": last, "length": lengthFilter, "count": lengthFilter, "list": listFilter, "reverse": reverse,
		"sort": sortFilter, "unique": unique, "min": extreme(-1), "max": extreme(1), "sum": sum, "batch": batch, "groupby": groupby,
		"map": mapFilter, "attr": attrFilter,
		"select": choose(true, false), "reject": choose(false, false), "selectattr": choose(true, true), "rejectattr": choose(false, true),
		"int": intFilter, "float": floatFilter, "abs": abs, "round": round,
		"string": str(func(s string) string { return s }), "safe": func(e *eval, v Value, _ *args) (Value, error) { return v, nil },
		"lower": str(strings.ToLower), "upper": str(strings.ToUpper), "title": str(titleFilter), "capitalize": str(capitalize),
		"escape": str(escape), "e": str(escape), "forceescape": str(escape),
		"wordcount": func(e *eval, v Value, _ *args) (Value, error) {
			s, err := e.text(v)
			return int64(len(words(s))), err
		},
		"trim": func(e *eval, v Value, a *args) (Value, error) {
			s, err := e.text(v)
			if err != nil {
				return nil, err
			}
			return strip(s, a.at(0, "chars", nil), true, true)
		},
		"replace": func(e *eval, v Value, a *args) (Value, error) {
			s, err := e.text(v)
			if err != nil {
				return nil, err
			}
			old, err1 := e.text(a.at(0, "old", nil))
			with, err2 := e.text(a.at(1, "new", nil))
			if err := errors.Join(err1, err2); err != nil {
				return nil, err
			}
			return e.replace(s, old, with, a.at(2, "count", nil))
		},
		"indent": indent, "truncate": truncate, "format": func(e *eval, v Value, a *args) (Value, error) {
			s, err := e.text(v)
			if err != nil {
				return nil, err
			}
			return e.percent(s, &List{Items: a.pos, tuple: true})
		},
		"center": func(e *eval, v Value, a *args) (Value, error) {
			s, err := e.text(v)
			if err != nil {
				return nil, err
			}
			return e.pad(s, a.at(0, "width", int64(80)), " ", 2)
		},
	}
}

func tojson(e *eval, v Value, a *args) (Value, error) {
	w := &jsonWriter{item: ", ", key: ": ", e: e}
	switch in := a.at(1, "indent", nil).(type) {
	case nil:
	case int64:
		if in > 64 {
			return nil, errBudget
		}
		w.lines, w.item, w.indent = true, ",", strings.Repeat(" ", int(max(in, 0)))
	case string:
		if len(in) > 64 {
			return nil, errBudget
		}
		w.lines, w.item, w.indent = true, ",", in
	default:
		return nil, errors.New("tojson: indent is neither a number nor a string")
	}
	if seps, ok := a.at(2, "separators", nil).(*List); ok && len(seps.Items) == 2 {
		item, ok1 := seps.Items[0].(string)
		key, ok2 := seps.Items[1].(string)
		if !ok1 || !ok2 || len(item)+len(key) > 64 {
			return nil, errors.New("tojson: separators must be two strings")
		}
		w.item, w.key = item, key
	}
	w.ascii, w.sorted = truth(a.at(0, "ensure_ascii", false)), truth(a.at(3, "sort_keys", false))
	if err := w.write(v, 0); err != nil {
		return nil, err
	}
	return w.b.String(), e.make(w.b.Len())
}

func pair(k, v Value) *List { return &List{Items: []Value{k, v}, tuple: true} }

// pairs is Python's d.items().
func pairs(d *Dict) *List {
	l := &List{}
	for _, k := range d.keys {
		v, _ := d.Get(k)
		l.Items = append(l.Items, pair(k, v))
	}
	return l
}

func itemsFilter(_ *eval, v Value, _ *args) (Value, error) {
	switch v := v.(type) {
	case *Dict:
		return pairs(v), nil
	case Undefined:
		return NewList(), nil
	}
	return nil, errors.New("Can only get item pairs from a mapping.") //nolint:staticcheck // Jinja's words
}

// sorted is values in order; strings ignore their case unless cased.
func (e *eval) sorted(values []Value, descending, cased bool) ([]Value, error) {
	return e.sortBy(values, descending, cased, func(v Value) (Value, error) { return v, nil })
}

func (e *eval) sortBy(values []Value, descending, cased bool, key func(Value) (Value, error)) ([]Value, error) {
	type keyed struct{ key, v Value }
	all := make([]keyed, len(values))
	for i, v := range values {
		k, err := key(v)
		if err != nil {
			return nil, err
		}
		if s, ok := k.(string); ok && !cased {
			k = strings.ToLower(s)
		}
		all[i] = keyed{k, v}
	}
	var bad error
	sort.SliceStable(all, func(i, j int) bool {
		a, b := all[i].key, all[j].key
		if descending {
			a, b = b, a
		}
		c, err := e.compare(a, b, 0)
		if err != nil {
			bad = err
		}
		return c < 0
	})
	out := make([]Value, len(all))
	for i := range all {
		out[i] = all[i].v
	}
	return out, bad
}

func dictsort(e *eval, v Value, a *args) (Value, error) {
	d, ok := v.(*Dict)
	if !ok {
		return nil, fmt.Errorf("dictsort of a %s", typeName(v))
	}
	at := 0
	if a.at(1, "by", "key") == "value" {
		at = 1
	}
	items := pairs(d).Items
	if err := e.spend(sortCost(len(items))); err != nil {
		return nil, err
	}
	out, err := e.sortBy(items, truth(a.at(2, "reverse", false)), truth(a.at(0, "case_sensitive", false)),
		func(v Value) (Value, error) { return v.(*List).Items[at], nil })
	return &List{Items: out}, err
}

func sortCost(n int) int { return n * int(math.Log2(float64(n+2))) }

func defaultFilter(_ *eval, v Value, a *args) (Value, error) {
	_, undefined := v.(Undefined)
	if undefined || truth(a.at(1, "boolean", false)) && !truth(v) {
		return a.at(0, "default_value", ""), nil
	}
	return v, nil
}

// getter looks up attribute "a.b.0" of an item, or is the item for nil.
func getter(attr Value, otherwise Value) func(Value) (Value, error) {
	return func(v Value) (Value, error) {
		var parts []Value
		switch attr := attr.(type) {
		case nil:
			return v, nil
		case string:
			for _, p := range strings.Split(attr, ".") {
				if n, err := strconv.ParseInt(p, 10, 64); err == nil && n >= 0 {
					parts = append(parts, n)
				} else {
					parts = append(parts, p)
				}
			}
		default:
			parts = []Value{attr}
		}
		for _, p := range parts {
			var err error
			if v, err = item(v, p); err != nil {
				return nil, err
			}
			if _, undefined := v.(Undefined); undefined && otherwise != nil {
				v = otherwise
			}
		}
		return v, nil
	}
}

func join(e *eval, v Value, a *args) (Value, error) {
	items, err := e.iterate(v)
	if err != nil {
		return nil, err
	}
	sep, err := e.text(a.at(0, "d", ""))
	if err != nil {
		return nil, err
	}
	return e.join(items, sep, func(v Value) (string, error) {
		v, err := getter(a.at(1, "attribute", nil), nil)(v)
		if err != nil {
			return "", err
		}
		return e.text(v)
	})
}

func (e *eval) join(items []Value, sep string, str func(Value) (string, error)) (Value, error) {
	var b strings.Builder
	for i, v := range items {
		s, err := str(v)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			s = sep + s
		}
		if err := e.make(len(s)); err != nil {
			return nil, err
		}
		b.WriteString(s)
	}
	return b.String(), nil
}

func first(e *eval, v Value, _ *args) (Value, error) { return end(e, v, 0) }

func last(e *eval, v Value, _ *args) (Value, error) { return end(e, v, -1) }

func end(e *eval, v Value, at int) (Value, error) {
	items, err := e.iterate(v)
	if err != nil {
		return nil, err
	}
	if len(items) == 0 {
		return Undefined{what: "No first or last item, sequence was empty."}, nil
	}
	if at < 0 {
		at += len(items)
	}
	return items[at], nil
}

func lengthFilter(_ *eval, v Value, _ *args) (Value, error) {
	switch v.(type) {
	case string, *List, *Dict, Undefined:
		return int64(count(v)), nil
	}
	return nil, fmt.Errorf("object of type '%s' has no len()", typeName(v))
}

func listFilter(e *eval, v Value, _ *args) (Value, error) {
	items, err := e.iterate(v)
	if err == nil {
		err = e.list(len(items))
	}
	if err != nil {
		return nil, err
	}
	return &List{Items: slices.Clone(items)}, nil
}

func reverse(e *eval, v Value, _ *args) (Value, error) {
	if s, ok := v.(string); ok {
		r := []rune(s)
		slices.Reverse(r)
		return string(r), nil
	}
	l, err := listFilter(e, v, nil)
	if err != nil {
		return nil, err
	}
	slices.Reverse(l.(*List).Items)
	return l, nil
}

func sortFilter(e *eval, v Value, a *args) (Value, error) {
	items, err := e.iterate(v)
	if err != nil {
		return nil, err
	}
	if err := e.spend(sortCost(len(items))); err != nil {
		return nil, err
	}
	out, err := e.sortBy(items, truth(a.at(0, "reverse", false)), truth(a.at(1, "case_sensitive", false)), getter(a.at(2, "attribute", nil), nil))
	return &List{Items: out}, err
}

func unique(e *eval, v Value, a *args) (Value, error) {
	items, err := e.iterate(v)
	if err != nil {
		return nil, err
	}
	if err := e.list(len(items)); err != nil {
		return nil, err
	}
	seen := NewDict()
	out := &List{}
	get := getter(a.at(1, "attribute", nil), nil)
	for _, v := range items {
		k, err := get(v)
		if err != nil {
			return nil, err
		}
		if s, ok := k.(string); ok && !truth(a.at(0, "case_sensitive", false)) {
			k = strings.ToLower(s)
		}
		if _, twice := seen.Get(k); twice {
			continue
		}
		if !seen.Set(k, true) {
			return nil, fmt.Errorf("unhashable type: '%s'", typeName(k))
		}
		out.Items = append(out.Items, v)
	}
	return out, nil
}

func extreme(sign int) func(*eval, Value, *args) (Value, error) {
	return func(e *eval, v Value, a *args) (Value, error) {
		items, err := e.iterate(v)
		if err != nil {
			return nil, err
		}
		if len(items) == 0 {
			return Undefined{what: "No aggregated item, sequence was empty."}, nil
		}
		out, err := e.sortBy(items, sign > 0, truth(a.at(0, "case_sensitive", false)), getter(a.at(1, "attribute", nil), nil))
		if err != nil {
			return nil, err
		}
		return out[0], e.spend(sortCost(len(items)))
	}
}

func sum(e *eval, v Value, a *args) (Value, error) {
	items, err := e.iterate(v)
	if err != nil {
		return nil, err
	}
	get, total := getter(a.at(0, "attribute", nil), nil), a.at(1, "start", int64(0))
	for _, v := range items {
		if v, err = get(v); err != nil {
			return nil, err
		}
		if total, err = e.binary("+", total, v); err != nil {
			return nil, err
		}
	}
	return total, nil
}

func batch(e *eval, v Value, a *args) (Value, error) {
	items, err := e.iterate(v)
	n, ok := a.at(0, "linecount", nil).(int64)
	if err == nil && (!ok || n < 1) {
		err = errors.New("batch takes a number of items")
	}
	if err != nil {
		return nil, err
	}
	fill := a.at(1, "fill_with", nil)
	out := &List{}
	for len(items) > 0 {
		k := min(int64(len(items)), n)
		row := slices.Clone(items[:k])
		items = items[k:]
		if fill != nil {
			if err := e.list(int(min(n-k, mostBytes))); err != nil {
				return nil, err
			}
			for int64(len(row)) < n {
				row = append(row, fill)
			}
		}
		out.Items = append(out.Items, &List{Items: row})
	}
	return out, nil
}

func groupby(e *eval, v Value, a *args) (Value, error) {
	items, err := e.iterate(v)
	if err != nil {
		return nil, err
	}
	cased := truth(a.at(2, "case_sensitive", false))
	get := getter(a.at(0, "attribute", nil), a.at(1, "default", nil))
	if items, err = e.sortBy(items, false, cased, get); err != nil {
		return nil, err
	}
	fold := func(v Value) Value {
		if s, ok := v.(string); ok && !cased {
			return strings.ToLower(s)
		}
		return v
	}
	out := &List{}
	var group *List
	var key Value
	for _, v := range items {
		k, err := get(v)
		if err != nil {
			return nil, err
		}
		same, err := e.equal(fold(k), fold(key), 0)
		if err != nil {
			return nil, err
		}
		if group == nil || !same {
			group, key = &List{}, k
			out.Items = append(out.Items, pair(k, group))
		}
		group.Items = append(group.Items, v)
	}
	return out, e.spend(sortCost(len(items)))
}

// rest is the arguments behind the first n.
func (a *args) rest(n int) *args {
	return &args{pos: a.pos[min(n, len(a.pos)):], named: a.named, values: a.values}
}

func mapFilter(e *eval, v Value, a *args) (Value, error) {
	items, err := e.iterate(v)
	if err != nil {
		return nil, err
	}
	apply := getter(a.at(-1, "attribute", nil), a.at(-1, "default", nil))
	if len(a.pos) > 0 {
		name, ok := a.pos[0].(string)
		if !ok {
			return nil, errors.New("map takes the name of a filter or an attribute")
		}
		apply = func(v Value) (Value, error) { return e.filter(name, v, a.rest(1)) }
	} else if a.values["attribute"] == nil {
		return nil, errors.New("map takes the name of a filter or an attribute")
	}
	out := &List{}
	for _, v := range items {
		if v, err = apply(v); err != nil {
			return nil, err
		}
		out.Items = append(out.Items, v)
	}
	return out, nil
}

func attrFilter(_ *eval, v Value, a *args) (Value, error) {
	name, ok := a.at(0, "name", nil).(string)
	if !ok {
		return nil, errors.New("attr takes a name")
	}
	out, ok, err := member(v, name)
	if !ok && err == nil {
		return missing(v, name), nil
	}
	return out, err
}

// choose is select and reject, of the items or of an attribute of theirs.
func choose(keep, byAttr bool) func(*eval, Value, *args) (Value, error) {
	return func(e *eval, v Value, a *args) (Value, error) {
		items, err := e.iterate(v)
		if err != nil {
			return nil, err
		}
		get := func(v Value) (Value, error) { return v, nil }
		if byAttr {
			if len(a.pos) == 0 {
				return nil, errors.New("the name of an attribute is missing")
			}
			get, a = getter(a.pos[0], nil), a.rest(1)
		}
		test := func(v Value) (bool, error) { return truth(v), nil }
		if len(a.pos) > 0 {
			name, ok := a.pos[0].(string)
			if !ok {
				return nil, errors.New("the name of a test is missing")
			}
			rest := a.rest(1)
			test = func(v Value) (bool, error) { return e.is(name, v, rest) }
		}
		out := &List{}
		for _, v := range items {
			x, err := get(v)
			if err != nil {
				return nil, err
			}
			ok, err := test(x)
			if err != nil {
				return nil, err
			}
			if ok == keep {
				out.Items = append(out.Items, v)
			}
		}
		return out, nil
	}
}
