package jinja

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"
)

// noon is the time that templates are told.
var noon = time.Date(2026, 7, 9, 13, 5, 6, 0, time.UTC)

type oracle struct {
	Vars  json.RawMessage
	Cases []struct {
		Src      string
		Out, Err *string
	}
}

func readOracle(t testing.TB) oracle {
	t.Helper()
	data, err := os.ReadFile("testdata/cases.json")
	if err != nil {
		t.Fatal(err)
	}
	var o oracle
	if err := json.Unmarshal(data, &o); err != nil {
		t.Fatal(err)
	}
	return o
}

func render(src string, vars *Dict) (string, error) {
	tpl, err := Parse(src)
	if err != nil {
		return "", err
	}
	return tpl.Render(vars, noon)
}

func decoded(t testing.TB, data string) *Dict {
	t.Helper()
	v, err := DecodeJSON([]byte(data))
	if err != nil {
		t.Fatal(err)
	}
	return v.(*Dict)
}

// TestEqualsPython holds every case against what Jinja2 made of it
// (testdata/oracle.py): the same text, or an error where it has one.
func TestEqualsPython(t *testing.T) {
	o := readOracle(t)
	if len(o.Cases) < 200 {
		t.Fatalf("only %d cases", len(o.Cases))
	}
	for _, c := range o.Cases {
		got, err := render(c.Src, decoded(t, string(o.Vars)))
		switch {
		case c.Err != nil && err == nil:
			t.Errorf("%q:\n got  %q\n want an error: %s", c.Src, got, *c.Err)
		case c.Out != nil && err != nil:
			t.Errorf("%q:\n got  %v\n want %q", c.Src, err, *c.Out)
		case c.Out != nil && got != *c.Out:
			t.Errorf("%q:\n got  %q\n want %q", c.Src, got, *c.Out)
		}
	}
}

// TestHostileTemplates would not end, or not fit in memory or on the stack, if
// what a template asks for were not counted.
func TestHostileTemplates(t *testing.T) {
	many := strings.Repeat
	for name, src := range map[string]string{
		"loops in loops":       many("{% for i in range(100000) %}", 5) + many("{% endfor %}", 5),
		"text that doubles":    "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
		"sums that double":     "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
		"lists that double":    "{% set n = namespace(s=[1]) %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
		"json that doubles":    "{% set n = namespace(s=['x']) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s | tojson }}",
		"text of what doubles": "{% set n = namespace(s=['x']) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s }}",
		"equal what doubles":   "{% set n = namespace(a=['x'], b=['x']) %}{% for i in range(60) %}{% set n.a = [n.a, n.a] %}{% set n.b = [n.b, n.b] %}{% endfor %}{{ n.a == n.b }}",
		"order what doubles":   "{% set n = namespace(a=['x'], b=['x']) %}{% for i in range(60) %}{% set n.a = [n.a, n.a] %}{% set n.b = [n.b, n.b] %}{% endfor %}{{ n.a < n.b }}",
		"repeated text":        "{{ 'x' * 1000000000000 }}",
		"repeated lists":       "{{ [1] * 1000000000000 }}",
		"repeated repeats":     "{{ ((('x' * 100000) * 100000) * 100000) | length }}",
		"replaced nothing":     "{% set s = 'x' * 1000000 %}{{ s | replace('', s) }}",
		"padding":              "{{ 'x'.ljust(1000000000000) }}",
		"zeros":                "{{ 'x'.zfill(1000000000000) }}",
		"format width":         "{{ '%1000000000d' % 1 }}",
		"indent":               "{{ ('x\n' * 100000) | indent(1000000000) }}",
		"json indent":          "{{ [[1]] | tojson(indent=1000000000) }}",
		"batches":              "{{ [1] | batch(1000000000000, 0) }}",
		"joins":                "{% set s = 'x' * 1000000 %}{{ range(100000) | join(s) }}",
		"recursion":            "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
		"recursive loop":       "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
		"recursive call":       "{% macro f() %}{% call f() %}{% endcall %}{% endmacro %}{{ f() }}",
		"parentheses":          "{{ " + many("(", 100000) + "1" + many(")", 100000) + " }}",
		"brackets":             "{{ " + many("[", 100000) + many("]", 100000) + " }}",
		"braces":               "{{ " + many("{1:", 100000) + "1" + many("}", 100000) + " }}",
		"signs":                "{{ " + many("-", 100000) + "1 }}",
		"negations":            "{{ " + many("not ", 100000) + "1 }}",
		"conditions":           "{{ " + many("1 if 1 else ", 50000) + "1 }}",
		"tags":                 many("{% if 1 %}", 50000) + many("{% endif %}", 50000),
		"targets":              "{% for " + many("(", 100000) + "a" + many(")", 100000) + " in [] %}{% endfor %}",
		"sums":                 "{{ 1" + many(" + 1", 100000) + " }}",
		"filters":              "{{ 1" + many(" | string", 100000) + " }}",
		"attributes":           "{{ messages" + many("[0:]", 100000) + " }}",
		"a large template":     many("x", maxSource+1),
		"range":                "{{ range(1000000000000) }}",
		"nested values":        "{% set n = namespace(a=[]) %}{% for i in range(5000) %}{% set n.a = [n.a] %}{% endfor %}{{ n.a }}",
		"nested equality":      "{% set n = namespace(a=[], b=[]) %}{% for i in range(5000) %}{% set n.a = [n.a] %}{% set n.b = [n.b] %}{% endfor %}{{ n.a == n.b }}",
		"nested json":          "{% set n = namespace(a=[]) %}{% for i in range(5000) %}{% set n.a = [n.a] %}{% endfor %}{{ n.a | tojson }}",
		"files":                "{% include '/etc/passwd' %}",
		"imports":              "{% import 'x' as y %}",
		"inheritance":          "{% extends 'x' %}",
		"overflow":             "{{ 9223372036854775807 + 1 }}",
		"large power":          "{{ 10 ** 100 }}",
	} {
		got, err := render(src, decoded(t, `{"messages":[1]}`))
		var e *Error
		if !errors.As(err, &e) || len(got) > 0 {
			t.Errorf("%s: %d bytes, %.200v", name, len(got), err)
			continue
		}
		if !e.Unsupported && !strings.HasPrefix(name, "nested ") {
			t.Errorf("%s: %.200v is no limit", name, err)
		}
	}
}

