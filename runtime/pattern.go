package runtime

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"hawkmoth/format"
)

// Limits on one pattern, which comes from a file that nobody has checked.
const (
	patternMaxBytes = 1 << 14
	patternMaxInsts = 512 // the memory of a search grows with them
	patternMaxDepth = 32
	patternMaxCount = 512 // of x{n,m}
)

// textPattern is a regular expression in the syntax of Oniguruma, as the files
// of Hugging Face's tokenizers have them. Constructs whose search could take
// more than linear time, and those that no tokenizer uses, are refused:
// look-around over more than one character, back references, atomic groups.
// A backtracking library would need a time limit for files that nobody has
// checked, and the ids of a text would then depend on the machine's speed.
type textPattern struct {
	insts    []patternInst
	splits   int      // instructions that branch
	first    *runeSet // what a match can start with; nil for anything
	nullable bool     // can match nothing
}

// patternNode is a node of the syntax tree.
type patternNode struct {
	kind     patternKind
	set      *runeSet       // patternSet, patternLook
	kids     []*patternNode // patternCat, patternAlt; one for patternRepeat
	min, max int            // patternRepeat; max < 0 is without end
	lazy     bool           // patternRepeat
	behind   bool           // patternLook: at the character before
	negate   bool           // patternLook: there must be no such character
	start    *runeSet       // what first found; nil before
	empty    bool
}

type patternKind uint8

const (
	patternCat patternKind = iota
	patternAlt
	patternSet
	patternRepeat
	patternLook
)

type patternParser struct {
	src   string
	pos   int
	depth int
	atoms int
	fold  bool // (?i)
	err   error
}

// compilePattern refuses what it does not know by name (format.ErrUnsupported).
func compilePattern(src string) (*textPattern, error) {
	p := &patternParser{src: src}
	if len(src) > patternMaxBytes {
		p.src = src[:40] + "…"
		p.fail(fmt.Sprintf("%d bytes", len(src)))
		return nil, p.err
	}
	tree := p.alternatives()
	if p.err == nil && p.pos < len(src) {
		p.fail("unbalanced )")
	}
	if p.err != nil {
		return nil, p.err
	}
	c := &patternCompiler{}
	c.emit(tree)
	c.add(patternInst{op: patternMatch})
	if len(c.insts) > patternMaxInsts {
		p.tooLong()
		return nil, p.err
	}
	first, nullable := tree.first()
	if nullable {
		first = nil
	}
	return &textPattern{c.insts, c.splits, first, nullable}, nil
}

func (p *patternParser) fail(what string) {
	if p.err == nil {
		p.err = &format.Error{Kind: format.ErrUnsupported, What: "pattern: " + what, Found: strconv.Quote(p.src)}
	}
}

func (p *patternParser) tooLong() { p.fail(fmt.Sprintf("more than %d steps", patternMaxInsts)) }

// more is false at the end and after a failure, so that every loop ends.
func (p *patternParser) more() bool { return p.err == nil && p.pos < len(p.src) }

func (p *patternParser) take(s string) bool {
	if p.err != nil || !strings.HasPrefix(p.src[p.pos:], s) {
		return false
	}
	p.pos += len(s)
	return true
}

func (p *patternParser) rune() rune {
	r, n := utf8.DecodeRuneInString(p.src[p.pos:])
	if n == 0 {
		p.fail("ends early")
	}
	p.pos += n
	return r
}

func (p *patternParser) alternatives() *patternNode {
	if p.depth++; p.depth > patternMaxDepth {
		p.fail("nested too deeply")
		return &patternNode{}
	}
	fold := p.fold
	alt := &patternNode{kind: patternAlt}
	for {
		alt.kids = append(alt.kids, p.sequence())
		if !p.take("|") {
			break
		}
	}
	p.fold = fold
	p.depth--
	if len(alt.kids) == 1 {
		return alt.kids[0]
	}
	return alt
}

func (p *patternParser) sequence() *patternNode {
	cat := &patternNode{kind: patternCat}
	for p.more() && p.src[p.pos] != '|' && p.src[p.pos] != ')' {
		if p.atoms++; p.atoms > patternMaxInsts {
			p.tooLong()
		}
		cat.kids = append(cat.kids, p.repeated(p.atom()))
	}
	return cat
}

func (p *patternParser) literal(r rune) *patternNode {
	return &patternNode{kind: patternSet, set: p.folded(runeSetOf(runeRange{r, r}))}
}

func (p *patternParser) folded(s *runeSet) *runeSet {
	if p.fold {
		return s.folded()
	}
	return s
}

func lookNode(set *runeSet, behind, negate bool) *patternNode {
	return &patternNode{kind: patternLook, set: set, behind: behind, negate: negate}
}

