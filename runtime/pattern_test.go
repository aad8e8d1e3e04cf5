package runtime

import (
	"errors"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"hawkmoth/format"
)

func patternMatches(t *testing.T, p *textPattern, s string, budget int) []string {
	t.Helper()
	m := &patternSearch{}
	m.reset(p, s)
	if budget >= 0 {
		m.budget = budget
	}
	var out []string
	for {
		start, end, ok := m.next()
		if !ok {
			return out
		}
		out = append(out, s[start:end])
	}
}

func TestPatternMatches(t *testing.T) {
	for _, c := range []struct {
		pattern, text string
		want          []string
	}{
		{`\s+(?!\S)|\s+`, "a   b  ", []string{"  ", " ", "  "}},
		{`\p{N}{1,3}`, "12345", []string{"123", "45"}},
		{`(?i:'s|'ll)`, "'S 'Ll 'ſ", []string{"'S", "'Ll", "'ſ"}},
		{`a+?b|a*?`, "aab", []string{"aab"}},
		{`(ab|a)(bc|c)?`, "abc", []string{"abc"}},
		{`[a-z&&[^aeiou]]+`, "hello", []string{"h", "ll"}},
		{`(?<!1)2|(?<=a)b`, "12 2ab", []string{"2", "b"}},
		{`x*`, "axxb", []string{"", "xx", ""}},
		{`\p{L}++|\s?+x`, "ab x", []string{"ab", " x"}},
		{`x{a}|y{,}`, "x{a}y{,}", []string{"x{a}", "y{,}"}},
		{`x{,2}y{2,}`, "xxyyy xy", []string{"xxyyy"}},
		{`^.|.$`, "ab\ncd", []string{"a", "b", "c", "d"}},
		{`\Aa|b\z`, "aab\nb", []string{"a", "b"}},
		{`[\x41\x{65e5}\u672c\-]`, "A日本-", []string{"A", "日", "本", "-"}},
		{`\p{Han}+|\p{^L}`, "日本a1", []string{"日本", "1"}},
		{`(?i)k`, "kK\u212a", []string{"k", "K", "\u212a"}},
		{`a(?i)b|c`, "aB aC c", []string{"aB", "aC"}},
		{``, "ab", []string{"", "", ""}},
	} {
		p, err := compilePattern(c.pattern)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, budget := range []int{-1, 0} {
			if got := patternMatches(t, p, c.text, budget); !slices.Equal(got, c.want) {
				t.Errorf("%s in %q, budget %d: %q, want %q", c.pattern, c.text, budget, got, c.want)
			}
		}
	}
}

func TestPatternRefusals(t *testing.T) {
	for pattern, says := range map[string]string{
		`(?=ab)`: "look-around", `(a)\1`: `escape \1`, `(?>a)`: "group (?>", `(?<n>a)`: "group (?<", `(a*)*`: "may be empty",
		`a**`: "repetition of a repetition", `*a`: "nothing to repeat", `(a`: "missing )", `a)`: "unbalanced )", `[a`: "[ without ]",
		`[]a]`: "[ with ] first", `[z-a]`: "range in []", `[a-\d]`: "range in []", `\p{Foo}`: `property "Foo"`, `\p`: `\p without`,
		`\q`: `escape \q`, `\b`: `escape \b`, `[[:alpha:]]`: "POSIX", `a{2}?`: "{n}?", `a{1,2}+`: "possessive", `(ab)++`: "possessive",
		`a{3,2}`: "repetition {3,2}", `a{9999}`: "repetitions", `(a{500}){500}`: "more than 512 steps", `\xff`: "single byte",
		`\x{110000}`: "hexadecimal", `\u12`: "hexadecimal", `\`: "ends early", `(?m:.)`: "group (?m", `a{99999999999999999999}`: "repetitions",
		strings.Repeat("(", 100): "nested", strings.Repeat("[", 100): "nested",
	} {
		_, err := compilePattern(pattern)
		if err == nil || !errors.Is(err, format.ErrUnsupported) || !strings.Contains(err.Error(), says) {
			t.Errorf("%.30s: %v, want %q", pattern, err, says)
		}
	}
}

// TestPatternIsLinear has patterns and texts on which a backtracking engine
// takes exponential, cubic or quadratic time; it would not end.
func TestPatternIsLinear(t *testing.T) {
	text := strings.Repeat("a", 1<<17)
	for _, pattern := range []string{`(a|aa)+b`, `(a+)+b`, `a*a*a*b`, `a*b`, `(a|a|a)*[bc]`, `(a+a?)+?b`} {
		p, err := compilePattern(pattern)
		if err != nil {
			t.Fatal(err)
		}
		if got := patternMatches(t, p, text, -1); len(got) != 0 {
			t.Errorf("%s: %d matches", pattern, len(got))
		}
		if got := patternMatches(t, p, text+"b", -1); len(got) != 1 || len(got[0]) != len(text)+1 {
			t.Errorf("%s: %d matches at the end", pattern, len(got))
		}
	}
}

// TestPatternEqualsRegexp compares random patterns, with and without memory of
// failures, with Go's engine, which has the same priorities.
func TestPatternEqualsRegexp(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	pick := func(s ...string) string { return s[random.IntN(len(s))] }
	var pattern func(depth int) string
	pattern = func(depth int) string {
		if depth == 0 {
			return pick("a", "b", "[ab]", "[^a]", ".", `\d`, "é")
		}
		switch random.IntN(5) {
		case 0:
			return "(?:" + pattern(depth-1) + "|" + pattern(depth-1) + ")"
		case 1:
			return "(?:" + pattern(depth-1) + ")" + pick("?", "??")
		case 2: // of what cannot be empty
			return "(?:" + pattern(0) + pattern(depth-1) + ")" + pick("*", "+", "*?", "+?", "{2}", "{1,2}")
		default:
			return pattern(depth-1) + pattern(depth-1)
		}
	}
	tried := 0
	for range 3000 {
		src := pattern(1 + random.IntN(3))
		p, err := compilePattern(src)
		if err != nil {
			t.Errorf("%s: %v", src, err)
			continue
		}
		var b strings.Builder
		for range random.IntN(12) {
			b.WriteString(pick("a", "b", "1", "é", "\n"))
		}
		text := b.String()
		// \d is ASCII in Go; the text has no other digits.
		want := regexp.MustCompile(src).FindAllString(text, -1)
		for _, budget := range []int{-1, 0, 5} {
			if got := patternMatches(t, p, text, budget); !slices.Equal(got, want) {
				t.Fatalf("%s in %q, budget %d: %q, want %q", src, text, budget, got, want)
			}
		}
		tried += len(want)
	}
	if tried < 1000 {
		t.Errorf("only %d matches", tried)
	}
}

func TestRuneSets(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	set := func() *runeSet {
		var rs []runeRange
		for range random.IntN(6) {
			lo := rune(random.IntN(300))
			rs = append(rs, runeRange{lo, lo + rune(random.IntN(20))})
		}
		return runeSetOf(rs...)
	}
	for range 300 {
		a, b := set(), set()
		not, both := a.negated(), a.and(b)
		for r := rune(0); r < 400; r++ {
			if a.has(r) == not.has(r) || both.has(r) != (a.has(r) && b.has(r)) {
				t.Fatalf("%v %v at %d", a.ranges, b.ranges, r)
			}
		}
	}
}
