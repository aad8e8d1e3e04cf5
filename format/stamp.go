package format

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// The metadata keys of stamps. The first and the last are the colibri
// engine's; the second is ours, since format names carry no group size.
const (
	KeyFormats = "colibri.fmt"               // a JSON object {tensor: format name}
	KeyGroups  = "snapshot.gs"               // a JSON object {tensor: group size}
	KeyUsed    = "colibri.container.formats" // a JSON array of the names in use, sorted
)

// maxStamps is the number of stamps that the colibri engine reads from one
// object; more of ours would be refused there.
const maxStamps = 4096

// Stamp is what a file's metadata says about a tensor. Group is 0 where none is given.
type Stamp struct {
	Format ID
	Group  int
}

// ParseStamps reads the stamps out of a shard's __metadata__. Anything that is
// not exactly a claim about a known format is an ErrCorrupt.
func ParseStamps(meta map[string]string) (map[string]Stamp, error) {
	var problems Problems
	bad := func(tensor, what, found string) {
		problems = append(problems, &Error{Kind: ErrCorrupt, Tensor: tensor, What: what, Found: found})
	}
	stamps := map[string]Stamp{}
	if text, ok := meta[KeyFormats]; ok {
		err := readMembers(text, func(d *jsontext.Decoder, name string) error {
			value, ok, err := readString(d)
			if err != nil {
				return err
			}
			in, known := formatNamed(value)
			switch {
			case !ok:
				bad(name, KeyFormats+" value is not a string", "")
			case !known:
				bad(name, KeyFormats+" names an unknown format", strconv.Quote(value))
			default:
				stamps[name] = Stamp{Format: in.ID}
			}
			return nil
		})
		if err != nil {
			bad("", KeyFormats+" is not a JSON object of strings", err.Error())
		}
	}
	if text, ok := meta[KeyGroups]; ok {
		err := readMembers(text, func(d *jsontext.Decoder, name string) error {
			value, err := d.ReadValue()
			if err != nil {
				return err
			}
			n, ok := parseSize(value)
			st, stamped := stamps[name]
			switch {
			case !ok || !slices.Contains(GroupSizes, int(n)):
				bad(name, KeyGroups+" is not a group size", string(value))
			case stamped && st.Format != Int4Grouped:
				bad(name, KeyGroups+" given for a format without groups", st.Format.String())
			case stamped:
				stamps[name] = Stamp{st.Format, int(n)}
			}
			return nil
		})
		if err != nil {
			bad("", KeyGroups+" is not a JSON object of sizes", err.Error())
		}
	}
	if err := problems.Err(); err != nil {
		return nil, err
	}
	return stamps, nil
}

func formatNamed(name string) (Info, bool) {
	i := slices.IndexFunc(table[:], func(in Info) bool { return in.Name == name })
	if i < 0 {
		return Info{}, false
	}
	return table[i], true
}

// readMembers reads a text that is one JSON object with at most maxStamps
// members; equal duplicates of a name are fine.
func readMembers(text string, member func(d *jsontext.Decoder, name string) error) error {
	d := jsontext.NewDecoder(strings.NewReader(text), jsontext.AllowDuplicateNames(true))
	if d.PeekKind() != '{' {
		return fmt.Errorf("not a JSON object")
	}
	seen := map[string]string{}
	count := 0
	err := readObject(d, func(name string) error {
		if count++; count > maxStamps {
			return fmt.Errorf("more than %d entries", maxStamps)
		}
		value, err := d.ReadValue()
		if err != nil {
			return err
		}
		value = slices.Clone(value)
		if old, dup := seen[name]; dup && old != string(value) {
			return fmt.Errorf("%s: two claims, %s and %s", name, old, value)
		}
		seen[name] = string(value)
		return member(jsontext.NewDecoder(strings.NewReader(string(value))), name)
	})
	if err != nil {
		return err
	}
	if _, err := d.ReadToken(); err != io.EOF {
		return fmt.Errorf("bytes after the object")
	}
	return nil
}

// StampMetadata is the __metadata__ that says how to read the packed matrices
// of one file. Plain tensors need no stamp and get none.
func StampMetadata(specs map[string]Spec) map[string]string {
	formats, groups, used := map[string]string{}, map[string]int{}, map[string]bool{}
	for name, s := range specs {
		if !s.Format.Info().Packed {
			continue
		}
		formats[name] = s.Format.String()
		used[s.Format.String()] = true
		if s.Format == Int4Grouped {
			groups[name] = s.Group
		}
	}
	meta := map[string]string{}
	put := func(key string, v any, n int) {
		if n > 0 {
			text, _ := json.Marshal(v) // maps of strings and ints always marshal, keys sorted
			meta[key] = string(text)
		}
	}
	put(KeyFormats, formats, len(formats))
	put(KeyGroups, groups, len(groups))
	put(KeyUsed, slices.Sorted(maps.Keys(used)), len(used))
	return meta
}
