package quantize

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"hawkmoth/format"
)

// weightIndex is the index file of a directory while it is changed. Members
// that this code does not know stay as they are.
type weightIndex struct {
	dir     string
	exists  bool
	changed bool
	members map[string]json.RawMessage
	shards  map[string]string // weight_map
}

func readWeightIndex(dir string) (*weightIndex, error) {
	x := &weightIndex{dir: dir, members: map[string]json.RawMessage{}, shards: map[string]string{}}
	path := filepath.Join(dir, indexName)
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return x, nil
	case err != nil:
		return nil, err
	}
	if len(data) > 2 && string(data[:3]) == "\xef\xbb\xbf" {
		data = data[3:]
	}
	x.exists = true
	err = json.Unmarshal(data, &x.members)
	if err == nil {
		err = json.Unmarshal(x.members["weight_map"], &x.shards)
	}
	if err != nil {
		return nil, &format.Error{Kind: format.ErrCorrupt, Path: path, What: "not an index of shards", Err: err}
	}
	return x, nil
}

// place maps a tensor to a shard, "" for none, and counts its bytes: size of
// the new one, was of the one that it replaces.
func (x *weightIndex) place(name, shard string, size, was int64) {
	old, listed := x.shards[name]
	switch {
	case old == shard && listed == (shard != ""):
		return
	case !listed:
		was = 0
	}
	x.changed = true
	if shard == "" {
		delete(x.shards, name)
		size = 0
	} else {
		x.shards[name] = shard
	}
	x.grow(size - was)
}

// grow changes metadata.total_size, where there is one.
func (x *weightIndex) grow(by int64) { x.setTotal(func(n int64) int64 { return n + by }) }

func (x *weightIndex) setTotal(change func(int64) int64) {
	meta := map[string]json.RawMessage{}
	if json.Unmarshal(x.members["metadata"], &meta) != nil {
		return
	}
	n, err := strconv.ParseInt(string(meta["total_size"]), 10, 64)
	if err != nil || change(n) == n {
		return
	}
	meta["total_size"] = json.RawMessage(strconv.FormatInt(change(n), 10))
	x.members["metadata"], _ = json.Marshal(meta) // raw messages that were read
	x.changed = true
}

// write replaces the file if something has changed, or removes it when nothing
// is mapped.
func (x *weightIndex) write() error {
	if !x.changed {
		return nil
	}
	path := filepath.Join(x.dir, indexName)
	if len(x.shards) == 0 {
		if err := os.Remove(path); err != nil && !absent(err) {
			return err
		}
		x.exists, x.changed = false, false
		return nil
	}
	x.members["weight_map"], _ = json.Marshal(x.shards)
	data, err := json.MarshalIndent(x.members, "", "  ")
	if err != nil {
		return err
	}
	x.exists, x.changed = true, false
	return format.WriteFileAtomic(path, append(data, '\n'))
}

// describe makes the index of a snapshot as it is read. One that is there
// changes only where it names another shard for one of the tensors that are
// asked for.
func (x *weightIndex) describe(snap *format.Snapshot, names []string) {
	if !x.exists {
		var total int64
		for _, name := range snap.Names() {
			t := snap.Tensor(name)
			x.shards[name] = filepath.Base(t.Shard.Path)
			total += t.Size
		}
		x.members["metadata"] = json.RawMessage(fmt.Sprintf(`{"total_size":%d}`, total))
		x.changed = true
		return
	}
	for _, name := range names {
		if t := snap.Tensor(name); t != nil {
			x.place(name, filepath.Base(t.Shard.Path), t.Size, t.Size)
		}
	}
}
