package jinja

var constants = map[string]Value{"true": true, "True": true, "false": false, "False": false, "none": nil, "None": nil}

// tuple is an expression or several with commas between them. conditional says
// whether "x if y" may stand there, empty whether nothing may.
func (p *parser) tuple(conditional, empty bool) (expr, error) {
	one := p.expression
	if !conditional {
		one = p.or
	}
	var items []expr
	isTuple := false
	for {
		if len(items) > 0 {
			if !p.skipOp(",") {
				break
			}
			isTuple = true
		}
		if t := p.cur(); t.kind == tokClose || t.kind == tokBlockEnd || p.isOp(")") || p.isName("recursive") && !conditional {
			break
		}
		x, err := one()
		if err != nil {
			return nil, err
		}
		items = append(items, x)
	}
	switch {
	case isTuple, len(items) == 0 && empty:
		return &listExpr{items: items, tuple: true}, nil
	case len(items) == 0:
		return nil, p.fail("expected an expression, found %s", p.cur().describe())
	}
	return items[0], nil
}

func (p *parser) expression() (expr, error) {
	if err := p.deeper(); err != nil {
		return nil, err
	}
	defer func() { p.depth-- }()
	x, err := p.or()
	for err == nil && p.skipName("if") {
		c := &condExpr{yes: x, line: p.cur().line}
		if c.test, err = p.or(); err != nil {
			return nil, err
		}
		if p.skipName("else") {
			if c.no, err = p.expression(); err != nil {
				return nil, err
			}
		}
		x = c
	}
	return x, err
}

func (p *parser) or() (expr, error) {
	return p.logic("or", func() (expr, error) { return p.logic("and", p.not) })
}

func (p *parser) logic(op string, operand func() (expr, error)) (expr, error) {
	x, err := operand()
	for err == nil && p.skipName(op) {
		var y expr
		if y, err = operand(); err == nil {
			x = &logicExpr{and: op == "and", x: x, y: y}
		}
	}
	return x, err
}

func (p *parser) not() (expr, error) {
	if err := p.deeper(); err != nil {
		return nil, err
	}
	defer func() { p.depth-- }()
	if p.skipName("not") {
		x, err := p.not()
		return &notExpr{x}, err
	}
	return p.compare()
}

func (p *parser) compare() (expr, error) {
	x, err := p.sum()
	if err != nil {
		return nil, err
	}
	c := &compareExpr{x: x, line: p.cur().line}
	for {
		op := ""
		switch t := p.cur(); {
		case t.kind == tokOp && (t.text == "==" || t.text == "!=" || t.text == "<" || t.text == "<=" || t.text == ">" || t.text == ">="):
			op = p.next().text
		case p.skipName("in"):
			op = "in"
		case p.isName("not") && p.peek().kind == tokName && p.peek().text == "in":
			p.next()
			p.next()
			op = "not in"
		}
		if op == "" {
			break
		}
		y, err := p.sum()
		if err != nil {
			return nil, err
		}
		c.ops, c.ys = append(c.ops, op), append(c.ys, y)
	}
	if len(c.ops) == 0 {
		return x, nil
	}
	return c, nil
}

func (p *parser) sum() (expr, error) { return p.binary(p.concat, "+", "-") }

func (p *parser) concat() (expr, error) {
	x, err := p.product()
	if err != nil || !p.isOp("~") {
		return x, err
	}
	c := &concatExpr{parts: []expr{x}, line: p.cur().line}
	for p.skipOp("~") {
		if x, err = p.product(); err != nil {
			return nil, err
		}
		c.parts = append(c.parts, x)
	}
	return c, nil
}

func (p *parser) product() (expr, error) { return p.binary(p.power, "*", "/", "//", "%") }

func (p *parser) power() (expr, error) {
	return p.binary(func() (expr, error) { return p.unary(true) }, "**")
}

