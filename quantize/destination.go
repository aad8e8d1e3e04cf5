package quantize

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"hawkmoth/format"
)

// Destination is what a conversion finds in the directory that it writes to.
type Destination struct {
	Dir      string
	Exists   bool
	Complete bool   // the same job is finished there
	Kept     []bool // per shard of the plan: finished by an earlier run
	Needed   int64  // bytes of disk that the rest takes
	Free     int64  // bytes of disk that are free; -1 where that cannot be told

	manifest *Manifest // of this job, with what is done of it
	recorded bool      // the manifest is in the directory already
	replaces bool      // another job, or this one anew, overwrites what is there
}

// Recorded says whether the directory has the record of an earlier run of the
// same job.
func (d *Destination) Recorded() bool { return d.recorded }

var shardName = regexp.MustCompile(`^out(-[a-z]+)?-[0-9]{5,}\.safetensors$`)

// Survey looks at the directory that a plan is to be written to and changes
// nothing. It refuses (format.ErrConflict) a directory that holds anything but
// an earlier run of the same job; overwrite accepts everything except shards
// that no conversion has recorded, and the source itself.
func Survey(p *Plan, dir string, overwrite bool) (*Destination, error) {
	m, err := p.manifest()
	if err != nil {
		return nil, err
	}
	d := &Destination{Dir: dir, Kept: make([]bool, len(p.Shards)), manifest: m}
	st, err := os.Stat(dir)
	switch {
	case absent(err):
		if err := parentOf(dir); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, &format.Error{Path: dir, What: "cannot be examined", Err: err}
	case !st.IsDir():
		return nil, &format.Error{Path: dir, What: "is a file", Wanted: "a directory, new or of an earlier run"}
	default:
		d.Exists = true
		if src, err := os.Stat(p.snap.Dir); err == nil && os.SameFile(src, st) {
			return nil, &format.Error{Kind: format.ErrUsage, Path: dir, What: "is the checkpoint itself", Wanted: "another directory"}
		}
		if err := d.inspect(p, overwrite); err != nil {
			return nil, err
		}
	}
	if err := d.space(p); err != nil {
		return nil, err
	}
	return d, nil
}

// parentOf says why a directory cannot be made: what is made is only the last
// directory of a path, lest a misspelt one take hundreds of GB.
func parentOf(dir string) error {
	parent := filepath.Dir(filepath.Clean(dir))
	st, err := os.Stat(parent)
	switch {
	case absent(err):
		return &format.Error{Path: dir, What: "cannot be created, make the directory " + parent + " first", Err: syscall.ENOENT}
	case err != nil:
		return &format.Error{Path: dir, What: "cannot be created", Err: err}
	case !st.IsDir():
		return &format.Error{Path: dir, What: "cannot be created, " + parent + " is not a directory", Err: syscall.ENOTDIR}
	}
	return nil
}

// inspect decides what becomes of an existing directory.
func (d *Destination) inspect(p *Plan, overwrite bool) error {
	entries, err := os.ReadDir(d.Dir)
	if err != nil {
		return &format.Error{Path: d.Dir, What: "cannot be examined", Err: err}
	}
	old, err := ReadManifest(d.Dir)
	if err != nil && !absent(err) && !overwrite {
		return err
	}
	if old == nil {
		old = &Manifest{}
	} else {
		d.recorded = true
	}
	var strangers, shards []string
	for _, e := range entries {
		name := e.Name()
		switch {
		case p.owns(strings.TrimSuffix(name, ".tmp")), old.owns(name), strings.HasPrefix(name, "."), name == "lost+found":
		case strings.HasSuffix(name, ".safetensors"):
			if !p.otherPass(name) {
				shards = append(shards, name)
			}
		default:
			strangers = append(strangers, name)
		}
		if !d.recorded && e.Type().IsRegular() && p.owns(name) {
			strangers = append(strangers, name)
		}
	}
	conflict := func(what, found string) error {
		return &format.Error{Kind: format.ErrConflict, Path: d.Dir, What: what, Found: found}
	}
	overlays, _ := Overlays(d.Dir)
	switch {
	case len(shards) > 0 && len(overlays) > 0:
		return conflict("has an overlay; \"convert overlay --remove "+overlays[0].Name+"\" takes it out", summary(shards))
	case len(shards) > 0:
		return conflict("holds shards that no conversion recorded; move them away", summary(shards))
	case !d.recorded && len(strangers) > 0 && !overwrite:
		return conflict("is not empty and has no "+ManifestName+" of an earlier run; --overwrite converts into it all the same", summary(strangers))
	case overwrite:
		d.replaces = d.recorded || len(strangers) > 0
		d.recorded = false
		for _, s := range append(slices.Clone(old.Shards), named(old.Replaces)...) {
			if !p.owns(s.Name) {
				d.manifest.Replaces = append(d.manifest.Replaces, s.Name)
			}
		}
		return nil
	case !d.recorded:
		return nil
	}
	if diff := old.differences(d.manifest); len(diff) > 0 {
		if prefix := p.Recipe.Shards; prefix != prefixOf(old.Recipe) {
			return &format.Error{Kind: format.ErrConflict, Path: d.Dir, Found: "recipe " + old.Recipe, Wanted: "recipe " + p.Recipe.Name,
				What: "holds another pass; make this one in a directory of its own and then move its " + prefix + "-*.safetensors here, where readers find both (balanced, small and colibri-metal write everything in one pass)"}
		}
		for _, e := range diff {
			if f, ok := e.(*format.Error); ok {
				f.Path = filepath.Join(d.Dir, ManifestName)
			}
		}
		const what = "belongs to another conversion, which this one would mix with; choose another directory, or --overwrite to start anew"
		return append(format.Problems{conflict(what, "")}, diff...)
	}
	now := d.manifest.Modified
	changed := old.Modified != nil && !maps.Equal(old.Modified, now)
	d.manifest, old.Modified, old.Planned = old, now, len(p.Shards) // until it is done again
	done := 0
	for i, s := range p.Shards {
		d.Kept[i] = !changed && slices.Contains(old.Shards, FinishedShard{s.Name, s.Size}) && s.valid(d.Dir)
		if d.Kept[i] {
			done++
		}
	}
	_, err = os.Stat(filepath.Join(d.Dir, indexName))
	d.Complete = done == len(p.Shards) && err == nil && len(old.Replaces) == 0 && p.copied(d.Dir)
	return nil
}

