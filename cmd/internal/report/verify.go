package report

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/format"
	"hawkmoth/quantize"
)

// Verification is what reading every byte of the snapshot's tensors has shown.
type Verification struct {
	Tensors  int          `json:"tensors"`
	Bytes    int64        `json:"bytes"`
	Opaque   int          `json:"opaque"`   // tensors that were read, but whose values have no rules to check
	Manifest string       `json:"manifest"` // "none", "agrees" or "disagrees" about names and sizes of shards
	Findings []Finding    `json:"findings"` // all that is wrong
	Roles    []RoleHealth `json:"roles"`
	Groups   []GroupCheck `json:"groups"`   // matrices whose bytes fit several group sizes
	Warnings []string     `json:"warnings"` // what is legal, but predicts trouble
}

// Finding is a defect of one tensor, or of a file if Tensor is empty.
type Finding struct {
	Tensor string `json:"tensor"`
	Shard  string `json:"shard"`
	What   string `json:"what"`
	Count  int64  `json:"count"` // 0 where nothing was counted, as for a tensor that cannot be read
	Row    int    `json:"row"`   // of the first weight that is touched
	Column int    `json:"column"`
}

// RoleHealth counts what is dead or unusual, but legal, in the matrices of a role.
type RoleHealth struct {
	Role           string `json:"role"`
	Matrices       int    `json:"matrices"`
	Rows           int64  `json:"rows"`
	DeadRows       int64  `json:"dead_rows"`
	DeadHalves     int64  `json:"dead_halves"` // rows with one dead half and a living one
	Groups         int64  `json:"groups"`
	DeadGroups     int64  `json:"dead_groups"`
	NegativeScales int64  `json:"negative_scales"`
}

// Err is nil if nothing is wrong, else format.ErrCorrupt.
func (v *Verification) Err(path string) error {
	if len(v.Findings) == 0 {
		return nil
	}
	return &format.Error{Kind: format.ErrCorrupt, Path: path, What: "verification: " + plural(len(v.Findings), "finding")}
}

// subject is a tensor under examination. With a nil Found it is only what its
// header says: a run of numbers.
type subject struct {
	found   *quantize.Found
	tensor  *format.Tensor
	spec    format.Spec
	offset  int64
	scales  *format.Tensor
	sizes   []int // group sizes that the bytes fit, if there are several
	stamped bool
	opaque  bool // bytes without rules
	asRun   bool // spec has one row, which is cut by columns
	factor  bool // a run of scales

	mu     sync.Mutex
	health quantize.Health
	fits   []quantize.GroupFit
	err    error
}

// piece is what one goroutine reads at a time: rows, or columns of a run.
type piece struct {
	*subject
	lo, hi int
}

// pieceBytes bounds the memory of a goroutine; only a single longer row exceeds it.
const pieceBytes = 4 << 20

