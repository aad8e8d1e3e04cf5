package format

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hawkmoth/internal/fixtures"
)

// writeIndex writes the index of a snapshot.
func writeIndex(t testing.TB, dir string, index map[string]string) {
	t.Helper()
	text, err := json.Marshal(map[string]any{"metadata": map[string]any{"total_size": 1}, "weight_map": index})
	if err != nil {
		t.Fatal(err)
	}
	writeBytes(t, filepath.Join(dir, indexName), text)
}

func TestOpenFixtures(t *testing.T) {
	for _, c := range []struct {
		name      string
		shards    int
		index     bool
		converted bool
	}{
		{"glm_moe_dsa", 7, true, false}, {"glm_moe_dsa_fp8", 1, false, false}, {"glm_moe_dsa_dense_attention", 1, false, false}, {"tiny-glm-g64", 1, false, true},
	} {
		s := openSnapshot(t, fixtures.Path(t, c.name))
		if len(s.Shards) != c.shards || (s.Index != nil) != c.index || s.Converted() != c.converted || len(s.Warnings) > 0 {
			t.Errorf("%s: %d shards, index %v, converted %v, warnings %v", c.name, len(s.Shards), s.Index != nil, s.Converted(), s.Warnings)
		}
		names := s.Names()
		if len(names) == 0 || !slices.IsSorted(names) {
			t.Errorf("%s: %d names, sorted %v", c.name, len(names), slices.IsSorted(names))
		}
		for _, n := range names {
			x := s.Tensor(n)
			b, err := x.Shard.Bytes(x)
			if err != nil || int64(len(b)) != x.Size {
				t.Errorf("%s: %d of %d bytes, %v", n, len(b), x.Size, err)
			}
		}
		if _, err := s.ReadJSONFile("config.json"); err != nil {
			t.Error(err)
		}
	}
}

// TestColibriContainer reads the formats of a container that colibri's converter made.
func TestColibriContainer(t *testing.T) {
	s := openSnapshot(t, fixtures.Path(t, "tiny-glm-g64"))
	for _, c := range []struct {
		name       string
		rows, cols int
		want       string
	}{
		{"model.layers.0.self_attn.kv_a_proj_with_mqa.weight", 144, 192, "int4-grouped/64"},
		{"model.layers.1.mlp.experts.0.down_proj.weight", 192, 128, "int4-grouped/64"},
		{"model.norm.weight", 1, 192, "f32"},
	} {
		if s.Tensor(c.name) == nil {
			t.Fatalf("%s is not in the fixture", c.name)
		}
		got, err := s.Spec(c.name, c.rows, c.cols)
		if err != nil || got.Name() != c.want || s.Stamped(c.name) {
			t.Errorf("%s: %v, %v, wanted %s", c.name, got, err, c.want)
		}
	}
}

func TestA1GroupedTensorOfASnapshot(t *testing.T) {
	path := writeShard(t, t.TempDir()+"/out-00000.safetensors", nil, pair("w", Spec{Int4Grouped, 4, 128, 64})...)
	s := openSnapshot(t, path)
	got, err := s.Spec("w", 4, 128)
	if err != nil || got.Name() != "int4-grouped/64" || got.ScaleCols() != 2 {
		t.Errorf("%v, %v", got, err)
	}
	_, err = s.Spec("w", 4, 127+64)
	wantError(t, err, ErrCorrupt, "out-00000.safetensors: w: ", "[4,191]", "256 bytes of codes, 32 of scales", "shape [256]")
}

func TestA3cTensorIsRefusedByName(t *testing.T) {
	h := "{" + entryJSON("w.qs", "F32", "[4]", 0, 16) + "," + entryJSON("w", "U8", "[4,64]", 16, 116) + "}"
	s := openSnapshot(t, writeBytes(t, t.TempDir()+"/out-00000.safetensors", fileBytes(h, 116)))
	_, err := s.Spec("w", 4, 64)
	wantError(t, err, ErrCorrupt, "out-00000.safetensors: w: ", "shape [4 64]", "100 bytes of codes, 16 of scales", "int4-row 128+16")
	if all := s.Candidates("w", 4, 64); len(all) != 0 {
		t.Errorf("candidates %v", all)
	}
}

