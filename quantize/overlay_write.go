package quantize

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"syscall"

	"hawkmoth/format"
)

// OverlayDestination is what an overlay finds where it is to be written.
type OverlayDestination struct {
	Dir      string
	Complete bool   // the same job is finished there
	Resumes  bool   // an earlier run of the same job began it
	Kept     []bool // per shard of the plan: finished by an earlier run
	Needed   int64  // bytes of disk that the rest takes
	Free     int64  // bytes of disk that are free; -1 where that cannot be told

	exists bool // the directory
	record *OverlayRecord
	placed []bool // per shard: under its final name
}

// Survey looks at the overlay's directory and changes nothing. It refuses
// (format.ErrConflict) what another job left there.
func (o *Overlay) Survey() (*OverlayDestination, error) {
	r, err := o.record()
	if err != nil {
		return nil, err
	}
	n := len(o.Shards)
	d := &OverlayDestination{Dir: o.Dir(), record: r, Kept: make([]bool, n), placed: make([]bool, n)}
	st, err := os.Stat(d.Dir)
	switch {
	case err == nil && !st.IsDir():
		return nil, &format.Error{Path: d.Dir, What: "is a file", Wanted: "a directory"}
	case err == nil:
		d.exists = true
		if err := o.inspect(d); err != nil {
			return nil, err
		}
	case absent(err):
		if err := parentOf(d.Dir); err != nil {
			return nil, err
		}
	default:
		return nil, &format.Error{Path: d.Dir, What: "cannot be examined", Err: err}
	}
	for i, s := range o.Shards {
		if !d.Kept[i] {
			d.Needed += s.Size
		}
	}
	at := d.Dir
	if !d.exists {
		at = filepath.Dir(filepath.Clean(d.Dir))
	}
	d.Free = freeBytes(at)
	if d.Free >= 0 && d.Needed > d.Free {
		return nil, &format.Error{Path: d.Dir, What: "the disk cannot hold the overlay", Err: syscall.ENOSPC, Found: format.Bytes(d.Free) + " free", Wanted: format.Bytes(d.Needed)}
	}
	return d, nil
}

// inspect compares the job with what the directory records.
func (o *Overlay) inspect(d *OverlayDestination) error {
	staging := stagingDir(d.Dir, o.Name)
	known := map[string]bool{}
	var begun *OverlayRecord
	for _, at := range []string{d.Dir, staging} {
		old, err := readOverlayRecord(at, o.Name)
		if absent(err) {
			continue
		}
		if err != nil {
			return err
		}
		if diff := old.differences(d.record); len(diff) > 0 {
			for _, e := range diff {
				if f, ok := e.(*format.Error); ok {
					f.Path = recordPath(at, o.Name)
				}
			}
			what := fmt.Sprintf("the overlay %s there is another job, finished or not; convert overlay --remove %s %s, or another --name", o.Name, o.Name, d.Dir)
			return append(format.Problems{&format.Error{Kind: format.ErrConflict, Path: d.Dir, What: what}}, diff...)
		}
		if begun == nil {
			begun = old
		}
	}
	if d.Resumes = begun != nil; d.Resumes {
		d.record = begun
		for i := range o.Shards {
			s := &o.Shards[i]
			d.placed[i] = s.valid(d.Dir)
			d.Kept[i] = d.placed[i] || s.valid(staging)
			known[s.Name] = true
		}
	}
	if !o.InPlace() {
		if err := o.strangers(d, known); err != nil {
			return err
		}
	} else {
		for _, s := range o.Shards {
			if _, err := os.Lstat(filepath.Join(d.Dir, s.Name)); err == nil && !known[s.Name] {
				return &format.Error{Kind: format.ErrConflict, Path: filepath.Join(d.Dir, s.Name), What: "is there already and no overlay has recorded it", Wanted: "another --name"}
			}
		}
	}
	index, err := readWeightIndex(d.Dir)
	if err != nil {
		return err
	}
	d.Complete = d.Resumes && !slices.Contains(d.placed, false) && o.mapped(index)
	return nil
}

