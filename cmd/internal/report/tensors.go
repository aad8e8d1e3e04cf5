package report

import (
	"cmp"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"hawkmoth/format"
	"hawkmoth/quantize"
)

// Tensor is one tensor of the model, or one that the model does not read.
type Tensor struct {
	Name       string   `json:"name"`
	Role       string   `json:"role,omitempty"` // empty if the model does not read it or is unknown
	Layer      int      `json:"layer"`          // -1 outside the layers
	MTP        bool     `json:"mtp"`
	Shape      []int    `json:"shape"`  // of the matrix, or of the stored tensor if that is unknown
	Format     string   `json:"format"` // or an element type
	Group      int      `json:"group"`
	Bytes      int64    `json:"bytes"`
	Shard      string   `json:"shard"`
	Read       string   `json:"read"`            // how the format is known: "stamped", "inferred", "dtype" or "unknown"
	Candidates []string `json:"candidates"`      // every format that the bytes allow, if there are several; the first is what a stamp says or a reader of bytes takes
	Error      *float64 `json:"error,omitempty"` // against a checkpoint
	Note       string   `json:"note,omitempty"`
}

// How the format of a tensor is known.
const (
	readStamped  = "stamped"
	readInferred = "inferred"
	readDType    = "dtype"
	readUnknown  = "unknown"
)

// AddTensors fills in Tensors with those whose names match the glob pattern of
// path.Match. It is format.ErrUsage if the pattern is malformed or matches none.
func (r *Report) AddTensors(glob string) error {
	if _, err := path.Match(glob, ""); err != nil {
		return &format.Error{Kind: format.ErrUsage, What: "--tensors: not a pattern", Found: glob}
	}
	matches := func(name string) bool {
		ok, _ := path.Match(glob, name)
		return ok
	}
	seen, wanted := map[string]bool{}, map[string]bool{}
	for _, w := range r.wants {
		wanted[w.Name] = true
	}
	if r.census != nil {
		for i := range r.census.Found {
			f := &r.census.Found[i]
			seen[f.Tensor.Name] = true
			if f.Scales != nil {
				seen[f.Scales.Name] = true
			}
			if matches(f.Name) {
				r.Tensors = append(r.Tensors, r.tensor(f))
			}
		}
	}
	for _, name := range r.snap.Names() {
		if t := r.snap.Tensor(name); !seen[name] && matches(name) && !r.scalesOfPair(t) {
			r.Tensors = append(r.Tensors, r.stranger(t, wanted[name]))
		}
	}
	if len(r.Tensors) == 0 {
		return &format.Error{Kind: format.ErrUsage, Path: r.Path, What: "--tensors: no tensor matches", Found: glob}
	}
	return nil
}

// scalesOfPair says whether a tensor is shown with its matrix.
func (r *Report) scalesOfPair(t *format.Tensor) bool {
	base, ok := strings.CutSuffix(t.Name, format.ScaleSuffix)
	w := r.snap.Tensor(base)
	return ok && w != nil && w.DType == format.DTypeU8
}

func (r *Report) tensor(f *quantize.Found) Tensor {
	t := Tensor{Name: f.Name, Role: f.Role.String(), Layer: f.Layer, MTP: f.MTP, Shape: f.Shape, Format: f.Spec.Name(), Group: f.Spec.Group,
		Bytes: bytesOf(f), Shard: filepath.Base(f.Tensor.Shard.Path), Read: readDType, Candidates: []string{}, Error: r.errorOf(f.Name)}
	if f.Tensor.DType == format.DTypeU8 {
		t.Read = readInferred
		if r.snap.Stamped(f.Name) {
			t.Read = readStamped
		}
		if all := r.snap.Candidates(f.Name, f.Spec.Rows, f.Spec.Cols); len(all) > 1 {
			t.Candidates = names(all)
		}
	}
	switch {
	case f.Spec.Format == format.Int4Row:
		t.Note = "int4, one scale per row (group ≥ row or per-row)"
	case f.Tensor.Name != f.Name:
		t.Note = "in " + f.Tensor.Name
	}
	return t
}

// stranger is a tensor of which only the header is known.
func (r *Report) stranger(s *format.Tensor, wanted bool) Tensor {
	t := Tensor{Name: s.Name, Layer: -1, Shape: s.Shape, Format: string(s.DType), Bytes: s.Size, Shard: filepath.Base(s.Shard.Path), Read: readDType, Candidates: []string{}}
	switch q := r.snap.Tensor(s.Name + format.ScaleSuffix); {
	case wanted:
		t.Note = "does not fit, see the problems"
	case r.census != nil:
		t.Note = "not the model's"
	case q != nil && s.DType == format.DTypeU8:
		t.Bytes += q.Size
		t.Format, t.Read = "packed", readUnknown
		if stamps, err := format.ParseStamps(s.Shard.Metadata); err == nil && r.snap.Stamped(s.Name) {
			st := stamps[s.Name]
			t.Format, t.Group, t.Read = st.Format.String(), st.Group, readStamped
			if st.Group > 0 {
				t.Format = format.Spec{Format: st.Format, Group: st.Group}.Name()
			}
		}
	}
	if s.Shape == nil {
		t.Shape = []int{}
	}
	return t
}