func TestA4StampDecidesTheCollision(t *testing.T) {
	fp8 := Spec{Format: FP8, Rows: 2, Cols: 256}
	int8 := Spec{Format: Int8Row, Rows: 2, Cols: 256}
	for _, c := range []struct {
		name  string
		meta  map[string]string
		want  Spec
		words []string // of a refusal
	}{
		{"unstamped", nil, int8, nil},
		{"stamped by us", StampMetadata(map[string]Spec{"w": fp8}), fp8, nil},
		{"stamped by colibri", map[string]string{KeyColibri: `{"w":"fp8-e4m3-b128"}`}, fp8, nil},
		{"stamped as the incumbent", map[string]string{KeyColibri: `{"w":"int8-row"}`}, int8, nil},
		{"disagreeing stamp", map[string]string{KeyColibri: `{"w":"int4-row"}`}, Spec{}, []string{"w: ", "stamped int4-row", "int8-row", "512 bytes of codes, 8 of scales", "wanted 256 bytes of codes"}},
		{"stamp on a plain format", map[string]string{KeyColibri: `{"w":"bf16"}`}, Spec{}, []string{"w: ", "stamped bf16", "int8-row"}},
		{"stamp on another tensor", map[string]string{KeyColibri: `{"x":"fp8-e4m3-b128"}`}, int8, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := openSnapshot(t, writeShard(t, t.TempDir()+"/out-00000.safetensors", c.meta, pair("w", fp8)...))
			got, err := s.Spec("w", 2, 256)
			if c.words != nil {
				wantError(t, err, ErrCorrupt, append(c.words, "out-00000.safetensors")...)
				return
			}
			all := s.Candidates("w", 2, 256)
			if err != nil || got != c.want || len(all) != 2 || all[0] != c.want {
				t.Errorf("%v, %v, candidates %v, wanted %v", got, err, all, c.want)
			}
		})
	}
}

func TestStampDecidesTheGroupSize(t *testing.T) {
	for _, gs := range []int{48, 64} {
		spec := Spec{Int4Grouped, 8, 96, gs}
		s := openSnapshot(t, writeShard(t, t.TempDir()+"/out-00000.safetensors", StampMetadata(map[string]Spec{"w": spec}), pair("w", spec)...))
		got, err := s.Spec("w", 8, 96)
		if err != nil || got != spec || !s.Stamped("w") || s.Stamped("w.qs") || s.Stamped("x") {
			t.Errorf("%v, %v, wanted %v", got, err, spec)
		}
		if all := s.Candidates("w", 8, 96); len(all) != 3 || all[0] != spec || all[2].Format != Int3G64 {
			t.Errorf("candidates %v", all)
		}
	}
	wrong := map[string]string{KeyFormats: `{"w":"int4-grouped"}`, KeyGroups: `{"w":32}`}
	s := openSnapshot(t, writeShard(t, t.TempDir()+"/out-00000.safetensors", wrong, pair("w", Spec{Int4Grouped, 8, 96, 64})...))
	_, err := s.Spec("w", 8, 96)
	wantError(t, err, ErrCorrupt, "stamped int4-grouped/32", "int4-grouped/48", "wanted 384 bytes of codes, 96 of scales")
}