func (p *patternParser) atom() *patternNode {
	switch r := p.rune(); r {
	case '(':
		return p.group()
	case '[':
		return &patternNode{kind: patternSet, set: p.class()}
	case '.':
		return &patternNode{kind: patternSet, set: newlineRunes.negated()}
	case '^':
		return &patternNode{kind: patternAlt, kids: []*patternNode{
			lookNode(anyRune, true, true),
			{kind: patternCat, kids: []*patternNode{lookNode(newlineRunes, true, false), lookNode(anyRune, false, false)}},
		}}
	case '$':
		return lookNode(newlineRunes.negated(), false, true)
	case '*', '+', '?':
		p.fail("nothing to repeat before " + string(r))
		return &patternNode{}
	case '\\':
		if p.take("A") {
			return lookNode(anyRune, true, true)
		}
		if p.take("z") {
			return lookNode(anyRune, false, true)
		}
		r, set := p.escape()
		if set != nil {
			return &patternNode{kind: patternSet, set: set}
		}
		return p.literal(r)
	default:
		return p.literal(r)
	}
}

// group reads what follows an opening parenthesis.
func (p *patternParser) group() *patternNode {
	fold := p.fold
	var look *patternNode
	switch {
	case !p.take("?"), p.take(":"):
	case p.take("i:"):
		p.fold = true
	case p.take("-i:"):
		p.fold = false
	case p.take("i)"):
		// Without a group of its own it takes in the rest of this one, bars included.
		p.fold = true
		n := p.alternatives()
		p.fold = fold
		return n
	case p.take("="):
		look = lookNode(nil, false, false)
	case p.take("!"):
		look = lookNode(nil, false, true)
	case p.take("<="):
		look = lookNode(nil, true, false)
	case p.take("<!"):
		look = lookNode(nil, true, true)
	default:
		p.fail("group (?" + string(p.rune()))
	}
	n := p.alternatives()
	p.fold = fold
	if !p.take(")") {
		p.fail("missing )")
	}
	if look == nil || p.err != nil {
		return n
	}
	if look.set = n.single(); look.set == nil {
		p.fail("look-around over more than one character")
	}
	return look
}

// single is the set of a tree that always matches exactly one character, else nil.
func (n *patternNode) single() *runeSet {
	switch {
	case n.kind == patternSet:
		return n.set
	case n.kind == patternCat && len(n.kids) == 1:
		return n.kids[0].single()
	case n.kind == patternAlt:
		var all []runeRange
		for _, k := range n.kids {
			s := k.single()
			if s == nil {
				return nil
			}
			all = append(all, s.ranges...)
		}
		return runeSetOf(all...)
	}
	return nil
}

func (p *patternParser) repeated(n *patternNode) *patternNode {
	min, max, interval := 0, -1, false
	switch {
	case p.take("*"):
	case p.take("+"):
		min = 1
	case p.take("?"):
		max = 1
	default:
		if min, max, interval = p.interval(); !interval {
			return n
		}
	}
	if p.err != nil {
		return n
	}
	rep := &patternNode{kind: patternRepeat, kids: []*patternNode{n}, min: min, max: max}
	if _, empty := n.first(); empty && max != 1 {
		p.fail("repetition of something that may be empty")
	}
	switch {
	case p.take("?"):
		rep.lazy = true
		if interval && min == max {
			p.fail("{n}?")
		}
	case p.take("+"):
		// Possessive: for one character "no more of them follow" says the same.
		set := n.single()
		if interval || set == nil {
			p.fail("possessive repetition of more than one character")
			return n
		}
		stop := lookNode(set, false, true)
		if max < 0 {
			return &patternNode{kind: patternCat, kids: []*patternNode{rep, stop}}
		}
		return &patternNode{kind: patternAlt, kids: []*patternNode{n, stop}}
	}
	if strings.HasPrefix(p.src[p.pos:], "*") || strings.HasPrefix(p.src[p.pos:], "+") || strings.HasPrefix(p.src[p.pos:], "?") {
		p.fail("repetition of a repetition")
	}
	return rep
}

// interval reads {n}, {n,}, {,m} or {n,m}; anything else leaves { a literal.
func (p *patternParser) interval() (min, max int, ok bool) {
	rest := p.src[p.pos:]
	end := strings.IndexByte(rest, '}')
	if end < 0 || rest[0] != '{' {
		return 0, 0, false
	}
	lo, hi, comma := strings.Cut(rest[1:end], ",")
	number := func(s string, unset int) int {
		if s == "" {
			return unset
		}
		for _, c := range s {
			if c < '0' || c > '9' {
				ok = false
				return 0
			}
		}
		n, err := strconv.Atoi(s)
		if err != nil || n > patternMaxCount {
			p.fail("more than " + strconv.Itoa(patternMaxCount) + " repetitions")
		}
		return n
	}
	ok = lo != "" || hi != ""
	if min = number(lo, 0); comma {
		max = number(hi, -1)
	} else {
		max = min
	}
	if !ok {
		return 0, 0, false
	}
	if max >= 0 && max < min {
		p.fail("repetition {" + rest[1:end] + "}")
	}
	p.pos += end + 1
	return min, max, true
}

