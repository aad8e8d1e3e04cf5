package quantize

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"hawkmoth/format"
)

// ExecuteOptions are the knobs of an execution; none of them changes a byte.
type ExecuteOptions struct {
	Threads   int  // 0 is one a processor
	Overwrite bool // replace what another job left in the directory
	// Progress, if set, is told of source bytes that are done, by any goroutine;
	// those of kept shards do not count.
	Progress func(bytes int64)
	// Shard, if set, is told of each shard before it is written, or that it is
	// kept from an earlier run.
	Shard func(name string, kept bool)
}

// Result is what an execution did.
type Result struct {
	Written, Kept int // shards
}

// Execute writes the container of a plan into a directory, which it creates if
// its parent exists. It decides nothing: every byte follows from the plan.
//
// A finished shard appears under its name only when it is complete and durable,
// the index last. Cancelled or killed at any point, the next Execute of the
// same plan continues after the last finished shard and gives the same bytes.
// If not one shard was finished, nothing that this run made is left.
func Execute(ctx context.Context, p *Plan, dir string, o ExecuteOptions) (*Result, error) {
	d, err := Survey(p, dir, o.Overwrite)
	if err != nil {
		return nil, err
	}
	if d.Complete {
		return &Result{Kept: len(p.Shards)}, nil
	}
	if o.Threads < 1 {
		o.Threads = goruntime.GOMAXPROCS(0)
	}
	j := &job{plan: p, dst: d, opts: o}
	if !d.Exists {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, &format.Error{Path: dir, What: "cannot be created", Err: err}
		}
	}
	locked, err := lock(dir)
	if err != nil {
		return nil, &format.Error{Kind: format.ErrConflict, Path: dir, What: "another conversion is writing here", Err: err}
	}
	defer func() { _ = locked.Close() }()
	err = j.run(ctx)
	if err == nil {
		return &j.result, nil
	}
	if len(d.manifest.Shards) == 0 && !d.recorded && !d.replaces && !j.tookOver {
		if rerr := os.Remove(filepath.Join(dir, ManifestName)); rerr != nil && !absent(rerr) {
			err = errors.Join(err, rerr)
		}
		if !d.Exists {
			_ = os.Remove(dir) // fails if somebody else put something there
		}
	}
	return nil, err
}

type job struct {
	plan   *Plan
	dst    *Destination
	opts   ExecuteOptions
	result Result
	// tookOver is set once the old container's index may be gone: what records
	// its shards must stay.
	tookOver bool
}

func (j *job) path(name string) string { return filepath.Join(j.dst.Dir, name) }

func (j *job) run(ctx context.Context) error {
	p, m := j.plan, j.dst.manifest
	if err := j.sweep(); err != nil {
		return err
	}
	if !j.dst.recorded && !j.dst.replaces {
		if err := m.write(j.dst.Dir); err != nil {
			return err
		}
	}
	m.Shards = m.Shards[:0]
	for i, s := range p.Shards {
		if j.dst.Kept[i] {
			m.Shards = append(m.Shards, FinishedShard{s.Name, s.Size})
		}
	}
	for i := range p.Shards {
		if err := j.shard(ctx, i); err != nil {
			return err
		}
	}
	for _, name := range m.Replaces {
		if err := os.Remove(j.path(name)); err != nil && !absent(err) {
			return err
		}
	}
	for _, f := range p.Files {
		data, err := p.snap.ReadFile(f.Name)
		if err != nil {
			return err
		}
		if err := format.WriteFileAtomic(j.path(f.Name), data); err != nil {
			return err
		}
	}
	m.Replaces, m.Modified, m.Planned = nil, nil, 0
	if err := m.write(j.dst.Dir); err != nil {
		return err
	}
	return j.index()
}

// sweep removes what a killed run left half written.
func (j *job) sweep() error {
	stale, err := j.plan.stale(j.dst.Dir)
	if err != nil {
		return err
	}
	for _, name := range stale {
		if err := os.Remove(j.path(name)); err != nil {
			return err
		}
	}
	return nil
}

