package quantize

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"hawkmoth/format"
)

// OverlayRecord is the file NAME.overlay.json: what an overlay was made from
// and how, and what it replaces. All up to Source must agree for a second run
// to be the same job.
type OverlayRecord struct {
	Tool       string       `json:"tool"`
	Version    int          `json:"version"`    // of this record
	Arithmetic string       `json:"arithmetic"` // of the codecs
	Name       string       `json:"name"`       // the prefix of the shards
	Selection  string       `json:"selection"`
	Format     string       `json:"format"`
	MTP        bool         `json:"mtp_block"`
	MaxShard   int64        `json:"max_shard_size"`
	From       string       `json:"from"` // "base", or the name of the checkpoint's directory
	Plan       string       `json:"plan"` // SHA-256 of every name, format and place
	Source     []SourceFile `json:"source"`

	Tensors int             `json:"tensors"`
	Shards  []FinishedShard `json:"shards"`
	// Replaces is the shard of the base → the format there → names. It is
	// empty for an overlay in a directory of its own.
	Replaces  map[string]map[string][]string `json:"replaces,omitempty"`
	IndexMade bool                           `json:"index_made,omitempty"` // the base had none
	Merging   bool                           `json:"merging,omitempty"`    // shards of the base hold its tensors already
}

const (
	overlaySuffix  = ".overlay.json"
	overlayVersion = 1
	// FromBase is the source of an overlay that was made of its base.
	FromBase = "base"
)