// prefixOf is the prefix of the shards that a recipe writes; that of a recipe
// from a file is its base's, which is likely the default's.
func prefixOf(recipe string) string {
	r, err := RecipeFor(recipe)
	if err != nil {
		return recipes[0].Shards
	}
	return r.Shards
}

// otherPass says whether a shard is that of a pass which writes other tensors
// than the plan's, such as the MTP block's; they may lie side by side.
func (p *Plan) otherPass(name string) bool {
	return shardName.MatchString(name) && slices.ContainsFunc(recipes, func(r Recipe) bool {
		rest, ok := strings.CutPrefix(name, r.Shards+"-")
		return ok && r.Shards != p.Recipe.Shards && strings.Trim(rest, "0123456789") == ".safetensors"
	})
}

func named(names []string) []FinishedShard {
	list := make([]FinishedShard, len(names))
	for i, name := range names {
		list[i].Name = name
	}
	return list
}

func summary(names []string) string {
	if len(names) > 4 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:4], ", "), len(names)-4)
	}
	return strings.Join(names, ", ")
}

// owns says whether the plan writes a file of that name.
func (p *Plan) owns(name string) bool {
	return name == ManifestName || name == indexName ||
		slices.ContainsFunc(p.Files, func(f FileCopy) bool { return f.Name == name }) ||
		slices.ContainsFunc(p.Shards, func(s OutShard) bool { return s.Name == name })
}

// owns says whether the recorded job wrote a file of that name, or began to.
func (m *Manifest) owns(name string) bool {
	base := strings.TrimSuffix(name, ".tmp")
	return m.Tool != "" && base != name && shardName.MatchString(base) ||
		slices.Contains(m.Replaces, base) ||
		slices.ContainsFunc(m.Files, func(f SourceFile) bool { return f.Name == base }) ||
		slices.ContainsFunc(m.Shards, func(s FinishedShard) bool { return s.Name == base })
}

// valid says whether the finished file is the one that the plan describes.
func (s *OutShard) valid(dir string) bool {
	sh, err := format.OpenShard(filepath.Join(dir, s.Name))
	if err != nil {
		return false
	}
	defer func() { _ = sh.Close() }()
	if sh.Size != s.Size || len(sh.Tensors) != len(s.Entries) || len(sh.Metadata) != len(s.Meta) {
		return false
	}
	for key, value := range s.Meta {
		if sh.Metadata[key] != value {
			return false
		}
	}
	want := make(map[string]format.Entry, len(s.Entries))
	for _, e := range s.Entries {
		want[e.Name] = e
	}
	for _, t := range sh.Tensors {
		if e, ok := want[t.Name]; !ok || e.DType != t.DType || !slices.Equal(e.Shape, t.Shape) {
			return false
		}
	}
	return true
}

// copied says whether every companion file is there with its size.
func (p *Plan) copied(dir string) bool {
	return !slices.ContainsFunc(p.Files, func(f FileCopy) bool {
		st, err := os.Stat(filepath.Join(dir, f.Name))
		return err != nil || st.Size() != f.Size
	})
}

// space compares what is still to be written with what is free. A shard that
// is replaced stays until its successor is complete.
func (d *Destination) space(p *Plan) error {
	var largest, freed int64
	for i, s := range p.Shards {
		if d.Kept[i] {
			continue
		}
		d.Needed += s.Size
		if st, err := os.Stat(filepath.Join(d.Dir, s.Name)); err == nil {
			freed += st.Size()
			largest = max(largest, s.Size)
		}
	}
	for _, f := range p.Files {
		d.Needed += f.Size
	}
	if freed > 0 {
		d.Needed = max(d.Needed-freed, 0) + largest
	}
	at := d.Dir
	if !d.Exists {
		at = filepath.Dir(filepath.Clean(d.Dir))
	}
	d.Free = freeBytes(at)
	if d.Exists && d.Free >= 0 { // what a killed run left is removed first
		stale, err := p.stale(d.Dir)
		if err != nil {
			return err
		}
		for _, name := range stale {
			if st, err := os.Stat(filepath.Join(d.Dir, name)); err == nil {
				d.Free += st.Size()
			}
		}
	}
	if !d.Complete && d.Free >= 0 && d.Needed > d.Free {
		return &format.Error{Path: d.Dir, What: "the disk cannot hold the container", Err: syscall.ENOSPC,
			Found: format.Bytes(d.Free) + " free", Wanted: format.Bytes(d.Needed)}
	}
	return nil
}