// stale lists the files that a killed run left under temporary names.
func (p *Plan) stale(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		base, temp := strings.CutSuffix(e.Name(), ".tmp")
		if temp && (p.owns(base) || shardName.MatchString(base)) {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// shard writes one shard, unless an earlier run did.
func (j *job) shard(ctx context.Context, i int) error {
	s := &j.plan.Shards[i]
	if j.opts.Shard != nil {
		j.opts.Shard(s.Name, j.dst.Kept[i])
	}
	if j.dst.Kept[i] {
		j.result.Kept++
		return nil
	}
	w, err := format.Create(j.path(s.Name), s.Entries, s.Meta)
	if err != nil {
		return err
	}
	if err := j.fill(ctx, w, s); err != nil {
		return errors.Join(err, w.Abort())
	}
	if j.dst.replaces {
		if err := j.takeOver(); err != nil {
			return errors.Join(err, w.Abort())
		}
	}
	if err := w.Commit(); err != nil {
		return err
	}
	j.result.Written++
	m := j.dst.manifest
	m.Shards = append(m.Shards, FinishedShard{s.Name, s.Size})
	slices.SortFunc(m.Shards, func(a, b FinishedShard) int { return strings.Compare(a.Name, b.Name) })
	return m.write(j.dst.Dir)
}

// takeOver makes the directory this job's just before its first shard is named:
// until then the old container is whole, from then on no index claims that the
// mixture is one.
func (j *job) takeOver() error {
	if err := os.Remove(j.path(indexName)); err != nil && !absent(err) {
		return err
	}
	j.dst.replaces, j.tookOver = false, true
	return j.dst.manifest.write(j.dst.Dir)
}

// index writes the map from tensors to shards, which says that all is done.
func (j *job) index() error {
	var index struct {
		Metadata struct {
			TotalSize int64 `json:"total_size"`
		} `json:"metadata"`
		WeightMap map[string]string `json:"weight_map"`
	}
	index.WeightMap = map[string]string{}
	for _, s := range j.plan.Shards {
		for i := range s.Items {
			index.Metadata.TotalSize += s.Items[i].Bytes()
		}
		for _, e := range s.Entries {
			index.WeightMap[e.Name] = s.Name
		}
	}
	data, err := json.MarshalIndent(index, "", "  ")
	if err != nil {
		return err
	}
	return format.WriteFileAtomic(j.path(indexName), append(data, '\n'))
}

func (j *job) progress(n int64) {
	if j.opts.Progress != nil {
		j.opts.Progress(n)
	}
}

// fill converts the tensors of a shard block by block. Each goroutine reads,
// encodes and writes blocks of its own, so that reading, computing and writing
// overlap while no more than a few blocks are in memory.
func (j *job) fill(ctx context.Context, w *format.Writer, s *OutShard) error {
	if err := ctx.Err(); err != nil { // the blocks of a small shard might outrun it
		return err
	}
	return eachBlock(ctx, s.Items, j.opts.Threads, func() func(block) error {
		var c converter
		return func(b block) error {
			if err := c.convert(w, b); err != nil {
				return err
			}
			j.progress(b.sourceBytes())
			return nil
		}
	})
}

// block is some rows of an item.
type block struct {
	item      *Item
	row, rows int
	index     int // of the block among all of one call
}

// sourceBytes is the block's share of the item's bytes; the shares of an item
// add up to its bytes.
func (b block) sourceBytes() int64 {
	total, rows := b.item.Source.Bytes(), int64(b.item.Spec.Rows)
	return total*int64(b.row+b.rows)/rows - total*int64(b.row)/rows
}

// blockWeights is the number of weights of a block, 4 MB as float32.
const blockWeights = 1 << 20

// blocks cuts items into blocks of whole rows; those of FP8 begin at multiples
// of 128 rows.
func blocks(items []Item) []block {
	var all []block
	for i := range items {
		it := &items[i]
		if it.Params() == 0 {
			continue
		}
		rows := max(1, blockWeights/it.Spec.Cols)
		if step := max(it.Spec.Format.Info().BlockRows, 1); step > 1 {
			rows = (rows + step - 1) / step * step
		}
		for row := 0; row < it.Spec.Rows; row += rows {
			all = append(all, block{it, row, min(rows, it.Spec.Rows-row), len(all)})
		}
	}
	return all
}

// eachBlock hands the blocks of the items to goroutines, each with a function
// of its own from start, and stops at the first error.
func eachBlock(ctx context.Context, items []Item, threads int, start func() func(block) error) error {
	g, ctx := errgroup.WithContext(ctx)
	queue := make(chan block)
	g.Go(func() error {
		defer close(queue)
		for _, b := range blocks(items) {
			select {
			case queue <- b:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	for range threads {
		g.Go(func() error {
			do := start()
			for b := range queue {
				if err := do(b); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// converter is the memory of one goroutine.
type converter struct {
	source SourceBuffer
	w      []float32
	code   []byte
	scales []float32
	bytes  []byte
}

func (c *converter) convert(out *format.Writer, b block) error {
	it, spec := b.item, b.item.Spec
	spec.Rows = b.rows
	m := Matrix{Spec: spec, W: grow(&c.code, int(spec.Bytes()))}
	if it.PassThrough {
		if err := it.Source.ReadCodes(b.row, b.rows, m.W); err != nil {
			return err
		}
		var err error
		if m.S, err = it.Source.ReadScales(&c.source, b.row/max(spec.Format.Info().BlockRows, 1), spec.ScaleRows()); err != nil {
			return err
		}
	} else {
		if it.Packed() {
			m.S = grow(&c.scales, int(spec.Scales()))
		}
		if err := c.encode(m, b); err != nil {
			return err
		}
	}
	if err := out.WriteAt(it.Want.Name, m.W, b.codesAt()); err != nil || !it.Packed() {
		return err
	}
	bytes := grow(&c.bytes, 4*len(m.S))
	F32ToBytes(bytes, m.S)
	return out.WriteAt(it.Want.Name+format.ScaleSuffix, bytes, b.scalesAt())
}

// stripWeights is the number of weights that are decoded at a time: as float32
// they stay in a core's cache until they are encoded.
const stripWeights = 1 << 14

// encode quantises the block strip by strip. What is not finite shows in the
// scales, or in the values of a format without.
func (c *converter) encode(m Matrix, b block) error {
	s := b.item.Source
	codec, err := CodecFor(m.Format)
	if err == nil {
		err = s.fetch(&c.source, b.row, b.rows)
	}
	if err != nil {
		return err
	}
	high := max(m.Format.Info().BlockRows, 1)
	strip := max(high, stripWeights/m.Cols/high*high)
	w := grow(&c.w, min(strip, b.rows)*m.Cols)
	sound := true
	for row := 0; row < b.rows; row += strip {
		n := min(strip, b.rows-row)
		part := w[:n*m.Cols]
		if err := s.decode(&c.source, b.row+row, n, part); err != nil {
			return err
		}
		if m.S == nil {
			top := maxAbs(part)
			sound = sound && finite(top)
			if limit := plainLimits[m.Format]; limit > 0 && top >= limit && finite(top) {
				return s.tooLarge(part, b.row+row, limit, m.Format)
			}
		}
		codec.Encode(m, row, n, part)
	}
	if !sound || !finite(maxAbs(m.S)) {
		return s.notFinite(&c.source)
	}
	return nil
}

// plainLimits are the values that round to infinity in a plain format: the
// largest finite number and half a step.
var plainLimits = map[format.ID]float32{format.F16: 65520, format.BF16: math.Float32frombits(0x7f7f8000)}

// tooLarge names the first value of rows from row on that a format cannot hold.
func (s *Source) tooLarge(w []float32, row int, limit float32, id format.ID) error {
	at := slices.IndexFunc(w, func(x float32) bool { return x >= limit || -x >= limit })
	return s.fail(format.ErrUnsupported, "a weight is too large for "+id.String(), fmt.Sprintf("%v at row %d, column %d", w[at], row+at/s.Cols, at%s.Cols), fmt.Sprintf("below %v", limit))
}

// codesAt and scalesAt are the offsets in bytes of the block's codes and scales
// in the item's two tensors.
func (b block) codesAt() int64 { return int64(b.row) * int64(b.item.Spec.RowBytes()) }

func (b block) scalesAt() int64 {
	s := b.item.Spec
	return 4 * int64(b.row/max(s.Format.Info().BlockRows, 1)) * int64(s.ScaleCols())
}

// grow gives n elements of memory that is used again and again.
func grow[T any](buf *[]T, n int) []T {
	if cap(*buf) < n {
		*buf = make([]T, n)
	}
	return (*buf)[:n]
}