var overlayName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,63}$`)

func overlayShard(name string, i int) string { return fmt.Sprintf("%s-%05d.safetensors", name, i) }

// stagingDir is where the shards of an overlay are written before the base
// learns of them; a hidden name, which no reader of shards looks into.
func stagingDir(dir, name string) string { return filepath.Join(dir, "."+name+".overlay") }

func recordPath(dir, name string) string { return filepath.Join(dir, name+overlaySuffix) }

// record is that of a plan.
func (o *Overlay) record() (*OverlayRecord, error) {
	r := &OverlayRecord{Tool: "hawkmoth convert overlay", Version: overlayVersion, Arithmetic: "absmax 1", Name: o.Name,
		Selection: o.Request.selection(), Format: o.Request.Choice.String(), MTP: o.Request.MTP, MaxShard: o.Options.MaxShard,
		From: FromBase, Tensors: len(o.Items)}
	if !o.FromBase {
		abs, err := filepath.Abs(o.snap.Dir)
		if err != nil {
			return nil, err
		}
		r.From = filepath.Base(abs)
	}
	h := sha256.New()
	read := map[*format.Shard]bool{}
	for _, s := range o.Shards {
		r.Shards = append(r.Shards, FinishedShard{s.Name, s.Size})
		for i := range s.Items {
			it := &s.Items[i]
			_, _ = fmt.Fprintf(h, "%s %s %s %v\n", s.Name, it.Want.Name, it.Spec, it.PassThrough)
			read[it.Source.Tensor.Shard] = true
			if it.Source.Scales != nil {
				read[it.Source.Scales.Shard] = true
			}
		}
	}
	r.Plan = hex.EncodeToString(h.Sum(nil))
	for _, s := range o.snap.Shards {
		if !read[s] {
			continue
		}
		sum, err := fingerprint(s)
		if err != nil {
			return nil, err
		}
		r.Source = append(r.Source, SourceFile{filepath.Base(s.Path), s.Size, sum})
	}
	if o.InPlace() {
		r.Replaces = map[string]map[string][]string{}
		for i := range o.under {
			f := &o.under[i]
			shard := filepath.Base(f.Tensor.Shard.Path)
			if r.Replaces[shard] == nil {
				r.Replaces[shard] = map[string][]string{}
			}
			r.Replaces[shard][f.Spec.Name()] = append(r.Replaces[shard][f.Spec.Name()], f.Name)
		}
	}
	return r, nil
}

// differences lists the fields in which two jobs differ.
func (r *OverlayRecord) differences(requested *OverlayRecord) format.Problems {
	return differences(r.fields(), requested.fields())
}

func (r *OverlayRecord) fields() map[string]string {
	job := *r
	job.Tensors, job.Shards, job.Replaces, job.IndexMade, job.Merging = 0, nil, nil, false, false
	return jobFields(job, "tensors", "shards")
}

func (r *OverlayRecord) write(dir string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return format.WriteFileAtomic(recordPath(dir, r.Name), append(data, '\n'))
}

func (r *OverlayRecord) bytes() (n int64) {
	for _, s := range r.Shards {
		n += s.Size
	}
	return n
}

// readOverlayRecord reads the record of an overlay; the error wraps
// fs.ErrNotExist where there is none.
func readOverlayRecord(dir, name string) (*OverlayRecord, error) {
	path := recordPath(dir, name)
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	bad := func(what, found string, err error) (*OverlayRecord, error) {
		return nil, &format.Error{Kind: format.ErrCorrupt, Path: path, What: what, Found: found, Err: err}
	}
	var r OverlayRecord
	if err := json.Unmarshal(data, &r); err != nil {
		return bad("not the record of an overlay", "", err)
	}
	if r.Version != overlayVersion || r.Name != name || !overlayName.MatchString(name) {
		return bad("not the record of this overlay", fmt.Sprintf("version %d, name %q", r.Version, r.Name), nil)
	}
	for _, s := range r.Shards { // they will be removed
		if !strings.HasPrefix(s.Name, name+"-") || filepath.Base(s.Name) != s.Name || !strings.HasSuffix(s.Name, ".safetensors") {
			return bad("not the name of a shard of this overlay", fmt.Sprintf("%q", s.Name), nil)
		}
	}
	for shard := range r.Replaces { // they will be opened and written again
		if filepath.Base(shard) != shard || !filepath.IsLocal(shard) {
			return bad("not the name of a shard", fmt.Sprintf("%q", shard), nil)
		}
	}
	return &r, nil
}

// The states of an overlay.
const (
	OverlayInUse      = "in use"
	OverlayUnfinished = "unfinished"
	OverlayMerging    = "being merged"
	OverlayShadowed   = "not in use" // the index does not map its tensors to it
)

// OverlayInfo is an overlay that a directory holds.
type OverlayInfo struct {
	Name     string            `json:"name"` // empty for shards without a record
	State    string            `json:"state"`
	Format   string            `json:"format,omitempty"`
	From     string            `json:"from,omitempty"`
	Tensors  int               `json:"tensors"`
	Bytes    int64             `json:"bytes"`
	Shards   []FinishedShard   `json:"shards"`
	Replaces []ReplacedTensors `json:"replaces"` // empty for a directory of its own

	record *OverlayRecord
	folded bool // merged: the index maps its tensors to the base
}

// ReplacedTensors are tensors of a base that an overlay takes the place of.
type ReplacedTensors struct {
	Format string   `json:"format"` // there
	Names  []string `json:"names"`  // those that differ in numbers share a line
}

// Overlays lists the overlays inside a directory, a base or one of its own, by
// name: those with a record, finished or not.
func Overlays(dir string) ([]OverlayInfo, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(entries, func(e os.DirEntry) bool { return strings.HasSuffix(strings.TrimSuffix(e.Name(), ".json"), ".overlay") }) {
		return nil, nil // the index is long
	}
	index, err := readWeightIndex(dir)
	if err != nil {
		return nil, err
	}
	var list []OverlayInfo
	add := func(r *OverlayRecord, state string, folded bool) {
		info := OverlayInfo{Name: r.Name, State: state, Format: r.Format, From: r.From, Tensors: r.Tensors, Bytes: r.bytes(), Shards: r.Shards, Replaces: []ReplacedTensors{}, record: r, folded: folded}
		byFormat := map[string][]string{}
		for _, formats := range r.Replaces {
			for f, names := range formats {
				byFormat[f] = append(byFormat[f], names...)
			}
		}
		for _, f := range slices.Sorted(maps.Keys(byFormat)) {
			slices.Sort(byFormat[f])
			info.Replaces = append(info.Replaces, ReplacedTensors{f, format.Collapse(byFormat[f])})
		}
		list = append(list, info)
	}
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), overlaySuffix); ok && !e.IsDir() {
			r, err := readOverlayRecord(dir, name)
			if err != nil {
				return nil, err
			}
			state, folded := r.state(index)
			add(r, state, folded)
		}
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(strings.TrimPrefix(e.Name(), "."), ".overlay")
		if !ok || !e.IsDir() || slices.ContainsFunc(list, func(o OverlayInfo) bool { return o.Name == name }) {
			continue
		}
		r, err := readOverlayRecord(filepath.Join(dir, e.Name()), name)
		if absent(err) {
			continue // killed before it had begun
		}
		if err != nil {
			return nil, err
		}
		add(r, OverlayUnfinished, false)
	}
	return list, nil
}

// state holds a recorded overlay against the index.
func (r *OverlayRecord) state(index *weightIndex) (state string, folded bool) {
	own := map[string]bool{}
	for _, s := range r.Shards {
		own[s.Name] = true
	}
	mapped := 0
	for name, shard := range index.shards {
		if own[shard] && !strings.HasSuffix(name, format.ScaleSuffix) {
			mapped++
		}
	}
	switch {
	case r.Merging:
		return OverlayMerging, mapped == 0
	case mapped == r.Tensors:
		return OverlayInUse, false
	case mapped == 0:
		return OverlayShadowed, false
	}
	return OverlayUnfinished, false
}
