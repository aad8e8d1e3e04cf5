package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hawkmoth/cmd/internal/clitest"
	"hawkmoth/cmd/internal/report"
	"hawkmoth/format"
	"hawkmoth/quantize"
	"hawkmoth/runtime"
)

// tensor is a tensor of a file to be written.
type tensor struct {
	format.Entry
	data []byte
}

// model is a directory to be written: change it, then save it.
type model struct {
	t       *testing.T
	config  map[string]any
	tensors []tensor
	stamps  map[string]format.Spec
}

// small is the configuration of the tests: two layers, the second with
// experts, and an MTP block.
func small() map[string]any {
	return map[string]any{"model_type": "glm_moe_dsa", "vocab_size": 40, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 96,
		"max_position_embeddings": 64, "num_nextn_predict_layers": 1, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": 32,
		"q_lora_rank": 64, "kv_lora_rank": 128, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 32, "index_n_heads": 2, "index_head_dim": 16, "index_topk": 8,
		"first_k_dense_replace": 1, "mlp_layer_types": []string{"dense", "sparse"}}
}

// synthesise makes a model of random weights; choose gives each tensor its
// format, or false to leave it out.
func synthesise(t *testing.T, config map[string]any, choose func(w quantize.Want) (format.Spec, bool)) *model {
	t.Helper()
	data, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	c, err := runtime.ReadConfig(data)
	if err != nil {
		t.Fatal(err)
	}
	m := &model{t: t, config: config, stamps: map[string]format.Spec{}}
	for i, w := range c.Arch.Tensors(c) {
		spec, ok := choose(w)
		if !ok {
			continue
		}
		spec.Rows, spec.Cols = 1, w.Shape[0]
		if w.Matrix() {
			spec.Rows, spec.Cols = w.Shape[0], w.Shape[1]
		}
		rng := rand.New(rand.NewPCG(uint64(i), 7))
		values := make([]float32, spec.Rows*spec.Cols)
		for i := range values {
			values[i] = float32(rng.NormFloat64())
		}
		m.put(w.Name, spec, w.Shape, values)
	}
	return m
}

// put adds or replaces a tensor, encoded from its values.
func (m *model) put(name string, spec format.Spec, shape []int, values []float32) {
	m.t.Helper()
	codec, err := quantize.CodecFor(spec.Format)
	if err != nil {
		m.t.Fatal(err)
	}
	mat := quantize.NewMatrix(spec)
	codec.Encode(mat, 0, spec.Rows, values)
	in := spec.Format.Info()
	if !in.Packed {
		m.set(name, in.DType, shape, mat.W)
		return
	}
	scales := make([]byte, 4*len(mat.S))
	quantize.F32ToBytes(scales, mat.S)
	m.set(name, format.DTypeU8, []int{len(mat.W)}, mat.W)
	m.set(name+format.ScaleSuffix, format.DTypeF32, []int{len(mat.S)}, scales)
	m.stamps[name] = spec
}

func (m *model) set(name string, d format.DType, shape []int, data []byte) {
	x := tensor{format.Entry{Name: name, DType: d, Shape: shape}, data}
	if i := m.index(name); i >= 0 {
		m.tensors[i] = x
		return
	}
	m.tensors = append(m.tensors, x)
}

func (m *model) index(name string) int {
	return slices.IndexFunc(m.tensors, func(x tensor) bool { return x.Name == name })
}

// data is the bytes of a tensor, to be damaged.
func (m *model) data(name string) []byte {
	m.t.Helper()
	i := m.index(name)
	if i < 0 {
		m.t.Fatalf("no tensor %s", name)
	}
	return m.tensors[i].data
}

// drop removes the tensors that a predicate names, and their scales.
func (m *model) drop(which func(name string) bool) {
	m.tensors = slices.DeleteFunc(m.tensors, func(x tensor) bool { return which(strings.TrimSuffix(x.Name, format.ScaleSuffix)) })
}

