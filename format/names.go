package format

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Collapse writes many tensor names as few lines: names that differ only in
// numbers become one pattern, "model.layers.{4-9,31-77}.mlp.up_proj.weight
// (53 tensors)", in the order of their first names.
func Collapse(names []string) []string {
	type pattern struct {
		parts   []string
		numbers []map[int]bool // per part; nil for words
		count   int
		first   string
	}
	byKey := map[string]*pattern{}
	var order []*pattern
	for _, name := range names {
		parts := strings.Split(name, ".")
		key := make([]string, len(parts))
		for i, p := range parts {
			key[i] = p
			if isNumber(p) {
				key[i] = "#"
			}
		}
		k := strings.Join(key, ".")
		pat := byKey[k]
		if pat == nil {
			pat = &pattern{parts: parts, numbers: make([]map[int]bool, len(parts)), first: name}
			byKey[k] = pat
			order = append(order, pat)
		}
		pat.count++
		for i, p := range parts {
			if n, err := strconv.Atoi(p); err == nil && key[i] == "#" {
				if pat.numbers[i] == nil {
					pat.numbers[i] = map[int]bool{}
				}
				pat.numbers[i][n] = true
			}
		}
	}
	lines := make([]string, len(order))
	for i, pat := range order {
		if pat.count == 1 {
			lines[i] = pat.first
			continue
		}
		parts := slices.Clone(pat.parts)
		for j, set := range pat.numbers {
			if len(set) > 1 {
				parts[j] = "{" + Ranges(slices.Collect(maps.Keys(set))) + "}"
			}
		}
		lines[i] = fmt.Sprintf("%s (%d tensors)", strings.Join(parts, "."), pat.count)
	}
	return lines
}

func isNumber(s string) bool {
	return s != "" && len(s) < 9 && strings.Trim(s, "0123456789") == ""
}

// Ranges writes numbers in increasing order with runs as "4-9,31-77".
func Ranges(numbers []int) string {
	sorted := slices.Sorted(slices.Values(numbers))
	var out []string
	for i := 0; i < len(sorted); {
		j := i
		for j+1 < len(sorted) && sorted[j+1] <= sorted[j]+1 {
			j++
		}
		if sorted[i] == sorted[j] {
			out = append(out, strconv.Itoa(sorted[i]))
		} else {
			out = append(out, fmt.Sprintf("%d-%d", sorted[i], sorted[j]))
		}
		i = j + 1
	}
	return strings.Join(out, ",")
}
