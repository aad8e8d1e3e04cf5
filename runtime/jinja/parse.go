package jinja

import (
	"fmt"
	"slices"
)

// maxSource and maxDepth bound what a template can make the parser do.
const (
	maxSource = 1 << 20 // bytes
	maxDepth  = 200     // tags or brackets inside each other
)

// Template is a parsed template. It may be rendered by several goroutines.
type Template struct{ body []node }

// A node prints; an expr has a value.
type (
	node interface {
		exec(e *eval) error
	}
	expr interface {
		eval(e *eval) (Value, error)
	}
)

// Parse reads a template. Tags that are not known are named in the error.
func Parse(src string) (*Template, error) {
	if len(src) > maxSource {
		return nil, &Error{What: fmt.Sprintf("a template of %d bytes (wanted at most %d)", len(src), maxSource), Unsupported: true}
	}
	tokens, err := lex(src)
	if err != nil {
		return nil, err
	}
	p := &parser{tokens: tokens}
	body, err := p.body()
	if err != nil {
		return nil, err
	}
	if p.cur().kind != tokEnd {
		return nil, p.fail("unexpected tag '%s'", p.cur().text)
	}
	return &Template{body}, nil
}

type parser struct {
	tokens []token
	pos    int
	depth  int
	loops  int             // loops around the tag that break and continue would leave
	named  map[string]bool // names that the macro at hand has used
}

func (p *parser) cur() token { return p.tokens[p.pos] }

func (p *parser) peek() token { return p.tokens[min(p.pos+1, len(p.tokens)-1)] }

func (p *parser) next() token {
	t := p.tokens[p.pos]
	if p.pos < len(p.tokens)-1 {
		p.pos++
	}
	return t
}

func (p *parser) fail(what string, args ...any) error {
	return &Error{Line: p.cur().line, What: fmt.Sprintf(what, args...)}
}

func (p *parser) unsupported(what string, args ...any) error {
	return &Error{Line: p.cur().line, What: fmt.Sprintf(what, args...), Unsupported: true}
}

func (p *parser) isOp(op string) bool { return p.cur().kind == tokOp && p.cur().text == op }

func (p *parser) isName(name string) bool { return p.cur().kind == tokName && p.cur().text == name }

func (p *parser) skipOp(op string) bool {
	if p.isOp(op) {
		p.next()
		return true
	}
	return false
}

func (p *parser) skipName(name string) bool {
	if p.isName(name) {
		p.next()
		return true
	}
	return false
}

func (p *parser) expectOp(op string) error {
	if !p.skipOp(op) {
		return p.fail("expected '%s', found %s", op, p.cur().describe())
	}
	return nil
}

func (p *parser) expect(k kind, what string) (token, error) {
	if p.cur().kind != k {
		return token{}, p.fail("expected %s, found %s", what, p.cur().describe())
	}
	return p.next(), nil
}

func (p *parser) name() (string, error) {
	t, err := p.expect(tokName, "a name")
	return t.text, err
}

// deeper counts a level of nesting; the caller undoes it with p.depth--.
func (p *parser) deeper() error {
	if p.depth++; p.depth > maxDepth {
		return p.unsupported("more than %d levels of nesting", maxDepth)
	}
	return nil
}

// body reads up to a tag of one of the names, which is left to be read.
func (p *parser) body(ends ...string) ([]node, error) {
	if err := p.deeper(); err != nil {
		return nil, err
	}
	defer func() { p.depth-- }()
	var out []node
	for {
		t := p.cur()
		switch t.kind {
		case tokData:
			p.next()
			out = append(out, data(t.text))
		case tokOpen:
			p.next()
			x, err := p.tuple(true, false)
			if err != nil {
				return nil, err
			}
			if _, err := p.expect(tokClose, "'}}'"); err != nil {
				return nil, err
			}
			out = append(out, &output{x, t.line})
		case tokBlock:
			p.next()
			if p.cur().kind == tokName && (slices.Contains(ends, p.cur().text) || len(ends) == 0 && endings[p.cur().text]) {
				return out, nil
			}
			n, err := p.statement()
			if err != nil {
				return nil, err
			}
			if err := p.endTag(); err != nil {
				return nil, err
			}
			out = append(out, n...)
		default:
			if len(ends) > 0 {
				return nil, p.fail("expected {%% %s %%}, found %s", ends[len(ends)-1], t.describe())
			}
			return out, nil
		}
	}
}