// write writes the tensors that a predicate takes to a file.
func (m *model) write(path string, stamped bool, takes func(name string) bool) {
	m.t.Helper()
	var entries []format.Entry
	specs := map[string]format.Spec{}
	for _, x := range m.tensors {
		if takes(x.Name) {
			entries = append(entries, x.Entry)
			if s, ok := m.stamps[x.Name]; ok {
				specs[x.Name] = s
			}
		}
	}
	var meta map[string]string
	if stamped {
		meta = format.StampMetadata(specs)
	}
	w, err := format.Create(path, entries, meta)
	if err != nil {
		m.t.Fatal(err)
	}
	for _, x := range m.tensors {
		if takes(x.Name) {
			if err := w.WriteAt(x.Name, x.data, 0); err != nil {
				m.t.Fatal(err)
			}
		}
	}
	if err := w.Commit(); err != nil {
		m.t.Fatal(err)
	}
}

func all(string) bool { return true }

func (m *model) writeConfig(dir string) {
	m.t.Helper()
	data, err := json.Marshal(m.config)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "config.json"), data, 0o644)
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

// save writes the model as one shard with stamps.
func (m *model) save() string { return m.saveAs(true) }

func (m *model) saveAs(stamped bool) string {
	m.t.Helper()
	dir := m.t.TempDir()
	m.writeConfig(dir)
	m.write(filepath.Join(dir, "model.safetensors"), stamped, all)
	return dir
}

// in gives every matrix but routers a format, everything else float32.
func in(id format.ID, group int) func(quantize.Want) (format.Spec, bool) {
	return func(w quantize.Want) (format.Spec, bool) {
		if !w.Matrix() || w.Role == quantize.Router || w.Name == "lm_head.weight" && w.Tied != "" {
			return format.Spec{Format: format.F32}, w.Tied == ""
		}
		return format.Spec{Format: id, Group: group}, !w.MTP || w.Role != quantize.Embed && w.Role != quantize.Head
	}
}

// runInspect is the command as a user types it.
func runInspect(args ...string) (code int, stdout, stderr string) {
	return clitest.Run(context.Background(), command(), nil, args...)
}

// inspected is the report about a directory; the exit code must be the wanted one.
func inspected(t *testing.T, wanted int, args ...string) *report.Report {
	t.Helper()
	code, stdout, stderr := runInspect(append(args, "--json")...)
	if code != wanted {
		t.Errorf("exit code %d, want %d\n%s", code, wanted, stderr)
	}
	if (stderr != "") != (code != 0) {
		t.Errorf("stderr %q with exit code %d", stderr, code)
	}
	r := &report.Report{}
	if err := json.Unmarshal([]byte(stdout), r); err != nil {
		t.Fatalf("%v in %.200s", err, stdout)
	}
	if strings.Contains(stdout, ":null") {
		t.Errorf("null in %s", stdout)
	}
	return r
}

// holds checks that some text has every part.
func holds(t *testing.T, text string, parts ...string) {
	t.Helper()
	clitest.Holds(t, text, parts...)
}

func messages(r *report.Report) string {
	var list []string
	for _, p := range r.Problems {
		list = append(list, p.Kind+": "+p.Message)
	}
	return strings.Join(list, "\n")
}

func tensorNamed(t *testing.T, r *report.Report, name string) report.Tensor {
	t.Helper()
	i := slices.IndexFunc(r.Tensors, func(x report.Tensor) bool { return x.Name == name })
	if i < 0 {
		t.Fatalf("no tensor %s in the report", name)
	}
	return r.Tensors[i]
}

func configOf(t *testing.T, m *model) *runtime.Config {
	t.Helper()
	data, err := json.Marshal(m.config)
	if err != nil {
		t.Fatal(err)
	}
	c, err := runtime.ReadConfig(data)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// writeHollow writes a model whose data are a hole in the file.
func writeHollow(t *testing.T, path string, m *model, stamped bool) {
	t.Helper()
	header := map[string]any{}
	if stamped {
		header["__metadata__"] = format.StampMetadata(m.stamps)
	}
	at := int64(0)
	for _, x := range m.tensors {
		n := int64(x.DType.Bits() / 8)
		for _, d := range x.Shape {
			n *= int64(d)
		}
		header[x.Name] = map[string]any{"dtype": x.DType, "shape": x.Shape, "data_offsets": []int64{at, at + n}}
		at += n
	}
	text, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
	if err = os.WriteFile(path, append(out, text...), 0o644); err == nil {
		err = os.Truncate(path, int64(8+len(text))+at)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

// writeText writes some English to measure perplexity with.
func writeText(t *testing.T, path string) {
	t.Helper()
	text := strings.Repeat("The king went down to the sea and looked for the ship that had carried his brother away. ", 12)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
