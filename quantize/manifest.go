package quantize

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"hawkmoth/format"
)

// ManifestName is the file that records what made a container.
const ManifestName = "hawkmoth.json"

const indexName = "model.safetensors.index.json"

// Manifest records what a container was made from and how, so that a second
// run resumes the same job and refuses another. All but Shards, Replaces, Modified
// and Planned must agree for a job to be the same.
type Manifest struct {
	Tool       string            `json:"tool"`
	Version    int               `json:"version"`    // of this record
	Arithmetic string            `json:"arithmetic"` // of the codecs
	Recipe     string            `json:"recipe"`
	Roles      map[string]string `json:"roles"`
	Projection map[string]string `json:"projections,omitempty"` // of the routed experts
	Overrides  []string          `json:"tensors,omitempty"`
	MaxShard   int64             `json:"max_shard_size"`
	Plan       string            `json:"plan"` // SHA-256 of every name, format and place
	Source     []SourceFile      `json:"source"`
	Files      []SourceFile      `json:"files"`
	Merged     []string          `json:"merged_overlays,omitempty"` // folded into the shards since

	Shards   []FinishedShard `json:"shards"`             // durable under their names
	Replaces []string        `json:"replaces,omitempty"` // shards of an overwritten job that still have to go
	// Modified is when the source's shards were last changed, in Unix nanoseconds,
	// as long as the job is not done: shards made of another state of the source
	// are made anew.
	Modified map[string]int64 `json:"source_modified,omitempty"`
	Planned  int              `json:"shards_planned,omitempty"` // as long as the job is not done
}

// SourceFile is a file of the checkpoint. The SHA-256 of a shard covers its
// header and samples of its data, that of another file all of it.
type SourceFile struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// FinishedShard is a shard of the container and its size in bytes.
type FinishedShard struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
}

// manifest is the record of a plan of which nothing is done yet.
func (p *Plan) manifest() (*Manifest, error) {
	m := &Manifest{Tool: "hawkmoth convert", Version: 1, Arithmetic: "absmax 1", Recipe: p.Recipe.Name, MaxShard: p.Options.MaxShard,
		Roles: map[string]string{"mtp_block": p.Recipe.MTP.String()}, Shards: []FinishedShard{}, Modified: map[string]int64{}, Planned: len(p.Shards)}
	for r, c := range p.Recipe.Roles {
		m.Roles[Role(r).String()] = c.String()
	}
	for _, name := range []string{"gate", "up", "down"} {
		if c := *p.Recipe.projection(name); c != nil {
			if m.Projection == nil {
				m.Projection = map[string]string{}
			}
			m.Projection[name] = c.String()
		}
	}
	for _, o := range p.Recipe.Overrides {
		m.Overrides = append(m.Overrides, o.String())
	}
	h := sha256.New()
	for _, s := range p.Shards {
		for i := range s.Items {
			it := &s.Items[i]
			_, _ = fmt.Fprintf(h, "%s %s %s %v\n", s.Name, it.Want.Name, it.Spec, it.PassThrough)
		}
	}
	m.Plan = hex.EncodeToString(h.Sum(nil))
	for _, s := range p.snap.Shards {
		sum, err := fingerprint(s)
		if err != nil {
			return nil, err
		}
		st, err := os.Stat(s.Path)
		if err != nil {
			return nil, err
		}
		m.Modified[filepath.Base(s.Path)] = st.ModTime().UnixNano()
		m.Source = append(m.Source, SourceFile{filepath.Base(s.Path), s.Size, sum})
	}
	for _, f := range p.Files {
		data, err := p.snap.ReadFile(f.Name)
		if err != nil {
			return nil, err
		}
		m.Files = append(m.Files, SourceFile{f.Name, int64(len(data)), hash(data)})
	}
	return m, nil
}

func hash(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// fingerprint tells checkpoints of one layout apart without reading them: the
// header and 16 samples of the data.
func fingerprint(s *format.Shard) (string, error) {
	const samples, sample = 16, 4096
	h := sha256.New()
	buf := make([]byte, 8+s.HeaderSize)
	if _, err := s.ReadAt(buf, 0); err != nil {
		return "", err
	}
	h.Write(buf)
	data := s.Size - int64(len(buf))
	block := make([]byte, sample)
	for i := range int64(samples) {
		n := min(sample, data)
		at := s.Size - data + (data-n)/(samples-1)*i
		if _, err := s.ReadAt(block[:n], at); err != nil {
			return "", err
		}
		h.Write(block[:n])
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// ReadManifest reads the record of a container; the error wraps
// fs.ErrNotExist for a directory without one and is format.ErrCorrupt for one
// that is none.
func ReadManifest(dir string) (*Manifest, error) {
	path := filepath.Join(dir, ManifestName)
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var m Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, &format.Error{Kind: format.ErrCorrupt, Path: path, What: "not a record of a conversion", Err: err}
	}
	for _, s := range append(named(m.Replaces), m.Shards...) { // some of them will be removed
		if !shardName.MatchString(s.Name) {
			return nil, &format.Error{Kind: format.ErrCorrupt, Path: path, What: "not the name of a shard", Found: fmt.Sprintf("%q", s.Name)}
		}
	}
	return &m, nil
}

func (m *Manifest) write(dir string) error {
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return format.WriteFileAtomic(filepath.Join(dir, ManifestName), append(data, '\n'))
}

// differences lists the fields in which two jobs differ, with the recorded and
// the requested value of each.
func (m *Manifest) differences(requested *Manifest) format.Problems {
	return differences(m.fields(), requested.fields())
}

func differences(a, b map[string]string) format.Problems {
	var problems format.Problems
	names := slices.Sorted(maps.Keys(a))
	for name := range b {
		if _, ok := a[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		if a[name] != b[name] {
			problems = append(problems, &format.Error{Kind: format.ErrConflict, What: name + " differs", Found: "recorded " + orNone(a[name]), Wanted: orNone(b[name])})
		}
	}
	if len(problems) > 1 { // the plan follows from the rest
		problems = slices.DeleteFunc(problems, func(e error) bool {
			var f *format.Error
			return errors.As(e, &f) && f.What == "plan differs"
		})
	}
	return problems
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// fields flattens the parts that make the job.
func (m *Manifest) fields() map[string]string {
	job := *m
	job.Shards, job.Replaces, job.Modified, job.Planned = nil, nil, nil, 0
	return jobFields(job, "shards")
}

// jobFields flattens a record, leaving some of its members out.
func jobFields(job any, without ...string) map[string]string {
	data, _ := json.Marshal(job) // strings and numbers always marshal
	var tree map[string]any
	_ = json.Unmarshal(data, &tree)
	for _, name := range without {
		delete(tree, name)
	}
	flat := map[string]string{}
	flatten(flat, "", tree)
	return flat
}

func flatten(flat map[string]string, path string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for key, sub := range v {
			if path != "" {
				key = path + "." + key
			}
			flatten(flat, key, sub)
		}
	case []any:
		for i, sub := range v {
			key := fmt.Sprintf("%s[%d]", path, i)
			if m, ok := sub.(map[string]any); ok && m["name"] != nil {
				key = fmt.Sprintf("%s %v", path, m["name"])
				delete(m, "name")
			}
			flatten(flat, key, sub)
		}
	case float64:
		flat[path] = fmt.Sprintf("%.0f", v)
	default:
		flat[path] = fmt.Sprint(v)
	}
}

func absent(err error) bool { return errors.Is(err, fs.ErrNotExist) }
