package cli

import (
	"fmt"
	"path/filepath"

	"hawkmoth/format"
)

// Bounds of what is printed for people; -v and --json have everything.
const (
	fewProblems = 20 // are printed one by one
	maxItems    = 8  // lines under one heading
	maxHeadings = 24
)

// Grouped writes problems as few lines whatever their number: those that say
// the same of different tensors or files share a heading, and names that differ
// in numbers only a line. kinds puts the kind of --json before each.
func Grouped(list []error, kinds bool) []string {
	type head struct{ kind, what string }
	var order []head
	groups := map[head][]error{}
	for _, err := range list {
		h := head{what: err.Error()}
		if e, ok := err.(*format.Error); ok {
			h.what = e.Said()
		}
		if kinds {
			_, kind := Code(err)
			h.kind = kind + ": "
		}
		if groups[h] == nil {
			order = append(order, h)
		}
		groups[h] = append(groups[h], err)
	}
	var lines []string
	for i, h := range order {
		g := groups[h]
		switch {
		case i == maxHeadings:
			rest := 0
			for _, h := range order[i:] {
				rest += len(groups[h])
			}
			return append(lines, fmt.Sprintf("… and %d more; -v prints all", rest))
		case len(g) == 1:
			lines = append(lines, h.kind+g[0].Error())
			continue
		}
		lines = append(lines, h.kind+h.what)
		under := items(g, true)
		if len(under) > maxItems {
			under = items(g, false)
		}
		if n := len(under) - maxItems; n > 0 {
			under = append(under[:maxItems], fmt.Sprintf("… and %d more; -v prints all", n))
		}
		for _, item := range under {
			lines = append(lines, "  "+item)
		}
	}
	return lines
}

// items writes problems that say the same: a line for each of their subjects,
// with its shard or for all shards together.
func items(group []error, shards bool) []string {
	type key struct {
		path, found, wanted string
		tensor              bool
	}
	var order []key
	names, paths := map[key][]string{}, map[key]map[string]bool{}
	for _, err := range group {
		e, ok := err.(*format.Error)
		if !ok {
			e = &format.Error{Path: err.Error()}
		}
		k, name := key{found: e.Found, wanted: e.Wanted, tensor: e.Tensor != ""}, e.Path
		if k.tensor {
			name = e.Tensor
			if shards {
				k.path = e.Path
			}
		}
		if paths[k] == nil {
			order = append(order, k)
			paths[k] = map[string]bool{}
		}
		names[k] = append(names[k], name)
		paths[k][e.Path] = true
	}
	var lines []string
	for _, k := range order {
		where, tail := "", ""
		switch {
		case k.tensor && filepath.Ext(k.path) != "":
			where = " in " + filepath.Base(k.path)
		case k.tensor && !shards && len(paths[k]) > 1:
			where = fmt.Sprintf(" in %d shards", len(paths[k]))
		}
		switch {
		case k.found != "" && k.wanted != "":
			tail = fmt.Sprintf(": found %s, wanted %s", k.found, k.wanted)
		case k.found != "":
			tail = ": found " + k.found
		case k.wanted != "":
			tail = ": wanted " + k.wanted
		}
		list := names[k]
		if k.tensor {
			list = format.Collapse(list)
		}
		for _, name := range list {
			lines = append(lines, name+where+tail)
		}
	}
	return lines
}