func (p *parser) binary(operand func() (expr, error), ops ...string) (expr, error) {
	x, err := operand()
	for err == nil {
		found := ""
		for _, op := range ops {
			if p.isOp(op) {
				found = op
			}
		}
		if found == "" {
			break
		}
		b := &binaryExpr{op: p.next().text, x: x, line: p.cur().line}
		b.y, err = operand()
		x = b
	}
	return x, err
}

func (p *parser) unary(filters bool) (expr, error) {
	if err := p.deeper(); err != nil {
		return nil, err
	}
	defer func() { p.depth-- }()
	var x expr
	var err error
	if p.isOp("-") || p.isOp("+") {
		n := &signExpr{negative: p.next().text == "-", line: p.cur().line}
		n.x, err = p.unary(false)
		x = n
	} else {
		x, err = p.primary()
	}
	if err == nil {
		x, err = p.postfix(x)
	}
	if err == nil && filters {
		x, err = p.filters(x)
	}
	return x, err
}

func (p *parser) primary() (expr, error) {
	t := p.next()
	switch t.kind {
	case tokName:
		if v, ok := constants[t.text]; ok {
			return constant{v}, nil
		}
		if p.named != nil {
			p.named[t.text] = true
		}
		return &nameExpr{t.text}, nil
	case tokString:
		s := t.text
		for p.cur().kind == tokString {
			s += p.next().text
		}
		return constant{s}, nil
	case tokInt:
		return constant{t.i}, nil
	case tokFloat:
		return constant{t.f}, nil
	case tokOp:
		switch t.text {
		case "(":
			x, err := p.tuple(true, true)
			if err == nil {
				err = p.expectOp(")")
			}
			return x, err
		case "[":
			l := &listExpr{}
			for !p.skipOp("]") {
				if len(l.items) > 0 {
					if err := p.expectOp(","); err != nil {
						return nil, err
					}
					if p.skipOp("]") {
						break
					}
				}
				x, err := p.expression()
				if err != nil {
					return nil, err
				}
				l.items = append(l.items, x)
			}
			return l, nil
		case "{":
			return p.dict(t.line)
		}
	}
	p.pos = max(p.pos-1, 0)
	return nil, p.fail("expected a value, found %s", p.cur().describe())
}

func (p *parser) dict(line int) (expr, error) {
	d := &dictExpr{line: line}
	for !p.skipOp("}") {
		if len(d.keys) > 0 {
			if err := p.expectOp(","); err != nil {
				return nil, err
			}
			if p.skipOp("}") {
				break
			}
		}
		k, err := p.expression()
		if err != nil {
			return nil, err
		}
		if err := p.expectOp(":"); err != nil {
			return nil, err
		}
		v, err := p.expression()
		if err != nil {
			return nil, err
		}
		d.keys, d.values = append(d.keys, k), append(d.values, v)
	}
	return d, nil
}

func (p *parser) postfix(x expr) (expr, error) {
	for {
		line := p.cur().line
		switch {
		case p.skipOp("."):
			switch t := p.next(); t.kind {
			case tokName:
				x = &attrExpr{x: x, name: t.text, line: line}
			case tokInt:
				x = &itemExpr{x: x, key: constant{t.i}, line: line}
			default:
				return nil, p.fail("expected a name behind '.'")
			}
		case p.skipOp("["):
			item, err := p.subscript(x, line)
			if err != nil {
				return nil, err
			}
			x = item
		case p.isOp("("):
			c := &callExpr{f: x, line: line}
			if err := p.callArgs(c); err != nil {
				return nil, err
			}
			x = c
		default:
			return x, nil
		}
	}
}

