package quantize

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"hawkmoth/format"
	"hawkmoth/internal/fixtures"
)

// container is a converted checkpoint in many small shards, and what is wanted
// of both. Layers from mtp on are the MTP block.
type container struct {
	source *format.Snapshot
	wants  []Want
	dir    string
}

func oracleContainer(t testing.TB, mtp int) *container {
	t.Helper()
	c := &container{source: open(t, fixtures.Path(t, "glm_moe_dsa")), dir: outDir(t)}
	c.wants = wantsOf(c.source, mtp)
	r, err := RecipeFor("balanced")
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewPlan(c.source, c.wants, r, PlanOptions{MaxShard: 60_000})
	if err != nil {
		t.Fatal(err)
	}
	execute(t, p, c.dir, ExecuteOptions{})
	return c
}

// copyDir copies the files of a directory, its hidden ones too.
func copyDir(t testing.TB, from string) string {
	t.Helper()
	to := outDir(t)
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}

func (c *container) overlay(t testing.TB, from *format.Snapshot, req OverlayRequest) (*Overlay, error) {
	t.Helper()
	return NewOverlay(open(t, c.dir), from, c.wants, req)
}

func (c *container) mustOverlay(t testing.TB, from *format.Snapshot, req OverlayRequest) *Overlay {
	t.Helper()
	o, err := c.overlay(t, from, req)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func write(t testing.TB, o *Overlay) *Result {
	t.Helper()
	r, err := o.Write(t.Context(), ExecuteOptions{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func kvB(f string) OverlayRequest { return roleRequest(KVB, f) }

func roleRequest(r Role, f string) OverlayRequest {
	c, err := ParseChoice(f, 32)
	if err != nil {
		panic(err)
	}
	return OverlayRequest{Roles: []Role{r}, Choice: c}
}

func matching(pattern, f string) OverlayRequest {
	req := roleRequest(KVB, f)
	req.Roles, req.Match = nil, regexp.MustCompile(pattern)
	return req
}

// reader is a small reader of a directory, apart from the product's: every
// tensor's dtype and bytes, taken from the shard that the rule names.
type reader map[string]string

func readers(t testing.TB, dir string) (byIndex, byPath reader) {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(list)
	var index struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	text, err := os.ReadFile(filepath.Join(dir, indexName))
	if err == nil {
		err = json.Unmarshal(text, &index)
	}
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	byIndex, byPath = reader{}, reader{}
	for _, path := range list {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		n := binary.LittleEndian.Uint64(data)
		var header map[string]struct {
			DType   string
			Offsets [2]int `json:"data_offsets"`
		}
		raw := map[string]json.RawMessage{}
		if err := json.Unmarshal(data[8:8+n], &raw); err != nil {
			t.Fatal(err)
		}
		delete(raw, "__metadata__")
		again, _ := json.Marshal(raw)
		if err := json.Unmarshal(again, &header); err != nil {
			t.Fatal(err)
		}
		for name, x := range header {
			value := x.DType + string(data[8+int(n)+x.Offsets[0]:8+int(n)+x.Offsets[1]])
			if _, there := byPath[name]; !there {
				byPath[name] = value
			}
			if index.WeightMap[name] == filepath.Base(path) {
				byIndex[name] = value
			}
		}
	}
	return byIndex, byPath
}

// want changes a reader's tensors to those of a conversion with other formats.
func (r reader) with(other reader, names []string) reader {
	out := maps.Clone(r)
	for _, n := range names {
		for _, name := range []string{n, n + format.ScaleSuffix} {
			delete(out, name)
			if v, ok := other[name]; ok {
				out[name] = v
			}
		}
	}
	return out
}

func sameReader(t *testing.T, what string, got, want reader) {
	t.Helper()
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%s: %s should not be there", what, name)
		}
	}
	for name, v := range want {
		if got[name] != v {
			t.Errorf("%s: %s has other bytes", what, name)
		}
	}
}

func itemNames(o *Overlay) (names []string) {
	for i := range o.Items {
		names = append(names, o.Items[i].Want.Name)
	}
	return names
}

// TestOverlayIsWhatAConversionWrites: each format over the base, in place and
// in a directory of its own, gives the bytes of a conversion with that format;
// readers by index and by path agree, and removing gives the base back.
func TestOverlayIsWhatAConversionWrites(t *testing.T) {
	c := oracleContainer(t, 0)
	before := files(t, c.dir)
	_, base := readers(t, c.dir)
	for _, f := range []string{"int4-grouped/32", "int4-row", "int3-g64", "int2-row", "fp8-e4m3-b128", "bf16", "f16", "f32"} {
		p := planOf(t, c.source, recipe(t, "balanced", Flags{Tensors: []string{"kv_b_proj=" + f}}), PlanOptions{AllowBigger: true})
		ref := outDir(t)
		execute(t, p, ref, ExecuteOptions{})
		_, other := readers(t, ref)

		req := kvB(f)
		req.MaxShard = 6000 // two or more shards
		req.HeadRows = 56
		_, err := c.overlay(t, c.source, req)
		if plain := strings.HasSuffix(f, "16") || f == "f32"; plain != (err != nil) {
			t.Fatalf("%s inside the base: error %v", f, err)
		} else if plain {
			wantError(t, err, format.ErrUsage, "model.layers.{0-3}.self_attn.kv_b_proj.weight (4 tensors): colibri would take the new plain floats", "-o DIR", "--index-only")
			req.IndexOnly = true
		}
		o := c.mustOverlay(t, c.source, req)
		if o.Name != "kvb" || len(o.Items) != 4 || len(o.Shards) < 2 || o.MTPLeft != nil || o.Replaced().Formats[0] != (Count{"int8-row", 4}) {
			t.Errorf("%s: %+v", f, o)
		}
		write(t, o)
		byIndex, byPath := readers(t, c.dir)
		want := base.with(other, itemNames(o))
		sameReader(t, f+" by index", byIndex, want)
		if !req.IndexOnly {
			sameReader(t, f+" by path", byPath, want)
		}
		snap := open(t, c.dir)
		if names := slices.Sorted(maps.Keys(want)); !slices.Equal(snap.Names(), names) || len(snap.Warnings) > 0 {
			t.Errorf("%s: %d names, want %d; warnings %v", f, len(snap.Names()), len(names), snap.Warnings)
		}
		v, err := o.Verify(t.Context(), 2, nil)
		if err != nil {
			t.Fatal(err)
		}
		checkHeads(t, f, v)
		if _, err := RemoveOverlay(c.dir, "kvb"); err != nil {
			t.Fatal(err)
		}
		sameFiles(t, files(t, c.dir), before)

		req.Dir, req.IndexOnly = outDir(t), false
		o = c.mustOverlay(t, c.source, req)
		write(t, o)
		sameFiles(t, files(t, c.dir), before)
		both, err := format.Open(c.dir, req.Dir)
		if err != nil {
			t.Fatal(err)
		}
		for i := range o.Items {
			it := &o.Items[i]
			if spec, err := both.Spec(it.Want.Name, it.Spec.Rows, it.Spec.Cols); err != nil || spec != it.Spec {
				t.Errorf("%s: %v, %v", f, spec, err)
			}
		}
		_ = both.Close()
		_, byPath = readers(t, req.Dir)
		sameReader(t, f+" apart", byPath, reader{}.with(other, itemNames(o)))
		if v, err := o.Verify(t.Context(), 2, nil); err != nil {
			t.Error(err)
		} else {
			checkHeads(t, f, v)
			for _, e := range v.Tensors { // the base's int8-row
				if e.Base < 0.003 || e.Base > 0.02 {
					t.Errorf("%s: error of the base %+v", f, e)
				}
			}
		}
		if _, err := RemoveOverlay(req.Dir, "kvb"); err != nil {
			t.Fatal(err)
		}
		if left := files(t, req.Dir); len(left) > 0 {
			t.Errorf("%s: left %v", f, slices.Collect(maps.Keys(left)))
		}
		if t.Failed() {
			return
		}
	}
}

// checkHeads: the heads' errors surround that of their tensor.
func checkHeads(t *testing.T, f string, v *Verification) {
	t.Helper()
	if len(v.Heads) != 4 || len(v.Tensors) != 4 {
		t.Fatalf("%s: %d tensors, %d of them with heads", f, len(v.Tensors), len(v.Heads))
	}
	for i, h := range v.Heads {
		e := v.Tensors[i].Error
		if h.Tensor != v.Tensors[i].Tensor || len(h.Errors) != 4 || slices.Min(h.Errors) > e || slices.Max(h.Errors) < e || f != "bf16" && f != "f32" && f != "f16" && e == 0 {
			t.Errorf("%s: %+v of %v", f, h, v.Tensors[i])
		}
	}
}

func TestHeadsAcrossBlocks(t *testing.T) {
	const rows, cols, head, name = 2100, 1001, 300, "model.layers.0.self_attn.kv_b_proj.weight"
	w := ramp(rows * cols)
	for i := range head * cols { // head 3 loses everything
		w[3*head*cols+i] = 1e-3
	}
	for r := 3 * head; r < 4*head; r++ {
		w[r*cols] = 1
	}
	snap := checkpoint(t, f32Tensor(name, []int{rows, cols}, w))
	_, dir, _ := converted(t, snap, Flags{Format: "f32"})
	req := kvB("int4-row")
	req.HeadRows = head
	o, err := NewOverlay(open(t, dir), snap, wantsOf(snap, 0), req)
	if err != nil {
		t.Fatal(err)
	}
	write(t, o)
	if n := len(blocks(o.Items)); n < 3 {
		t.Fatalf("%d blocks", n)
	}
	v, err := o.Verify(t.Context(), 2, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := v.Heads[0].Errors
	m := encodeAll(t, plainSpec(format.Int4Row, rows, cols), w)
	back := decodeAll(t, m)
	for h := range 7 {
		var sum errorSum
		for r := h * head; r < (h+1)*head; r++ {
			sum.add(squares(w[r*cols:(r+1)*cols], back[r*cols:(r+1)*cols]))
		}
		if math.Abs(got[h]-sum.relative()) > 1e-9 {
			t.Errorf("head %d: %v, want %v", h, got[h], sum.relative())
		}
	}
}

// TestOverlayFromTheBase: the values are the base's decoded ones, and that is
// said; the error is measured against them.
func TestOverlayFromTheBase(t *testing.T) {
	c := oracleContainer(t, 0)
	o := c.mustOverlay(t, nil, kvB("int4-grouped/32"))
	if len(o.Warnings) != 1 || !strings.Contains(o.Warnings[0], "the source is the container itself: model.layers.{0-3}.self_attn.kv_b_proj.weight (4 tensors) is decoded from int8-row") || !strings.Contains(o.Warnings[0], "--from CHECKPOINT") {
		t.Errorf("warnings %q", o.Warnings)
	}
	old := map[string][]float32{}
	snap := open(t, c.dir)
	for _, name := range itemNames(o) {
		shape := c.source.Tensor(name).Shape
		m, err := bindPair(snap, name, shape[0], shape[1])
		if err != nil {
			t.Fatal(err)
		}
		old[name] = decodeAll(t, m)
	}
	write(t, o)
	v, err := o.Verify(t.Context(), 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	snap = open(t, c.dir)
	for i, name := range itemNames(o) {
		shape := c.source.Tensor(name).Shape
		got, err := bindPair(snap, name, shape[0], shape[1])
		if err != nil {
			t.Fatal(err)
		}
		want := encodeAll(t, o.Items[i].Spec, old[name])
		if !slices.Equal(got.W, want.W) || !sameBits(got.S, want.S) {
			t.Errorf("%s is not the decoded base encoded again", name)
		}
		if e := squares(old[name], decodeAll(t, got)).relative(); math.Abs(e-v.Tensors[i].Error) > 1e-9 || e == 0 {
			t.Errorf("%s: error %v, measured %v", name, v.Tensors[i].Error, e)
		}
	}
	// Once more over it: the source is still what is beneath.
	again := c.mustOverlay(t, nil, kvB("int4-grouped/32"))
	if again.Held == nil || again.Name != "kvb" {
		t.Errorf("%+v", again)
	}
	if r := write(t, again); r.Written != 0 || r.Kept != 1 {
		t.Errorf("%+v", r)
	}
	if v2, err := again.Verify(t.Context(), 0, nil); err != nil || v2.Tensors[0] != v.Tensors[0] {
		t.Errorf("%v, %v", v2, err)
	}
}

// TestA1UncertainGroupsAreReadAsTheCensusReadsThem: rows of 96 columns in
// groups of 64 without a stamp are groups of 48 for a reader of bytes.
func TestA1UncertainGroupsAreReadAsTheCensusReadsThem(t *testing.T) {
	const odd, sure = "model.layers.0.self_attn.kv_b_proj.weight", "model.layers.0.self_attn.o_proj.weight"
	w := map[string][]float32{odd: ramp(8 * 96), sure: ramp(8 * 256)}
	shape := map[string][]int{odd: {8, 96}, sure: {8, 256}}
	dir := t.TempDir()
	var tensors []testTensor
	decoded := map[string][]float32{}
	for name := range w {
		m := encodeAll(t, groupedSpec(shape[name][0], shape[name][1], 64), w[name])
		decoded[name] = decodeAll(t, m)
		tensors = append(tensors, testTensor{name, format.DTypeU8, []int{len(m.W)}, m.W}, f32Tensor(name+".qs", []int{len(m.S)}, m.S))
	}
	writeShard(t, filepath.Join(dir, "out-00000.safetensors"), tensors)
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	snap := open(t, dir)
	wants := []Want{{Name: odd, Shape: shape[odd], Role: KVB}, {Name: sure, Shape: shape[sure], Role: Out}}
	if got, _ := snap.Spec(odd, 8, 96); got.Group != 48 {
		t.Fatalf("%v is not ambiguous", got)
	}

	_, err := NewOverlay(snap, nil, wants, kvB("f32"))
	wantError(t, err, format.ErrUsage, "--index-only")
	req := kvB("f32")
	req.Dir = outDir(t)
	o, err := NewOverlay(snap, nil, wants, req)
	if err != nil {
		t.Fatal(err)
	}
	write(t, o)
	check := func(what, dir string, names ...string) {
		got := open(t, dir)
		for _, name := range names {
			if values := readAll(t, got, matrixWant(name, shape[name][0], shape[name][1])); !sameBits(values, decoded[name]) {
				t.Errorf("%s: %s was read with another group size", what, name)
			}
		}
	}
	check("overlay", req.Dir, odd)

	p, err := NewPlan(snap, wants, recipe(t, "balanced", Flags{Format: "f32"}), PlanOptions{AllowRequantize: true, AllowBigger: true})
	if err != nil {
		t.Fatal(err)
	}
	wantWarning(t, p, odd+": no stamp says it, and the scales fit groups of 48 or 64; read as 64")
	out := outDir(t)
	execute(t, p, out, ExecuteOptions{})
	check("conversion", out, odd, sure)
}

// TestA1StampWithoutGroupSize: a claim that says int4-grouped settles the format
// and leaves the size to the rest of the container.
func TestA1StampWithoutGroupSize(t *testing.T) {
	const odd, sure = "model.layers.0.self_attn.kv_b_proj.weight", "model.layers.0.self_attn.o_proj.weight"
	wants := []Want{{Name: odd, Shape: []int{8, 96}, Role: KVB}, {Name: sure, Shape: []int{8, 256}, Role: Out}}
	for stamp, taken := range map[string]int{"": 64, `,"snapshot.gs":"{\"` + odd + `\":48}"`: 48} {
		var entries []format.Entry
		for _, w := range wants {
			spec := groupedSpec(w.Shape[0], w.Shape[1], 64)
			entries = append(entries, format.Entry{Name: w.Name, DType: format.DTypeU8, Shape: []int{int(spec.Bytes())}}, format.Entry{Name: w.Name + ".qs", DType: format.DTypeF32, Shape: []int{int(spec.Scales())}})
		}
		meta := map[string]string{}
		if err := json.Unmarshal([]byte(`{"colibri.fmt":"{\"`+odd+`\":\"int4-grouped\"}"`+stamp+"}"), &meta); err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		w, err := format.Create(filepath.Join(dir, "out-00000.safetensors"), entries, meta)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if err := w.WriteAt(e.Name, make([]byte, e.Shape[0]*e.DType.Bits()/8), 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Commit(); err != nil {
			t.Fatal(err)
		}
		census, problems := TakeCensus(open(t, dir), wants)
		if len(problems) > 0 || census.Found[0].Spec.Group != taken || len(census.Uncertain) != map[int]int{64: 1, 48: 0}[taken] {
			t.Errorf("stamp %s: read in groups of %d, want %d; uncertain %v, %v", stamp, census.Found[0].Spec.Group, taken, census.Uncertain, problems)
		}
	}
}

func TestConvertedContainersNeedConsent(t *testing.T) {
	c := oracleContainer(t, 0)
	snap := open(t, c.dir)
	_, err := NewPlan(snap, c.wants, recipe(t, "small", Flags{}), PlanOptions{})
	wantError(t, err, format.ErrUsage, "is a converted container already", "convert overlay", "--allow-requantize")

	// The same formats go through to the byte.
	p, err := NewPlan(snap, c.wants, recipe(t, "balanced", Flags{}), PlanOptions{AllowRequantize: true, MaxShard: 60_000})
	if err != nil {
		t.Fatal(err)
	}
	out := outDir(t)
	execute(t, p, out, ExecuteOptions{})
	got, want := files(t, out), files(t, c.dir)
	delete(got, ManifestName)
	delete(want, ManifestName)
	sameFiles(t, got, want)

	gs := 32
	p, err = NewPlan(snap, c.wants, recipe(t, "small", Flags{GroupSize: &gs}), PlanOptions{AllowRequantize: true})
	if err != nil {
		t.Fatal(err)
	}
	wantWarning(t, p, "decoded from int8-row and encoded again, which adds a second loss to the first: ")
	out = outDir(t)
	execute(t, p, out, ExecuteOptions{})
	v, err := Verify(t.Context(), p, out, 2, nil)
	if err != nil || v.Worst.Error == 0 || v.Worst.Error > 0.3 {
		t.Errorf("%+v, %v", v, err)
	}
}

// TestPackedSources: every format that can be read is read as its codec
// decodes it, from any row on.
func TestPackedSources(t *testing.T) {
	const rows, cols = 300, 200
	w := weights(3, rows, cols)
	for _, s := range specs(rows, cols) {
		if !packed(s) {
			continue
		}
		m := encodeAll(t, s, w)
		snap := openShards(t, []testTensor{{"w", format.DTypeU8, []int{len(m.W)}, m.W}, f32Tensor("w.qs", []int{len(m.S)}, m.S)})
		src, err := OpenSource(snap, matrixWant("w", rows, cols))
		if err != nil {
			t.Fatal(err)
		}
		if src.Stored = s; !src.Packed() || src.Bytes() != s.Bytes()+s.ScaleBytes() {
			t.Errorf("%v: %d bytes, packed %v", s, src.Bytes(), src.Packed())
		}
		want := decodeAll(t, m)
		for _, part := range [][2]int{{0, rows}, {0, 1}, {127, 2}, {130, 170}, {299, 1}, {5, 0}} {
			dst := make([]float32, part[1]*cols)
			if err := src.ReadRows(&SourceBuffer{}, part[0], part[1], dst); err != nil || !sameBits(dst, want[part[0]*cols:(part[0]+part[1])*cols]) {
				t.Errorf("%v: rows %v differ, %v", s, part, err)
			}
		}
	}
	m := encodeAll(t, groupedSpec(4, 96, 32), weights(1, 4, 96))
	m.S[7] = float32(math.NaN())
	snap := openShards(t, []testTensor{{"w", format.DTypeU8, []int{len(m.W)}, m.W}, f32Tensor("w.qs", []int{len(m.S)}, m.S)})
	src, err := OpenSource(snap, matrixWant("w", 4, 96))
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, src.ReadRows(&SourceBuffer{}, 0, 4, make([]float32, 4*96)), format.ErrCorrupt, "w: 32 weights are not finite", "NaN at row 2, column 32: scale NaN")
}

// TestOverlaysSortBeforeTheBase, whatever its shards are called.
func TestOverlaysSortBeforeTheBase(t *testing.T) {
	const kv, o, up = "model.layers.0.self_attn.kv_b_proj.weight", "model.layers.0.self_attn.o_proj.weight", "model.layers.0.mlp.up_proj.weight"
	tensors := []testTensor{matrix(kv, 8, 64), matrix(o, 8, 64), matrix(up, 8, 64)}
	for _, tt := range []struct {
		first string
		req   OverlayRequest
		want  string
	}{
		{"out-00000.safetensors", kvB("int8-row"), "kvb"},
		{"model-00001-of-00001.safetensors", kvB("int8-row"), "kvb"},
		{"model.safetensors", roleRequest(Out, "int8-row"), "a-o"},
		{"out-00000.safetensors", roleRequest(Out, "int8-row"), "o"},
		{"out-00000.safetensors", matching("kv_b|up", "int8-row"), "a-overlay"},
		{"0001.safetensors", kvB("int8-row"), "0-kvb"},
		{"0-1.safetensors", kvB("int8-row"), "0-0-kvb"},
		{"kvb-00000.safetensors", kvB("int8-row"), "a-kvb"},
		{"kvb.safetensors", kvB("int8-row"), "kvb"},
		{"Model.safetensors", kvB("int8-row"), "0-kvb"},
		{"+.safetensors", kvB("int8-row"), ""},
	} {
		dir := t.TempDir()
		writeShard(t, filepath.Join(dir, tt.first), tensors)
		snap := open(t, dir)
		over, err := NewOverlay(snap, nil, wantsOf(snap, 0), tt.req)
		if tt.want == "" {
			wantError(t, err, format.ErrUnsupported, "no name sorts before", tt.first, "-o DIR")
			continue
		}
		if err != nil || over.Name != tt.want {
			t.Errorf("%s: %v, %v, want %s", tt.first, over, err, tt.want)
			continue
		}
		write(t, over)
		byIndex, byPath := readers(t, dir)
		sameReader(t, tt.first, byPath, byIndex)
		if _, err := RemoveOverlay(dir, over.Name); err != nil {
			t.Error(err)
		}
		if left := files(t, dir); len(left) != 1 {
			t.Errorf("%s: left %v", tt.first, slices.Collect(maps.Keys(left)))
		}
	}
}

func TestMTPBlockIsLeftUnlessAskedFor(t *testing.T) {
	c := oracleContainer(t, 3)
	mtp := "model.layers.3.self_attn.kv_b_proj.weight"
	for _, tt := range []struct {
		req   OverlayRequest
		items int
		left  int
	}{
		{kvB("int4-grouped/32"), 3, 1},
		{matching("kv_b_proj", "int4-grouped/32"), 3, 1},
		{matching(`layers\.3\..*kv_b_proj`, "int4-grouped/32"), 1, 0},
		{func() OverlayRequest { r := kvB("int4-grouped/32"); r.MTP = true; return r }(), 4, 0},
	} {
		o := c.mustOverlay(t, c.source, tt.req)
		if len(o.Items) != tt.items || len(o.MTPLeft) != tt.left || tt.left > 0 && o.MTPLeft[0].Name != mtp {
			t.Errorf("%s: %d items, left %v", tt.req.selection(), len(o.Items), o.MTPLeft)
		}
	}
	o := c.mustOverlay(t, c.source, roleRequest(MTP, "int4-row"))
	if o.Name != "mtp" || len(o.Items) < 30 || !strings.Contains(strings.Join(o.Warnings, "\n"), "hardly ever be accepted") {
		t.Errorf("%d items, warnings %v", len(o.Items), o.Warnings)
	}
}

// TestPartOfAFamilyIsSaid: a known misreading is an overlay that leaves out
// the dense layers.
func TestPartOfAFamilyIsSaid(t *testing.T) {
	c := oracleContainer(t, 0)
	for pattern, says := range map[string]string{
		`layers\.[1-3]\..*kv_b`: "kv_b changes in layers 1-3 and not in layers 0: ",
		`kv_b`:                  "",
		`experts\.3\.gate_proj`: "",
	} {
		o := c.mustOverlay(t, c.source, matching(pattern, "int4-row"))
		text := strings.Join(o.Warnings, "\n")
		if says == "" && text != "" || !strings.Contains(text, says) {
			t.Errorf("%s: warnings %q, want %q", pattern, text, says)
		}
	}
}

func TestOverlayRefusals(t *testing.T) {
	c := oracleContainer(t, 0)
	stamped := copyDir(t, c.dir)
	restamp(t, stamped, "kv_b_proj", format.Int8Row)
	at := func(r OverlayRequest, change func(*OverlayRequest)) OverlayRequest { change(&r); return r }
	for _, tt := range []struct {
		name string
		dir  string
		from *format.Snapshot
		req  OverlayRequest
		kind error
		says []string
	}{
		{"no such tensor", "", nil, matching("kvb_proj", "int4-row"), format.ErrUsage, []string{"--tensors kvb_proj finds no tensor", "kv_b_proj.weight"}},
		{"no such role", "", nil, roleRequest(MTP, "int4-row"), format.ErrUsage, []string{"--role mtp finds no tensor", "a role that this model has"}},
		{"one role of two", "", nil, at(kvB("int4-row"), func(r *OverlayRequest) { r.Roles = append(r.Roles, MTP) }), format.ErrUsage, []string{"--role mtp finds no tensor (wanted what this model has)"}},
		{"one of two stays exact", "", nil, at(kvB("int4-row"), func(r *OverlayRequest) { r.Roles = append(r.Roles, Router) }), format.ErrUsage, []string{"--role router must stay exact (wanted f32, bf16 or f16)"}},
		{"no MTP block", "", nil, at(kvB("int4-row"), func(r *OverlayRequest) { r.MTP = true }), format.ErrUsage, []string{"--mtp finds no tensor"}},
		{"exact only", "", nil, matching("layernorm|mlp.gate.weight", "int8-row"), format.ErrUsage, []string{"finds only what must stay exact", "mlp.gate.weight"}},
		{"nothing changes", "", nil, kvB("int8-row"), format.ErrUsage, []string{"--role kv_b is int8-row already", "--from CHECKPOINT"}},
		{"ambiguous", "", nil, roleRequest(Embed, "fp8-e4m3-b128"), format.ErrUsage, []string{"is taken for int8-row where stamps are not read", "--allow-ambiguous"}},
		{"floats inside", "", c.source, kvB("bf16"), format.ErrUsage, []string{"plain floats", "-o DIR"}},
		{"another stamp", stamped, c.source, kvB("int4-row"), format.ErrUsage, []string{"colibri would refuse the new format", "kv_b_proj"}},
		{"bad name", "", nil, at(kvB("int4-row"), func(r *OverlayRequest) { r.Name = "../x" }), format.ErrUsage, []string{"name of an overlay"}},
		{"late name", "", nil, at(kvB("int4-row"), func(r *OverlayRequest) { r.Name = "zz" }), format.ErrUsage, []string{"sorts before out-00000.safetensors"}},
		{"not in the checkpoint", "", checkpoint(t, matrix("model.norm.weight", 1, 128)), kvB("int4-row"), format.ErrIncomplete, []string{"model.layers.0.self_attn.kv_b_proj.weight", "missing"}},
	} {
		d := *c
		if tt.dir != "" {
			d.dir = tt.dir
		}
		if tt.name == "ambiguous" {
			d = *squareContainer(t)
		}
		before := files(t, d.dir)
		_, err := d.overlay(t, tt.from, tt.req)
		wantError(t, err, tt.kind, tt.says...)
		sameFiles(t, files(t, d.dir), before)
	}
}

// squareContainer has an embedding whose fp8 scales are as many as its rows.
func squareContainer(t *testing.T) *container {
	snap := checkpoint(t, matrix("model.embed_tokens.weight", 2, 256))
	_, dir, _ := converted(t, snap, Flags{Format: "bf16"})
	return &container{source: snap, wants: wantsOf(snap, 0), dir: dir}
}

// restamp gives the tensors of a container a claim for colibri.
func restamp(t *testing.T, dir, part string, id format.ID) {
	t.Helper()
	snap := open(t, dir)
	claims := map[string]string{}
	for _, name := range snap.Names() {
		if strings.Contains(name, part) && !strings.HasSuffix(name, format.ScaleSuffix) {
			claims[name] = id.String()
		}
	}
	text, _ := json.Marshal(claims)
	e := format.Entry{Name: "note", DType: format.DTypeF32, Shape: []int{1}}
	w, err := format.Create(filepath.Join(dir, "stamps.safetensors"), []format.Entry{e}, map[string]string{format.KeyColibri: string(text)})
	if err == nil {
		err = errors.Join(w.WriteAt("note", make([]byte, 4), 0), w.Commit())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestOverlaysOfOneBase: two of different tensors, a third that wants what the
// first has, and the end of them in any order.
func TestOverlaysOfOneBase(t *testing.T) {
	c := oracleContainer(t, 0)
	if err := os.Remove(filepath.Join(c.dir, indexName)); err != nil {
		t.Fatal(err)
	}
	before := files(t, c.dir)
	write(t, c.mustOverlay(t, c.source, kvB("int4-grouped/32")))
	write(t, c.mustOverlay(t, c.source, matching("o_proj", "int4-row")))
	o := c.mustOverlay(t, c.source, matching(`layers\.0\.mlp`, "int4-row"))
	if o.Name != "dense" {
		t.Errorf("name %s", o.Name)
	}
	write(t, o)
	again := c.mustOverlay(t, c.source, matching(`layers\.1\.mlp.*shared`, "int4-row"))
	write(t, again)

	_, err := c.overlay(t, c.source, kvB("int2-row"))
	wantError(t, err, format.ErrConflict, "the overlay kvb, which is another job, replaces model.layers.{0-3}.self_attn.kv_b_proj.weight (4 tensors) already", "convert overlay --remove kvb", "format differs (found recorded int4-grouped/32, wanted int2-row)")
	_, err = c.overlay(t, nil, kvB("int4-grouped/32"))
	wantError(t, err, format.ErrConflict, "from differs (found recorded glm_moe_dsa, wanted base)")
	_, err = c.overlay(t, c.source, matching(`self_attn.(kv_b|o)_proj`, "int2-row"))
	wantError(t, err, format.ErrConflict, "already")

	list, err := Overlays(c.dir)
	if err != nil || len(list) != 4 {
		t.Fatalf("%+v, %v", list, err)
	}
	for i, want := range []string{"a-shared", "dense", "kvb", "o"} {
		if list[i].Name != want || list[i].State != OverlayInUse || list[i].Tensors == 0 || list[i].Bytes == 0 || list[i].Replaces[0].Format != "int8-row" || len(list[i].Replaces[0].Names) == 0 {
			t.Errorf("%+v", list[i])
		}
	}
	for _, name := range []string{"kvb", "a-shared", "o", "dense"} {
		if _, err := RemoveOverlay(c.dir, name); err != nil {
			t.Fatal(err)
		}
		open(t, c.dir)
	}
	sameFiles(t, files(t, c.dir), before)
	_, err = RemoveOverlay(c.dir, "kvb")
	wantError(t, err, format.ErrUsage, `has no overlay "kvb", nor any other`)
}

// TestForeignIndexKeepsItsMembers, whoever wrote it.
func TestForeignIndexKeepsItsMembers(t *testing.T) {
	c := oracleContainer(t, 0)
	path := filepath.Join(c.dir, indexName)
	x, err := readWeightIndex(c.dir)
	if err != nil {
		t.Fatal(err)
	}
	x.members["metadata"] = json.RawMessage(`{"total_size":123456,"total_parameters":7}`)
	x.members["written_by"] = json.RawMessage(`"somebody else"`)
	kv := "model.layers.2.self_attn.kv_b_proj.weight"
	delete(x.shards, kv) // an index may be incomplete
	x.changed = true
	if err := x.write(); err != nil {
		t.Fatal(err)
	}
	write(t, c.mustOverlay(t, c.source, kvB("int4-grouped/32")))
	data, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(data), `"written_by": "somebody else"`) || !strings.Contains(string(data), `"total_parameters": 7`) || strings.Contains(string(data), "123456") {
		t.Errorf("%v, %.300s", err, data)
	}
	if _, err := RemoveOverlay(c.dir, "kvb"); err != nil {
		t.Fatal(err)
	}
	back, err := readWeightIndex(c.dir)
	if err != nil || back.shards[kv] == "" || string(back.members["written_by"]) != `"somebody else"` {
		t.Errorf("%v, %q", err, back.members)
	}
}

// TestFP8CheckpointAsBase: an overlay over a checkpoint that was not converted.
func TestFP8CheckpointAsBase(t *testing.T) {
	c := &container{dir: copyDir(t, fixtures.Path(t, "glm_moe_dsa_fp8"))}
	c.source = open(t, c.dir)
	c.wants = wantsOf(c.source, 0)
	before := files(t, c.dir)
	o := c.mustOverlay(t, nil, kvB("int4-grouped/32"))
	if !o.Items[0].Source.Packed() && o.Replaced().Formats[0].Format != "fp8-e4m3-b128" {
		t.Errorf("%+v", o.Replaced())
	}
	write(t, o)
	if _, err := o.Verify(t.Context(), 2, nil); err != nil {
		t.Error(err)
	}
	snap := open(t, c.dir)
	if _, problems := TakeCensus(snap, c.wants); problems != nil {
		t.Error(problems)
	}
	if again := c.mustOverlay(t, nil, kvB("int4-grouped/32")); again.Held == nil {
		t.Error("not found again")
	}
	if _, err := RemoveOverlay(c.dir, o.Name); err != nil {
		t.Fatal(err)
	}
	after := files(t, c.dir)
	delete(before, indexName) // written by somebody else's JSON library
	delete(after, indexName)
	sameFiles(t, after, before)
}

// TestConversionSparesOverlays: the command that made the base neither resumes
// nor overwrites what an overlay uses.
func TestConversionSparesOverlays(t *testing.T) {
	p := oraclePlan(t, "balanced", Flags{})
	c := &container{source: open(t, fixtures.Path(t, "glm_moe_dsa")), dir: outDir(t)}
	c.wants = wantsOf(c.source, 0)
	execute(t, p, c.dir, ExecuteOptions{})
	write(t, c.mustOverlay(t, c.source, kvB("int4-grouped/32")))
	before := files(t, c.dir)
	for _, overwrite := range []bool{false, true} {
		_, err := Execute(t.Context(), p, c.dir, ExecuteOptions{Overwrite: overwrite})
		wantError(t, err, format.ErrConflict, `has an overlay; "convert overlay --remove kvb" takes it out`)
	}
	sameFiles(t, files(t, c.dir), before)
}

func TestOverlayDirectories(t *testing.T) {
	c := oracleContainer(t, 0)
	req := kvB("int4-grouped/32")
	for _, tt := range []struct {
		dir  string
		kind error
		says string
	}{
		{c.dir, format.ErrUsage, "is the base itself"},
		{copyDir(t, c.dir), format.ErrConflict, "is not a directory of overlays"},
		{filepath.Join(c.dir, "config.json"), nil, "is a file"},
		{filepath.Join(t.TempDir(), "no", "parent"), os.ErrNotExist, "cannot be created, make the directory "},
	} {
		req.Dir = tt.dir
		_, err := c.mustOverlay(t, c.source, req).Survey()
		if err == nil || tt.kind != nil && !errors.Is(err, tt.kind) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", tt.dir, err)
		}
	}
	// One directory takes several, but a tensor once.
	req.Dir = outDir(t)
	write(t, c.mustOverlay(t, c.source, req))
	second := matching("o_proj", "int4-row")
	second.Dir = req.Dir
	write(t, c.mustOverlay(t, c.source, second))
	both, err := format.Open(c.dir, req.Dir)
	if err != nil {
		t.Fatal(err)
	}
	_ = both.Close()
	third := matching(`layers\.0\.self_attn`, "int2-row")
	third.Dir = req.Dir
	_, err = c.mustOverlay(t, c.source, third).Survey()
	wantError(t, err, format.ErrConflict, "is in the overlay", "already")
	if _, err := RemoveOverlay(req.Dir, "kvb"); err != nil {
		t.Fatal(err)
	}
	if list, err := Overlays(req.Dir); err != nil || len(list) != 1 || list[0].Name != "o" || list[0].State != OverlayInUse {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestCancelledOverlayLeavesNothing if no shard was finished, and continues if
// one was.
func TestCancelledOverlay(t *testing.T) {
	c := oracleContainer(t, 0)
	before := files(t, c.dir)
	req := kvB("int4-grouped/32")
	req.MaxShard = 4000
	ref := *c
	ref.dir = copyDir(t, c.dir)
	o := ref.mustOverlay(t, c.source, req)
	write(t, o)
	n := len(o.Shards)
	for stop := range int32(n) {
		ctx, opts := stopAfter(t, stop)
		if _, err := c.mustOverlay(t, c.source, req).Write(ctx, opts); !errors.Is(err, context.Canceled) {
			t.Fatalf("error %v", err)
		}
		if entries, _ := os.ReadDir(c.dir); stop == 0 && len(entries) != len(before) {
			t.Errorf("left: %v", entries)
		}
		open(t, c.dir)
		if list, err := Overlays(c.dir); err != nil || stop > 0 && (len(list) != 1 || list[0].State != OverlayUnfinished) {
			t.Errorf("%+v, %v", list, err)
		}
	}
	other := req
	other.Choice = kvB("int2-row").Choice
	_, err := c.mustOverlay(t, c.source, other).Write(t.Context(), ExecuteOptions{})
	wantError(t, err, format.ErrConflict, "the overlay kvb there is another job", "format differs (found recorded int4-grouped/32, wanted int2-row)", "--remove kvb")
	r := write(t, c.mustOverlay(t, c.source, req))
	if r.Kept != n-1 || r.Written != 1 {
		t.Errorf("%+v of %d", r, n)
	}
	sameFiles(t, files(t, c.dir), files(t, ref.dir))
	sameFiles(t, hidden(t, c.dir), nil)
}

// hidden is every hidden entry of a directory.
func hidden(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			all[e.Name()] = ""
		}
	}
	return all
}

// BenchmarkOverlay quantises kv_b matrices of GLM-5.2's size from BF16 in the
// page cache; the rate is that of the source.
func BenchmarkOverlay(b *testing.B) {
	var tensors []testTensor
	w := weights(1, 28672, 512)
	const layers = 4
	for i := range layers {
		tensors = append(tensors, bf16Tensor(fmt.Sprintf("model.layers.%d.self_attn.kv_b_proj.weight", i), []int{28672, 512}, w))
	}
	snap := checkpoint(b, tensors...)
	wants := wantsOf(snap, 0)
	for _, f := range []string{"int4-grouped/64", "int8-row", "bf16"} {
		req := kvB(f)
		var done atomic.Int64
		b.Run(f, func(b *testing.B) {
			b.SetBytes(layers * 28672 * 512 * 2)
			for b.Loop() {
				req.Dir = outDir(b)
				o, err := NewOverlay(snap, checkpointAgain(b, snap), wants, req)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := o.Write(b.Context(), ExecuteOptions{Progress: func(n int64) { done.Add(n) }}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func checkpointAgain(b *testing.B, snap *format.Snapshot) *format.Snapshot { return open(b, snap.Dir) }