func TestErrorsSayWhere(t *testing.T) {
	for src, want := range map[string]string{
		"a\n{{ x }}\n{% for %}":                                      "line 3: expected a name, found '%}'",
		"a\n\n{{ nope.x }}":                                          "line 3: 'nope' is undefined",
		"{% if 1 %}\n{{ 1 / 0 }}\n{% endif %}":                       "line 2: division by zero",
		"{% macro f() %}\n\n{{ none + 1 }}{% endmacro %}\n{{ f() }}": "line 3: unsupported operand type(s) for +: 'NoneType' and 'int'",
		"\n{{ raise_exception('roles must alternate') }}":            "line 2: roles must alternate",
		"\n{% include 'x' %}":                                        "line 2: unknown tag 'include'",
		"{{ 1 | nope }}":                                             "line 1: unknown filter 'nope'",
		"{{ messages | tojson }} {{ f() }}":                          "line 1: 'f' is undefined",
	} {
		_, err := render(src, decoded(t, `{"messages":[1]}`))
		if err == nil || err.Error() != want {
			t.Errorf("%q:\n got  %v\n want %s", src, err, want)
		}
	}
	var e *Error
	if _, err := render("{{ raise_exception('x') }}", NewDict()); !errors.As(err, &e) || !e.Raised {
		t.Errorf("raised: %v", err)
	}
}

// TestRenderKeepsVariables: a template cannot change what it was given, so that
// one conversation can be rendered again and again.
func TestRenderKeepsVariables(t *testing.T) {
	const vars = `{"b":[1,{"x":2}],"a":"s"}`
	v := decoded(t, vars)
	src := "{% set a = 1 %}{% set b = b + [3] %}{% for x in b %}{% set x = 5 %}{% endfor %}{{ b }}{% set _ = dict(b[1], x=3) %}"
	first, err := render(src, v)
	if err != nil {
		t.Fatal(err)
	}
	if second, err := render(src, v); err != nil || second != first {
		t.Errorf("second time %q %v, first %q", second, err, first)
	}
	if got, err := EncodeJSON(v); err != nil || got != `{"b": [1, {"x": 2}], "a": "s"}` {
		t.Errorf("afterwards %s %v", got, err)
	}
}

func TestDecodeJSON(t *testing.T) {
	for in, want := range map[string]string{
		`{"z":1,"a":[1.0,1e3,12345678901234567890,-0,true,null,"é\u00e9"]}`: `{"z": 1, "a": [1.0, 1000.0, 1.2345678901234567e+19, 0, true, null, "éé"]}`,
		"[]": "[]", " 3 ": "3",
	} {
		v, err := DecodeJSON([]byte(in))
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if got, err := EncodeJSON(v); err != nil || got != want {
			t.Errorf("%s: %s %v, want %s", in, got, err, want)
		}
	}
	for _, in := range []string{"", "{", `{"a":1,"a":2}`, "[1] 2", "nul", strings.Repeat("[", 100000)} {
		if v, err := DecodeJSON([]byte(in)); err == nil {
			t.Errorf("%.20q decodes to %v", in, v)
		}
	}
}

// FuzzRender: no template panics or renders two texts of the same variables.
func FuzzRender(f *testing.F) {
	o := readOracle(f)
	for _, c := range o.Cases {
		f.Add(c.Src)
	}
	f.Fuzz(func(t *testing.T, src string) {
		a, errA := render(src, decoded(t, string(o.Vars)))
		b, errB := render(src, decoded(t, string(o.Vars)))
		if a != b || (errA == nil) != (errB == nil) {
			t.Errorf("%q: %q %v, then %q %v", src, a, errA, b, errB)
		}
	})
}

// TestLongConversations: what a template may cost grows with what it is given.
// Real ones look back over all messages at each, and add up all that was said.
func TestLongConversations(t *testing.T) {
	const n = 700
	l := NewList()
	for range n {
		l.Items = append(l.Items, NewDict("role", "user", "content", strings.Repeat("word ", 200)))
	}
	vars := NewDict("messages", l)
	for name, src := range map[string]string{
		"look back": "{% for m in messages %}{% for j in range(loop.index0) %}{% if messages[j].role == 'tool' %}x{% endif %}{% endfor %}{% endfor %}.",
		"lengths":   "{% for m in messages %}{{ messages | length if loop.index == messages | length else '' }}{% endfor %}",
		"slices":    "{% for m in messages %}{% for k in messages[loop.index0:][:1] %}{% endfor %}{% endfor %}.",
		"one text":  "{% set ns = namespace(s='') %}{% for m in messages %}{% set ns.s = ns.s ~ m.content %}{% endfor %}{{ ns.s | length }}",
	} {
		if got, err := render(src, vars); err != nil || got == "" {
			t.Errorf("%s: %q %v", name, got, err)
		}
	}
}
