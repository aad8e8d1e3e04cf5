package quantize

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"hawkmoth/format"
	"hawkmoth/internal/fixtures"
)

// A reader of safetensors of twenty lines, so that these tests judge the
// codecs and nothing else.

type rawTensor struct {
	DType   format.DType `json:"dtype"`
	Shape   []int        `json:"shape"`
	Offsets [2]int       `json:"data_offsets"`
	data    []byte
}

type rawTensors map[string]rawTensor

func readTensors(t testing.TB, pattern string) rawTensors {
	t.Helper()
	paths, _ := filepath.Glob(pattern)
	all := rawTensors{}
	for _, path := range paths {
		file, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		end := 8 + int(binary.LittleEndian.Uint64(file))
		var header map[string]json.RawMessage
		if err := json.Unmarshal(file[8:end], &header); err != nil {
			t.Fatal(err)
		}
		delete(header, "__metadata__")
		for name, text := range header {
			var x rawTensor
			if err := json.Unmarshal(text, &x); err != nil {
				t.Fatal(err)
			}
			x.data = file[end+x.Offsets[0] : end+x.Offsets[1]]
			all[name] = x
		}
	}
	if len(all) == 0 {
		t.Fatalf("no tensors in %s", pattern)
	}
	return all
}

func (x rawTensor) floats(t testing.TB) []float32 {
	t.Helper()
	w := make([]float32, len(x.data)*8/x.DType.Bits())
	switch x.DType {
	case format.DTypeF32:
		BytesToF32(w, x.data)
	case format.DTypeBF16:
		BF16ToF32(w, x.data)
	default:
		t.Fatalf("element type %s", x.DType)
	}
	return w
}

// floats is a tensor of the checkpoint with its FP8 scales applied.
func (all rawTensors) floats(t testing.TB, name string) []float32 {
	t.Helper()
	x, ok := all[name]
	if !ok {
		t.Fatalf("no tensor %s", name)
	}
	if x.DType != format.DTypeFP8 {
		return x.floats(t)
	}
	s := plainSpec(format.FP8, x.Shape[0], x.Shape[1])
	return decodeAll(t, Matrix{Spec: s, W: x.data, S: all[name+"_scale_inv"].floats(t)})
}

// Every matrix that colibri's converter makes of the fixtures, with all its
// sets of flags, from the same source and the same spec: the same bytes.
func TestColibriBytes(t *testing.T) {
	data, err := os.ReadFile(fixtures.Path(t, "colibri_hashes.json"))
	if err != nil {
		t.Fatal(err)
	}
	var sets map[string]struct {
		Source  string
		Flags   []string
		Tensors map[string][3]any // dtype, bytes, SHA-256 prefix
	}
	if err := json.Unmarshal(data, &sets); err != nil {
		t.Fatal(err)
	}
	sources := map[string]rawTensors{
		"tiny":   readTensors(t, filepath.Join(fixtures.TinyGLMDir(t), "*.safetensors")),
		"oracle": readTensors(t, fixtures.Path(t, "glm_moe_dsa")+"/*.safetensors"),
		"fp8":    readTensors(t, fixtures.Path(t, "glm_moe_dsa_fp8")+"/*.safetensors"),
	}
	formats := map[format.ID]int{}
	for set, want := range sets {
		gs := 64
		if i := slices.Index(want.Flags, "--group-size"); i >= 0 {
			gs, _ = strconv.Atoi(want.Flags[i+1])
		}
		source := sources[want.Source]
		for name, hash := range want.Tensors {
			qs, ok := want.Tensors[name+".qs"]
			if !ok || strings.HasSuffix(name, ".qs") {
				continue
			}
			shape := source[name].Shape
			s, ok := specOfBytes(shape[0], shape[1], gs, int64(hash[1].(float64)), int64(qs[1].(float64)))
			if !ok {
				t.Errorf("%s %s: no format has %v and %v bytes", set, name, hash[1], qs[1])
				continue
			}
			formats[s.Format]++
			m := encodeAll(t, s, source.floats(t, name))
			scales := make([]byte, s.ScaleBytes())
			F32ToBytes(scales, m.S)
			if got := shaPrefix(m.W); got != hash[2] {
				t.Errorf("%s %s as %s: codes %s, want %v", set, name, s.Name(), got, hash[2])
			}
			if got := shaPrefix(scales); got != qs[2] {
				t.Errorf("%s %s as %s: scales %s, want %v", set, name, s.Name(), got, qs[2])
			}
		}
	}
	for _, id := range []format.ID{format.Int8Row, format.Int4Row, format.Int4Grouped, format.Int3G64, format.Int2Row} {
		if formats[id] == 0 {
			t.Errorf("no set of flags has %s", id)
		}
	}
	t.Log(formats)
}

// specOfBytes is the spec with these sizes; per row goes before grouped, and
// that before int3, whose sizes at 96 columns are those of int4-grouped/64.
func specOfBytes(rows, cols, gs int, bytes, scales int64) (format.Spec, bool) {
	for _, id := range []format.ID{format.Int8Row, format.Int4Row, format.Int2Row, format.Int4Grouped, format.Int3G64} {
		s := plainSpec(id, rows, cols)
		if id == format.Int4Grouped {
			s.Group = gs
			if gs == 0 {
				continue
			}
		}
		if s.Bytes() == bytes && s.ScaleBytes() == scales {
			return s, true
		}
	}
	return format.Spec{}, false
}

func shaPrefix(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}
