package format

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

const (
	shardSuffix = ".safetensors"
	indexName   = "model.safetensors.index.json"
)

// Snapshot is an open model directory: its shards and which of them each tensor comes from.
type Snapshot struct {
	Dir      string
	Shards   []*Shard          // of the directory, then of each overlay; in byte order of names
	Index    map[string]string // tensor to shard name; nil without an index file
	Warnings []string          // oddities that do not stop anybody, in a fixed order

	tensors map[string]*Tensor
	names   []string
	stamps  map[string]Stamp
	gaps    []string // shard names that the numbering lacks
}

// Open opens a directory of safetensors files, or one such file, and overlays
// (directories or files) whose tensors replace those of the base, the last one
// winning. All headers are validated and everything that is wrong is reported
// at once.
func Open(dir string, overlays ...string) (*Snapshot, error) {
	s := &Snapshot{tensors: map[string]*Tensor{}}
	var problems Problems
	var claims []claim
	for i, path := range append([]string{dir}, overlays...) {
		p, errs := openPart(path)
		problems = append(problems, errs...)
		s.Shards = append(s.Shards, p.shards...)
		s.Warnings = append(s.Warnings, p.warnings...)
		s.gaps = append(s.gaps, p.gaps...)
		if i == 0 {
			s.Dir, s.Index = p.dir, p.index
		}
		s.lay(p)
		claims = append(claims, p.claims...)
	}
	s.names = slices.Sorted(maps.Keys(s.tensors))
	problems = append(problems, s.pair()...)
	problems = append(problems, s.stamp(claims)...)
	if err := problems.Err(); err != nil {
		_ = s.Close()
		if len(problems) == 1 {
			return nil, problems[0]
		}
		return nil, err
	}
	return s, nil
}

// part is one directory or file of a snapshot, its duplicates resolved.
type part struct {
	dir      string
	shards   []*Shard
	index    map[string]string
	tensors  map[string]*Tensor
	claims   []claim
	warnings []string
	gaps     []string
}

// claim is a stamp and the shard that makes it.
type claim struct {
	shard *Shard
	name  string
	Stamp
}

func openPart(path string) (*part, Problems) {
	p := &part{dir: path, tensors: map[string]*Tensor{}}
	files := []string{path}
	var problems Problems
	var err error
	if st, serr := os.Stat(path); serr == nil && st.IsDir() {
		if files, err = shardFiles(path); err != nil {
			return p, Problems{err}
		}
		if p.index, err = readIndex(path); err != nil {
			problems = append(problems, err)
		}
		p.dropStaleIndex(files)
		problems = append(problems, p.census(files)...)
	} else {
		p.dir = filepath.Dir(path)
	}
	problems = append(problems, p.openShards(files)...)
	problems = append(problems, p.resolve()...)
	for _, sh := range p.shards {
		stamps, err := ParseStamps(sh.Metadata)
		if err != nil {
			problems = flatten(problems, withPath(err, sh.Path))
		}
		for _, name := range slices.Sorted(maps.Keys(stamps)) {
			p.claims = append(p.claims, claim{sh, name, stamps[name]})
		}
	}
	return p, problems
}

func flatten(problems Problems, err error) Problems {
	if list, ok := err.(Problems); ok {
		return append(problems, list...)
	}
	return append(problems, err)
}

// shardFiles lists the shards of a directory in byte order of their names. A
// link counts under its own name, wherever it leads.
func shardFiles(dir string) ([]string, error) {
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil, fileError(dir, "cannot read the directory", err)
	}
	var files []string
	for _, e := range list {
		name := e.Name()
		// Hidden files are the shadows that other systems' archives leave.
		if strings.HasSuffix(name, shardSuffix) && !strings.HasPrefix(name, ".") && !e.IsDir() {
			files = append(files, filepath.Join(dir, name))
		}
	}
	if len(files) == 0 {
		return nil, &Error{Kind: ErrIncomplete, Path: dir, What: "no " + shardSuffix + " file in this directory"}
	}
	slices.Sort(files)
	return files, nil
}

// openShards opens the files side by side, since each may be a slow disk away.
func (p *part) openShards(files []string) Problems {
	shards, errs := make([]*Shard, len(files)), make([]error, len(files))
	var wg sync.WaitGroup
	gate := make(chan struct{}, 8)
	for i, file := range files {
		wg.Go(func() {
			gate <- struct{}{}
			shards[i], errs[i] = OpenShard(file)
			<-gate
		})
	}
	wg.Wait()
	var problems Problems
	for i, err := range errs {
		if err != nil {
			problems = flatten(problems, err)
			continue
		}
		p.shards = append(p.shards, shards[i])
	}
	return problems
}

