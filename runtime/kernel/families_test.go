package kernel

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestNaturalLog(t *testing.T) {
	r := rand.New(rand.NewPCG(31, 0))
	for range 100_000 {
		x := math.Exp(r.Float64()*200 - 100)
		if got, want := naturalLog(x), math.Log(x); math.Abs(got-want) > 4e-16*max(1, math.Abs(want)) {
			t.Fatalf("ln %g = %g, want %g", x, got, want)
		}
	}
}

// TestScaledFrequencies compares with the formulas in float64.
func TestScaledFrequencies(t *testing.T) {
	const dim = 64
	near := func(a Angles, want func(i int, f float64) float64) {
		t.Helper()
		for i, got := range a.frequencies(dim) {
			w := want(i, math.Pow(a.Theta, -float64(2*i)/dim))
			if math.Abs(float64(got)-w) > 1e-6*w {
				t.Errorf("%+v: frequency %d is %g, want %g", a, i, got, w)
			}
		}
	}
	near(Angles{Theta: 1e4}, func(_ int, f float64) float64 { return f })
	near(Angles{Theta: 5e5, Scaling: Llama3, Factor: 8, Low: 1, High: 4, Original: 8192}, func(_ int, f float64) float64 {
		switch turns := 8192 * f / (2 * math.Pi); {
		case turns < 1:
			return f / 8
		case turns > 4:
			return f
		default:
			s := (turns - 1) / 3
			return (1-s)*f/8 + s*f
		}
	})
	for _, truncate := range []bool{true, false} {
		at := func(turns float64) float64 { return dim * math.Log(4096/(turns*2*math.Pi)) / (2 * math.Log(1e4)) }
		low, high := at(32), at(1)
		if truncate {
			low, high = math.Floor(low), math.Ceil(high)
		}
		near(Angles{Theta: 1e4, Scaling: YaRN, Factor: 40, Low: 1, High: 32, Original: 4096, Truncate: truncate}, func(i int, f float64) float64 {
			s := min(max((float64(i)-low)/(high-low), 0), 1)
			return s*f/40 + (1-s)*f
		})
	}
	if got := MScale(40, 1); math.Abs(got-1.3688879454113936) > 1e-15 || MScale(1, 1) != 1 {
		t.Errorf("mscale %v", got)
	}
}

func TestSoftplus(t *testing.T) {
	for x := float32(-100); x < 100; x += 0.013 {
		want := math.Log1p(math.Exp(float64(x)))
		if got := float64(Softplus(x)); math.Abs(got-want) > 3e-7*want+2e-38 {
			t.Fatalf("softplus(%g) = %g, want %g", x, got, want)
		}
	}
}

// TestSoftmaxSink: a sink is the softmax of one more score, for every instruction
// set; one at −∞ changes no bit.
func TestSoftmaxSink(t *testing.T) {
	r := rand.New(rand.NewPCG(32, 0))
	for _, n := range []int{1, 2, 15, 16, 17, 100, 300} {
		for _, sink := range []float32{-50, -1, 0, 3, 60} {
			p := sample(r, n, "normal")
			top, z := float64(sink), 0.0
			for _, v := range p {
				top = max(top, float64(v))
			}
			for _, v := range p {
				z += math.Exp(float64(v) - top)
			}
			z += math.Exp(float64(sink) - top)
			want := make([]float64, n)
			for i, v := range p {
				want[i] = math.Exp(float64(v)-top) / z
			}
			naive := append([]float32(nil), p...)
			m := sink
			for _, v := range p {
				m = max(m, v)
			}
			for i, v := range p {
				naive[i] = Exp(v - m)
			}
			total := sum(naive) + Exp(sink-m)
			for i := range naive {
				naive[i] /= total
			}
			SoftmaxSink(p, sink)
			equalBits(t, "softmax with a sink", p, naive)
			for i, v := range p {
				if math.Abs(float64(v)-want[i]) > 1e-6 {
					t.Fatalf("%d scores, sink %g: p[%d] = %g, want %g", n, sink, i, v, want[i])
				}
			}
		}
	}
}

func TestClampedGating(t *testing.T) {
	gate, up := []float32{-20, -1, 0, 2, 9}, []float32{-9, 1, 5, 8, 0.5}
	y := make([]float32, len(gate))
	Gating{Limit: 7, Alpha: 1.702}.Mul(y, gate, up)
	for i := range y {
		g, u := min(float64(gate[i]), 7), min(max(float64(up[i]), -7), 7)
		if want := (u + 1) * g / (1 + math.Exp(-1.702*g)); math.Abs(float64(y[i])-want) > 2e-6*max(1, math.Abs(want)) {
			t.Errorf("gate %g, up %g: %g, want %g", gate[i], up[i], y[i], want)
		}
	}
}

// TestDeltaRule compares some steps with float64.
func TestDeltaRule(t *testing.T) {
	const dk, dv = 24, 40
	r := rand.New(rand.NewPCG(33, 0))
	state, ref := make([]float32, dk*dv), make([]float64, dk*dv)
	var tmp Scratch
	y := make([]float32, dv)
	for range 20 {
		q, k, v := sample(r, dk, "normal"), sample(r, dk, "normal"), sample(r, dv, "normal")
		L2Norm(q, 0.2)
		L2Norm(k, 1)
		decay, beta := Decay(r.Float32(), r.Float32(), r.Float32()), Sigmoid(r.Float32())
		want := make([]float64, dv)
		for j := range dv {
			m := 0.0
			for i := range dk {
				ref[i*dv+j] *= float64(decay)
				m += float64(k[i]) * ref[i*dv+j]
			}
			for i := range dk {
				ref[i*dv+j] += float64(k[i]) * (float64(v[j]) - m) * float64(beta)
				want[j] += float64(q[i]) * ref[i*dv+j]
			}
		}
		DeltaRule(y, state, q, k, v, decay, beta, &tmp)
		for j := range y {
			if math.Abs(float64(y[j])-want[j]) > 1e-5 {
				t.Fatalf("y[%d] = %g, want %g", j, y[j], want[j])
			}
		}
	}
}
