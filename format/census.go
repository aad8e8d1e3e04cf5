package format

import (
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
)

// numbered is a shard of a series: "model-00002-of-00007" or "out-00000".
var numbered = regexp.MustCompile(`^(.*?-)([0-9]{1,9})(-of-([0-9]{1,9}))?\.safetensors$`)

// maxGaps bounds how many missing shards are named one by one.
const maxGaps = 1000

// dropStaleIndex forgets an index of other shards beside model.safetensors
// alone, which the reference reads first too.
func (p *part) dropStaleIndex(files []string) {
	const whole = "model" + shardSuffix
	if p.index == nil || len(files) != 1 || filepath.Base(files[0]) != whole {
		return
	}
	for _, shard := range p.index {
		if shard == whole {
			return
		}
	}
	p.warnings = append(p.warnings, fmt.Sprintf("%s: none of its shards is there, so it is of another state; %s is read", filepath.Join(p.dir, indexName), whole))
	p.index = nil
}

// census compares the files with what the index and the numbering promise. A
// shard that the index names, or without an index the numbering "-of-", must
// be there; other gaps are warnings, since some converters number sparsely.
func (p *part) census(files []string) Problems {
	have := map[string]bool{}
	for _, file := range files {
		have[filepath.Base(file)] = true
	}
	var problems Problems
	absent := map[string]int{}
	for _, shard := range p.index {
		if !have[shard] {
			absent[shard]++
		}
	}
	for _, shard := range slices.Sorted(maps.Keys(absent)) {
		problems = append(problems, &Error{Kind: ErrIncomplete, Path: filepath.Join(p.dir, shard), What: fmt.Sprintf("shard is missing, the index maps %d tensors to it: incomplete download?", absent[shard])})
	}
	if p.index != nil {
		return problems
	}
	certain, likely := gaps(files)
	for _, name := range certain {
		problems = append(problems, &Error{Kind: ErrIncomplete, Path: filepath.Join(p.dir, name), What: "shard is missing from the numbering: incomplete download?"})
	}
	for _, name := range likely {
		p.warnings = append(p.warnings, filepath.Join(p.dir, name)+": the numbering of the shards lacks this one")
	}
	p.gaps = append(certain, likely...)
	return problems
}

// gaps names the shards that a numbering lacks: certain ones, where the names
// say how many there are, and likely ones, where a series has a hole or, being
// zero-padded, does not begin at 0.
func gaps(files []string) (certain, likely []string) {
	type series struct {
		prefix, of string
		width      int
	}
	found := map[series][]int{}
	total := map[series]int{}
	for _, file := range files {
		m := numbered.FindStringSubmatch(filepath.Base(file))
		if m == nil {
			continue
		}
		key := series{m[1], m[3], len(m[2])}
		n, _ := strconv.Atoi(m[2])
		found[key] = append(found[key], n)
		total[key], _ = strconv.Atoi(m[4])
	}
	for key, numbers := range found {
		slices.Sort(numbers)
		lo, hi := numbers[0], numbers[len(numbers)-1]
		list := &likely
		switch {
		case key.of != "":
			list = &certain
			lo, hi = min(lo, 1), max(hi, total[key])
			if lo == 0 {
				hi = max(numbers[len(numbers)-1], total[key]-1)
			}
		case key.width >= 4:
			lo = 0
		}
		for n := lo; n <= hi && len(*list) < maxGaps; n++ {
			if _, ok := slices.BinarySearch(numbers, n); !ok {
				*list = append(*list, fmt.Sprintf("%s%0*d%s.safetensors", key.prefix, key.width, n, key.of))
			}
		}
	}
	slices.Sort(certain)
	slices.Sort(likely)
	return certain, likely
}