// Layer is the tensors of one layer, role by role. Layer -1 is what is outside
// the layers.
type Layer struct {
	Layer int         `json:"layer"`
	MTP   bool        `json:"mtp"`
	Bytes int64       `json:"bytes"`
	Roles []LayerRole `json:"roles"`
}

// LayerRole is the tensors of one role in one layer.
type LayerRole struct {
	Role    string        `json:"role"`
	Formats []FormatCount `json:"formats"`
	Missing int           `json:"missing"` // wanted and not there, or wrong
	Absent  int           `json:"absent"`  // optional and not there
	Bytes   int64         `json:"bytes"`
	Error   *float64      `json:"error,omitempty"` // of all these tensors against a checkpoint
	Worst   *float64      `json:"worst,omitempty"` // of one

	found []*quantize.Found
}

// AddLayers fills in Layers. It is format.ErrUsage without a known model.
func (r *Report) AddLayers() error {
	if r.census == nil {
		return &format.Error{Kind: format.ErrUsage, Path: r.Path, What: "--layers needs a config.json of a known architecture"}
	}
	type key struct {
		layer int
		role  quantize.Role
	}
	type cell struct {
		formats         counts
		missing, absent int
		bytes           int64
		found           []*quantize.Found
	}
	found := map[string]*quantize.Found{}
	for i := range r.census.Found {
		found[r.census.Found[i].Name] = &r.census.Found[i]
	}
	cells, layers := map[key]*cell{}, map[int]*Layer{}
	for _, w := range r.wants {
		k, f := key{w.Layer, w.Role}, found[w.Name]
		gone := f == nil && w.Optional && !r.held(w)
		if gone && w.InIndexer() { // the norm of its keys, too
			k.role = quantize.Indexer
		}
		c, l := cells[k], layers[w.Layer]
		if c == nil {
			c = &cell{formats: counts{}}
			cells[k] = c
		}
		if l == nil {
			l = &Layer{Layer: w.Layer, MTP: w.MTP, Roles: []LayerRole{}}
			layers[w.Layer] = l
		}
		switch {
		case f != nil:
			c.formats[f.Spec.Name()]++
			c.bytes += bytesOf(f)
			c.found = append(c.found, f)
			l.Bytes += bytesOf(f)
		case gone:
			c.absent++
		default:
			c.missing++
		}
	}
	for n, l := range layers {
		for _, role := range quantize.Roles() {
			if c := cells[key{n, role}]; c != nil {
				x := LayerRole{Role: role.String(), Formats: c.formats.list(), Missing: c.missing, Absent: c.absent, Bytes: c.bytes, found: c.found}
				var names []string
				for _, f := range c.found {
					names = append(names, f.Name)
				}
				x.Error, x.Worst = r.cellErrors(names)
				l.Roles = append(l.Roles, x)
			}
		}
		r.Layers = append(r.Layers, *l)
	}
	slices.SortFunc(r.Layers, func(a, b Layer) int { return cmp.Compare(a.Layer, b.Layer) })
	return nil
}

// absent is the cell of optional tensors that are not there.
const absent = "absent"

// text is the cell of a map; cells with the same text are equal.
func (c LayerRole) text() string {
	var parts []string
	for _, f := range c.Formats {
		parts = append(parts, short(f.Format))
	}
	slices.Sort(parts)
	text := strings.Join(parts, "+")
	switch {
	case c.Missing > 0 && text == "":
		return "missing"
	case c.Missing > 0:
		return fmt.Sprintf("%s, %d missing", text, c.Missing)
	case text == "":
		return absent
	case c.Absent > 0:
		return fmt.Sprintf("%s, %d absent", text, c.Absent)
	}
	return text
}

// shorts are the names of formats in the map.
var shorts = []struct{ name, short string }{
	{"int4-grouped/", "int4/"}, {"int8-row", "int8"}, {"int4-row", "int4"}, {"int2-row", "int2"}, {"int3-g64", "int3"},
	{"fp8-e4m3-b128", "fp8"}, {"e8-iq3-lattice", "e8"},
}

func short(name string) string {
	for _, s := range shorts {
		if rest, ok := strings.CutPrefix(name, s.name); ok {
			return s.short + rest
		}
	}
	return name
}
