package jinja

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Error is what is wrong with a template, or with what it was asked to render.
type Error struct {
	Line        int // of the template, from 1; 0 if unknown
	What        string
	Unsupported bool // the template may be right, but asks for what is not served
	Raised      bool // the template itself refused, with raise_exception
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return e.What
	}
	return fmt.Sprintf("line %d: %s", e.Line, e.What)
}

type kind byte

// The kinds of token; an operator is its own text.
const (
	tokEnd kind = iota
	tokData
	tokOpen  // {{
	tokClose // }}
	tokBlock // {%
	tokBlockEnd
	tokName
	tokString
	tokInt
	tokFloat
	tokOp
)

type token struct {
	kind kind
	text string // of strings: unescaped
	i    int64
	f    float64
	line int
}

// describe names a token in an error.
func (t token) describe() string {
	switch t.kind {
	case tokEnd:
		return "the end of the template"
	case tokClose:
		return "'}}'"
	case tokBlockEnd:
		return "'%}'"
	case tokString:
		return "a string"
	case tokInt, tokFloat:
		return "a number"
	case tokData, tokOpen, tokBlock:
		return "text"
	}
	return "'" + t.text + "'"
}

// operators, the longer ones first.
var operators = []string{"//", "**", "==", "!=", ">=", "<=", "+", "-", "*", "/", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<", "=", ".", ":", "|", ",", ";"}

type lexer struct {
	src    string
	pos    int
	line   int
	tokens []token
	// Whether the text that follows starts a line: where a tag stands alone on a
	// line, the white space before it goes (lstrip_blocks).
	lineStart bool
}

// lex takes a template apart with trim_blocks and lstrip_blocks, as chat
// templates are written for.
func lex(src string) ([]token, error) {
	src = strings.ReplaceAll(strings.ReplaceAll(src, "\r\n", "\n"), "\r", "\n")
	l := &lexer{src: strings.TrimSuffix(src, "\n"), line: 1, lineStart: true}
	for l.pos < len(l.src) {
		if err := l.next(); err != nil {
			return nil, err
		}
	}
	return append(l.tokens, token{kind: tokEnd, line: l.line}), nil
}

func (l *lexer) fail(what string, args ...any) error {
	return &Error{Line: l.line, What: fmt.Sprintf(what, args...)}
}

func (l *lexer) emit(t token) {
	t.line = l.line
	l.tokens = append(l.tokens, t)
}

// skip moves over n bytes.
func (l *lexer) skip(n int) {
	l.line += strings.Count(l.src[l.pos:l.pos+n], "\n")
	l.lineStart = n > 0 && l.src[l.pos+n-1] == '\n'
	l.pos += n
}

func (l *lexer) rest() string { return l.src[l.pos:] }

// next reads text up to a tag, and the tag.
func (l *lexer) next() error {
	rest := l.rest()
	at := 0
	for {
		i := strings.IndexByte(rest[at:], '{')
		if i < 0 || at+i+1 == len(rest) {
			l.emit(token{kind: tokData, text: rest})
			l.skip(len(rest))
			return nil
		}
		at += i
		if c := rest[at+1]; c == '{' || c == '%' || c == '#' {
			break
		}
		at++
	}
	what, sign, n := rest[at+1], byte(0), 2
	if at+2 < len(rest) && (rest[at+2] == '-' || rest[at+2] == '+') {
		sign, n = rest[at+2], 3
	}
	if data := l.before(rest[:at], sign, what != '{'); data != "" {
		l.emit(token{kind: tokData, text: data})
	}
	l.skip(at)
	switch what {
	case '#':
		l.skip(n)
		end := strings.Index(l.rest(), "#}")
		if end < 0 && l.rest() == "" { // Jinja's own lexer lets it pass
			return nil
		}
		if end < 0 {
			return l.fail("a comment does not end")
		}
		sign := byte(0)
		if end > 0 {
			sign = l.rest()[end-1]
		}
		l.skip(end)
		l.close("#}", sign)
		return nil
	case '%':
		if raw := l.rawTag(n, "raw"); raw > 0 {
			return l.raw(raw)
		}
		l.skip(n)
		l.emit(token{kind: tokBlock})
		return l.tag("%}", tokBlockEnd)
	}
	l.skip(n)
	l.emit(token{kind: tokOpen})
	return l.tag("}}", tokClose)
}

// before is the text before a tag, stripped as its sign says.
func (l *lexer) before(data string, sign byte, strips bool) string {
	switch {
	case sign == '-':
		return strings.TrimRightFunc(data, space)
	case sign == 0 && strips:
		start := strings.LastIndexByte(data, '\n') + 1
		if (start > 0 || l.lineStart) && strings.TrimFunc(data[start:], space) == "" {
			return data[:start]
		}
	}
	return data
}

// close moves behind the end of a tag and the white space that goes with it.
func (l *lexer) close(end string, sign byte) {
	n := len(end)
	rest := l.rest()[n:]
	switch {
	case sign == '-':
		n += len(rest) - len(strings.TrimLeftFunc(rest, space))
	case sign != '+' && end != "}}" && strings.HasPrefix(rest, "\n"):
		n++
	}
	l.skip(n)
}

// rawTag is the length of a tag whose one word is name, 0 if it is another tag.
func (l *lexer) rawTag(n int, name string) int {
	rest := l.rest()[n:]
	trimmed := strings.TrimLeftFunc(rest, space)
	after, ok := strings.CutPrefix(trimmed, name)
	if !ok {
		return 0
	}
	after = strings.TrimLeftFunc(after, space)
	for _, end := range []string{"%}", "-%}", "+%}"} {
		if strings.HasPrefix(after, end) && !(end == "+%}" && name == "raw") {
			return n + len(rest) - len(after)
		}
	}
	return 0
}

// raw reads the text up to {% endraw %}.
func (l *lexer) raw(open int) error {
	l.skip(open)
	if strings.HasPrefix(l.rest(), "-") { // of trim_blocks, only the end tag has a share
		l.skip(1)
		l.close("%}", '-')
	} else {
		l.skip(2)
	}
	for at := 0; ; at += 2 {
		i := strings.Index(l.rest()[at:], "{%")
		if i < 0 {
			return l.fail("{%% raw %%} without {%% endraw %%}")
		}
		at += i
		n, sign := 2, byte(0)
		if s := l.rest()[at+2:]; s != "" && (s[0] == '-' || s[0] == '+') {
			n, sign = 3, s[0]
		}
		mark := *l
		data := l.before(l.rest()[:at], sign, true)
		l.pos += at
		end := l.rawTag(n, "endraw")
		*l = mark
		if end == 0 {
			continue
		}
		if data != "" {
			l.emit(token{kind: tokData, text: data})
		}
		l.skip(at + end)
		sign = 0
		if c := l.rest()[0]; c == '-' || c == '+' {
			sign = c
			l.skip(1)
		}
		l.close("%}", sign)
		return nil
	}
}

// tag reads the tokens of a tag up to its end.
func (l *lexer) tag(end string, closing kind) error {
	var open []byte // brackets, by what closes them
	for {
		rest := l.rest()
		r, size := utf8.DecodeRuneInString(rest)
		switch {
		case rest == "":
			return l.fail("a tag does not end with %s", end)
		case space(r):
			l.skip(size)
			continue
		}
		if len(open) == 0 {
			sign := byte(0)
			if rest[0] == '-' || rest[0] == '+' && closing == tokBlockEnd {
				sign = rest[0]
			}
			if sign != 0 && strings.HasPrefix(rest[1:], end) || strings.HasPrefix(rest, end) {
				l.emit(token{kind: closing})
				if rest[0] == sign {
					l.skip(1)
				}
				l.close(end, sign)
				return nil
			}
		}
		switch {
		case r == '"' || r == '\'':
			if err := l.string(); err != nil {
				return err
			}
		case r >= '0' && r <= '9':
			if err := l.number(); err != nil {
				return err
			}
		case r == '_' || unicode.IsLetter(r):
			n := strings.IndexFunc(rest, func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) })
			if n < 0 {
				n = len(rest)
			}
			l.emit(token{kind: tokName, text: rest[:n]})
			l.skip(n)
		default:
			if err := l.operator(&open); err != nil {
				return err
			}
		}
	}
}