// Verify reads every byte and fills in Verification. The error is about files
// that cannot be read; what is wrong with their contents are findings.
// Progress, which may be nil, counts bytes.
func (r *Report) Verify(ctx context.Context, threads int, progress *cli.Progress) error {
	if threads < 1 {
		threads = goruntime.GOMAXPROCS(0)
	}
	v := &Verification{Findings: []Finding{}, Roles: []RoleHealth{}, Groups: []GroupCheck{}, Warnings: []string{}}
	subjects := r.subjects()
	var pieces []piece
	for _, s := range subjects {
		pieces = append(pieces, s.pieces()...)
	}
	slices.SortStableFunc(pieces, func(a, b piece) int { // as the disk has them
		return cmp.Or(strings.Compare(a.tensor.Shard.Path, b.tensor.Shard.Path), cmp.Compare(a.tensor.Offset+a.offset, b.tensor.Offset+b.offset))
	})
	g, ctx := errgroup.WithContext(ctx)
	queue := make(chan piece)
	g.Go(func() error {
		defer close(queue)
		shard := ""
		for _, p := range pieces {
			if path := p.tensor.Shard.Path; path != shard {
				shard = path
				progress.Line(filepath.Base(path))
			}
			select {
			case queue <- p:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	for range threads {
		g.Go(func() error {
			var buf buffers
			for p := range queue {
				n := p.examine(&buf)
				progress.Add(n)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	v.manifest(r)
	v.collect(subjects)
	v.checkGroups(subjects)
	v.warnDead(subjects)
	r.Verification = v
	return nil
}

// VerifyBytes is how many bytes Verify reads.
func (r *Report) VerifyBytes() int64 {
	var n int64
	for _, s := range r.subjects() {
		n += s.bytes()
	}
	return n
}

// subjects is the model's tensors, then all others.
func (r *Report) subjects() []*subject {
	var list []*subject
	seen := map[string]bool{}
	if r.census != nil {
		for i := range r.census.Found {
			f := &r.census.Found[i]
			if f.Scattered() {
				continue // the fused tensor is read as it lies, below
			}
			list = append(list, &subject{found: f, tensor: f.Tensor, spec: f.Spec, offset: f.Offset, scales: f.Scales, sizes: r.groupSizes(f), stamped: r.snap.StampedGroup(f.Name) > 0})
			seen[f.Tensor.Name] = true
			if f.Scales != nil {
				seen[f.Scales.Name] = true
			}
		}
	}
	for _, name := range r.snap.Names() {
		if !seen[name] {
			list = append(list, run(r.snap.Tensor(name)))
		}
	}
	return list
}

// run is a tensor as one row of numbers.
func run(t *format.Tensor) *subject {
	s := &subject{tensor: t, asRun: true}
	s.factor = strings.HasSuffix(t.Name, format.ScaleSuffix) || strings.HasSuffix(t.Name, "_scale_inv")
	id, plain := map[format.DType]format.ID{format.DTypeF32: format.F32, format.DTypeBF16: format.BF16, format.DTypeF16: format.F16, format.DTypeFP8: format.FP8}[t.DType]
	if plain {
		s.spec = format.Spec{Format: id, Rows: 1, Cols: int(t.Elements())}
		return s
	}
	s.opaque = true
	s.spec = format.Spec{Format: format.Int8Row, Rows: 1, Cols: int(t.Size)}
	return s
}

func (s *subject) bytes() int64 {
	n := s.spec.Bytes()
	if s.scales != nil {
		n += s.scales.Size
	}
	return n
}

func (s *subject) pieces() []piece {
	total, width := s.spec.Rows, max(s.spec.RowBytes(), 1)
	if s.asRun {
		total, width = s.spec.Cols, s.spec.Format.Info().RowBytes(1)
	}
	const block = 128 // rows of FP8 that share scales
	step := max(pieceBytes/width/block, 1) * block
	var list []piece
	for lo := 0; lo < total; lo += step {
		list = append(list, piece{s, lo, min(lo+step, total)})
	}
	return list
}

// buffers is the memory of a goroutine.
type buffers struct {
	codes, raw []byte
	scales     []float32
}

func resize[T any](b *[]T, n int) []T {
	*b = slices.Grow((*b)[:0], n)[:n]
	return *b
}

// examine reads a piece, counts its defects and returns the bytes read.
func (p piece) examine(buf *buffers) int64 {
	part := p.spec
	at, row := p.offset, p.lo
	if p.asRun {
		part.Cols, row = p.hi-p.lo, 0
		at += int64(p.spec.Format.Info().RowBytes(p.lo))
	} else {
		part.Rows = p.hi - p.lo
		at += int64(p.lo) * int64(part.RowBytes())
	}
	m := quantize.Matrix{Spec: part, W: resize(&buf.codes, int(part.Bytes()))}
	n := part.Bytes()
	err := readAt(p.tensor, m.W, at)
	switch {
	case err != nil || p.opaque:
	case p.scales != nil:
		m.S, err = p.readScales(buf, part)
		n += int64(len(buf.raw))
	case part.Format.Info().Packed: // FP8 codes of unknown scales
		m.S = resize(&buf.scales, int(part.Scales()))
		for i := range m.S {
			m.S[i] = 1
		}
	}
	var h quantize.Health
	if err == nil && !p.opaque {
		h, err = quantize.CheckHealth(m)
	}
	var fits []quantize.GroupFit
	if err == nil && p.sizes != nil {
		fits = quantize.FitGroups(m.W, part.Cols, p.sizes)
	}
	if p.factor {
		scaleRun(&h, m)
	}
	if p.asRun {
		for d := range h.Defects {
			h.Defects[d].Col += p.lo
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.health.Add(row, h)
	p.addFits(fits)
	p.err = cmp.Or(p.err, err)
	return n
}

// scaleRun makes what is wrong with a run of numbers what is wrong with scales.
func scaleRun(h *quantize.Health, m quantize.Matrix) {
	d := &h.Defects
	d[quantize.NaNScale], d[quantize.NaNWeight] = d[quantize.NaNWeight], quantize.Tally{}
	d[quantize.InfScale], d[quantize.InfWeight] = d[quantize.InfWeight], quantize.Tally{}
	if m.Format != format.F32 {
		return
	}
	for i := range m.Cols {
		if t := &d[quantize.ZeroScale]; binary.LittleEndian.Uint32(m.W[4*i:])<<1 == 0 {
			if t.Count == 0 {
				t.Col = i
			}
			t.Count++
		}
	}
}

func (p piece) readScales(buf *buffers, part format.Spec) ([]float32, error) {
	first, count := 0, int(part.Scales())
	if high := p.spec.Format.Info().BlockRows; high > 0 {
		first = p.lo / high * p.spec.ScaleCols()
	}
	width := p.scales.DType.Bits() / 8
	raw := resize(&buf.raw, count*width)
	if err := readAt(p.scales, raw, int64(first*width)); err != nil {
		return nil, err
	}
	s := resize(&buf.scales, count)
	switch p.scales.DType {
	case format.DTypeF32:
		quantize.BytesToF32(s, raw)
	case format.DTypeBF16:
		quantize.BF16ToF32(s, raw)
	default: // UE8M0, the only scales of one byte
		quantize.E8M0ToF32(s, raw)
	}
	return s, nil
}

func readAt(t *format.Tensor, p []byte, off int64) error {
	n, err := t.Shard.ReadAt(p, t.Offset+off)
	switch {
	case n == len(p):
		return nil
	case err == nil || errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF
	}
	return err
}

// manifest compares the shards with those that the conversion recorded.
func (v *Verification) manifest(r *Report) {
	m, err := quantize.ReadManifest(r.snap.Dir)
	v.Manifest = "none"
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	file := func(shard, what string) {
		v.Manifest = "disagrees"
		v.Findings = append(v.Findings, Finding{Shard: shard, What: what})
	}
	v.Manifest = "agrees"
	if err != nil {
		file(quantize.ManifestName, err.Error())
		return
	}
	sizes := map[string]int64{}
	for _, s := range r.snap.Shards {
		sizes[filepath.Base(s.Path)] = s.Size
	}
	for _, s := range m.Shards {
		switch size, ok := sizes[s.Name]; {
		case !ok && len(sizes) == 1 && r.single():
		case !ok:
			file(s.Name, "shard of the manifest is not there")
		case size != s.Size:
			file(s.Name, fmt.Sprintf("shard has %d bytes, the manifest says %d", size, s.Size))
		}
	}
}

// single says whether the snapshot is one file rather than its directory.
func (r *Report) single() bool { return filepath.Ext(r.Path) == ".safetensors" }

func (v *Verification) collect(subjects []*subject) {
	roles := map[quantize.Role]*RoleHealth{}
	for _, s := range subjects {
		v.Tensors++
		v.Bytes += s.bytes()
		v.Opaque += one(s.opaque)
		name, shard := s.tensor.Name, filepath.Base(s.tensor.Shard.Path)
		if s.found != nil {
			name = s.found.Name
		}
		if s.err != nil {
			v.Findings = append(v.Findings, Finding{Tensor: name, Shard: shard, What: s.err.Error()})
		}
		for _, d := range quantize.Defects() {
			if t := s.health.Defects[d]; t.Count > 0 {
				v.Findings = append(v.Findings, Finding{name, shard, d.String(), t.Count, t.Row, t.Col})
			}
		}
		if s.found == nil || !s.found.Matrix() {
			continue
		}
		role := roleOf(s.found.Want)
		if roles[role] == nil {
			roles[role] = &RoleHealth{Role: role.String()}
		}
		h := roles[role]
		h.Matrices++
		h.Rows += s.health.Rows
		h.DeadRows += s.health.DeadRows
		h.DeadHalves += s.health.DeadHalves
		h.Groups += s.health.Groups
		h.DeadGroups += s.health.DeadGroups
		h.NegativeScales += s.health.NegativeScales
	}
	for _, role := range quantize.Roles() {
		if roles[role] != nil {
			v.Roles = append(v.Roles, *roles[role])
		}
	}
}

// warnDead predicts what dead halves do to an MTP block: its eh_proj multiplies
// [embedding; hidden], whose columns differ in size, so that one coarse scale a
// row loses all that the draft knows of the last token.
func (v *Verification) warnDead(subjects []*subject) {
	for _, s := range subjects {
		if s.found == nil || !s.found.MTP || !s.found.Matrix() || s.health.Rows == 0 {
			continue
		}
		half, group := float64(s.health.DeadHalves)/float64(s.health.Rows), float64(s.health.DeadGroups)/float64(max(s.health.Groups, 1))
		dead := ""
		switch {
		case half >= 0.1:
			dead = fmt.Sprintf("%.0f %% of the rows have an all-zero half", 100*half)
		case group >= 0.1:
			dead = fmt.Sprintf("%.0f %% of the groups of columns are all zero", 100*group)
		default:
			continue
		}
		v.Warnings = append(v.Warnings, fmt.Sprintf("%s: %s, so the MTP block's drafts will hardly ever be accepted; int8-row or int4-grouped keep it alive", s.found.Name, dead))
	}
}

// WriteVerification writes Verification: what is wrong, then what is dead.
func (r *Report) WriteVerification(w io.Writer) error {
	v := r.Verification
	var l lines
	result := "nothing is wrong"
	if len(v.Findings) > 0 {
		result = plural(len(v.Findings), "finding")
	}
	l.f("read %s in %s: %s", cli.Bytes(v.Bytes), plural(v.Tensors, "tensor"), result)
	if v.Opaque > 0 {
		l.f("%s read without rules to check their values", plural(v.Opaque, "tensor"))
	}
	if v.Manifest != "none" {
		l.f("manifest %s about names and sizes of shards", v.Manifest)
	}
	if len(v.Roles) > 0 {
		t := cli.NewTable("role", "matrices", "rows", "dead rows", "dead halves", "dead groups", "negative scales")
		for _, h := range v.Roles {
			t.Add(h.Role, h.Matrices, h.Rows, percent(h.DeadRows, h.Rows), percent(h.DeadHalves, h.Rows), percent(h.DeadGroups, h.Groups), h.NegativeScales)
		}
		l.f("")
		l.WriteString(t.String())
	}
	l.groups(v.Groups)
	var items []string
	for _, f := range v.Findings {
		items = append(items, f.text())
	}
	l.section("findings", most(items, 100, "more; --json lists all"))
	l.section("warnings", v.Warnings)
	return l.to(w)
}

func (f *Finding) text() string {
	switch {
	case f.Tensor == "":
		return f.Shard + ": " + f.What
	case f.Count == 0:
		return f.Tensor + " in " + f.Shard + ": " + f.What
	}
	return fmt.Sprintf("%s in %s: %d %s, the first at row %d, column %d", f.Tensor, f.Shard, f.Count, f.What, f.Row, f.Column)
}

func percent(n, of int64) string {
	if n == 0 || of == 0 {
		return "0 %"
	}
	return cli.RelativeError(float64(n) / float64(of))
}
