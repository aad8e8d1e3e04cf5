package quantize

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"hawkmoth/format"
)

// Found is a wanted tensor as a snapshot holds it.
type Found struct {
	Want
	Spec   format.Spec    // [1, n] for a vector
	Tensor *format.Tensor // codes, or the plain tensor
	Scales *format.Tensor // the .qs or the _scale_inv; nil for plain floats
	Offset int64          // of the matrix in Tensor, for a slice of fused experts
	apart  strides
}

// Census is a model's tensors held against a snapshot, from headers alone.
type Census struct {
	Found     []Found   // in reading order
	Missing   []Want    // required and not there
	Absent    []Want    // optional and not there
	Extra     []string  // in the snapshot, but not the model's
	Uncertain []Reading // group sizes that the bytes alone do not tell
}

// TakeCensus looks every wanted tensor up. The problems are the tensors that
// are there and cannot be read: wrong shapes, formats that the byte counts do
// not allow.
func TakeCensus(snap *format.Snapshot, wants []Want) (*Census, format.Problems) {
	c := &Census{}
	var problems format.Problems
	used := map[string]bool{}
	for _, w := range wants {
		f, err := find(snap, w)
		switch {
		case err != nil:
			problems = append(problems, err)
			used[w.Name], used[w.Name+format.ScaleSuffix] = true, true
			continue
		case f.Tensor != nil:
			used[f.Tensor.Name] = true
			if f.Scales != nil {
				used[f.Scales.Name] = true
			}
			c.Found = append(c.Found, f)
		case w.Optional:
			c.Absent = append(c.Absent, w)
		default:
			c.Missing = append(c.Missing, w)
		}
	}
	c.settleGroups(snap)
	for _, name := range snap.Names() {
		if !used[name] {
			c.Extra = append(c.Extra, name)
		}
	}
	return c, problems
}

// Readings are the found tensors as the model reads them: an embedding that
// stands in for a tied head is there a second time, as the head.
func (c *Census) Readings() []Found {
	list := slices.Clip(c.Found)
	for _, w := range c.Absent {
		i := slices.IndexFunc(c.Found, func(f Found) bool { return w.Tied != "" && f.Name == w.Tied })
		if i >= 0 {
			head := c.Found[i]
			head.Want = w
			list = append(list, head)
		}
	}
	return list
}

// MissingProblems names the tensors that a model needs and a snapshot lacks: one
// problem for each family of names, and one for the layers of which nothing is
// there. Each says what the directory looks like, so that the reader can tell
// an unfinished download from a wrong model. missing are some of wants.
func MissingProblems(snap *format.Snapshot, wants, missing []Want) format.Problems {
	if len(missing) == 0 {
		return nil
	}
	held := heldLayers(snap, wants)
	var problems format.Problems
	fail := func(names string) { problems = append(problems, snap.Missing(names)) }
	gone, count, prefix := map[int]bool{}, 0, ""
	var names []string
	roles := map[string]Role{}
	for _, w := range missing {
		if w.Layer >= 0 && !held[w.Layer] {
			gone[w.Layer] = true
			count++
			prefix, _, _ = strings.Cut(w.Name, fmt.Sprintf(".%d.", w.Layer))
			continue
		}
		names = append(names, w.Name)
		roles[w.Name] = w.Role
	}
	switch layers := format.Ranges(slices.Collect(maps.Keys(gone))); len(gone) {
	case 0:
	case 1:
		fail(fmt.Sprintf("%s.%s.* (1 whole layer: %d tensors)", prefix, layers, count))
	default:
		fail(fmt.Sprintf("%s.{%s}.* (%d whole layers: %d tensors)", prefix, layers, len(gone), count))
	}
	for _, line := range format.Collapse(names) {
		if role, ok := roles[line]; ok {
			line += " (" + role.String() + ")"
		}
		fail(line)
	}
	return problems
}

// Indexers says whether the layers have their indexers. They run all or not at
// all, so a part of them is format.ErrIncomplete; a layer of which nothing is
// there lacks more than that, and the MTP block's does not count.
func Indexers(snap *format.Snapshot, wants []Want) (present bool, err error) {
	held := heldLayers(snap, wants)
	var absent []string
	for _, w := range wants {
		switch {
		case w.MTP || !w.InIndexer():
		case sourceOf(snap, w) != nil:
			present = true
		case held[w.Layer]:
			absent = append(absent, w.Name)
		}
	}
	if !present || len(absent) == 0 {
		return present, nil
	}
	return true, &format.Error{Kind: format.ErrIncomplete, Path: snap.Dir, What: "the indexer is there in part only: missing " + strings.Join(format.Collapse(absent), ", ")}
}

// heldLayers are the layers of which some tensor is there.
func heldLayers(snap *format.Snapshot, wants []Want) map[int]bool {
	held := map[int]bool{}
	for _, w := range wants {
		held[w.Layer] = held[w.Layer] || sourceOf(snap, w) != nil
	}
	return held
}

