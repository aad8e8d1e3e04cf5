package quantize

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hawkmoth/format"
)

func merge(t testing.TB, base, dir, name string) (*Merge, *Result) {
	t.Helper()
	m, err := NewMerge(base, dir, name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	r, err := m.Run(t.Context(), ExecuteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return m, r
}

// TestMergeIsAConversion: folded into the base, an overlay gives the container
// that a conversion with its formats writes, but for where shards begin.
func TestMergeIsAConversion(t *testing.T) {
	for _, f := range []string{"int4-grouped/32", "bf16", "fp8-e4m3-b128"} {
		for _, apart := range []bool{false, true} {
			c := oracleContainer(t, 0)
			_, base := readers(t, c.dir)
			p := planOf(t, c.source, recipe(t, "balanced", Flags{Tensors: []string{"kv_b_proj=" + f}}), PlanOptions{AllowBigger: true})
			ref := outDir(t)
			execute(t, p, ref, ExecuteOptions{})
			_, other := readers(t, ref)

			req := kvB(f)
			req.MaxShard, req.IndexOnly = 8000, true
			dir := c.dir
			if apart {
				dir = outDir(t)
				req.Dir = dir
			}
			o := c.mustOverlay(t, c.source, req)
			write(t, o)
			m, r := merge(t, c.dir, dir+"/.", "kvb") // another spelling is the same directory
			if len(m.Shards) != 4 || r.Written != 4 || m.Needed > 70_000 {
				t.Errorf("%s: %+v, %+v", f, m.Shards, r)
			}
			want := base.with(other, itemNames(o))
			byIndex, byPath := readers(t, c.dir)
			sameReader(t, f+" by path", byPath, want)
			sameReader(t, f+" by index", byIndex, want)
			snap := open(t, c.dir)
			for i := range o.Items {
				it := &o.Items[i]
				if spec, err := snap.Spec(it.Want.Name, it.Spec.Rows, it.Spec.Cols); err != nil || spec != it.Spec || snap.Stamped(it.Want.Name) != it.Packed() {
					t.Errorf("%s: %v, %v", f, spec, err)
				}
			}
			for _, s := range snap.Shards {
				checkStamps(t, s)
			}
			if list, err := Overlays(c.dir); err != nil || len(list) != 0 {
				t.Errorf("%v, %v", list, err)
			}
			wantIndex, gotIndex := index(t, ref), index(t, c.dir)
			if wantIndex.total() != gotIndex.total() || len(wantIndex.shards) != len(gotIndex.shards) {
				t.Errorf("%s: the index has %d bytes in %d tensors, want %d in %d", f, gotIndex.total(), len(gotIndex.shards), wantIndex.total(), len(wantIndex.shards))
			}

			// The conversion that made the base no longer continues it.
			_, err := Execute(t.Context(), oraclePlan(t, "balanced", Flags{}), c.dir, ExecuteOptions{})
			wantError(t, err, format.ErrConflict, "merged_overlays[0] differs (found recorded kvb: --role kv_b in "+f+", wanted none)")
			if t.Failed() {
				return
			}
		}
	}
}

// TestMergeOfOneShardIsThatConversion, to the byte.
func TestMergeOfOneShardIsThatConversion(t *testing.T) {
	c := oracleContainer(t, 0)
	convert := func(f Flags) string {
		dir := outDir(t)
		execute(t, planOf(t, c.source, recipe(t, "balanced", f), PlanOptions{}), dir, ExecuteOptions{})
		return dir
	}
	c.dir = convert(Flags{})
	write(t, c.mustOverlay(t, c.source, kvB("int4-grouped/32")))
	merge(t, c.dir, c.dir, "kvb")
	got, want := files(t, c.dir), files(t, convert(Flags{Tensors: []string{"kv_b_proj=int4-grouped/32"}}))
	delete(got, ManifestName)
	delete(want, ManifestName)
	sameFiles(t, got, want)
}

func index(t *testing.T, dir string) *weightIndex {
	t.Helper()
	x, err := readWeightIndex(dir)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func (x *weightIndex) total() int64 {
	var meta struct {
		TotalSize int64 `json:"total_size"`
	}
	_ = json.Unmarshal(x.members["metadata"], &meta)
	return meta.TotalSize
}

// checkStamps: a shard speaks about the packed matrices that it holds, and
// lists the formats that it uses.
func checkStamps(t *testing.T, s *format.Shard) {
	t.Helper()
	stamps, err := format.ParseStamps(s.Metadata)
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for _, x := range s.Tensors {
		packed := tensorOf(s, x.Name+format.ScaleSuffix) != nil
		st, stamped := stamps[x.Name]
		if packed != stamped {
			t.Errorf("%s: %s: packed %v, stamped %v", s.Path, x.Name, packed, stamped)
		}
		if packed {
			used[st.Format.String()] = true
		}
		delete(stamps, x.Name)
	}
	for name := range stamps {
		t.Errorf("%s: a stamp of %s, which it does not hold", s.Path, name)
	}
	list, _ := json.Marshal(slices.Sorted(maps.Keys(used)))
	if len(used) > 0 && s.Metadata[format.KeyUsed] != string(list) {
		t.Errorf("%s: formats %s, want %s", s.Path, s.Metadata[format.KeyUsed], list)
	}
}

// TestD16MergePreservesMetadata of others, but not what it says of tensors
// that are replaced.
func TestD16MergePreservesMetadata(t *testing.T) {
	const kv, up = "model.layers.0.self_attn.kv_b_proj.weight", "model.layers.0.mlp.up_proj.weight"
	snap := checkpoint(t, matrix(kv, 8, 64), matrix(up, 8, 64))
	dir := t.TempDir()
	m := encodeAll(t, plainSpec(format.Int8Row, 8, 64), ramp(8*64))
	scales := make([]byte, 4*8)
	F32ToBytes(scales, m.S)
	var entries []format.Entry
	for _, name := range []string{kv, up} { // the shape of the matrix, as some writers have it
		entries = append(entries, format.Entry{Name: name, DType: format.DTypeU8, Shape: []int{8, 64}}, format.Entry{Name: name + ".qs", DType: format.DTypeF32, Shape: []int{8}})
	}
	w, err := format.Create(filepath.Join(dir, "out-00000.safetensors"), entries, map[string]string{
		"format": "pt", "note": "[1,2]", "colibri.sha256": `{"` + kv + `":"aa","` + kv + `.qs":"bb","` + up + `":"cc"}`,
		format.KeyColibri: `{"` + kv + `":"int8-row"}`, format.KeyUsed: `["int8-row"]`})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{kv, up} {
		if err := errors.Join(w.WriteAt(name, m.W, 0), w.WriteAt(name+".qs", scales, 0)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	req := kvB("int4-grouped/32")
	req.IndexOnly = true // colibri's stamp of the base
	o, err := NewOverlay(open(t, dir), snap, wantsOf(snap, 0), req)
	if err != nil {
		t.Fatal(err)
	}
	write(t, o)
	merge(t, dir, dir, "kvb")
	meta := open(t, dir).Shards[0].Metadata
	want := map[string]string{"format": "pt", "note": "[1,2]", "colibri.sha256": `{"` + up + `":"cc"}`,
		format.KeyFormats: `{"` + kv + `":"int4-grouped"}`, format.KeyGroups: `{"` + kv + `":32}`, format.KeyUsed: `["int4-grouped","int8-row"]`}
	if !maps.Equal(meta, want) {
		t.Errorf("metadata %v\nwant %v", meta, want)
	}
}

func TestMergeContinues(t *testing.T) {
	c := oracleContainer(t, 0)
	req := kvB("int4-grouped/32")
	write(t, c.mustOverlay(t, c.source, req))
	_, want := readers(t, c.dir)
	ref := copyDir(t, c.dir)
	merge(t, ref, ref, "kvb")
	for stop := range int32(4) {
		m, err := NewMerge(c.dir, c.dir, "kvb")
		if err != nil {
			t.Fatal(err)
		}
		ctx, o := stopAfter(t, stop)
		if _, err := m.Run(ctx, o); !errors.Is(err, context.Canceled) {
			t.Fatalf("error %v", err)
		}
		_ = m.Close()
		for _, r := range func() [2]reader { a, b := readers(t, c.dir); return [2]reader{a, b} }() {
			sameReader(t, "half merged", r, want)
		}
		open(t, c.dir)
		if list, err := Overlays(c.dir); err != nil || list[0].State != OverlayMerging {
			t.Errorf("%+v, %v", list, err)
		}
		_, err = RemoveOverlay(c.dir, "kvb")
		wantError(t, err, format.ErrConflict, "is being merged", "--merge kvb")
	}
	_, err := c.overlay(t, c.source, req)
	wantError(t, err, format.ErrConflict, "is being merged", "--merge kvb")
	if _, r := merge(t, c.dir, c.dir, "kvb"); r.Kept != 3 || r.Written != 1 {
		t.Errorf("%+v", r)
	}
	sameFiles(t, files(t, c.dir), files(t, ref))
}

// TestMergeKilledAtTheEnd: after the index has changed, only the clearing away
// is left.
func TestMergeKilledAtTheEnd(t *testing.T) {
	c := oracleContainer(t, 0)
	write(t, c.mustOverlay(t, c.source, kvB("int4-grouped/32")))
	over := files(t, c.dir)
	ref := copyDir(t, c.dir)
	merge(t, ref, ref, "kvb")
	want := files(t, ref)
	for _, left := range [][]string{{"kvb-00000.safetensors", "kvb.overlay.json"}, {"kvb.overlay.json"}} {
		dir := copyDir(t, ref)
		for _, name := range left {
			text := over[name]
			if strings.HasSuffix(name, ".json") {
				text = strings.Replace(text, `"replaces"`, `"merging": true, "replaces"`, 1)
			}
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		open(t, dir)
		merge(t, dir, dir, "kvb")
		sameFiles(t, files(t, dir), want)
	}
}

func TestMergeRefusals(t *testing.T) {
	c := oracleContainer(t, 0)
	_, err := NewMerge(c.dir, c.dir, "kvb")
	wantError(t, err, format.ErrUsage, `has no overlay "kvb"`)
	req := kvB("int4-grouped/32")
	req.MaxShard = 4000
	ctx, o := stopAfter(t, 1)
	if _, err := c.mustOverlay(t, c.source, req).Write(ctx, o); err == nil {
		t.Fatal("not stopped")
	}
	_, err = NewMerge(c.dir, c.dir, "kvb")
	wantError(t, err, format.ErrUsage, "the overlay kvb is unfinished")
	write(t, c.mustOverlay(t, c.source, req))
	other := copyDir(t, c.dir)
	_, err = NewMerge(other, c.dir, "kvb")
	wantError(t, err, format.ErrUsage, "is inside that base")
	if err := os.Remove(filepath.Join(c.dir, "kvb-00001.safetensors")); err != nil {
		t.Fatal(err)
	}
	_, err = NewMerge(c.dir, c.dir, "kvb")
	wantError(t, err, format.ErrIncomplete, "kvb-00001.safetensors")
}