// resolve chooses the shard of each name; the index decides between several.
func (p *part) resolve() Problems {
	n := 0
	for _, sh := range p.shards {
		n += len(sh.Tensors)
	}
	p.tensors = make(map[string]*Tensor, n)
	several := map[string][]*Tensor{}
	for _, sh := range p.shards {
		for _, t := range sh.Tensors {
			first := p.tensors[t.Name]
			if first == nil {
				p.tensors[t.Name] = t
				continue
			}
			if several[t.Name] == nil {
				several[t.Name] = []*Tensor{first}
			}
			several[t.Name] = append(several[t.Name], t)
		}
	}
	var problems Problems
	for _, name := range slices.Sorted(maps.Keys(several)) {
		list := several[name]
		shard, listed := p.index[name]
		i := slices.IndexFunc(list, func(t *Tensor) bool { return filepath.Base(t.Shard.Path) == shard })
		if i >= 0 {
			p.tensors[name] = list[i]
			continue
		}
		why := "the index maps it to a third shard, " + shard
		switch {
		case p.index == nil:
			why = "there is no " + indexName + " to decide"
		case !listed:
			why = "the index does not list it"
		}
		var found []string
		for _, t := range list {
			found = append(found, filepath.Base(t.Shard.Path))
		}
		problems = append(problems, &Error{Kind: ErrCorrupt, Path: p.dir, Tensor: name, What: "held by several shards and " + why, Found: strings.Join(found, ", "), Wanted: "one"})
	}
	p.hide()
	if stale := p.staleEntries(several); stale > 0 {
		p.warnings = append(p.warnings, fmt.Sprintf("%s: %d tensors of the index are not in the shard that it names", filepath.Join(p.dir, indexName), stale))
	}
	return problems
}

// hide drops scales that are not the winner's: where the index lists a matrix
// without scales, those that another shard still holds belong to the matrix
// that was replaced.
func (p *part) hide() {
	for name := range p.index {
		q, n := p.tensors[name+ScaleSuffix], p.tensors[name]
		if _, listed := p.index[name+ScaleSuffix]; q != nil && !listed && n != nil && n.DType != DTypeU8 && n.Shard != q.Shard {
			delete(p.tensors, name+ScaleSuffix)
		}
	}
}

func (p *part) staleEntries(several map[string][]*Tensor) int {
	stale := 0
	for name, shard := range p.index {
		in := func(t *Tensor) bool { return filepath.Base(t.Shard.Path) == shard }
		if t := p.tensors[name]; (t == nil || !in(t)) && !slices.ContainsFunc(several[name], in) {
			stale++
		}
	}
	return stale
}

// lay puts a part over what is there. A packed matrix is one unit: a part that
// holds N replaces N and its scales.
func (s *Snapshot) lay(p *part) {
	if len(s.tensors) == 0 {
		s.tensors = p.tensors
		return
	}
	for name, t := range p.tensors {
		if _, held := p.tensors[name+ScaleSuffix]; !held && t.DType != DTypeU8 {
			delete(s.tensors, name+ScaleSuffix)
		}
		s.tensors[name] = t
	}
}

// pair checks that codes and scales come from one shard.
func (s *Snapshot) pair() Problems {
	var problems Problems
	var orphans []string
	for _, name := range s.names {
		base, isScale := strings.CutSuffix(name, ScaleSuffix)
		if !isScale {
			continue
		}
		n, q := s.tensors[base], s.tensors[name]
		switch {
		case n == nil:
			orphans = append(orphans, name)
		case n.DType == DTypeU8 && n.Shard != q.Shard:
			problems = append(problems, &Error{Kind: ErrCorrupt, Path: n.Shard.Path, Tensor: base, What: "codes and scales come from different shards", Found: "scales in " + q.Shard.Path})
		}
	}
	if len(orphans) > 0 {
		s.Warnings = append(s.Warnings, fmt.Sprintf("%s: %d tensors of scales without their weight, the first is %s", s.Dir, len(orphans), orphans[0]))
	}
	return problems
}

// stamp collects what the shards claim about packed matrices. What a shard
// says about a tensor of its own that another shard replaces is not about the
// winner; all other claims about a name must agree.
func (s *Snapshot) stamp(claims []claim) Problems {
	held := map[*Shard]map[string]bool{} // of shards that claim what is not theirs: few
	holds := func(sh *Shard, name string) bool {
		if held[sh] == nil {
			held[sh] = map[string]bool{}
			for _, t := range sh.Tensors {
				held[sh][t.Name] = true
			}
		}
		return held[sh][name]
	}
	var problems Problems
	s.stamps = make(map[string]Stamp, len(claims))
	by := map[string]*Shard{}
	for _, c := range claims {
		n := s.tensors[c.name]
		if n == nil || s.scales(n) == nil || c.shard != n.Shard && holds(c.shard, c.name) {
			continue
		}
		old, dup := s.stamps[c.name]
		if dup && old != c.Stamp {
			problems = append(problems, &Error{Kind: ErrCorrupt, Path: c.shard.Path, Tensor: c.name, What: "two shards claim different formats", Found: c.text(), Wanted: old.text() + " as in " + by[c.name].Path})
			continue
		}
		s.stamps[c.name], by[c.name] = c.Stamp, c.shard
	}
	return problems
}