func (l *lexer) operator(open *[]byte) error {
	for _, op := range operators {
		if !strings.HasPrefix(l.rest(), op) {
			continue
		}
		switch op {
		case "(":
			*open = append(*open, ')')
		case "[":
			*open = append(*open, ']')
		case "{":
			*open = append(*open, '}')
		case ")", "]", "}":
			if n := len(*open); n == 0 || (*open)[n-1] != op[0] {
				return l.fail("unexpected '%s'", op)
			}
			*open = (*open)[:len(*open)-1]
		}
		l.emit(token{kind: tokOp, text: op})
		l.skip(len(op))
		return nil
	}
	r, _ := utf8.DecodeRuneInString(l.rest())
	return l.fail("unexpected character %q", r)
}

// digits is the length of decimal digits, single underscores between them.
func digits(s string) int {
	n := 0
	for n < len(s) && (s[n] >= '0' && s[n] <= '9' || s[n] == '_' && n > 0 && n+1 < len(s) && s[n-1] != '_' && s[n+1] >= '0' && s[n+1] <= '9') {
		n++
	}
	return n
}

func (l *lexer) number() error {
	s := l.rest()
	if len(s) > 2 && s[0] == '0' && strings.ContainsRune("xXoObB", rune(s[1])) {
		n := 2
		for n < len(s) && (s[n] == '_' || s[n] >= '0' && s[n] <= '9' || s[n]|32 >= 'a' && s[n]|32 <= 'f') {
			n++
		}
		return l.integer(s[:n])
	}
	n := digits(s)
	end := n
	if end < len(s) && s[end] == '.' {
		if d := digits(s[end+1:]); d > 0 {
			end += 1 + d
		}
	}
	if end < len(s) && s[end]|32 == 'e' {
		e := end + 1
		if e < len(s) && (s[e] == '+' || s[e] == '-') {
			e++
		}
		if d := digits(s[e:]); d > 0 {
			end = e + d
		}
	}
	if end == n {
		return l.integer(s[:n])
	}
	f, err := strconv.ParseFloat(strings.ReplaceAll(s[:end], "_", ""), 64)
	if err != nil && !strings.Contains(err.Error(), "range") { // beyond the range it is infinite, as in Python
		return l.fail("number %s", s[:end])
	}
	l.emit(token{kind: tokFloat, f: f})
	l.skip(end)
	return nil
}

