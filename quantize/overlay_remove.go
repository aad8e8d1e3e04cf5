package quantize

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"hawkmoth/format"
)

func beingMerged(dir, name string) error {
	return &format.Error{Kind: format.ErrConflict, Path: dir, What: "the overlay " + name + " is being merged, and shards of the base hold its tensors already",
		Wanted: fmt.Sprintf("convert overlay --merge %s %s, which finishes that", name, dir)}
}

// findOverlay is an overlay of a directory by name; format.ErrUsage if there
// is none.
func findOverlay(dir, name string) (*OverlayInfo, []OverlayInfo, error) {
	list, err := Overlays(dir)
	if err != nil {
		return nil, nil, err
	}
	names := make([]string, len(list))
	for i := range list {
		if list[i].Name == name {
			return &list[i], list, nil
		}
		names[i] = list[i].Name
	}
	if len(names) == 0 {
		return nil, nil, &format.Error{Kind: format.ErrUsage, Path: dir, What: fmt.Sprintf("has no overlay %q, nor any other", name)}
	}
	return nil, nil, &format.Error{Kind: format.ErrUsage, Path: dir, What: fmt.Sprintf("has no overlay %q", name), Wanted: strings.Join(names, " or ")}
}

// RemoveOverlay takes an overlay out of a base, or out of a directory of its
// own. The index goes back first and atomically, then the shards; interrupted,
// the next call finishes. An overlay that was not finished is removed too.
func RemoveOverlay(dir, name string) (*OverlayInfo, error) {
	info, list, err := findOverlay(dir, name)
	if err != nil {
		return nil, err
	}
	if info.State == OverlayMerging {
		return nil, beingMerged(dir, name)
	}
	locked, err := lock(dir)
	if err != nil {
		return nil, &format.Error{Kind: format.ErrConflict, Path: dir, What: "another conversion is writing here", Err: err}
	}
	defer func() { _ = locked.Close() }()
	index, err := readWeightIndex(dir)
	if err != nil {
		return nil, err
	}
	r := info.record
	if err := r.restore(index, dir); err != nil {
		return nil, err
	}
	if err := index.write(); err != nil {
		return nil, err
	}
	if err := r.discard(dir); err != nil {
		return nil, err
	}
	// The base had no index and needs none any more.
	made := slices.ContainsFunc(list, func(o OverlayInfo) bool { return o.record.IndexMade })
	if len(list) == 1 && made {
		if err := os.Remove(filepath.Join(dir, indexName)); err != nil && !absent(err) {
			return nil, err
		}
	}
	if made && len(list) > 1 && r.IndexMade { // the one that stays last removes it
		for i := range list {
			if o := list[i].record; o.Name != name && list[i].State != OverlayUnfinished {
				o.IndexMade = true
				if err := o.write(dir); err != nil {
					return nil, err
				}
				break
			}
		}
	}
	return info, r.forget(dir)
}

// restore maps the overlay's tensors to the shards that held them.
func (r *OverlayRecord) restore(x *weightIndex, dir string) error {
	own := map[string]int64{} // bytes by tensor
	for _, s := range r.Shards {
		sh, err := format.OpenShard(filepath.Join(dir, s.Name))
		if absent(err) {
			continue // unfinished
		}
		if err != nil {
			return err
		}
		for _, t := range sh.Tensors {
			if x.shards[t.Name] == s.Name {
				own[t.Name] = t.Size
			}
		}
		_ = sh.Close()
	}
	var problems format.Problems
	for shard, byFormat := range r.Replaces {
		sh, err := format.OpenShard(filepath.Join(dir, shard))
		if err != nil {
			problems = append(problems, err)
			continue
		}
		held := map[string]*format.Tensor{}
		for _, t := range sh.Tensors {
			held[t.Name] = t
		}
		_ = sh.Close()
		for _, names := range byFormat {
			for _, name := range names {
				if held[name] == nil {
					problems = append(problems, &format.Error{Kind: format.ErrIncomplete, Path: sh.Path, Tensor: name, What: "is no longer in the base, which cannot be restored"})
					continue
				}
				for _, n := range []string{name, name + format.ScaleSuffix} {
					was, mapped := own[n]
					switch t := held[n]; {
					case t != nil && (mapped || own[name] > 0):
						x.place(n, shard, t.Size, was)
					case mapped:
						x.place(n, "", 0, was)
					}
				}
			}
		}
	}
	if len(r.Replaces) == 0 {
		for name, was := range own {
			x.place(name, "", 0, was)
		}
	}
	return problems.Err()
}

// discard removes the shards, finished or not.
func (r *OverlayRecord) discard(dir string) error {
	for _, s := range r.Shards {
		if err := os.Remove(filepath.Join(dir, s.Name)); err != nil && !absent(err) {
			return err
		}
	}
	return nil
}

// forget removes what says that there is an overlay, last of all.
func (r *OverlayRecord) forget(dir string) error {
	if err := os.Remove(recordPath(dir, r.Name)); err != nil && !absent(err) {
		return err
	}
	return errors.Join(os.RemoveAll(stagingDir(dir, r.Name)))
}
