package runtime

import "unicode/utf8"

type patternOp uint8

const (
	patternRune   patternOp = iota // one character of set
	patternSplit                   // x first, then y
	patternJump                    // to x
	patternAhead                   // the next character is of set, or is not
	patternBehind                  // the same of the last character
	patternMatch
)

type patternInst struct {
	op     patternOp
	negate bool
	set    *runeSet // patternSplit: x needs one of these next; nil for unknown
	x, y   int32
	split  int // patternSplit: its number
}

type patternCompiler struct {
	insts  []patternInst
	splits int
}

func (c *patternCompiler) add(in patternInst) int {
	if in.op == patternSplit {
		in.split = c.splits
		c.splits++
	}
	c.insts = append(c.insts, in)
	return len(c.insts) - 1
}

// first is what a match of n can start with and whether it can be empty.
func (n *patternNode) first() (*runeSet, bool) {
	if n.start == nil {
		n.start, n.empty = n.findFirst()
	}
	return n.start, n.empty
}

func (n *patternNode) findFirst() (*runeSet, bool) {
	var all []runeRange
	switch n.kind {
	case patternSet:
		return n.set, false
	case patternLook:
		return runeSetOf(), true
	case patternRepeat:
		s, empty := n.kids[0].first()
		return s, empty || n.min == 0
	case patternAlt:
		nullable := false
		for _, k := range n.kids {
			s, empty := k.first()
			all = append(all, s.ranges...)
			nullable = nullable || empty
		}
		return runeSetOf(all...), nullable
	}
	for _, k := range n.kids {
		s, empty := k.first()
		all = append(all, s.ranges...)
		if !empty {
			return runeSetOf(all...), false
		}
	}
	return runeSetOf(all...), true
}

// emit appends the code of n. It stops growing once it is over the limit,
// which the caller checks.
func (c *patternCompiler) emit(n *patternNode) {
	if len(c.insts) > patternMaxInsts {
		return
	}
	switch n.kind {
	case patternSet:
		c.add(patternInst{op: patternRune, set: n.set})
	case patternLook:
		op := patternAhead
		if n.behind {
			op = patternBehind
		}
		c.add(patternInst{op: op, set: n.set, negate: n.negate})
	case patternCat:
		for _, k := range n.kids {
			c.emit(k)
		}
	case patternAlt:
		var ends []int
		for i, k := range n.kids {
			if i == len(n.kids)-1 {
				c.emit(k)
				break
			}
			split := c.branch(k, false)
			c.emit(k)
			ends = append(ends, c.add(patternInst{op: patternJump}))
			c.aim(split, false)
		}
		for _, at := range ends {
			c.insts[at].x = int32(len(c.insts))
		}
	case patternRepeat:
		c.repeat(n)
	}
}

func (c *patternCompiler) repeat(n *patternNode) {
	body, last := n.kids[0], 0
	for range n.min {
		last = len(c.insts)
		c.emit(body)
	}
	switch {
	case n.max < 0 && n.min == 0:
		split := c.branch(body, n.lazy)
		c.emit(body)
		c.add(patternInst{op: patternJump, x: int32(split)})
		c.aim(split, n.lazy)
	case n.max < 0:
		split := c.branch(body, n.lazy)
		c.aim(split, n.lazy)
		if n.lazy {
			c.insts[split].y = int32(last)
		} else {
			c.insts[split].x = int32(last)
		}
	default:
		var splits []int
		for range n.max - n.min {
			if len(c.insts) > patternMaxInsts {
				return
			}
			splits = append(splits, c.branch(body, n.lazy))
			c.emit(body)
		}
		for _, s := range splits {
			c.aim(s, n.lazy)
		}
	}
}

// branch starts an optional piece that follows at once; aim sets where its
// absence goes on.
func (c *patternCompiler) branch(body *patternNode, lazy bool) int {
	next := int32(len(c.insts)) + 1
	if lazy {
		return c.add(patternInst{op: patternSplit, y: next})
	}
	in := patternInst{op: patternSplit, x: next}
	if first, empty := body.first(); !empty {
		in.set = first
	}
	return c.add(in)
}

func (c *patternCompiler) aim(split int, lazy bool) {
	if lazy {
		c.insts[split].x = int32(len(c.insts))
	} else {
		c.insts[split].y = int32(len(c.insts))
	}
}