func (l *lexer) integer(s string) error {
	i, err := strconv.ParseInt(strings.ReplaceAll(s, "_", ""), 0, 64)
	if err != nil {
		return l.fail("integer %.40s", s)
	}
	l.emit(token{kind: tokInt, i: i})
	l.skip(len(s))
	return nil
}

// string reads a literal with Python's escapes.
func (l *lexer) string() error {
	s := l.rest()
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		c := s[i]
		switch {
		case c == s[0]:
			l.emit(token{kind: tokString, text: b.String()})
			l.skip(i + 1)
			return nil
		case c != '\\' || i+1 == len(s):
			b.WriteByte(c)
			continue
		}
		i++
		if simple := strings.IndexByte(`abfnrtv\'"`, s[i]); simple >= 0 {
			b.WriteByte("\a\b\f\n\r\t\v\\'\""[simple])
			continue
		}
		if s[i] == '\n' {
			continue
		}
		base, width := 16, map[byte]int{'x': 2, 'u': 4, 'U': 8}[s[i]]
		from := i + 1
		if s[i] >= '0' && s[i] <= '7' {
			base, from = 8, i
			for width = 1; width < 3 && from+width < len(s) && s[from+width] >= '0' && s[from+width] <= '7'; width++ {
			}
		}
		if width == 0 { // not an escape
			b.WriteByte('\\')
			i--
			b.WriteByte(s[i+1])
			i++
			continue
		}
		if from+width > len(s) {
			return l.fail("a string's escape is cut off")
		}
		r, err := strconv.ParseUint(s[from:from+width], base, 32)
		if err != nil || r > unicode.MaxRune {
			return l.fail("a string's escape \\%s", s[i:from+width])
		}
		b.WriteRune(rune(r))
		i = from + width - 1
	}
	return l.fail("a string does not end")
}