// escape reads what follows a backslash: a character, or a set if not nil.
func (p *patternParser) escape() (rune, *runeSet) {
	r := p.rune()
	switch r {
	case 'd':
		return 0, digitRunes
	case 'D':
		return 0, digitRunes.negated()
	case 's':
		return 0, spaceRunes
	case 'S':
		return 0, spaceRunes.negated()
	case 'w':
		return 0, wordRunes()
	case 'W':
		return 0, wordRunes().negated()
	case 'p', 'P':
		return 0, p.property(r == 'P')
	case 'n':
		return '\n', nil
	case 'r':
		return '\r', nil
	case 't':
		return '\t', nil
	case 'f':
		return '\f', nil
	case 'v':
		return '\v', nil
	case 'a':
		return '\a', nil
	case 'e':
		return 0x1b, nil
	case 'x':
		if p.take("{") {
			digits, _, ok := strings.Cut(p.src[p.pos:], "}")
			if !ok {
				p.fail(`\x{ without }`)
				return 0, nil
			}
			c := p.hex(len(digits))
			p.pos++
			return c, nil
		}
		c := p.hex(2)
		if c > 0x7f {
			p.fail(`\x of a single byte above 7f`)
		}
		return c, nil
	case 'u':
		return p.hex(4), nil
	}
	if r < utf8.RuneSelf && (unicode.IsLetter(r) || unicode.IsDigit(r)) {
		p.fail(`escape \` + string(r))
	}
	return r, nil
}

func (p *patternParser) hex(digits int) rune {
	if p.err != nil || len(p.src)-p.pos < digits {
		p.fail("hexadecimal escape ends early")
		return 0
	}
	n, err := strconv.ParseUint(p.src[p.pos:p.pos+digits], 16, 32)
	if err != nil || n > unicode.MaxRune {
		p.fail("hexadecimal escape")
		return 0
	}
	p.pos += digits
	return rune(n)
}

func (p *patternParser) property(negate bool) *runeSet {
	name, _, ok := strings.Cut(p.src[p.pos:], "}")
	if !ok || !p.take("{") {
		p.fail(`\p without {name}`)
		return anyRune
	}
	p.pos += len(name)
	name = name[1:]
	if n, found := strings.CutPrefix(name, "^"); found {
		name, negate = n, !negate
	}
	set := propertyRunes(name)
	if set == nil {
		p.fail("property " + strconv.Quote(name))
		return anyRune
	}
	if negate {
		return set.negated()
	}
	return set
}

// class reads a bracketed set behind its [.
func (p *patternParser) class() *runeSet {
	if p.depth++; p.depth > patternMaxDepth {
		p.fail("nested too deeply")
	}
	negate := p.take("^")
	var ranges []runeRange
	var meet *runeSet // what stands left of &&
	if strings.HasPrefix(p.src[p.pos:], "]") {
		p.fail("[ with ] first")
	}
	for !p.take("]") {
		switch {
		case !p.more():
			p.fail("[ without ]")
			return anyRune
		case p.take("&&"):
			meet = meet.and(runeSetOf(ranges...))
			ranges = nil
		case p.take("[:"):
			p.fail("POSIX bracket")
		case p.take("["):
			ranges = append(ranges, p.class().ranges...)
		default:
			ranges = append(ranges, p.classItem()...)
		}
	}
	p.depth--
	set := p.folded(meet.and(runeSetOf(ranges...)))
	if negate {
		return set.negated()
	}
	return set
}

// classItem reads a character, a range or an escaped set.
func (p *patternParser) classItem() []runeRange {
	one := func() (rune, *runeSet) {
		if p.take(`\`) {
			if p.take("b") {
				return '\b', nil
			}
			return p.escape()
		}
		return p.rune(), nil
	}
	lo, set := one()
	if set != nil {
		return set.ranges
	}
	rest := p.src[min(p.pos, len(p.src)):]
	if !strings.HasPrefix(rest, "-") || strings.HasPrefix(rest, "-]") {
		return []runeRange{{lo, lo}}
	}
	p.pos++
	hi, set := one()
	if set != nil || hi < lo {
		p.fail("range in []")
	}
	return []runeRange{{lo, hi}}
}