// find looks one tensor up, as a pair of codes and scales or as OpenSource
// does; a nil Tensor means that it is not there.
func find(snap *format.Snapshot, w Want) (Found, error) {
	f := Found{Want: w, Tensor: snap.Tensor(w.Name)}
	if f.Tensor == nil && (w.Fused == "" || snap.Tensor(w.Fused) == nil) {
		return f, nil
	}
	if f.Tensor != nil && f.Tensor.DType == format.DTypeU8 {
		rows, cols := 1, w.Shape[0]
		if w.Matrix() {
			rows, cols = w.Shape[0], w.Shape[1]
		}
		var err error
		f.Spec, err = snap.Spec(w.Name, rows, cols)
		f.Scales = snap.Tensor(w.Name + format.ScaleSuffix)
		return f, err
	}
	s, err := OpenSource(snap, w)
	if err != nil {
		return f, err
	}
	f.Tensor, f.Scales, f.Offset, f.apart = s.Tensor, s.Scales, s.Offset, s.apart
	f.Spec = s.Stored
	return f, nil
}

// Source is the tensor as something to convert from.
func (f *Found) Source() *Source {
	return &Source{Name: f.Name, Rows: f.Spec.Rows, Cols: f.Spec.Cols, DType: f.Tensor.DType, Stored: f.Spec,
		Tensor: f.Tensor, Offset: f.Offset, apart: f.apart, Scales: f.Scales}
}

// sourceFormats is the weight format that a checkpoint's element type is.
var sourceFormats = map[format.DType]format.ID{format.DTypeF32: format.F32, format.DTypeBF16: format.BF16, format.DTypeF16: format.F16, format.DTypeFP8: format.FP8}

// Reading is a family of matrices whose bytes fit several group sizes.
type Reading struct {
	Names      []string
	Taken      int   // the group size under which they are read
	Candidates []int // every group size that fits; the first is what a reader of bytes takes
}

// settleGroups reads the group sizes that a reader of bytes has to guess. A
// container has one group size as a rule: where all certain int4-grouped
// matrices agree and the uncertain ones fit that size too, it is theirs.
func (c *Census) settleGroups(snap *format.Snapshot) {
	certain := map[int]bool{}
	uncertain := map[int][]int{} // index into Found → candidates
	for i := range c.Found {
		f := &c.Found[i]
		if f.Spec.Format != format.Int4Grouped {
			continue
		}
		var fit []int
		if snap.StampedGroup(f.Name) == 0 { // a name alone does not say
			for _, s := range snap.Candidates(f.Name, f.Spec.Rows, f.Spec.Cols) {
				if s.Format == format.Int4Grouped {
					fit = append(fit, s.Group)
				}
			}
		}
		if len(fit) > 1 {
			uncertain[i] = fit
		} else {
			certain[f.Spec.Group] = true
		}
	}
	for _, i := range slices.Sorted(maps.Keys(uncertain)) {
		f, fit := &c.Found[i], uncertain[i]
		for gs := range certain {
			if len(certain) == 1 && slices.Contains(fit, gs) {
				f.Spec.Group = gs
			}
		}
		at := slices.IndexFunc(c.Uncertain, func(r Reading) bool { return r.Taken == f.Spec.Group && slices.Equal(r.Candidates, fit) })
		if at < 0 {
			at = len(c.Uncertain)
			c.Uncertain = append(c.Uncertain, Reading{Taken: f.Spec.Group, Candidates: fit})
		}
		c.Uncertain[at].Names = append(c.Uncertain[at].Names, f.Name)
	}
}

// String says what was taken and why somebody else may read it otherwise.
func (r Reading) String() string {
	text := fmt.Sprintf("%s: no stamp says it, and the scales fit groups of %s; read as %d", strings.Join(format.Collapse(r.Names), ", "), join(r.Candidates, " or "), r.Taken)
	if r.Taken != r.Candidates[0] {
		return text + fmt.Sprintf(" like the rest of the container, while colibri takes %d", r.Candidates[0])
	}
	return text + ", as colibri does"
}

func join(numbers []int, sep string) string {
	texts := make([]string, len(numbers))
	for i, n := range numbers {
		texts[i] = fmt.Sprint(n)
	}
	return strings.Join(texts, sep)
}

// Scattered says whether the tensor's elements lie apart among those of others.
func (f *Found) Scattered() bool { return f.apart.size > 0 }

// Bind makes the matrix: views into the mapped shard, no copy but for block
// scales that are not F32 and for matrices whose elements are apart in fused
// experts.
func (f *Found) Bind() (Matrix, error) {
	m := Matrix{Spec: f.Spec}
	w, err := f.Tensor.Shard.Bytes(f.Tensor)
	if err != nil {
		return m, err
	}
	if f.apart.size > 0 {
		m.W = make([]byte, f.Spec.Bytes())
		f.Source().gather(m.W, w[f.Offset:][:f.apart.size], 0, f.Spec.Rows)
		return m, nil
	}
	m.W = w[f.Offset:][:f.Spec.Bytes()]
	switch {
	case f.Scales == nil:
	case f.Scales.DType != format.DTypeF32:
		raw, err := f.Scales.Shard.Bytes(f.Scales)
		if err != nil {
			return m, err
		}
		m.S = make([]float32, f.Spec.Scales())
		widenScales[f.Scales.DType](m.S, raw)
	default:
		m.S, err = f.Scales.Shard.Floats(f.Scales)
	}
	return m, err
}
