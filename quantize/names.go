package quantize

import (
	"cmp"
	"slices"
	"strings"

	"hawkmoth/format"
)

// nearest is the few names (collapsed) that share the longest piece with text,
// punctuation aside.
func nearest(text string, names []string, few int) []string {
	letters := func(s string) string {
		return strings.Map(func(r rune) rune {
			if strings.ContainsRune("._-\\^$()[]{}*+?|/ ", r) {
				return -1
			}
			return r
		}, s)
	}
	lines := format.Collapse(names)
	score := make(map[string]int, len(lines))
	for _, line := range lines {
		score[line] = longestCommon(letters(text), letters(line))
	}
	slices.SortStableFunc(lines, func(a, b string) int { return cmp.Compare(score[b], score[a]) })
	return lines[:min(few, len(lines))]
}

// longestCommon is the length of the longest substring that a and b share.
func longestCommon(a, b string) int {
	best, row := 0, make([]int, len(b)+1)
	for i := range len(a) {
		for j := len(b) - 1; j >= 0; j-- {
			row[j+1] = 0
			if a[i] == b[j] {
				row[j+1] = row[j] + 1
				best = max(best, row[j+1])
			}
		}
	}
	return best
}