func (p *parser) endTag() error {
	_, err := p.expect(tokBlockEnd, "'%}'")
	return err
}

// inner reads the body of a tag that was read up to its end, and the ending
// tag up to but without its own end.
func (p *parser) inner(ends ...string) ([]node, string, error) {
	if err := p.endTag(); err != nil {
		return nil, "", err
	}
	body, err := p.body(ends...)
	if err != nil {
		return nil, "", err
	}
	return body, p.next().text, nil
}

// statements is the tags, by name.
var statements map[string]func(*parser) ([]node, error)

// endings are the tags that end or divide another.
var endings = map[string]bool{"else": true, "elif": true, "endif": true, "endfor": true, "endset": true, "endmacro": true,
	"endcall": true, "endfilter": true, "endwith": true, "endblock": true, "endgeneration": true}

func init() {
	statements = map[string]func(*parser) ([]node, error){
		"if": (*parser).ifTag, "for": (*parser).forTag, "set": (*parser).setTag, "macro": (*parser).macroTag, "call": (*parser).callTag,
		"filter": (*parser).filterTag, "with": (*parser).withTag, "print": (*parser).printTag,
		"break": (*parser).loopTag, "continue": (*parser).loopTag,
		"generation": (*parser).plainTag, "block": (*parser).plainTag,
	}
}

func (p *parser) statement() ([]node, error) {
	t := p.cur()
	if t.kind != tokName {
		return nil, p.fail("expected the name of a tag, found %s", t.describe())
	}
	read := statements[t.text]
	if read == nil {
		return nil, p.unsupported("unknown tag '%s'", t.text)
	}
	p.next()
	return read(p)
}

func one(n node) []node { return []node{n} }

func (p *parser) ifTag() ([]node, error) {
	n := &ifNode{}
	for {
		test, err := p.tuple(false, false)
		if err != nil {
			return nil, err
		}
		body, end, err := p.inner("elif", "else", "endif")
		if err != nil {
			return nil, err
		}
		n.tests, n.bodies = append(n.tests, test), append(n.bodies, body)
		switch end {
		case "else":
			n.otherwise, _, err = p.inner("endif")
			return one(n), err
		case "endif":
			return one(n), nil
		}
	}
}

func (p *parser) forTag() ([]node, error) {
	n := &forNode{line: p.cur().line}
	var err error
	if n.target, err = p.target(false); err != nil {
		return nil, err
	}
	if !p.skipName("in") {
		return nil, p.fail("expected 'in', found %s", p.cur().describe())
	}
	if n.iter, err = p.tuple(false, false); err != nil {
		return nil, err
	}
	if p.skipName("if") {
		if n.test, err = p.expression(); err != nil {
			return nil, err
		}
	}
	n.recursive = p.skipName("recursive")
	p.loops++
	body, end, err := p.inner("else", "endfor")
	p.loops--
	if n.body = body; err != nil {
		return nil, err
	}
	if end == "else" {
		n.otherwise, _, err = p.inner("endfor")
	}
	return one(n), err
}

// loopTag is {% break %} and {% continue %}.
func (p *parser) loopTag() ([]node, error) {
	t := p.tokens[p.pos-1]
	if p.loops == 0 {
		return nil, p.fail("'%s' outside a loop", t.text)
	}
	return one(jump{map[string]error{"break": errBreak, "continue": errContinue}[t.text]}), nil
}

func (p *parser) setTag() ([]node, error) {
	n := &setNode{line: p.cur().line}
	var err error
	if n.target, err = p.target(true); err != nil {
		return nil, err
	}
	if p.skipOp("=") {
		n.value, err = p.tuple(true, false)
		return one(n), err
	}
	n.block = true
	if n.value, err = p.filters(&captured{}); err != nil {
		return nil, err
	}
	n.body, _, err = p.inner("endset")
	return one(n), err
}

// signature is the parameters of a macro or of a call's caller.
func (p *parser) signature() (params []string, defaults []expr, err error) {
	if err := p.expectOp("("); err != nil {
		return nil, nil, err
	}
	for !p.skipOp(")") {
		if len(params) > 0 {
			if err := p.expectOp(","); err != nil {
				return nil, nil, err
			}
			if p.skipOp(")") {
				break
			}
		}
		name, err := p.name()
		if err != nil {
			return nil, nil, err
		}
		var def expr
		if p.skipOp("=") {
			if def, err = p.expression(); err != nil {
				return nil, nil, err
			}
		} else if len(defaults) > 0 && defaults[len(defaults)-1] != nil {
			return nil, nil, p.fail("parameter '%s' without a default behind one that has a default", name)
		}
		params, defaults = append(params, name), append(defaults, def)
	}
	return params, defaults, nil
}