func (st Stamp) text() string {
	if st.Group > 0 {
		return Spec{Format: st.Format, Group: st.Group}.Name()
	}
	return st.Format.String()
}

// scales is the companion of a packed matrix, nil for any other tensor.
func (s *Snapshot) scales(t *Tensor) *Tensor {
	if t.DType != DTypeU8 {
		return nil
	}
	return s.tensors[t.Name+ScaleSuffix]
}

// Tensor is the tensor of a name, nil if absent.
func (s *Snapshot) Tensor(name string) *Tensor { return s.tensors[name] }

// Names is every tensor's name in byte order.
func (s *Snapshot) Names() []string { return slices.Clone(s.names) }

// Converted says whether the snapshot holds a packed matrix, codes and scales.
func (s *Snapshot) Converted() bool {
	for _, t := range s.tensors {
		if s.scales(t) != nil {
			return true
		}
	}
	return false
}

// Stamped says whether metadata names the format of a packed matrix.
func (s *Snapshot) Stamped(name string) bool {
	_, ok := s.stamps[name]
	return ok
}

// StampedGroup is the group size that metadata gives a packed matrix; 0 for none.
func (s *Snapshot) StampedGroup(name string) int { return s.stamps[name].Group }

// Spec is the format of a matrix [rows, cols] of the snapshot: what its stamp
// says, if the bytes agree, and what the bytes say without one. A plain tensor
// must have that very shape, or [cols] for one row. Int4-grouped with one
// group a row is given as int4-row.
func (s *Snapshot) Spec(name string, rows, cols int) (Spec, error) {
	t := s.tensors[name]
	if t == nil {
		return Spec{}, s.Missing(name)
	}
	q := s.scales(t)
	if q == nil {
		return plainSpec(t, rows, cols)
	}
	fail := func(err error) (Spec, error) {
		e := &Error{}
		if errors.As(err, &e) {
			e.Path, e.Tensor = t.Shard.Path, name
			e.Found += fmt.Sprintf(", shape %v", t.Shape)
		}
		return Spec{}, err
	}
	found := s.Candidates(name, rows, cols)
	if st, ok := s.stamps[name]; ok {
		if len(found) > 0 && st.fits(found[0]) {
			return found[0], nil
		}
		reading := "no format"
		if len(found) > 0 {
			reading = found[0].Name()
		}
		return fail(&Error{Kind: ErrCorrupt, What: fmt.Sprintf("stamped %s but the bytes are %s of [%d,%d]", st.text(), reading, rows, cols),
			Found: bytesText(t.Size, q.Size), Wanted: st.wanted(rows, cols)})
	}
	if len(found) > 0 {
		return found[0], nil
	}
	spec, err := Infer(t.Size, q.Size, rows, cols)
	if err == nil {
		err = &Error{Kind: ErrCorrupt, What: "dtype of the scales is not that of " + spec.Name(), Found: string(q.DType), Wanted: string(DTypeF32)}
	}
	return fail(err)
}

// fits says whether a reading that the bytes allow is the one that is stamped.
func (st Stamp) fits(s Spec) bool {
	claimed := Spec{Format: st.Format, Rows: s.Rows, Cols: s.Cols, Group: st.Group}
	if st.Format == Int4Grouped && st.Group == 0 {
		return s.Format == Int4Grouped || s.Format == Int4Row
	}
	return claimed.Canonical() == s
}

func (st Stamp) wanted(rows, cols int) string {
	if st.Format == Int4Grouped && st.Group == 0 || !inRange(rows, cols) {
		return ""
	}
	spec := Spec{Format: st.Format, Rows: rows, Cols: cols, Group: st.Group}
	return bytesText(spec.Bytes(), spec.ScaleBytes())
}

// Candidates is every reading of a packed matrix that its byte counts and the
// dtype of its scales allow; the first is the one that Spec takes: the stamped
// one, if that is among them. It is empty for other tensors.
func (s *Snapshot) Candidates(name string, rows, cols int) []Spec {
	t := s.tensors[name]
	if t == nil || s.scales(t) == nil {
		return nil
	}
	q := s.scales(t)
	found := slices.DeleteFunc(Candidates(t.Size, q.Size, rows, cols), func(c Spec) bool {
		return (c.Format == MXFP4) == (q.DType == DTypeF32) || q.DType.Bits() != 8 && q.DType != DTypeF32
	})
	if st, ok := s.stamps[name]; ok {
		if i := slices.IndexFunc(found, st.fits); i > 0 {
			c := found[i]
			found = slices.Insert(slices.Delete(found, i, i+1), 0, c)
		}
	}
	return found
}