// strangers refuses a directory of its own that holds shards of others.
func (o *Overlay) strangers(d *OverlayDestination, known map[string]bool) error {
	if a, err := os.Stat(o.Base.Dir); err == nil {
		if b, err := os.Stat(d.Dir); err == nil && os.SameFile(a, b) {
			return &format.Error{Kind: format.ErrUsage, Path: d.Dir, What: "is the base itself", Wanted: "no -o for an overlay inside the base"}
		}
	}
	others, err := Overlays(d.Dir)
	if err != nil {
		return err
	}
	for _, info := range others {
		for _, s := range info.Shards {
			known[s.Name] = true
		}
	}
	entries, err := os.ReadDir(d.Dir)
	if err != nil {
		return err
	}
	var strange []string
	for _, e := range entries {
		if name := e.Name(); name == "config.json" || strings.HasSuffix(name, ".safetensors") && !known[name] {
			strange = append(strange, name)
		}
	}
	if len(strange) > 0 {
		return &format.Error{Kind: format.ErrConflict, Path: d.Dir, What: "is not a directory of overlays", Found: summary(strange), Wanted: "a new one"}
	}
	held := map[string]string{}
	for _, info := range others {
		for _, s := range info.Shards {
			if sh, err := format.OpenShard(filepath.Join(d.Dir, s.Name)); err == nil && info.Name != o.Name {
				for _, t := range sh.Tensors {
					held[t.Name] = info.Name
				}
				_ = sh.Close()
			}
		}
	}
	for i := range o.Items {
		if name, ok := held[o.Items[i].Want.Name]; ok {
			return &format.Error{Kind: format.ErrConflict, Path: d.Dir, Tensor: o.Items[i].Want.Name, What: "is in the overlay " + name + " of this directory already", Wanted: "another directory"}
		}
	}
	return nil
}

// mapped says whether the index maps every tensor as the overlay wants it.
func (o *Overlay) mapped(x *weightIndex) bool {
	for i := range o.Shards {
		for _, e := range o.Shards[i].Entries {
			if x.shards[e.Name] != o.Shards[i].Name {
				return false
			}
		}
	}
	for i := range o.Items {
		if _, ok := x.shards[o.Items[i].Want.Name+format.ScaleSuffix]; ok && !o.Items[i].Packed() {
			return false
		}
	}
	return true
}

// Write makes the overlay. Its shards are written and made durable in a hidden
// directory first, then get their names, and the index changes last and
// atomically: until then readers of the index see the base as it was. Killed or
// cancelled, the next Write of the same job continues after the last finished
// shard; if none was finished, nothing that this run made is left.
func (o *Overlay) Write(ctx context.Context, opts ExecuteOptions) (*Result, error) {
	d, err := o.Survey()
	if err != nil {
		return nil, err
	}
	if opts.Threads < 1 {
		opts.Threads = goruntime.GOMAXPROCS(0)
	}
	if !d.exists {
		if err := os.Mkdir(d.Dir, 0o755); err != nil {
			return nil, &format.Error{Path: d.Dir, What: "cannot be created", Err: err}
		}
	}
	locked, err := lock(d.Dir)
	if err != nil {
		return nil, &format.Error{Kind: format.ErrConflict, Path: d.Dir, What: "another conversion is writing here", Err: err}
	}
	defer func() { _ = locked.Close() }()
	if d.Complete {
		return &Result{Kept: len(o.Shards)}, os.RemoveAll(stagingDir(d.Dir, o.Name))
	}
	j := &job{plan: &o.Plan, opts: opts}
	staging := stagingDir(d.Dir, o.Name)
	if err := o.stage(ctx, j, d, staging); err != nil {
		if !slices.Contains(d.Kept, true) && j.result.Written == 0 {
			err = errors.Join(err, os.RemoveAll(staging))
			if !d.exists {
				_ = os.Remove(d.Dir) // fails if somebody else put something there
			}
		}
		return nil, err
	}
	return &j.result, o.publish(d, staging)
}

// stage writes the shards that are missing into the hidden directory.
func (o *Overlay) stage(ctx context.Context, j *job, d *OverlayDestination, staging string) error {
	if err := os.Mkdir(staging, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return &format.Error{Path: staging, What: "cannot be created", Err: err}
	}
	if err := d.record.write(staging); err != nil {
		return err
	}
	for i := range o.Shards {
		s := &o.Shards[i]
		if j.opts.Shard != nil {
			j.opts.Shard(s.Name, d.Kept[i])
		}
		if d.Kept[i] {
			j.result.Kept++
			continue
		}
		w, err := format.Create(filepath.Join(staging, s.Name), s.Entries, s.Meta)
		if err != nil {
			return err
		}
		if err := j.fill(ctx, w, s); err != nil {
			return errors.Join(err, w.Abort())
		}
		if err := w.Commit(); err != nil {
			return err
		}
		j.result.Written++
	}
	return nil
}

