package runtime

import (
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// normalizeStep rewrites text as one normalizer does.
type normalizeStep func(s string, work *splitWork) string

func prependStep(prefix string) normalizeStep {
	return func(s string, _ *splitWork) string {
		if s == "" {
			return s
		}
		return prefix + s
	}
}

func replaceStep(p *textPattern, with string) normalizeStep {
	return func(s string, work *splitWork) string {
		var b strings.Builder
		work.search.reset(p, s)
		done := 0
		for {
			start, end, ok := work.search.next()
			if !ok {
				break
			}
			b.WriteString(s[done:start])
			b.WriteString(with)
			done = end
		}
		if done == 0 {
			return s
		}
		b.WriteString(s[done:])
		return b.String()
	}
}

func unicodeStep(form norm.Form) normalizeStep {
	return func(s string, _ *splitWork) string {
		if form.QuickSpanString(s) == len(s) {
			return s
		}
		if manyMarks(s) {
			return normalizeMarks(form, s)
		}
		return form.String(s)
	}
}

// manyMarks tells whether so many combining marks follow each other that package
// norm would put a grapheme joiner between them, as the stream-safe format asks.
func manyMarks(s string) bool {
	run := 0
	for i := 0; i < len(s); {
		if s[i] < utf8.RuneSelf {
			run = 0
			i++
			continue
		}
		p := norm.NFD.PropertiesString(s[i:])
		if run++; p.CCC() == 0 {
			run = 0
		}
		if run > 7 { // a mark decomposes into up to four
			return true
		}
		i += max(p.Size(), 1)
	}
	return false
}

// normalizeMarks is form.String without grapheme joiners: decompose, order the
// marks, compose (Unicode Standard Annex 15).
func normalizeMarks(form norm.Form, s string) string {
	type mark struct {
		r   rune
		ccc uint8
	}
	decompose, compose := norm.NFD, form == norm.NFC || form == norm.NFKC
	if form == norm.NFKC || form == norm.NFKD {
		decompose = norm.NFKD
	}
	var all []mark
	for _, r := range s {
		for _, d := range decompose.String(string(r)) {
			all = append(all, mark{d, norm.NFD.PropertiesString(string(d)).CCC()})
		}
	}
	for i := 0; i < len(all); i++ {
		j := i
		for j < len(all) && all[j].ccc != 0 {
			j++
		}
		run := all[i:j]
		slices.SortStableFunc(run, func(a, b mark) int { return cmp.Compare(a.ccc, b.ccc) })
		i = j
	}
	var out []rune
	starter, last := -1, uint8(0) // last is the class of the last mark kept behind the starter
	for _, m := range all {
		if compose && starter >= 0 && (last < m.ccc || last == 0 && starter == len(out)-1) {
			pair := []rune(norm.NFC.String(string([]rune{out[starter], m.r})))
			if len(pair) == 1 {
				out[starter] = pair[0]
				continue
			}
		}
		if last = m.ccc; m.ccc == 0 {
			starter = len(out)
		}
		out = append(out, m.r)
	}
	return string(out)
}

// splitStep cuts text as one pre-tokenizer does.
type splitStep struct {
	prefixSpace bool         // put a space before what starts with none
	pattern     *textPattern // nil cuts nothing
	behavior    splitBehavior
	invert      bool // what lies between the matches is the delimiter
}

// splitBehavior is what becomes of a delimiter.
type splitBehavior uint8

const (
	splitIsolated splitBehavior = iota
	splitRemoved
	splitContiguous
	splitMergedWithPrevious
	splitMergedWithNext
)

// splitBehaviors are the names in tokenizer.json.
var splitBehaviors = map[string]splitBehavior{
	"Isolated": splitIsolated, "Removed": splitRemoved, "Contiguous": splitContiguous,
	"MergedWithPrevious": splitMergedWithPrevious, "MergedWithNext": splitMergedWithNext,
}

// gpt2Split is what ByteLevel with use_regex cuts by (GPT-2's encoder.py).
const gpt2Split = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

// splitWork is the memory that one encoding needs; it may be used again.
type splitWork struct {
	search  patternSearch
	spans   []splitSpan
	in, out []string
	used    int // the most pieces that either held
}

type splitSpan struct {
	start, end int
	match      bool
}

// reset lets go of the text.
func (w *splitWork) reset() {
	w.search.reset(nil, "")
	clear(w.in[:min(w.used, cap(w.in))])
	clear(w.out[:min(w.used, cap(w.out))])
	w.used = 0
}

// split cuts s by all steps. The result is valid until the next call.
func (w *splitWork) split(s string, steps []splitStep) []string {
	w.in = append(w.in[:0], s)
	for i := range steps {
		w.out = w.out[:0]
		for _, piece := range w.in {
			steps[i].cut(w, piece)
		}
		w.used = max(w.used, len(w.in), len(w.out))
		w.in, w.out = w.out, w.in
	}
	return w.in
}

// cut appends the pieces of s to w.out.
func (t *splitStep) cut(w *splitWork, s string) {
	if t.prefixSpace && !strings.HasPrefix(s, " ") {
		s = " " + s
	}
	if t.pattern == nil {
		w.out = append(w.out, s)
		return
	}
	w.spans = w.spans[:0]
	w.search.reset(t.pattern, s)
	done := 0
	for {
		start, end, ok := w.search.next()
		if !ok {
			break
		}
		if done < start {
			w.spans = append(w.spans, splitSpan{done, start, t.invert})
		}
		w.spans = append(w.spans, splitSpan{start, end, !t.invert})
		done = end
	}
	if done < len(s) {
		w.spans = append(w.spans, splitSpan{done, len(s), t.invert})
	}
	for _, p := range t.behavior.join(w.spans) {
		if p.start < p.end {
			w.out = append(w.out, s[p.start:p.end])
		}
	}
}

// join puts together, or drops, the spans of a text, in place.
func (b splitBehavior) join(spans []splitSpan) []splitSpan {
	out := spans[:0]
	before := false // the last span was a delimiter
	switch b {
	case splitRemoved:
		for _, s := range spans {
			if !s.match {
				out = append(out, s)
			}
		}
		return out
	case splitContiguous, splitMergedWithPrevious:
		for _, s := range spans {
			glue := s.match == before
			if b == splitMergedWithPrevious {
				glue = s.match && !before
			}
			if before = s.match; glue && len(out) > 0 {
				out[len(out)-1].end = s.end
			} else {
				out = append(out, s)
			}
		}
		return out
	case splitMergedWithNext:
		from := len(spans)
		for i := len(spans) - 1; i >= 0; i-- {
			s := spans[i]
			if s.match && !before && from < len(spans) {
				spans[from].start = s.start
			} else {
				from--
				spans[from] = s
			}
			before = s.match
		}
		return spans[from:]
	}
	return spans
}