func (p *parser) macroTag() ([]node, error) {
	n := &macroNode{line: p.cur().line}
	var err error
	if n.name, err = p.name(); err != nil {
		return nil, err
	}
	if n.params, n.defaults, err = p.signature(); err != nil {
		return nil, err
	}
	return one(n), p.function(n, "endmacro")
}

// function reads the body of a macro, which no break can leave.
func (p *parser) function(n *macroNode, end string) (err error) {
	loops, named := p.loops, p.named
	p.loops, p.named = 0, map[string]bool{}
	n.body, _, err = p.inner(end)
	n.varargs, n.kwargs = p.named["varargs"], p.named["kwargs"]
	p.loops, p.named = loops, named
	return err
}

func (p *parser) callTag() ([]node, error) {
	n := &callNode{macroNode: macroNode{name: "caller", line: p.cur().line}}
	var err error
	if p.isOp("(") {
		if n.params, n.defaults, err = p.signature(); err != nil {
			return nil, err
		}
	}
	x, err := p.expression()
	if err != nil {
		return nil, err
	}
	call, ok := x.(*callExpr)
	if !ok {
		return nil, p.fail("expected a call")
	}
	n.call = call
	return one(n), p.function(&n.macroNode, "endcall")
}

func (p *parser) filterTag() ([]node, error) {
	n := &filterNode{line: p.cur().line}
	var err error
	// The first filter stands there without its bar.
	if n.value, err = p.filter(&captured{}); err != nil {
		return nil, err
	}
	if n.value, err = p.filters(n.value); err != nil {
		return nil, err
	}
	n.body, _, err = p.inner("endfilter")
	return one(n), err
}

func (p *parser) withTag() ([]node, error) {
	n := &withNode{}
	for p.cur().kind != tokBlockEnd {
		if len(n.targets) > 0 {
			if err := p.expectOp(","); err != nil {
				return nil, err
			}
		}
		t, err := p.target(false)
		if err != nil {
			return nil, err
		}
		if err := p.expectOp("="); err != nil {
			return nil, err
		}
		v, err := p.expression()
		if err != nil {
			return nil, err
		}
		n.targets, n.values = append(n.targets, t), append(n.values, v)
	}
	var err error
	n.body, _, err = p.inner("endwith")
	return one(n), err
}

func (p *parser) printTag() ([]node, error) {
	line := p.cur().line
	x, err := p.tuple(true, false)
	return one(&output{x, line}), err
}

// plainTag prints what is in it: {% generation %} marks what a model is trained
// to say, {% block %} what another template could replace.
func (p *parser) plainTag() ([]node, error) {
	tag := p.tokens[p.pos-1].text
	if tag == "block" {
		if _, err := p.name(); err != nil {
			return nil, err
		}
	}
	body, _, err := p.inner("end" + tag)
	if tag == "block" && p.cur().kind == tokName {
		p.next() // {% endblock name %}
	}
	return one(&withNode{body: body}), err
}

// target is what a value is assigned to: a name, names in a tuple, or an
// attribute of a namespace.
type target struct {
	name, attr string
	parts      []target // of a tuple
}

func (p *parser) target(attrs bool) (target, error) {
	t, err := p.oneTarget(attrs)
	if err != nil || !p.isOp(",") {
		return t, err
	}
	parts := []target{t}
	for p.skipOp(",") {
		if p.isName("in") || p.isOp("=") || p.isOp(")") {
			break
		}
		if t, err = p.oneTarget(attrs); err != nil {
			return t, err
		}
		parts = append(parts, t)
	}
	return target{parts: parts}, nil
}

func (p *parser) oneTarget(attrs bool) (target, error) {
	if err := p.deeper(); err != nil {
		return target{}, err
	}
	defer func() { p.depth-- }()
	if p.skipOp("(") {
		t, err := p.target(attrs)
		if err == nil {
			err = p.expectOp(")")
		}
		return t, err
	}
	name, err := p.name()
	if err != nil {
		return target{}, err
	}
	if _, isConst := constants[name]; isConst {
		return target{}, p.fail("'%s' cannot be assigned to", name)
	}
	t := target{name: name}
	if attrs && p.skipOp(".") {
		t.attr, err = p.name()
	}
	return t, err
}