func (p *parser) subscript(x expr, line int) (expr, error) {
	var keys []expr
	for !p.skipOp("]") {
		if len(keys) > 0 {
			if err := p.expectOp(","); err != nil {
				return nil, err
			}
		}
		var parts [3]expr // of a slice
		colons := 0
		for {
			if p.skipOp(":") {
				if colons++; colons > 2 {
					return nil, p.fail("unexpected ':'")
				}
				continue
			}
			if p.isOp("]") || p.isOp(",") {
				break
			}
			y, err := p.expression()
			if err != nil {
				return nil, err
			}
			if parts[colons] != nil {
				return nil, p.fail("expected ']'")
			}
			parts[colons] = y
		}
		switch {
		case colons > 0:
			keys = append(keys, &sliceExpr{x: x, parts: parts, line: line})
		case parts[0] == nil:
			return nil, p.fail("expected an index, found %s", p.cur().describe())
		default:
			keys = append(keys, parts[0])
		}
	}
	if len(keys) == 1 {
		if s, ok := keys[0].(*sliceExpr); ok {
			return s, nil
		}
		return &itemExpr{x: x, key: keys[0], line: line}, nil
	}
	return nil, p.fail("expected one index")
}

// callArgs reads (x, *y, name=z, **w) into c.
func (p *parser) callArgs(c *callExpr) error {
	if err := p.expectOp("("); err != nil {
		return err
	}
	for first := true; !p.skipOp(")"); first = false {
		if !first {
			if err := p.expectOp(","); err != nil {
				return err
			}
			if p.skipOp(")") {
				break
			}
		}
		a := callArg{}
		switch {
		case p.skipOp("*"):
			a.spread = 1
		case p.skipOp("**"):
			a.spread = 2
		case p.cur().kind == tokName && p.peek().kind == tokOp && p.peek().text == "=":
			a.name = p.next().text
			p.next()
		}
		var err error
		if a.x, err = p.expression(); err != nil {
			return err
		}
		if a.name == "" && a.spread == 0 && len(c.args) > 0 && (c.args[len(c.args)-1].name != "" || c.args[len(c.args)-1].spread > 0) {
			return p.fail("an argument without a name behind one with a name")
		}
		c.args = append(c.args, a)
	}
	return nil
}

// filters reads what may follow a value: filters, tests and calls.
func (p *parser) filters(x expr) (expr, error) {
	var err error
	for err == nil {
		switch {
		case p.skipOp("|"):
			x, err = p.filter(x)
		case p.skipName("is"):
			x, err = p.test(x)
		case p.isOp("("):
			c := &callExpr{f: x, line: p.cur().line}
			err = p.callArgs(c)
			x = c
		default:
			return x, nil
		}
	}
	return nil, err
}

func (p *parser) filter(x expr) (expr, error) {
	f := &filterExpr{x: x}
	f.line = p.cur().line
	name, err := p.dotted()
	if err != nil {
		return nil, err
	}
	f.name = name // looked up when it is used: templates ask first
	if p.isOp("(") {
		err = p.callArgs(&f.callExpr)
	}
	return f, err
}

func (p *parser) dotted() (string, error) {
	name, err := p.name()
	for err == nil && p.skipOp(".") {
		var more string
		more, err = p.name()
		name += "." + more
	}
	return name, err
}

func (p *parser) test(x expr) (expr, error) {
	t := &testExpr{x: x}
	t.line = p.cur().line
	t.negated = p.skipName("not")
	name, err := p.dotted()
	if err != nil {
		return nil, err
	}
	t.name = name
	switch c := p.cur(); {
	case p.isOp("("):
		err = p.callArgs(&t.callExpr)
	case p.isName("is"):
		return nil, p.fail("a test of a test")
	case c.kind == tokName && c.text != "else" && c.text != "or" && c.text != "and" && c.text != "if" && c.text != "not" && c.text != "in" && c.text != "recursive",
		c.kind == tokString, c.kind == tokInt, c.kind == tokFloat, p.isOp("["), p.isOp("{"):
		var y expr
		if y, err = p.primary(); err == nil {
			if y, err = p.postfix(y); err == nil {
				t.args = []callArg{{x: y}}
			}
		}
	}
	return t, err
}
