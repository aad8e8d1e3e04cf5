package runtime

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// runeSet is a set of characters: sorted ranges that neither meet nor touch,
// and a bitmap of the ASCII part.
type runeSet struct {
	ascii  [2]uint64
	ranges []runeRange
}

type runeRange struct{ lo, hi rune } // hi included

var (
	anyRune      = runeSetOf(runeRange{0, unicode.MaxRune})
	newlineRunes = runeSetOf(runeRange{'\n', '\n'})
	spaceRunes   = runeSetOf(tableRanges(unicode.White_Space)...)
	digitRunes   = runeSetOf(tableRanges(unicode.Nd)...)
	// wordRunes is what \w matches in Oniguruma and, but for two joiners, in Rust.
	wordRunes = sync.OnceValue(func() *runeSet {
		return runeSetOf(tableRanges(unicode.L, unicode.Nl, unicode.Other_Alphabetic, unicode.M, unicode.Nd, unicode.Pc)...)
	})
	// foldingRunes are the characters that have another case.
	foldingRunes = sync.OnceValue(func() []rune {
		var all []rune
		for r := range rune(unicode.MaxRune) {
			if unicode.SimpleFold(r) != r {
				all = append(all, r)
			}
		}
		return all
	})
)

func runeSetOf(ranges ...runeRange) *runeSet {
	ranges = slices.Clone(ranges)
	slices.SortFunc(ranges, func(a, b runeRange) int { return cmp.Compare(a.lo, b.lo) })
	s := &runeSet{}
	for _, r := range ranges {
		if n := len(s.ranges); n > 0 && r.lo <= s.ranges[n-1].hi+1 {
			s.ranges[n-1].hi = max(s.ranges[n-1].hi, r.hi)
			continue
		}
		s.ranges = append(s.ranges, r)
	}
	for _, r := range s.ranges {
		for c := r.lo; c <= r.hi && c < utf8.RuneSelf; c++ {
			s.ascii[c>>6] |= 1 << (c & 63)
		}
	}
	return s
}

func tableRanges(tables ...*unicode.RangeTable) []runeRange {
	var out []runeRange
	add := func(lo, hi, stride rune) {
		if stride == 1 {
			out = append(out, runeRange{lo, hi})
			return
		}
		for r := lo; r <= hi; r += stride {
			out = append(out, runeRange{r, r})
		}
	}
	for _, t := range tables {
		for _, r := range t.R16 {
			add(rune(r.Lo), rune(r.Hi), rune(r.Stride))
		}
		for _, r := range t.R32 {
			add(rune(r.Lo), rune(r.Hi), rune(r.Stride))
		}
	}
	return out
}

// propertyRunes is a general category or script by its short or long name; nil
// if there is none of that name.
func propertyRunes(name string) *runeSet {
	plain := func(s string) string {
		return strings.ToLower(strings.NewReplacer("_", "", "-", "", " ", "").Replace(s))
	}
	want := plain(name)
	for alias := range maps.Keys(unicode.CategoryAliases) {
		if plain(alias) == want {
			want = plain(unicode.CategoryAliases[alias])
			break
		}
	}
	for _, tables := range []map[string]*unicode.RangeTable{unicode.Categories, unicode.Scripts} {
		for n, t := range tables {
			if plain(n) == want {
				return runeSetOf(tableRanges(t)...)
			}
		}
	}
	return nil
}

func (s *runeSet) has(r rune) bool {
	if r < utf8.RuneSelf {
		return s.hasASCII(byte(r))
	}
	lo, hi := 0, len(s.ranges)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if s.ranges[mid].hi < r {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo < len(s.ranges) && s.ranges[lo].lo <= r
}

func (s *runeSet) hasASCII(c byte) bool { return s.ascii[c>>6&1]>>(c&63)&1 != 0 }

func (s *runeSet) negated() *runeSet {
	var out []runeRange
	next := rune(0)
	for _, r := range s.ranges {
		if r.lo > next {
			out = append(out, runeRange{next, r.lo - 1})
		}
		next = r.hi + 1
	}
	if next <= unicode.MaxRune {
		out = append(out, runeRange{next, unicode.MaxRune})
	}
	return runeSetOf(out...)
}

// and is the intersection; a nil set stands for everything.
func (s *runeSet) and(o *runeSet) *runeSet {
	if s == nil {
		return o
	}
	var out []runeRange
	for i, j := 0, 0; i < len(s.ranges) && j < len(o.ranges); {
		a, b := s.ranges[i], o.ranges[j]
		if lo, hi := max(a.lo, b.lo), min(a.hi, b.hi); lo <= hi {
			out = append(out, runeRange{lo, hi})
		}
		if a.hi < b.hi {
			i++
		} else {
			j++
		}
	}
	return runeSetOf(out...)
}

// folded adds the other cases of every member.
func (s *runeSet) folded() *runeSet {
	out := slices.Clone(s.ranges)
	cases := func(r rune) {
		for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
			out = append(out, runeRange{f, f})
		}
	}
	if len(s.ranges) == 1 && s.ranges[0].lo == s.ranges[0].hi {
		cases(s.ranges[0].lo)
		return runeSetOf(out...)
	}
	for _, r := range foldingRunes() {
		if s.has(r) {
			cases(r)
		}
	}
	return runeSetOf(out...)
}