// patternSearch finds the matches of a pattern in one text, leftmost first and
// with the priorities of a backtracking engine. Once it has taken many more
// steps than the text has bytes it remembers every branch that has failed, so
// that the whole search is linear in the text for any pattern.
type patternSearch struct {
	p       *textPattern
	s       string
	stack   []patternJob
	budget  int
	failed  []uint64 // bit split*(len(s)+1)+pos
	last    int      // where the next search starts
	lastEnd int      // of the last match; −1 before the first
}

// patternJob is an alternative to try; a negative pc notes that split ^pc has
// failed at pos.
type patternJob struct{ pc, pos int }

// patternSteps is the steps per byte of text before failures are remembered;
// ordinary patterns take about five.
const patternSteps = 64

func (m *patternSearch) reset(p *textPattern, s string) {
	m.p, m.s = p, s
	m.budget = patternSteps * (len(s) + 64)
	m.failed = nil
	m.last, m.lastEnd = 0, -1
}

// next is the next match, as Oniguruma's iterator gives them: an empty match
// right behind the last match is none.
func (m *patternSearch) next() (start, end int, ok bool) {
	for m.last <= len(m.s) {
		start, end = m.find(m.last)
		if start < 0 {
			break
		}
		if start == end && end == m.lastEnd {
			m.last += runeWidth(m.s, m.last)
			continue
		}
		m.last, m.lastEnd = end, end
		return start, end, true
	}
	m.last = len(m.s) + 1
	return 0, 0, false
}

// runeWidth is the bytes of the character at i; 1 at the end.
func runeWidth(s string, i int) int {
	if i >= len(s) || s[i] < utf8.RuneSelf {
		return 1
	}
	_, n := utf8.DecodeRuneInString(s[i:])
	return n
}

func (m *patternSearch) find(from int) (start, end int) {
	for pos := from; pos <= len(m.s); pos += runeWidth(m.s, pos) {
		if m.p.first != nil && !m.p.first.at(m.s, pos) {
			continue
		}
		if end := m.match(pos); end >= 0 {
			return pos, end
		}
	}
	return -1, -1
}

func (s *runeSet) at(text string, pos int) bool {
	if pos >= len(text) {
		return false
	}
	if c := text[pos]; c < utf8.RuneSelf {
		return s.hasASCII(c)
	}
	r, _ := utf8.DecodeRuneInString(text[pos:])
	return s.has(r)
}

func (s *runeSet) before(text string, pos int) bool {
	if pos == 0 {
		return false
	}
	r, _ := utf8.DecodeLastRuneInString(text[:pos])
	return s.has(r)
}

// match is the end of the match that starts at pos, or −1.
func (m *patternSearch) match(pos int) int {
	insts, s, stack := m.p.insts, m.s, m.stack[:0]
	for pc := 0; ; {
		in := &insts[pc]
		ok := true
		switch in.op {
		case patternRune:
			if pos >= len(s) {
				ok = false
			} else if c := s[pos]; c < utf8.RuneSelf {
				ok = in.set.hasASCII(c)
				pos++
			} else {
				r, n := utf8.DecodeRuneInString(s[pos:])
				ok = in.set.has(r)
				pos += n
			}
			pc++
		case patternAhead:
			ok = in.set.at(s, pos) != in.negate
			pc++
		case patternBehind:
			ok = in.set.before(s, pos) != in.negate
			pc++
		case patternJump:
			pc = int(in.x)
		case patternSplit:
			if in.set != nil && !in.set.at(s, pos) {
				pc = int(in.y)
				break
			}
			if m.budget--; m.budget < 0 {
				if m.failed == nil {
					m.failed = make([]uint64, (m.p.splits*(len(s)+1)+63)/64)
				}
				if bit := in.split*(len(s)+1) + pos; m.failed[bit>>6]>>(bit&63)&1 != 0 {
					ok = false
					break
				}
				stack = append(stack, patternJob{^pc, pos})
			}
			stack = append(stack, patternJob{int(in.y), pos})
			pc = int(in.x)
		case patternMatch:
			m.stack = stack // keeps what it grew to
			return pos
		}
		for !ok {
			if len(stack) == 0 {
				m.stack = stack
				return -1
			}
			job := stack[len(stack)-1]
			stack = stack[:len(stack)-1]
			if pc, pos, ok = job.pc, job.pos, job.pc >= 0; !ok {
				bit := insts[^pc].split*(len(s)+1) + pos
				m.failed[bit>>6] |= 1 << (bit & 63)
			}
		}
	}
}