func plainSpec(t *Tensor, rows, cols int) (Spec, error) {
	fail := func(kind error, what, found, wanted string) (Spec, error) {
		return Spec{}, &Error{Kind: kind, Path: t.Shard.Path, Tensor: t.Name, What: what, Found: found, Wanted: wanted}
	}
	for _, in := range table {
		if in.Packed || in.DType != t.DType {
			continue
		}
		if !slices.Equal(t.Shape, []int{rows, cols}) && !(rows == 1 && slices.Equal(t.Shape, []int{cols})) {
			return fail(ErrCorrupt, "shape", fmt.Sprintf("%v, %d bytes", t.Shape, t.Size), fmt.Sprintf("[%d %d]", rows, cols))
		}
		return Spec{Format: in.ID, Rows: rows, Cols: cols}, nil
	}
	if t.DType == DTypeU8 {
		return fail(ErrIncomplete, "packed codes without their scales "+t.Name+ScaleSuffix, fmt.Sprintf("%d bytes, shape %v", t.Size, t.Shape), "")
	}
	return fail(ErrUnsupported, "dtype of a weight", string(t.DType), "U8 with scales, F32, BF16 or F16")
}

// Missing is the error for a tensor that a model needs and the snapshot lacks:
// it says how many shards were seen, and which of them the numbering lacks.
func (s *Snapshot) Missing(name string) error {
	e := &Error{Kind: ErrIncomplete, Path: s.Dir, Tensor: name, What: "missing tensor; 1 shard seen"}
	if n := len(s.Shards); n != 1 {
		e.What = fmt.Sprintf("missing tensor; %d shards seen", n)
	}
	if len(s.gaps) > 0 {
		e.What += ", the numbering lacks " + strings.Join(s.gaps, ", ") + ": incomplete download? fetch these files again"
	} else {
		e.What += ": incomplete download, or config.json of another model?"
	}
	return e
}

// Close closes every shard; all views become invalid.
func (s *Snapshot) Close() error {
	var errs []error
	for _, sh := range s.Shards {
		errs = append(errs, sh.Close())
	}
	return errors.Join(errs...)
}

// ReadJSONFile reads a file such as config.json from the snapshot's directory
// and strips a byte order mark. The error wraps fs.ErrNotExist if it is absent.
func (s *Snapshot) ReadJSONFile(name string) ([]byte, error) {
	data, err := s.ReadFile(name)
	return withoutBOM(data), err
}

// ReadFile reads a small file from the snapshot's directory as it is. The
// error wraps fs.ErrNotExist if it is absent.
func (s *Snapshot) ReadFile(name string) ([]byte, error) {
	if !filepath.IsLocal(name) {
		return nil, &Error{Kind: ErrUsage, Path: s.Dir, What: "not a name in the snapshot", Found: name}
	}
	return readFile(filepath.Join(s.Dir, name))
}

func withoutBOM(data []byte) []byte { return bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")) }

func readFile(path string) ([]byte, error) {
	f, err := openFile(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(f)
	if err != nil {
		return nil, fileError(path, "cannot read", err)
	}
	if stranger := looksLike(data); stranger != "" && filepath.Ext(path) == ".json" {
		return nil, &Error{Kind: ErrCorrupt, Path: path, What: fmt.Sprintf("file is %d bytes, not JSON%s", len(data), stranger)}
	}
	return data, nil
}

// readIndex reads the weight_map of the index file; nil without one.
func readIndex(dir string) (map[string]string, error) {
	path := filepath.Join(dir, indexName)
	data, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	index, err := parseIndex(withoutBOM(data))
	if err != nil {
		return nil, &Error{Kind: ErrCorrupt, Path: path, What: "not an index of shards", Err: err}
	}
	return index, nil
}

func parseIndex(data []byte) (map[string]string, error) {
	var index map[string]string
	d := jsontext.NewDecoder(bytes.NewBuffer(data))
	err := readObject(d, func(key []byte) error {
		if string(key) != "weight_map" {
			return d.SkipValue()
		}
		index = map[string]string{}
		return readObject(d, func(raw []byte) error {
			name := string(raw)
			shard, ok, err := readString(d)
			switch {
			case err != nil:
				return err
			case !ok:
				return fmt.Errorf("the shard of %q is not a string", name)
			case shard == "" || strings.ContainsAny(shard, `/\`) || !filepath.IsLocal(shard):
				return fmt.Errorf("%q is not the name of a file beside the index", shard)
			}
			index[name] = shard
			return nil
		})
	})
	if err == nil && index == nil {
		err = errors.New("no weight_map")
	}
	return index, err
}
