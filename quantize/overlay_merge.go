package quantize

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"hawkmoth/format"
)

// Merge folds an overlay into the shards of its base, one after the other.
type Merge struct {
	Base, Dir string // of the overlay; Base for one inside the base
	Name      string
	Shards    []MergeShard
	Needed    int64 // bytes of disk that the largest shard takes while it is written
	Free      int64 // -1 where that cannot be told
	Saved     int64 // bytes that are free in the base afterwards; negative if it grows

	record *OverlayRecord
	base   *format.Snapshot
	over   map[string]*format.Tensor
}

// MergeShard is a shard of the base that is written again.
type MergeShard struct {
	Name    string `json:"name"`
	Bytes   int64  `json:"bytes"`   // afterwards
	Tensors int    `json:"tensors"` // from the overlay
	Done    bool   `json:"done"`    // by an earlier run

	shard   *format.Shard
	entries []format.Entry
	meta    map[string]string
	copies  map[string]*format.Tensor // by name: where the bytes come from
}

// NewMerge decides how an overlay is folded into its base; dir is where the
// overlay is, the base itself or a directory of its own. It reads the headers,
// and of shards that may be done already the tensors in question.
func NewMerge(base, dir, name string) (*Merge, error) {
	info, _, err := findOverlay(dir, name)
	if err != nil {
		return nil, err
	}
	if info.State != OverlayInUse && info.State != OverlayMerging {
		return nil, &format.Error{Kind: format.ErrUsage, Path: dir, What: "the overlay " + name + " is " + info.State, Wanted: "one in use"}
	}
	m := &Merge{Base: base, Dir: dir, Name: name, record: info.record, over: map[string]*format.Tensor{}}
	inPlace := len(info.record.Replaces) > 0
	if inPlace != sameDir(base, dir) {
		return nil, &format.Error{Kind: format.ErrUsage, Path: dir, What: "the overlay " + name + " is inside that base", Wanted: "that base"}
	}
	if inPlace {
		m.Dir = m.Base // however dir spells it
		m.base, err = format.Open(base)
	} else {
		m.base, err = format.Open(base, dir)
	}
	if err != nil {
		return nil, err
	}
	if err := m.plan(inPlace, info.folded); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// sameDir reports whether two paths lead to one directory.
func sameDir(a, b string) bool {
	x, xerr := os.Stat(a)
	y, yerr := os.Stat(b)
	return xerr == nil && yerr == nil && os.SameFile(x, y)
}

// Close closes the files of a merge.
func (m *Merge) Close() error { return m.base.Close() }

func (m *Merge) plan(inPlace, folded bool) error {
	m.Free = freeBytes(m.Base)
	if folded { // but not cleared away
		return nil
	}
	own := map[string]bool{}
	for _, s := range m.record.Shards {
		own[filepath.Join(m.Dir, s.Name)] = true
		m.Saved += s.Size
	}
	for _, sh := range m.base.Shards {
		if !own[sh.Path] {
			continue
		}
		delete(own, sh.Path)
		for _, t := range sh.Tensors {
			m.over[t.Name] = t
		}
	}
	if len(own) > 0 || len(m.over) == 0 {
		return &format.Error{Kind: format.ErrIncomplete, Path: m.Dir, What: "shards of the overlay are missing", Found: summary(slices.Sorted(maps.Keys(own)))}
	}
	if !inPlace {
		m.Saved = 0
	}
	left := map[string]bool{}
	for name := range m.over {
		if _, scales := cutScales(name, m.over); !scales {
			left[name] = true
		}
	}
	for _, sh := range m.base.Shards {
		if m.isOverlay(sh) {
			continue
		}
		if err := m.shard(sh, left); err != nil {
			return err
		}
	}
	if len(left) > 0 {
		names := slices.Sorted(maps.Keys(left))
		return &format.Error{Kind: format.ErrIncomplete, Path: m.Base, What: fmt.Sprintf("%d tensors have no place in the base", len(left)), Found: summary(names)}
	}
	if m.Free >= 0 && m.Needed > m.Free {
		return &format.Error{Path: m.Base, What: "the disk cannot hold a second copy of the largest shard", Err: syscall.ENOSPC, Found: format.Bytes(m.Free) + " free", Wanted: format.Bytes(m.Needed)}
	}
	return nil
}

// isOverlay says whether a shard is the overlay's or lies in its directory.
func (m *Merge) isOverlay(sh *format.Shard) bool {
	return filepath.Dir(sh.Path) != filepath.Clean(m.Base) ||
		m.Dir == m.Base && slices.ContainsFunc(m.record.Shards, func(s FinishedShard) bool { return s.Name == filepath.Base(sh.Path) })
}

// cutScales is the matrix to which scales belong.
func cutScales(name string, all map[string]*format.Tensor) (string, bool) {
	base := name[:max(0, len(name)-len(format.ScaleSuffix))]
	return base, base+format.ScaleSuffix == name && all[base] != nil
}

// shard decides what becomes of one shard of the base.
func (m *Merge) shard(sh *format.Shard, left map[string]bool) error {
	s := MergeShard{Name: filepath.Base(sh.Path), shard: sh, copies: map[string]*format.Tensor{}}
	stale := map[string]bool{}
	for _, t := range sh.Tensors {
		if m.over[t.Name] == nil || !left[t.Name] {
			continue
		}
		delete(left, t.Name)
		s.Tensors++
		for _, suffix := range []string{"", format.ScaleSuffix, fp8ScaleSuffix} {
			stale[t.Name+suffix] = true
		}
	}
	if s.Tensors == 0 {
		return nil
	}
	add := func(t *format.Tensor) {
		e := format.Entry{Name: t.Name, DType: t.DType, Shape: t.Shape}
		if t.DType == format.DTypeU8 { // some writers give codes the shape of the matrix
			e.Shape = []int{int(t.Size)}
		}
		s.entries = append(s.entries, e)
		s.copies[t.Name] = t
	}
	for _, t := range sh.Tensors { // each in the place of its predecessor
		n := m.over[t.Name]
		switch {
		case !stale[t.Name]:
			add(t)
		case n != nil:
			add(n)
			scales := t.Name + format.ScaleSuffix
			if q := m.over[scales]; q != nil && tensorOf(sh, scales) == nil {
				add(q)
			}
		}
	}
	var err error
	if s.meta, err = m.metadata(sh, stale, s.copies); err != nil {
		return err
	}
	s.Bytes = format.FileSize(s.entries, s.meta)
	if s.Done, err = s.done(m.over); err != nil {
		return err
	}
	if !s.Done {
		m.Needed = max(m.Needed, s.Bytes)
		m.Saved += sh.Size - s.Bytes
	}
	m.Shards = append(m.Shards, s)
	return nil
}

// metadata is that of the shard, without what it says of the stale tensors and
// with the stamps of those that come in.
func (m *Merge) metadata(sh *format.Shard, stale map[string]bool, copies map[string]*format.Tensor) (map[string]string, error) {
	meta := maps.Clone(sh.Metadata)
	if meta == nil {
		meta = map[string]string{}
	}
	for key, text := range meta {
		var claims map[string]json.RawMessage
		if json.Unmarshal([]byte(text), &claims) != nil {
			continue // not a map of tensors
		}
		n := len(claims)
		maps.DeleteFunc(claims, func(name string, _ json.RawMessage) bool { return stale[name] })
		if len(claims) == n {
			continue
		}
		if data, _ := json.Marshal(claims); len(claims) > 0 {
			meta[key] = string(data)
		} else {
			delete(meta, key)
		}
	}
	for name := range stale {
		n := m.over[name]
		if n == nil || copies[name] != n {
			continue
		}
		for _, key := range []string{format.KeyColibri, format.KeyFormats, format.KeyGroups} {
			if err := addClaim(meta, key, name, n.Shard.Metadata[key]); err != nil {
				return nil, err
			}
		}
	}
	return meta, used(meta, copies)
}

// addClaim copies what one text of claims says of a name to another.
func addClaim(meta map[string]string, key, name, from string) error {
	var source, claims map[string]json.RawMessage
	if from == "" {
		return nil
	}
	if err := json.Unmarshal([]byte(from), &source); err != nil || source[name] == nil {
		return err
	}
	if text := meta[key]; text != "" {
		if err := json.Unmarshal([]byte(text), &claims); err != nil {
			return err
		}
	}
	if claims == nil {
		claims = map[string]json.RawMessage{}
	}
	claims[name] = source[name]
	data, err := json.Marshal(claims)
	meta[key] = string(data)
	return err
}

// used brings the list of formats up to date; one that only an unstamped matrix
// may have stays in it.
func used(meta map[string]string, tensors map[string]*format.Tensor) error {
	var formats map[string]string
	var list []string
	if meta[format.KeyFormats] == "" {
		return nil
	}
	if err := json.Unmarshal([]byte(meta[format.KeyFormats]), &formats); err != nil {
		return err
	}
	set := map[string]bool{}
	for _, f := range formats {
		set[f] = true
	}
	for name := range tensors {
		if base, scales := cutScales(name, tensors); scales && formats[base] == "" {
			_ = json.Unmarshal([]byte(meta[format.KeyUsed]), &list) // nothing if it is no list
		}
	}
	for _, f := range list {
		set[f] = true
	}
	data, err := json.Marshal(slices.Sorted(maps.Keys(set)))
	meta[format.KeyUsed] = string(data)
	return err
}

// done says whether an earlier run wrote the shard: its header is the planned
// one, and the overlay's tensors have the overlay's bytes.
func (s *MergeShard) done(over map[string]*format.Tensor) (bool, error) {
	planned := OutShard{Name: s.Name, Entries: s.entries, Meta: s.meta, Size: s.Bytes}
	if !planned.valid(filepath.Dir(s.shard.Path)) {
		return false, nil
	}
	a, b := make([]byte, copyBlock), make([]byte, copyBlock)
	for name, t := range s.copies {
		if over[name] != t {
			continue
		}
		here := tensorOf(s.shard, name)
		for at := int64(0); at < t.Size; at += copyBlock {
			n := min(copyBlock, t.Size-at)
			if err := readFull(t, a[:n], at); err != nil {
				return false, err
			}
			if err := readFull(here, b[:n], at); err != nil || !bytes.Equal(a[:n], b[:n]) {
				return false, err
			}
		}
	}
	return true, nil
}

const copyBlock = 4 << 20

func readFull(t *format.Tensor, p []byte, at int64) error {
	if n, err := t.Shard.ReadAt(p, t.Offset+at); n < len(p) {
		return &format.Error{Path: t.Shard.Path, Tensor: t.Name, What: "cannot read", Err: err}
	}
	return nil
}

// Bytes is what a run writes.
func (m *Merge) Bytes() (n int64) {
	for _, s := range m.Shards {
		if !s.Done {
			n += s.Bytes
		}
	}
	return n
}

// Run writes the shards and then, for an overlay inside the base, has the index
// map to them and removes the overlay. Each shard takes its place atomically;
// readers find the same values at every moment, and a run that was stopped is
// continued by the next.
func (m *Merge) Run(ctx context.Context, opts ExecuteOptions) (*Result, error) {
	locked, err := lock(m.Base)
	if err != nil {
		return nil, &format.Error{Kind: format.ErrConflict, Path: m.Base, What: "another conversion is writing here", Err: err}
	}
	defer func() { _ = locked.Close() }()
	inPlace := len(m.record.Replaces) > 0
	if inPlace && !m.record.Merging {
		m.record.Merging = true
		if err := m.record.write(m.Base); err != nil {
			return nil, err
		}
	}
	if err := m.note(); err != nil {
		return nil, err
	}
	result := &Result{}
	for i := range m.Shards {
		s := &m.Shards[i]
		if opts.Shard != nil {
			opts.Shard(s.Name, s.Done)
		}
		if s.Done {
			result.Kept++
			continue
		}
		if err := s.write(ctx, m.Base, opts.Progress); err != nil {
			return nil, err
		}
		result.Written++
	}
	return result, m.finish(inPlace)
}

func (s *MergeShard) write(ctx context.Context, dir string, progress func(int64)) error {
	w, err := format.Create(filepath.Join(dir, s.Name), s.entries, s.meta)
	if err != nil {
		return err
	}
	buf := make([]byte, copyBlock)
	for _, e := range s.entries {
		t := s.copies[e.Name]
		for at := int64(0); at < t.Size && err == nil; at += copyBlock {
			p := buf[:min(copyBlock, t.Size-at)]
			if err = ctx.Err(); err == nil {
				err = readFull(t, p, at)
			}
			if err == nil {
				err = w.WriteAt(e.Name, p, at)
			}
			if err == nil && progress != nil {
				progress(int64(len(p)))
			}
		}
	}
	if err != nil {
		return errors.Join(err, w.Abort())
	}
	if err := s.shard.Close(); err != nil { // some systems replace no open file
		return errors.Join(err, w.Abort())
	}
	return w.Commit()
}

// note writes into the record of the conversion that its shards are no longer
// what it made, so that it is not resumed.
func (m *Merge) note() error {
	manifest, err := ReadManifest(m.Base)
	if absent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	text := fmt.Sprintf("%s: %s in %s", m.Name, m.record.Selection, m.record.Format)
	if !slices.Contains(manifest.Merged, text) {
		manifest.Merged = append(manifest.Merged, text)
	}
	for i, f := range manifest.Shards {
		for _, s := range m.Shards {
			if s.Name == f.Name {
				manifest.Shards[i].Size = s.Bytes
			}
		}
	}
	return manifest.write(m.Base)
}

func (m *Merge) finish(inPlace bool) error {
	index, err := readWeightIndex(m.Base)
	if err != nil {
		return err
	}
	if index.exists {
		for _, s := range m.Shards {
			for _, t := range s.shard.Tensors { // as it was
				if s.copies[t.Name] == nil && index.shards[t.Name] == s.Name {
					index.place(t.Name, "", 0, t.Size)
				}
			}
			for name, t := range s.copies {
				if m.over[name] == t {
					index.place(name, s.Name, t.Size, t.Size)
				}
			}
		}
		total := m.total(index)
		index.setTotal(func(int64) int64 { return total })
		if err := index.write(); err != nil {
			return err
		}
	}
	if !inPlace {
		return nil
	}
	return errors.Join(m.base.Close(), m.record.discard(m.Base), m.record.forget(m.Base))
}

// total is the bytes of all tensors that the index maps.
func (m *Merge) total(x *weightIndex) (n int64) {
	size := map[[2]string]int64{}
	for _, sh := range m.base.Shards {
		if m.isOverlay(sh) {
			continue
		}
		for _, t := range sh.Tensors {
			size[[2]string{filepath.Base(sh.Path), t.Name}] = t.Size
		}
	}
	for _, s := range m.Shards {
		for name, t := range s.copies {
			size[[2]string{s.Name, name}] = t.Size
		}
	}
	for name, shard := range x.shards {
		n += size[[2]string{shard, name}]
	}
	return n
}