// publish gives the finished shards their names and has the index map to them.
func (o *Overlay) publish(d *OverlayDestination, staging string) error {
	index, err := readWeightIndex(d.Dir)
	if err != nil {
		return err
	}
	if o.InPlace() {
		var names []string
		for i := range o.Items {
			names = append(names, o.Items[i].Want.Name, o.Items[i].Want.Name+format.ScaleSuffix)
		}
		d.record.IndexMade = d.record.IndexMade || !index.exists
		if err := d.record.write(staging); err != nil {
			return err
		}
		// From here on the index decides between the old and the new tensors.
		index.describe(o.Base, names)
		if err := index.write(); err != nil {
			return err
		}
	}
	if !o.InPlace() {
		// Until all shards are there, the directory is incomplete for everybody.
		o.remap(index)
		if err := index.write(); err != nil {
			return err
		}
	}
	for i := range o.Shards {
		if name := o.Shards[i].Name; !d.placed[i] {
			if err := os.Rename(filepath.Join(staging, name), filepath.Join(d.Dir, name)); err != nil {
				return err
			}
		}
	}
	if err := d.record.write(d.Dir); err != nil { // makes the names durable as well
		return err
	}
	if o.InPlace() {
		o.remap(index)
		if err := index.write(); err != nil {
			return err
		}
	}
	return os.RemoveAll(staging)
}

// remap maps the overlay's tensors to its shards, and scales that it replaces
// by plain floats to nothing.
func (o *Overlay) remap(x *weightIndex) {
	size := func(name string) int64 {
		if t := o.Base.Tensor(name); t != nil {
			return t.Size
		}
		return 0
	}
	if !x.exists {
		x.members["metadata"] = []byte(`{"total_size":0}`)
	}
	for i := range o.Shards {
		s := &o.Shards[i]
		for k := range s.Items {
			it := &s.Items[k]
			name, scales := it.Want.Name, it.Want.Name+format.ScaleSuffix
			x.place(name, s.Name, it.Spec.Bytes(), size(name))
			if it.Packed() {
				x.place(scales, s.Name, it.Spec.ScaleBytes(), size(scales))
			} else {
				x.place(scales, "", 0, size(scales))
			}
		}
	}
}

// Open opens the base with the overlay on it.
func (o *Overlay) Open() (*format.Snapshot, error) {
	if o.InPlace() {
		return format.Open(o.Base.Dir)
	}
	return format.Open(o.Base.Dir, o.Request.Dir)
}

// Verify reads the overlay again as a reader of the base finds it, compares
// every weight with the source and gives the errors of every tensor, and of
// every head of kv_b.
func (o *Overlay) Verify(ctx context.Context, threads int, progress func(bytes int64)) (*Verification, error) {
	out, err := o.Open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }()
	if err := o.found(out); err != nil {
		return nil, err
	}
	return o.verify(ctx, out, threads, progress)
}

// found checks that readers of the index and, inside the base, readers of the
// first path in byte order find the overlay's tensors in its shards.
func (o *Overlay) found(out *format.Snapshot) error {
	first := map[string]string{}
	if o.InPlace() {
		for _, sh := range out.Shards { // in byte order
			for _, t := range sh.Tensors {
				if first[t.Name] == "" {
					first[t.Name] = filepath.Base(sh.Path)
				}
			}
		}
	}
	var problems format.Problems
	for i := range o.Shards {
		s := &o.Shards[i]
		for _, e := range s.Entries {
			t := out.Tensor(e.Name)
			switch {
			case t == nil || filepath.Base(t.Shard.Path) != s.Name:
				problems = append(problems, &format.Error{Kind: format.ErrCorrupt, Path: out.Dir, Tensor: e.Name, What: "does not come from the overlay", Wanted: s.Name})
			case o.InPlace() && first[e.Name] != s.Name:
				problems = append(problems, &format.Error{Kind: format.ErrCorrupt, Path: out.Dir, Tensor: e.Name, What: "comes from another shard where the index is ignored", Found: first[e.Name], Wanted: s.Name})
			}
		}
	}
	return problems.Err()
}
