package runtime

import (
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"hawkmoth/format"
)

// randomModel writes a checkpoint with small random weights for a config, and
// returns them by name.
func randomModel(t *testing.T, config []byte) (dir string, weights map[string][]float32) {
	t.Helper()
	c, err := ReadConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	dir, weights = t.TempDir(), map[string][]float32{}
	var entries []format.Entry
	r := rand.New(rand.NewPCG(41, 0))
	for _, w := range c.Arch.Tensors(c) {
		n := 1
		for _, d := range w.Shape {
			n *= d
		}
		f := make([]float32, n)
		for i := range f {
			f[i] = float32(0.2 * r.NormFloat64())
		}
		weights[w.Name] = f
		entries = append(entries, format.Entry{Name: w.Name, DType: format.DTypeF32, Shape: w.Shape})
	}
	out, err := format.Create(filepath.Join(dir, "model.safetensors"), entries, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range weights {
		if err := out.WriteAt(name, floatBytes(f), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := out.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir, weights
}

func floatBytes(f []float32) []byte {
	b := make([]byte, 0, 4*len(f))
	for _, v := range f {
		u := math.Float32bits(v)
		b = append(b, byte(u), byte(u>>8), byte(u>>16), byte(u>>24))
	}
	return b
}

// TestGatedAttention holds Qwen3-Next's full attention, which its reference
// checkpoint does not have, against its definition in float64: q_proj gives each
// head its query and its gate, heads are normed with 1 + weight, a quarter of
// them is rotated, and the sigmoid of the gate multiplies the output.
func TestGatedAttention(t *testing.T) {
	const tokens, heads, kvHeads, dim, rotated = 11, 4, 2, 16, 4
	dir, w := randomModel(t, configOf(t, "qwen3_next", map[string]any{"layer_types": []string{"linear_attention", "full_attention", "linear_attention"}}))
	m := load(t, dir, 2)
	s := session(t, m, 16, 16)
	body := s.p.body
	from, to := -1, -1
	for i, c := range body {
		if c.Layer == 1 && c.Stage == StageProject && from < 0 {
			from = i
		}
		if c.Layer == 1 && c.Stage == StageOutput {
			to = i
		}
	}
	b := Batch{S: tokens, Tokens: []int32{5, 17, 3, 200, 8, 99, 100, 101, 7, 7, 0}}
	read := func(cmds []Cmd, v func() View) [][]float64 {
		t.Helper()
		if err := m.be.Run(cmds, b); err != nil {
			t.Fatal(err)
		}
		rows := make([][]float64, tokens)
		for i := range rows {
			row := make([]float32, v().N)
			if err := m.be.Read(v(), i, row); err != nil {
				t.Fatal(err)
			}
			for _, x := range row {
				rows[i] = append(rows[i], float64(x))
			}
		}
		return rows
	}
	h := read(body[:from], func() View { return body[from].Op.(MatMul).X })
	got := read(body[from:to+1], func() View { return body[to].Op.(MatMul).Y[0] })

	p := "model.layers.1.self_attn."
	product := func(name string, x []float64) []float64 {
		m := w[p+name]
		y := make([]float64, len(m)/len(x))
		for i := range y {
			for j, v := range x {
				y[i] += float64(m[i*len(x)+j]) * v
			}
		}
		return y
	}
	head := func(x []float64, norm string, position int) []float64 {
		ss := 0.0
		for _, v := range x {
			ss += v * v
		}
		y := make([]float64, dim)
		for i, v := range x {
			y[i] = v / math.Sqrt(ss/dim+1e-6) * (1 + float64(w[p+norm][i]))
		}
		for i := range rotated / 2 {
			sin, cos := math.Sincos(float64(position) * math.Pow(1e4, -2*float64(i)/rotated))
			y[i], y[i+rotated/2] = y[i]*cos-y[i+rotated/2]*sin, y[i+rotated/2]*cos+y[i]*sin
		}
		return y
	}
	keys, values := make([][]float64, tokens), make([][]float64, tokens)
	for i := range tokens {
		keys[i], values[i] = product("k_proj.weight", h[i]), product("v_proj.weight", h[i])
		for k := range kvHeads {
			copy(keys[i][k*dim:], head(keys[i][k*dim:][:dim], "k_norm.weight", i))
		}
		qg := product("q_proj.weight", h[i])
		y := make([]float64, heads*dim)
		for n := range heads {
			q, gate, at := head(qg[2*n*dim:][:dim], "q_norm.weight", i), qg[(2*n+1)*dim:][:dim], n/(heads/kvHeads)*dim
			e, z := make([]float64, i+1), 0.0
			for j := range e {
				for d := range dim {
					e[j] += q[d] * keys[j][at+d] / math.Sqrt(dim)
				}
				e[j] = math.Exp(e[j])
				z += e[j]
			}
			for d := range dim {
				for j := range e {
					y[n*dim+d] += e[j] / z * values[j][at+d]
				}
				y[n*dim+d] /= 1 + math.Exp(-gate[d])
			}
		}
		for d, want := range product("o_proj.weight", y) {
			if math.Abs(got[i][d]-want) > 1e-4*max(1, math.Abs(want)) {
				t.Fatalf("token %d, output %d: %g, want %g", i, d, got[i][d], want)
			}
		}
	}
}
