package quantize

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"hawkmoth/format"
)

// wantsOf lists what a checkpoint holds as an architecture would: the roles
// follow from the names, layers from mtp on are the MTP block.
func wantsOf(snap *format.Snapshot, mtp int) []Want {
	var wants []Want
	for _, name := range snap.Names() {
		if strings.HasSuffix(name, fp8ScaleSuffix) {
			continue
		}
		w := Want{Name: name, Shape: snap.Tensor(name).Shape, Layer: layerOf(name), Expert: -1}
		w.MTP = mtp > 0 && w.Layer >= mtp
		w.Role = roleOf(name, len(w.Shape))
		if _, rest, ok := strings.Cut(name, ".experts."); ok {
			w.Expert, _ = strconv.Atoi(rest[:strings.Index(rest, ".")])
		}
		wants = append(wants, w)
	}
	return wants
}

func roleOf(name string, dims int) Role {
	for _, r := range []struct {
		part string
		role Role
	}{
		{".indexer.", Indexer}, {"e_score_correction_bias", RouterBias}, {"norm", Norm}, {"mlp.gate.weight", Router}, {".experts.", Expert},
		{"shared_experts", Shared}, {".mlp.", Dense}, {"kv_b_proj", KVB}, {"o_proj", Out}, {"self_attn", Attn}, {"eh_proj", MTP},
		{"embed_tokens", Embed}, {"lm_head", Head},
	} {
		if strings.Contains(name, r.part) && (dims == 2 || r.role != Indexer) {
			return r.role
		}
	}
	if dims == 2 {
		return Attn
	}
	return Norm
}

// ramp is n values in [-1, 1) that differ from row to row.
func ramp(n int) []float32 {
	w := make([]float32, n)
	for i := range w {
		w[i] = float32((i*7919)%257)/128.5 - 1
	}
	return w
}

// checkpoint is a snapshot of one shard with a config.json.
func checkpoint(t testing.TB, tensors ...testTensor) *format.Snapshot {
	t.Helper()
	dir := t.TempDir()
	writeShard(t, filepath.Join(dir, "model.safetensors"), tensors)
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	return open(t, dir)
}

// recipe is a built-in recipe with flags.
func recipe(t *testing.T, name string, f Flags) *Recipe {
	t.Helper()
	r, err := RecipeFor(name)
	if err == nil {
		r, err = r.With(f)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// files is every file of a directory by name.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all[e.Name()] = string(data)
	}
	return all
}