// TestStampedRoundTrip: with a stamp every spec is read back, ambiguous or not.
func TestStampedRoundTrip(t *testing.T) {
	specs := map[string]Spec{}
	var entries []Entry
	for _, shape := range [][2]int{{1, 98}, {2, 256}, {3, 24}, {8, 96}, {5, 47}, {4, 32}, {7, 576}, {129, 300}} {
		for _, s := range packedSpecs(shape[0], shape[1]) {
			name := s.String()
			specs[name] = s
			e := pair(name, s)
			if s.Format == MXFP4 {
				e[1] = Entry{name + ScaleSuffix, DTypeU8, []int{int(s.Scales())}}
			}
			entries = append(entries, e...)
		}
	}
	s := openSnapshot(t, writeShard(t, t.TempDir()+"/out-00000.safetensors", StampMetadata(specs), entries...))
	for name, want := range specs {
		got, err := s.Spec(name, want.Rows, want.Cols)
		if err != nil || got != want.Canonical() {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

func TestA5ScalesOfAnotherDType(t *testing.T) {
	for _, c := range []struct {
		name   string
		spec   Spec
		dtype  DType
		n      int
		kind   error
		words  []string
		format ID
	}{
		{"ue8m0 as bytes", Spec{Format: FP8, Rows: 256, Cols: 256}, DTypeU8, 4, ErrUnsupported, []string{"ue8m0 scales, not supported"}, 0},
		{"ue8m0 where int8 has as many bytes", Spec{Format: FP8, Rows: 1, Cols: 512}, DTypeE8M0, 4, ErrCorrupt, []string{"F8_E8M0", "wanted F32"}, 0},
		{"scales in bf16", Spec{Format: Int8Row, Rows: 4, Cols: 64}, DTypeBF16, 8, ErrCorrupt, []string{"BF16", "wanted F32"}, 0},
		{"mxfp4 where int4 has as many bytes", Spec{Format: MXFP4, Rows: 8, Cols: 256}, DTypeE8M0, 64, nil, nil, MXFP4},
		{"int4 where mxfp4 has as many bytes", Spec{Format: Int4Row, Rows: 8, Cols: 128}, DTypeF32, 8, nil, nil, Int4Row},
		{"f32 scales of the size of mxfp4", Spec{Format: MXFP4, Rows: 4, Cols: 64}, DTypeF32, 2, ErrCorrupt, []string{"dtype of the scales"}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			entries := []Entry{{"w", DTypeU8, []int{int(c.spec.Bytes())}}, {"w.qs", c.dtype, []int{c.n}}}
			s := openSnapshot(t, writeShard(t, t.TempDir()+"/out-00000.safetensors", nil, entries...))
			got, err := s.Spec("w", c.spec.Rows, c.spec.Cols)
			if c.words != nil {
				wantError(t, err, c.kind, append(c.words, "w: ")...)
			} else if err != nil || got.Format != c.format {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
}

func TestC7OneGroupARowOfASnapshot(t *testing.T) {
	spec := Spec{Int4Grouped, 8, 32, 64}
	for _, meta := range []map[string]string{nil, StampMetadata(map[string]Spec{"w": spec}), {KeyFormats: `{"w":"int4-grouped"}`, KeyGroups: `{"w":64}`}, {KeyColibri: `{"w":"int4-grouped"}`}, {KeyColibri: `{"w":"int4-row"}`}} {
		s := openSnapshot(t, writeShard(t, t.TempDir()+"/out-00000.safetensors", meta, pair("w", spec)...))
		if got, err := s.Spec("w", 8, 32); err != nil || got != (Spec{Int4Row, 8, 32, 0}) {
			t.Errorf("%v: %v, %v, wanted int4-row", meta, got, err)
		}
	}
}

func TestPlainTensorsOfASnapshot(t *testing.T) {
	s := openSnapshot(t, writeShard(t, t.TempDir()+"/m.safetensors", nil,
		Entry{"f", DTypeF32, []int{3, 5}}, Entry{"b", DTypeBF16, []int{3, 5}}, Entry{"h", DTypeF16, []int{3, 5}}, Entry{"v", DTypeBF16, []int{5}},
		Entry{"q", DTypeFP8, []int{3, 5}}, Entry{"u", DTypeU8, []int{3, 5}}, Entry{"i", DTypeI32, []int{3, 5}}))
	for name, want := range map[string]ID{"f": F32, "b": BF16, "h": F16} {
		if got, err := s.Spec(name, 3, 5); err != nil || got != (Spec{want, 3, 5, 0}) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		_, err := s.Spec(name, 5, 3)
		wantError(t, err, ErrCorrupt, "m.safetensors: "+name+": ", "[3 5]", "wanted [5 3]", "bytes")
		if all := s.Candidates(name, 3, 5); len(all) != 0 {
			t.Errorf("%s: candidates %v", name, all)
		}
	}
	if got, err := s.Spec("v", 1, 5); err != nil || got != (Spec{BF16, 1, 5, 0}) {
		t.Errorf("v: %v, %v", got, err)
	}
	_, err := s.Spec("v", 5, 1)
	wantError(t, err, ErrCorrupt, "v: ")
	_, err = s.Spec("q", 3, 5)
	wantError(t, err, ErrUnsupported, "q: ", "F8_E4M3")
	_, err = s.Spec("i", 3, 5)
	wantError(t, err, ErrUnsupported, "i: ", "I32")
	_, err = s.Spec("u", 3, 5)
	wantError(t, err, ErrIncomplete, "u: ", "without their scales u.qs")
	_, err = s.Spec("absent", 3, 5)
	wantError(t, err, ErrIncomplete, "absent: missing tensor; 1 shard seen")
	if s.Converted() {
		t.Error("a plain snapshot counts as converted")
	}
}

func TestD6TruncatedShardsAreAllListed(t *testing.T) {
	dir := t.TempDir()
	var paths []string
	for i := range 4 {
		paths = append(paths, writeShard(t, fmt.Sprintf("%s/out-%05d.safetensors", dir, i), nil, vec(fmt.Sprint("a", i), 100), vec(fmt.Sprint("b", i), 100)))
	}
	for i, cut := range map[int]int64{0: 1, 2: 400} {
		st, err := os.Stat(paths[i])
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(paths[i], st.Size()-cut); err != nil {
			t.Fatal(err)
		}
	}
	_, err := Open(dir)
	wantError(t, err, ErrCorrupt, paths[0]+": b0: shard is truncated: 1 bytes are missing", paths[2]+": b2: shard is truncated: 400 bytes are missing")
	if strings.Contains(err.Error(), paths[1]) {
		t.Errorf("%q blames a good shard", err)
	}
}

func TestD8DuplicateNames(t *testing.T) {
	spec := Spec{Int8Row, 2, 3, 0}
	for _, base := range []string{"a.safetensors", "z.safetensors"} { // both scan orders
		const over = "model-overlay-1.safetensors"
		dir := t.TempDir()
		writeShard(t, filepath.Join(dir, base), nil, append(pair("x.weight", spec), vec("norm", 1))...)
		writeShard(t, filepath.Join(dir, over), nil, pair("x.weight", Spec{Int4Row, 2, 3, 0})...)

		_, err := Open(dir)
		wantError(t, err, ErrCorrupt, "x.weight: ", "x.weight.qs: ", base, over, "there is no model.safetensors.index.json to decide")

		for _, winner := range []string{base, over} {
			writeIndex(t, dir, map[string]string{"x.weight": winner, "x.weight.qs": winner})
			s := openSnapshot(t, dir)
			for _, name := range []string{"x.weight", "x.weight.qs"} {
				if got := filepath.Base(s.Tensor(name).Shard.Path); got != winner {
					t.Errorf("%s of %s comes from %s, wanted %s", name, base, got, winner)
				}
			}
			want := map[string]ID{base: Int8Row, over: Int4Row}[winner]
			if got, err := s.Spec("x.weight", 2, 3); err != nil || got.Format != want {
				t.Errorf("%v, %v, wanted %v", got, err, want)
			}
			if len(s.Warnings) > 0 {
				t.Error(s.Warnings)
			}
		}

		writeIndex(t, dir, map[string]string{"norm": base})
		_, err = Open(dir)
		wantError(t, err, ErrCorrupt, "x.weight: ", "the index does not list it")

		writeIndex(t, dir, map[string]string{"x.weight": "third.safetensors", "x.weight.qs": "third.safetensors"})
		_, err = Open(dir)
		wantError(t, err, ErrIncomplete, "third.safetensors: shard is missing", "x.weight: ", "maps it to a third shard, third.safetensors")

		writeShard(t, filepath.Join(dir, "third.safetensors"), nil, vec("other", 1))
		_, err = Open(dir)
		wantError(t, err, ErrCorrupt, "x.weight: ", "maps it to a third shard, third.safetensors")

		writeIndex(t, dir, map[string]string{"x.weight": over, "x.weight.qs": base})
		_, err = Open(dir)
		wantError(t, err, ErrCorrupt, "x.weight: codes and scales come from different shards", base, over)
	}
}

func TestPairSplitOverShards(t *testing.T) {
	dir := t.TempDir()
	p := pair("w", Spec{Int8Row, 2, 3, 0})
	writeShard(t, dir+"/a.safetensors", nil, p[0])
	writeShard(t, dir+"/b.safetensors", nil, p[1])
	_, err := Open(dir)
	wantError(t, err, ErrCorrupt, "a.safetensors: w: codes and scales come from different shards", "b.safetensors")
}

func TestScalesWithoutTheirWeight(t *testing.T) {
	s := openSnapshot(t, writeShard(t, t.TempDir()+"/a.safetensors", nil, vec("x.qs", 2), vec("y.qs", 2)))
	if len(s.Warnings) != 1 || !strings.Contains(s.Warnings[0], "2 tensors of scales without their weight, the first is x.qs") {
		t.Error(s.Warnings)
	}
}

func TestD9ShardNumbering(t *testing.T) {
	for _, c := range []struct {
		name  string
		files []string
		fatal []string
		warn  []string
	}{
		{"first of a converter's series", []string{"out-00001", "out-00002", "out-mtp-00000"}, nil, []string{"out-00000.safetensors"}},
		{"middle of a series", []string{"out-00000", "out-00002", "out-00004"}, nil, []string{"out-00001.safetensors", "out-00003.safetensors"}},
		{"complete", []string{"out-00000", "out-00001", "out-mtp-00000", "out-idx-00000"}, nil, nil},
		{"one overlay", []string{"model", "model-overlay-1"}, nil, nil},
		{"of seven", []string{"model-00001-of-00003", "model-00002-of-00003", "model-00003-of-00003"}, nil, nil},
		{"last is missing", []string{"model-00001-of-00003", "model-00002-of-00003"}, []string{"model-00003-of-00003.safetensors"}, nil},
		{"first is missing", []string{"model-00002-of-00003", "model-00003-of-00003"}, []string{"model-00001-of-00003.safetensors"}, nil},
		{"counted from zero", []string{"model-00000-of-00002", "model-00001-of-00002"}, nil, nil},
		{"counted from zero with a hole", []string{"model-00000-of-00003", "model-00002-of-00003"}, []string{"model-00001-of-00003.safetensors"}, nil},
		{"two series", []string{"model-00001-of-00002", "mtp-00001-of-00001"}, []string{"model-00002-of-00002.safetensors"}, nil},
		{"huge numbers", []string{"a-999999999", "b-000000001-of-999999999"}, []string{"b-000000002-of-999999999.safetensors"}, []string{"a-000000000.safetensors"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for i, f := range c.files {
				writeShard(t, filepath.Join(dir, f+shardSuffix), nil, vec(fmt.Sprint("t", i), 1))
			}
			s, err := Open(dir)
			if c.fatal != nil {
				wantError(t, err, ErrIncomplete, append(c.fatal, "incomplete download?")...)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = s.Close() }()
			if c.warn == nil {
				if len(s.Warnings) > 0 {
					t.Errorf("warnings %v", s.Warnings)
				}
				return
			}
			err = s.Missing("model.embed_tokens.weight")
			wantError(t, err, ErrIncomplete, append(c.warn, "model.embed_tokens.weight", fmt.Sprintf("; %d shard", len(c.files)), " seen", "fetch these files again")...)
			for _, w := range c.warn {
				if !strings.Contains(strings.Join(s.Warnings, "\n"), w) {
					t.Errorf("warnings %v lack %s", s.Warnings, w)
				}
			}
		})
	}
}

func TestD11IndexNamesAbsentShards(t *testing.T) {
	dir := t.TempDir()
	writeShard(t, dir+"/model-00001-of-00003.safetensors", nil, vec("a", 1))
	writeIndex(t, dir, map[string]string{"a": "model-00001-of-00003.safetensors", "b": "model-00002-of-00003.safetensors", "c": "model-00003-of-00003.safetensors", "d": "model-00003-of-00003.safetensors"})
	_, err := Open(dir)
	wantError(t, err, ErrIncomplete, "model-00002-of-00003.safetensors: shard is missing, the index maps 1 tensors", "model-00003-of-00003.safetensors: shard is missing, the index maps 2 tensors", "incomplete download?")
}

// TestIndexBesideAWholeFile: a checkpoint that was saved anew as one file keeps
// the index of its former shards.
func TestIndexBesideAWholeFile(t *testing.T) {
	dir := t.TempDir()
	writeShard(t, dir+"/model.safetensors", nil, vec("a", 1))
	writeIndex(t, dir, map[string]string{"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"})
	s := openSnapshot(t, dir)
	if s.Tensor("a") == nil || s.Index != nil || len(s.Warnings) != 1 || !strings.Contains(s.Warnings[0], "none of its shards is there") {
		t.Errorf("index %v, warnings %q", s.Index, s.Warnings)
	}
	writeShard(t, dir+"/model-00001-of-00002.safetensors", nil, vec("a", 1))
	_, err := Open(dir)
	wantError(t, err, ErrIncomplete, "model-00002-of-00002.safetensors: shard is missing")
}

func TestIndexThatIsStale(t *testing.T) {
	dir := t.TempDir()
	writeShard(t, dir+"/a.safetensors", nil, vec("x", 1), vec("y", 1))
	writeShard(t, dir+"/b.safetensors", nil, vec("z", 1))
	writeIndex(t, dir, map[string]string{"x": "a.safetensors", "y": "b.safetensors", "gone": "a.safetensors"})
	s := openSnapshot(t, dir)
	if len(s.Warnings) != 1 || !strings.Contains(s.Warnings[0], "2 tensors of the index are not in the shard that it names") {
		t.Error(s.Warnings)
	}
	if s.Tensor("y") == nil || s.Tensor("z") == nil {
		t.Error("a tensor that is there is not found")
	}
}

func TestIndexThatIsNone(t *testing.T) {
	for _, text := range []string{"", "[]", "{}", `{"weight_map":[]}`, `{"weight_map":{"x":1}}`, `{"weight_map":{"x":"../a.safetensors"}}`, `{"weight_map":{"x":"/a.safetensors"}}`, `{"weight_map":{"x":""}}`,
		`{"weight_map":{"x":"a.safetensors","x":"a.safetensors"}}`, `{"weight_map":{"x":"a.safetensors"}`, "version https://git-lfs.github.com/spec/v1\n"} {
		dir := t.TempDir()
		writeShard(t, dir+"/a.safetensors", nil, vec("x", 1))
		writeBytes(t, filepath.Join(dir, indexName), []byte(text))
		_, err := Open(dir)
		wantError(t, err, ErrCorrupt, indexName)
	}
}

func TestD13SingleFileWithoutIndex(t *testing.T) {
	dir := t.TempDir()
	path := writeShard(t, dir+"/model.safetensors", nil, vec("a", 1))
	writeBytes(t, dir+"/config.json", []byte("{}"))
	for _, p := range []string{dir, path} {
		s := openSnapshot(t, p)
		if s.Dir != dir || s.Index != nil || len(s.Shards) != 1 || s.Tensor("a") == nil || !slices.Equal(s.Names(), []string{"a"}) {
			t.Errorf("%s: %+v", p, s)
		}
		if b, err := s.ReadJSONFile("config.json"); err != nil || string(b) != "{}" {
			t.Errorf("%s: %q, %v", p, b, err)
		}
	}
}

// symlink skips the test where the system allows no links.
func symlink(t *testing.T, target, link string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, link); err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
}

func TestD15LinksOfACache(t *testing.T) {
	root := t.TempDir()
	repo := filepath.Join(root, "disk", "models--x--y")
	writeShard(t, repo+"/blobs/0123456789abcdef", nil, vec("a", 1))
	writeBytes(t, repo+"/blobs/fedcba", []byte(`{"model_type":"x"}`))
	rev := filepath.Join(repo, "snapshots", "rev")
	symlink(t, "../../blobs/0123456789abcdef", rev+"/model.safetensors")
	symlink(t, "../../blobs/fedcba", rev+"/config.json")
	symlink(t, filepath.Join(root, "disk"), filepath.Join(root, "hub"))
	symlink(t, rev, filepath.Join(root, "here"))
	for _, dir := range []string{rev, filepath.Join(root, "hub", "models--x--y", "snapshots", "rev"), filepath.Join(root, "here"), rev + "/model.safetensors"} {
		s := openSnapshot(t, dir)
		if got := filepath.Base(s.Shards[0].Path); got != "model.safetensors" {
			t.Errorf("%s: shard is %s, wanted the link's name", dir, got)
		}
		if b, err := s.ReadJSONFile("config.json"); err != nil || !strings.Contains(string(b), "model_type") {
			t.Errorf("%s: %q, %v", dir, b, err)
		}
	}

	symlink(t, "../../blobs/absent", rev+"/model-00002.safetensors")
	symlink(t, "../../blobs/gone", rev+"/tokenizer.json")
	_, err := Open(rev)
	wantError(t, err, ErrIncomplete, "model-00002.safetensors", "broken link to ../../blobs/absent")
	if err := os.Remove(rev + "/model-00002.safetensors"); err != nil {
		t.Fatal(err)
	}
	_, err = openSnapshot(t, rev).ReadJSONFile("tokenizer.json")
	wantError(t, err, ErrIncomplete, "broken link to ../../blobs/gone")
	if errors.Is(err, fs.ErrNotExist) {
		t.Error("a broken link counts as an absent file")
	}
	symlink(t, "absent", rev+"/"+indexName)
	_, err = Open(rev)
	wantError(t, err, ErrIncomplete, indexName, "broken link to absent")
	symlink(t, "absent", root+"/nowhere")
	_, err = Open(root + "/nowhere")
	wantError(t, err, ErrIncomplete, "nowhere", "broken link to absent")
	symlink(t, "loop", root+"/loop")
	if _, err = Open(root + "/loop"); err == nil {
		t.Error("a link to itself was opened")
	}
}

func TestH7ByteOrderMark(t *testing.T) {
	const bom = "\xef\xbb\xbf"
	dir := t.TempDir()
	writeShard(t, dir+"/a.safetensors", nil, vec("x", 1))
	writeShard(t, dir+"/b.safetensors", nil, vec("x", 2))
	writeBytes(t, filepath.Join(dir, indexName), []byte(bom+`{"weight_map":{"x":"b.safetensors"}}`))
	writeBytes(t, dir+"/config.json", []byte(bom+"{}"))
	s := openSnapshot(t, dir)
	if b, err := s.ReadJSONFile("config.json"); err != nil || string(b) != "{}" {
		t.Errorf("%q, %v", b, err)
	}
	if got := s.Tensor("x").Elements(); got != 2 {
		t.Errorf("the index was not read: %d elements", got)
	}
}

func TestReadJSONFile(t *testing.T) {
	dir := t.TempDir()
	writeShard(t, dir+"/a.safetensors", nil, vec("x", 1))
	writeBytes(t, dir+"/tokenizer.json", []byte("version https://git-lfs.github.com/spec/v1\n"))
	writeBytes(t, dir+"/chat_template.jinja", []byte("<|user|>"))
	s := openSnapshot(t, dir)
	_, err := s.ReadJSONFile("config.json")
	wantError(t, err, fs.ErrNotExist, "config.json")
	_, err = s.ReadJSONFile("tokenizer.json")
	wantError(t, err, ErrCorrupt, "tokenizer.json", "Git LFS pointer")
	_, err = s.ReadJSONFile("../secret")
	wantError(t, err, ErrUsage, "secret")
	if b, err := s.ReadJSONFile("chat_template.jinja"); err != nil || string(b) != "<|user|>" {
		t.Errorf("%q, %v", b, err)
	}
}

func TestD16ClaimsOfSeveralShards(t *testing.T) {
	spec := Spec{Format: FP8, Rows: 2, Cols: 256}
	claim := func(format string) map[string]string { return map[string]string{KeyColibri: `{"w":"` + format + `"}`} }
	for _, c := range []struct {
		name          string
		holder, other map[string]string
		want          ID
		words         []string
	}{
		{"only the other shard claims", nil, claim("fp8-e4m3-b128"), FP8, nil},
		{"equal claims", claim("fp8-e4m3-b128"), claim("fp8-e4m3-b128"), FP8, nil},
		{"different claims", claim("fp8-e4m3-b128"), claim("int8-row"), 0, []string{"b.safetensors: w: two shards claim different formats", "int8-row", "fp8-e4m3-b128", "a.safetensors"}},
		{"a claim about a plain tensor", nil, map[string]string{KeyColibri: `{"n":"int8-row"}`}, Int8Row, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			writeShard(t, dir+"/a.safetensors", c.holder, pair("w", spec)...)
			writeShard(t, dir+"/b.safetensors", c.other, vec("n", 2))
			s, err := Open(dir)
			if c.words != nil {
				wantError(t, err, ErrCorrupt, c.words...)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = s.Close() }()
			if got, err := s.Spec("w", 2, 256); err != nil || got.Format != c.want || s.Stamped("n") {
				t.Errorf("%v, %v, wanted %v", got, err, c.want)
			}
			if got, err := s.Spec("n", 1, 2); err != nil || got.Format != F32 {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
}

func TestOverlays(t *testing.T) {
	root := t.TempDir()
	base, over, last := root+"/base", root+"/over", root+"/last"
	old, mid := Spec{Int8Row, 2, 96, 0}, Spec{Int4Grouped, 2, 96, 64}
	stamp := func(s Spec) map[string]string { return StampMetadata(map[string]Spec{"w": s}) }
	writeShard(t, base+"/out-00000.safetensors", stamp(old), append(pair("w", old), vec("norm", 3))...)
	writeShard(t, over+"/kvb-00000.safetensors", stamp(mid), pair("w", mid)...)
	writeShard(t, last+"/m.safetensors", nil, Entry{"w", DTypeBF16, []int{2, 96}})
	writeBytes(t, base+"/config.json", []byte("1"))
	writeBytes(t, over+"/config.json", []byte("2"))

	for _, c := range []struct {
		overlays []string
		want     string
		stamped  bool
	}{{nil, "int8-row", true}, {[]string{over}, "int4-grouped/64", true}, {[]string{over, last}, "bf16", false}, {[]string{last, over}, "int4-grouped/64", true}, {[]string{last + "/m.safetensors"}, "bf16", false}} {
		s := openSnapshot(t, base, c.overlays...)
		got, err := s.Spec("w", 2, 96)
		if err != nil || got.Name() != c.want || s.Stamped("w") != c.stamped || len(s.Warnings) > 0 {
			t.Errorf("overlays %v: %v, %v, stamped %v, warnings %v", c.overlays, got, err, s.Stamped("w"), s.Warnings)
		}
		if s.Tensor("norm") == nil || len(s.Shards) != 1+len(c.overlays) || s.Dir != base {
			t.Errorf("overlays %v: %+v", c.overlays, s)
		}
		if b, err := s.ReadJSONFile("config.json"); err != nil || string(b) != "1" {
			t.Errorf("%q, %v", b, err)
		}
	}

	half := root + "/half"
	writeShard(t, half+"/m.safetensors", nil, pair("w", mid)[1])
	_, err := Open(base, half)
	wantError(t, err, ErrCorrupt, "w: codes and scales come from different shards")
	_, err = Open(base, root+"/absent", root+"/absent2")
	wantError(t, err, fs.ErrNotExist, "absent: ", "absent2: ")
}

// TestOverlayInsideTheSnapshot: a stamped overlay beside a stamped base is no
// conflict of claims, since each shard speaks about its own tensor.
func TestOverlayInsideTheSnapshot(t *testing.T) {
	dir := t.TempDir()
	old, now := Spec{Int8Row, 2, 128, 0}, Spec{Int4Grouped, 2, 128, 64}
	writeShard(t, dir+"/out-00000.safetensors", StampMetadata(map[string]Spec{"w": old}), pair("w", old)...)
	writeShard(t, dir+"/kvb-00000.safetensors", StampMetadata(map[string]Spec{"w": now}), pair("w", now)...)
	writeIndex(t, dir, map[string]string{"w": "kvb-00000.safetensors", "w.qs": "kvb-00000.safetensors"})
	if got, err := openSnapshot(t, dir).Spec("w", 2, 128); err != nil || got != now {
		t.Errorf("%v, %v, wanted %v", got, err, now)
	}
}

// TestIndexHidesScales: plain floats over a quantised matrix, and what a killed
// overlay left over plain floats.
func TestIndexHidesScales(t *testing.T) {
	packed := Spec{Int8Row, 2, 128, 0}
	plain := Entry{"w", DTypeBF16, []int{2, 128}}
	for _, c := range []struct {
		name string
		over []Entry
		base []Entry
		to   string
		want ID
	}{
		{"floats over codes", []Entry{plain}, pair("w", packed), "kvb-00000.safetensors", BF16},
		{"codes beside floats", pair("w", packed), []Entry{plain}, "out-00000.safetensors", BF16},
		{"floats beside codes", []Entry{plain}, pair("w", packed), "out-00000.safetensors", Int8Row},
	} {
		dir := t.TempDir()
		writeShard(t, dir+"/out-00000.safetensors", nil, c.base...)
		writeShard(t, dir+"/kvb-00000.safetensors", nil, c.over...)
		index := map[string]string{"w": c.to}
		if c.want == Int8Row {
			index["w.qs"] = c.to
		}
		writeIndex(t, dir, index)
		s := openSnapshot(t, dir)
		got, err := s.Spec("w", 2, 128)
		if err != nil || got.Format != c.want || (s.Tensor("w.qs") != nil) != (c.want == Int8Row) || len(s.Warnings) > 0 {
			t.Errorf("%s: %v, %v, names %v, warnings %v", c.name, got, err, s.Names(), s.Warnings)
		}
	}
}

func TestWhatCountsAsAShard(t *testing.T) {
	dir := t.TempDir()
	writeShard(t, dir+"/b.safetensors", nil, vec("b", 1))
	writeShard(t, dir+"/a.safetensors", nil, vec("a", 1))
	for _, name := range []string{"c.safetensors.tmp", "._a.safetensors", "a.safetensors.bak", "model.bin", "sub/d.safetensors"} {
		writeBytes(t, filepath.Join(dir, name), []byte("not one"))
	}
	if err := os.Mkdir(dir+"/e.safetensors", 0o755); err != nil {
		t.Fatal(err)
	}
	s := openSnapshot(t, dir)
	if len(s.Shards) != 2 || filepath.Base(s.Shards[0].Path) != "a.safetensors" || filepath.Base(s.Shards[1].Path) != "b.safetensors" {
		t.Errorf("%d shards", len(s.Shards))
	}
	_, err := Open(t.TempDir())
	wantError(t, err, ErrIncomplete, "no .safetensors file")
	_, err = Open(filepath.Join(dir, "absent"))
	wantError(t, err, fs.ErrNotExist, "absent")
}

func TestClosedSnapshot(t *testing.T) {
	s := openSnapshot(t, writeShard(t, t.TempDir()+"/a.safetensors", nil, vec("a", 1)))
	x := s.Tensor("a")
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	_, err := x.Shard.Floats(x)
	wantError(t, err, fs.ErrClosed)
}
