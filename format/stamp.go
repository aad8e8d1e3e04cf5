package format

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// The metadata keys of stamps. The colibri engine reads at most 4096 claims in
// all shards together, refuses two claims about a name even where one shard
// overlays the other, and never looks for a routed expert's. Its own key
// therefore carries only the claims without which a matrix is misread; ours
// carries all.
const (
	KeyColibri = "colibri.fmt"               // a JSON object {tensor: format name}
	KeyFormats = "snapshot.fmt"              // a JSON object {tensor: format name}
	KeyGroups  = "snapshot.gs"               // a JSON object {tensor: group size}, since names carry none
	KeyUsed    = "colibri.container.formats" // a JSON array of the names in use, sorted
)

// MaxClaims is the number of claims that the colibri engine accepts.
const MaxClaims = 4096

// Stamp is what a file's metadata says about a tensor. Group is 0 where none is given.
type Stamp struct {
	Format ID
	Group  int
}

// ParseStamps reads the stamps out of a shard's __metadata__. Anything that is
// not exactly a claim about a known format is an ErrCorrupt.
func ParseStamps(meta map[string]string) (map[string]Stamp, error) {
	p := stampParser{stamps: map[string]Stamp{}}
	p.read(meta, KeyColibri, MaxClaims, p.format)
	p.read(meta, KeyFormats, math.MaxInt, p.format)
	p.read(meta, KeyGroups, math.MaxInt, p.group)
	if err := p.problems.Err(); err != nil {
		return nil, err
	}
	return p.stamps, nil
}

type stampParser struct {
	stamps   map[string]Stamp
	problems Problems
}

func (p *stampParser) bad(tensor, what, found string) {
	p.problems = append(p.problems, &Error{Kind: ErrCorrupt, Tensor: tensor, What: what, Found: found})
}

// read gives the members of one key's object to claim. Equal duplicates of a
// name are fine, and since claims are compared, others are not.
func (p *stampParser) read(meta map[string]string, key string, limit int, claim func(key, name string, value jsontext.Value)) {
	text, ok := meta[key]
	if !ok {
		return
	}
	d := jsontext.NewDecoder(bytes.NewBufferString(text), jsontext.AllowDuplicateNames(true))
	count := 0
	err := readObject(d, func(raw []byte) error {
		if count++; count > limit {
			return fmt.Errorf("more than %d entries", limit)
		}
		name := string(raw)
		value, err := d.ReadValue()
		if err == nil {
			claim(key, name, value)
		}
		return err
	})
	if err == nil {
		if _, err = d.ReadToken(); err == io.EOF {
			return
		}
		err = errors.New("bytes after the object")
	}
	p.bad("", key+" is not a JSON object of claims", err.Error())
}

func (p *stampParser) format(key, name string, value jsontext.Value) {
	text, err := jsontext.AppendUnquote(nil, value)
	in, known := formatNamed(string(text))
	switch old, dup := p.stamps[name]; {
	case value.Kind() != '"' || err != nil:
		p.bad(name, key+" value is not a string", string(value))
	case !known:
		p.bad(name, key+" names an unknown format", strconv.Quote(string(text)))
	case dup && old.Format != in.ID:
		p.bad(name, key+" is a second, different claim", old.Format.String()+" and "+in.Name)
	default:
		p.stamps[name] = Stamp{Format: in.ID}
	}
}

func (p *stampParser) group(key, name string, value jsontext.Value) {
	n, ok := parseSize(value)
	switch st, stamped := p.stamps[name]; {
	case !ok || !slices.Contains(GroupSizes, int(n)):
		p.bad(name, key+" is not a group size", string(value))
	case stamped && st.Format != Int4Grouped:
		p.bad(name, key+" is given for a format without groups", st.Format.String())
	case st.Group != 0 && st.Group != int(n):
		p.bad(name, key+" is a second, different claim", fmt.Sprintf("%d and %d", st.Group, n))
	case stamped:
		p.stamps[name] = Stamp{st.Format, int(n)}
	}
}

func formatNamed(name string) (Info, bool) {
	i := slices.IndexFunc(table[:], func(in Info) bool { return in.Name == name })
	if i < 0 {
		return Info{}, false
	}
	return table[i], true
}

// StampMetadata is the __metadata__ that says how to read the packed matrices
// of one file. Plain tensors need no stamp and get none; int4-grouped with one
// group a row is stamped as what it is read as, int4-row.
func StampMetadata(specs map[string]Spec) map[string]string {
	colibri, formats, groups, used := map[string]string{}, map[string]string{}, map[string]int{}, map[string]bool{}
	for name, s := range specs {
		s = s.Canonical()
		if !s.Format.Info().Packed {
			continue
		}
		formats[name] = s.Format.String()
		used[s.Format.String()] = true
		if s.Format == Int4Grouped {
			groups[name] = s.Group
		}
		if _, yes := Ambiguous(s); yes {
			colibri[name] = s.Format.String()
		}
	}
	meta := map[string]string{}
	put := func(key string, v any, n int) {
		if n > 0 {
			text, _ := json.Marshal(v) // maps of strings and ints always marshal, keys sorted
			meta[key] = string(text)
		}
	}
	put(KeyColibri, colibri, len(colibri))
	put(KeyFormats, formats, len(formats))
	put(KeyGroups, groups, len(groups))
	put(KeyUsed, slices.Sorted(maps.Keys(used)), len(used))
	return meta
}
