package kernel

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"

	"hawkmoth/format"
	"hawkmoth/quantize"
)

func equalBits(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, want %d", what, len(got), len(want))
	}
	for i := range got {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			t.Fatalf("%s: [%d] = %x (%g), want %x (%g)", what, i, math.Float32bits(got[i]), got[i], math.Float32bits(want[i]), want[i])
		}
	}
}

// product is MatVec of all rows for vectors xs, y[s][o].
func product(m quantize.Matrix, xs [][]float32, tmp *Scratch) [][]float32 {
	y := make([][]float32, len(xs))
	act := make([]Activation, len(xs))
	for s, x := range xs {
		y[s] = make([]float32, m.Rows)
		if bits := ActivationBits(m.Format); bits > 0 {
			act[s].Quantize(x, bits)
		}
	}
	if ActivationBits(m.Format) == 0 {
		act = nil
	}
	MatVec(m, 0, m.Rows, xs, act, y, tmp)
	return y
}

func TestMatVecEqualsTheNaiveTranscription(t *testing.T) {
	var tmp Scratch
	seed := uint64(0)
	for _, cols := range sizes {
		for _, s := range specs(3, cols) {
			for range 2 {
				seed++
				kind := kinds[seed%uint64(len(kinds))]
				r := rand.New(rand.NewPCG(seed, 0))
				m := encoded(r, s, kind)
				xs := [][]float32{sample(r, cols, kind), sample(r, cols, "normal"), sample(r, cols, "outlier")}
				y := product(m, xs, &tmp)
				for i, x := range xs {
					want := make([]float32, m.Rows)
					for o := range want {
						want[o] = naiveRow(m, o, x)
					}
					equalBits(t, describe(s, kind, seed), y[i], want)
				}
			}
		}
	}
}

// G3, G8: how many vectors and which rows a call takes must not show.
func TestG3BatchAndRowSplitDoNotShow(t *testing.T) {
	var tmp Scratch
	r := rand.New(rand.NewPCG(7, 0))
	for _, s := range specs(37, 200) {
		m := encoded(r, s, "normal")
		xs := make([][]float32, 9)
		for i := range xs {
			xs[i] = sample(r, s.Cols, kinds[i%len(kinds)])
		}
		whole := product(m, xs, &tmp)
		for i, x := range xs {
			equalBits(t, s.String(), product(m, [][]float32{x}, &tmp)[0], whole[i])
		}
		act := make([]Activation, len(xs))
		split, shifted := make([][]float32, len(xs)), make([][]float32, len(xs))
		for i, x := range xs {
			split[i], shifted[i] = make([]float32, s.Rows), make([]float32, 20)
			act[i].Quantize(x, max(8, ActivationBits(s.Format)))
		}
		for _, cut := range [][2]int{{0, 1}, {1, 18}, {18, 18}, {18, 37}} {
			MatVec(m, cut[0], cut[1], xs, act, split, &tmp)
		}
		MatVecRows(m, 11, 31, xs, act, shifted, &tmp)
		for i := range xs {
			equalBits(t, s.String(), split[i], whole[i])
			equalBits(t, s.String(), shifted[i], whole[i][11:31])
		}
	}
}

func TestWordsHoldTheCodesThatDecodeReads(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 0))
	const blocks = 3
	for _, s := range specs(2, blocks*Block) {
		l := layouts[s.Format]
		if l.bits == 0 {
			continue
		}
		m := encoded(r, s, "normal")
		words, want := make([]uint64, blocks*Block/l.fields), make([]float32, s.Cols)
		for o := range s.Rows {
			l.spread(words, m.W[o*s.RowBytes():][:s.RowBytes()])
			Dequant(m, o, want)
			for i, w := range words {
				shift := 64 / l.fields
				for f := range l.fields {
					code := int64(w<<(64-shift)) >> (64 - shift)
					w = uint64((int64(w) - code) >> shift)
					col := i/l.step*l.step*l.fields + i%l.step + f*l.step
					if got := float32(code) * naiveScale(m, o, col); got != want[col] || int(code) != naiveCode(m, o, col) {
						t.Fatalf("%s [%d,%d]: code %d gives %g, Decode %g", s, o, col, code, got, want[col])
					}
				}
			}
		}
	}
}

// B18: round trip within half a step, with the zero point and the right group.
func TestB18ProductsAreNearTheFloatProduct(t *testing.T) {
	var tmp Scratch
	r := rand.New(rand.NewPCG(9, 0))
	for _, s := range specs(8, 512) {
		m := encoded(r, s, "normal")
		x := sample(r, s.Cols, "normal")
		y := product(m, [][]float32{x}, &tmp)[0]
		w := make([]float32, s.Cols)
		for o := range s.Rows {
			Dequant(m, o, w)
			var want, size float64
			for i := range w {
				want += float64(w[i]) * float64(x[i])
				size += float64(w[i]) * float64(w[i])
			}
			// The rounding of x is at most half a step of 127 (2047) to the largest of its block.
			limit := map[int]float64{0: 1e-5, 8: 4.0 / 127, 12: 4.0 / 2047}[ActivationBits(s.Format)]
			if d := math.Abs(float64(y[o]) - want); d > limit*math.Sqrt(size) {
				t.Errorf("%s row %d: %g, want %g ± %g", s, o, y[o], want, limit*math.Sqrt(size))
			}
		}
	}
}

func TestQuantizeEqualsTheNaiveTranscription(t *testing.T) {
	var a Activation
	r := rand.New(rand.NewPCG(10, 0))
	for _, n := range append(sizes, 4096) {
		for _, kind := range kinds {
			for _, bits := range []int{8, 12} {
				x := sample(r, n, kind)
				a.Quantize(x, bits)
				q, sx := naiveQuantize(x, bits)
				equalBits(t, kind, a.Scale, sx)
				for i := range q {
					if int(a.Q[i]) != q[i] {
						t.Fatalf("%s n=%d bits=%d: q[%d] = %d, want %d", kind, n, bits, i, a.Q[i], q[i])
					}
				}
				if a.N != n || len(a.Q) != len(q) || a.Bits != bits {
					t.Fatalf("N=%d Bits=%d len(Q)=%d", a.N, a.Bits, len(a.Q))
				}
			}
		}
	}
	// The largest float32 and every tie.
	for _, bits := range []int{8, 12} {
		limit := float32(int(1)<<(bits-1) - 1)
		x := []float32{limit, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, -limit}
		a.Quantize(x, bits)
		if want := []int16{int16(limit), 0, 2, 2, 0, -2, -2, -int16(limit)}; !slices.Equal(a.Q[:8], want) {
			t.Errorf("ties: %v, want %v", a.Q[:8], want)
		}
		a.Quantize([]float32{math.MaxFloat32, -math.MaxFloat32}, bits)
		if a.Q[0] != int16(limit) || a.Q[1] != -int16(limit) {
			t.Errorf("largest: %v, want ±%v", a.Q[:2], limit)
		}
	}
}

// B20: a non-finite activation must reach the logits.
func TestB20NonFiniteActivationsStayVisible(t *testing.T) {
	var tmp Scratch
	r := rand.New(rand.NewPCG(11, 0))
	for _, s := range specs(2, 130) {
		m := encoded(r, s, "normal")
		for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			x := sample(r, s.Cols, "normal")
			x[129] = float32(bad)
			if y := product(m, [][]float32{x}, &tmp)[0]; !math.IsNaN(float64(y[0])) && !math.IsInf(float64(y[0]), 0) {
				t.Errorf("%s: x holds %g, y = %g", s, bad, y[0])
			}
		}
		if len(m.S) > 0 {
			m.S[0] = float32(math.NaN())
			if y := product(m, [][]float32{sample(r, s.Cols, "normal")}, &tmp)[0]; y[0] == y[0] {
				t.Errorf("%s: a NaN scale gives %g", s, y[0])
			}
		}
	}
}

// A7: an unknown format must not decode as something else.
func TestA7UnknownFormatIsRefused(t *testing.T) {
	for _, in := range format.Formats() {
		s := format.Spec{Format: in.ID, Rows: 2, Cols: 64}
		if in.ID == format.Int4Grouped {
			s.Group = 64
		}
		m := quantize.Matrix{Spec: s, W: make([]byte, s.Bytes()), S: make([]float32, s.Scales())}
		if err := Check(m); in.Run != (err == nil) || err != nil && !errors.Is(err, format.ErrUnsupported) {
			t.Errorf("Check(%s) = %v", s, err)
		}
		y := [][]float32{{0, 0}}
		if !in.Run {
			MatVec(m, 0, 2, [][]float32{make([]float32, 64)}, make([]Activation, 1), y, new(Scratch))
			if y[0][0] == y[0][0] || y[0][1] == y[0][1] {
				t.Errorf("%s: product %v, want NaN", s, y[0])
			}
			continue
		}
		m.W = m.W[1:]
		if err := Check(m); !errors.Is(err, format.ErrCorrupt) {
			t.Errorf("Check(%s with a byte missing) = %v", s, err)
		}
	}
	m := quantize.NewMatrix(format.Spec{Format: format.Int8Row, Rows: 2, Cols: 64})
	m.S[0], m.S[1] = 1, 1
	for _, wrong := range []struct{ n, bits int }{{64, 8}, {63, 12}, {65, 12}} {
		act, y := make([]Activation, 1), [][]float32{{0, 0}}
		act[0].Quantize(make([]float32, wrong.n), wrong.bits)
		if MatVec(m, 0, 2, nil, act, y, new(Scratch)); y[0][0] == y[0][0] || y[0][1] == y[0][1] {
			t.Errorf("activations of %+v: product %v, want NaN", wrong, y[0])
		}
	}
	if err := Check(quantize.Matrix{Spec: format.Spec{Format: 77, Rows: 1, Cols: 1}}); !errors.Is(err, format.ErrUnsupported) {
		t.Errorf("Check(format 77) = %v", err)
	}
}

func TestDotEqualsTheNaiveTranscription(t *testing.T) {
	r := rand.New(rand.NewPCG(12, 0))
	for _, n := range append(sizes, 0, 3, 8, 24, 6144) {
		for _, kind := range kinds {
			a, b := sample(r, n, kind), sample(r, n, "normal")
			equalBits(t, kind, []float32{Dot(a, b)}, []float32{naiveDot(a, b)})
			equalBits(t, kind, []float32{sum(a)}, []float32{naiveSum(a)})
		}
	}
}

// Every stripe must take the exact step where the plain float64 sum is a tie.
func TestTiesInEveryStripe(t *testing.T) {
	// Found by searching: a·b + c ends so near half an ulp of c that float64 loses the difference.
	ties := 0
	r := rand.New(rand.NewPCG(24, 0))
	for range 20_000 {
		c := 1 + float32(r.IntN(1<<23))*0x1p-23
		a := 1 + float32(r.IntN(1<<12))*0x1p-23
		b := float32(0x1p-24 / float64(a))
		if float32(float64(a)*float64(b)+float64(c)) == FMA(a, b, c) {
			continue
		}
		ties++
		j := ties % 16
		x, y := make([]float32, 32), make([]float32, 32)
		x[j], y[j], x[16+j], y[16+j] = c, 1, a, b
		equalBits(t, "Dot", []float32{Dot(x, y)}, []float32{FMA(a, b, c)})
		out, want := make([]float32, 7), make([]float32, 7)
		out[j%7], want[j%7] = c, FMA(a, b, c)
		z := make([]float32, 7)
		z[j%7] = b
		for i := range out {
			if i != j%7 { // ordinary neighbours, so that the tie alone asks for the exact step
				out[i], z[i], want[i] = 1, 1, 1+a
			}
		}
		AddScaled(out, a, z)
		equalBits(t, "AddScaled", out, want)
	}
	if ties < 100 {
		t.Errorf("only %d ties found", ties)
	}
}

func TestNorms(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 0))
	for _, n := range sizes {
		x, w, b := sample(r, n, "outlier"), sample(r, n, "normal"), sample(r, n, "normal")
		const eps = 1e-5
		rms := func(x []float32) float32 {
			ss := naiveDot(x, x)
			return 1 / float32(math.Sqrt(float64(ss/float32(n)+eps)))
		}
		want, y := make([]float32, n), make([]float32, n)
		scale := rms(x)
		for i := range x {
			v := x[i] * scale
			want[i] = v * w[i]
		}
		RMSNorm(y, x, w, eps)
		equalBits(t, "RMSNorm", y, want)

		mean := naiveSum(x) / float32(n)
		c := make([]float32, n)
		for i := range x {
			c[i] = x[i] - mean
		}
		scale = rms(c)
		for i := range x {
			v := c[i] * scale
			want[i] = FMA(v, w[i], b[i])
		}
		LayerNorm(y, x, w, b, eps)
		equalBits(t, "LayerNorm", y, want)
		LayerNorm(x, x, w, b, eps)
		equalBits(t, "LayerNorm in place", x, want)
	}
}

func TestRoPETable(t *testing.T) {
	const dim, theta = 64, 1e6
	table := NewRoPE(dim, Angles{Theta: theta})
	table.Grow(3)
	table.Grow(200_000)
	for _, p := range []int{0, 1, 2, 3, 100, 4095, 131071, 199_999} {
		cos, sin := table.At(p)
		for i := range dim / 2 {
			freq := 1 / float32(math.Pow(theta, float64(float32(2*i)/float32(dim))))
			angle := float64(float32(p) * freq)
			if c, s := float32(math.Cos(angle)), float32(math.Sin(angle)); cos[i] != c || sin[i] != s {
				t.Errorf("position %d, pair %d: (%g, %g), want (%g, %g)", p, i, cos[i], sin[i], c, s)
			}
		}
	}
}

func TestCosSinAgainstTheLibrary(t *testing.T) {
	r := rand.New(rand.NewPCG(14, 0))
	for range 200_000 {
		x := float64(float32(math.Exp2(r.Float64()*44 - 20)))
		c, s := cosSin(x)
		if d := max(math.Abs(c-math.Cos(x)), math.Abs(s-math.Sin(x))); d > 1e-15 {
			t.Fatalf("cosSin(%g) = (%g, %g), off by %g", x, c, s, d)
		}
	}
}

func TestRoPERotates(t *testing.T) {
	r := rand.New(rand.NewPCG(15, 0))
	for _, dim := range []int{2, 6, 64, 128} {
		table := NewRoPE(dim, Angles{Theta: 10000})
		table.Grow(50)
		cos, sin := table.At(49)
		x := sample(r, dim, "normal")
		y, want := make([]float32, dim), make([]float32, dim)
		for i := range dim / 2 {
			a, b := x[2*i], x[2*i+1]
			bs, as := b*sin[i], a*sin[i]
			want[i], want[i+dim/2] = FMA(a, cos[i], -bs), FMA(b, cos[i], as)
		}
		RoPEInterleaved(y, x, cos, sin)
		equalBits(t, "interleaved", y, want)
		halves := make([]float32, dim)
		for i := range dim / 2 {
			halves[i], halves[i+dim/2] = x[2*i], x[2*i+1]
		}
		RoPEHalves(halves, halves, cos, sin)
		equalBits(t, "halves in place", halves, want)
	}
}

func TestExpErrorBelowOneUlp(t *testing.T) {
	worst := 0.0
	check := func(x float32) {
		want := math.Exp(float64(x))
		f := float32(want)
		ulp := float64(math.Nextafter32(f, math.MaxFloat32)) - float64(f)
		worst = max(worst, math.Abs(float64(Exp(x))-want)/ulp)
		if got := Exp(x); math.Float32bits(got) != math.Float32bits(naiveExp(x)) {
			t.Fatalf("Exp(%g) = %g, naive %g", x, got, naiveExp(x))
		}
	}
	for b := uint32(0); b <= math.Float32bits(88); b += 2503 {
		check(math.Float32frombits(b))
		if x := math.Float32frombits(b | 1<<31); x >= -87 {
			check(x)
		}
	}
	// The largest errors of all float32, and arguments where x·log2e + shift
	// rounds to another integer if it is fused.
	for _, x := range []float32{-87, 88, 0, 5.2016387, -26.68565, -0x1.686fc2p+04, -0x1.94cc48p+04, -0x1.196af2p+06, -0x1.566a2ap+06} {
		check(x)
	}
	if worst >= 0.9 || worst < 0.88 {
		t.Errorf("largest error %.4f ulp, want 0.88 … 0.9", worst)
	}
	for _, c := range []struct{ x, want float32 }{
		{0, 1}, {float32(math.Copysign(0, -1)), 1}, {-87.00001, 0}, {88.00001, math.MaxFloat32},
		{float32(math.Inf(1)), math.MaxFloat32}, {float32(math.Inf(-1)), 0}, {1e-30, 1},
	} {
		if got := Exp(c.x); math.Float32bits(got) != math.Float32bits(c.want) {
			t.Errorf("Exp(%g) = %g, want %g", c.x, got, c.want)
		}
	}
	if x := Exp(float32(math.NaN())); x == x {
		t.Errorf("Exp(NaN) = %g", x)
	}
}

func TestSigmoidSiLU(t *testing.T) {
	r := rand.New(rand.NewPCG(16, 0))
	x := sample(r, 2000, "outlier")
	up := sample(r, 2000, "normal")
	dst := make([]float32, len(x))
	SiLUMul(dst, x, up)
	for i, v := range x {
		e := naiveExp(-v)
		if got, want := Sigmoid(v), 1/(1+e); got != want {
			t.Fatalf("Sigmoid(%g) = %g, want %g", v, got, want)
		}
		silu := v / (1 + e)
		if got := SiLU(v); got != silu {
			t.Fatalf("SiLU(%g) = %g, want %g", v, got, silu)
		}
		if dst[i] != silu*up[i] {
			t.Fatalf("SiLUMul(%g, %g) = %g", v, up[i], dst[i])
		}
		if want := 1 / (1 + math.Exp(-float64(v))); math.Abs(float64(Sigmoid(v))-want) > 3e-7*want+1e-38 {
			t.Fatalf("Sigmoid(%g) = %g, exact %g", v, Sigmoid(v), want)
		}
	}
}

func TestAttentionEqualsTheNaiveTranscription(t *testing.T) {
	var tmp Scratch
	for seed, c := range []struct{ kvl, rope, pad, n, every int }{
		{1, 2, 0, 1, 1}, {64, 16, 0, 70, 1}, {100, 6, 3, 255, 1}, {32, 8, 8, 256, 1}, {32, 8, 0, 257, 1},
		{17, 64, 1, 600, 1}, {48, 8, 0, 1100, 3}, {48, 8, 0, 2000, 500}, {16, 2, 0, 900, 300},
	} {
		r := rand.New(rand.NewPCG(uint64(seed), 17))
		stride := c.kvl + c.rope + c.pad
		cache := sample(r, c.n*stride, "normal")
		qabs, qrope := sample(r, c.kvl, "normal"), sample(r, c.rope, "normal")
		var positions, all []int32
		for t := c.n % c.every; t < c.n; t += c.every {
			all = append(all, int32(t))
		}
		if c.every > 1 {
			positions = all
		}
		scale := float32(0.1)
		want := make([]float32, len(all))
		for i, t := range all {
			row := cache[int(t)*stride:][:c.kvl+c.rope]
			want[i] = naiveDot(slices.Concat(qabs, qrope), row) * scale
		}
		p := make([]float32, len(all))
		Score(p, qabs, qrope, cache, stride, positions, scale)
		equalBits(t, "Score", p, want)
		want = naiveSoftmax(want)
		Softmax(p)
		equalBits(t, "Softmax", p, want)
		got := make([]float32, c.kvl)
		Latent(got, p, cache, stride, positions, &tmp)
		equalBits(t, "Latent", got, naiveLatent(p, cache, c.kvl, stride, all))
	}
}

func TestSoftmaxEdges(t *testing.T) {
	Softmax(nil)
	p := []float32{3}
	Softmax(p)
	equalBits(t, "one", p, []float32{1})
	p = []float32{1000, 1000 - 90, -1e30, 1000}
	Softmax(p)
	equalBits(t, "far apart", p, []float32{0.5, 0, 0, 0.5})
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1))} {
		p = []float32{1, bad, 2}
		Softmax(p)
		if p[0] == p[0] && p[1] == p[1] {
			t.Errorf("a score of %g gives %v", bad, p)
		}
	}
}

func TestQAbs(t *testing.T) {
	var tmp Scratch
	const heads, nope, v = 3, 5, 4
	for _, kvl := range []int{7, 64, 100} {
		for _, s := range specs(heads*(nope+v), kvl) {
			r := rand.New(rand.NewPCG(18, uint64(kvl)))
			m := encoded(r, s, "normal")
			qs := [][]float32{sample(r, nope, "normal"), sample(r, nope, "sparse"), sample(r, nope, "zeros")}
			for h := range heads {
				batch := [][]float32{make([]float32, kvl), make([]float32, kvl), make([]float32, kvl)}
				QAbsBatch(batch, qs, m, h*(nope+v), &tmp)
				for i, q := range qs {
					want := make([]float32, kvl)
					w := make([]float32, kvl)
					for k := range nope {
						Dequant(m, h*(nope+v)+k, w)
						for c := range want {
							want[c] = FMA(q[k], w[c], want[c])
						}
					}
					dst := sample(r, kvl, "normal")
					QAbs(dst, q, m, h*(nope+v), &tmp)
					equalBits(t, s.String(), dst, want)
					equalBits(t, s.String(), batch[i], want)
				}
			}
		}
	}
}

func TestIndexScore(t *testing.T) {
	r := rand.New(rand.NewPCG(19, 0))
	for _, c := range []struct{ heads, hd, n int }{{1, 1, 3}, {4, 32, 50}, {32, 128, 20}, {3, 17, 9}} {
		q, w, k := sample(r, c.heads*c.hd, "normal"), sample(r, c.heads, "normal"), sample(r, c.n*c.hd, "normal")
		want, dst := make([]float32, c.n), make([]float32, c.n)
		for t := range want {
			for h := range c.heads {
				s := naiveDot(q[h*c.hd:][:c.hd], k[t*c.hd:][:c.hd])
				s *= 0.125
				want[t] = FMA(w[h], max(s, 0), want[t])
			}
		}
		IndexScore(dst, q, w, k, 0.125)
		equalBits(t, "IndexScore", dst, want)
	}
}

// G7: of equal scores the lowest index wins.
func TestG7TopKTakesTheLowestOfEqualScores(t *testing.T) {
	r := rand.New(rand.NewPCG(20, 0))
	buf := make([]int32, 0, 4096)
	for _, n := range []int{1, 2, 8, 160, 4096} {
		for trial := range 30 {
			s := sample(r, n, kinds[trial%len(kinds)])
			switch trial % 3 {
			case 1:
				for i := range s {
					s[i] = float32(r.IntN(4) - 2)
				}
			case 2:
				s[r.IntN(n)] = float32(math.Inf(-1))
				s[r.IntN(n)] = float32(math.Inf(1))
			}
			k := r.IntN(n + 2)
			order := make([]int, n)
			for i := range order {
				order[i] = i
			}
			sort.SliceStable(order, func(i, j int) bool { return s[order[i]] > s[order[j]] })
			order = order[:min(k, n)]
			slices.Sort(order)
			got := TopK(buf, s, k)
			if len(got) != len(order) {
				t.Fatalf("TopK(n=%d, k=%d) has %d", n, k, len(got))
			}
			for i := range got {
				if int(got[i]) != order[i] {
					t.Fatalf("TopK(n=%d, k=%d)[%d] = %d, want %d", n, k, i, got[i], order[i])
				}
			}
		}
	}
	nan := float32(math.NaN())
	if got := TopK(buf, []float32{nan, 1, -nan, float32(math.Inf(-1)), 2}, 3); !slices.Equal(got, []int32{1, 3, 4}) {
		t.Errorf("with NaN: %v", got)
	}
}

func TestRoute(t *testing.T) {
	var tmp Scratch
	r := rand.New(rand.NewPCG(21, 0))
	for _, c := range []struct {
		n, groups, keep, k int
		normalize, biased  bool
	}{{4, 1, 1, 2, true, true}, {64, 8, 3, 6, true, true}, {256, 1, 1, 8, true, true}, {64, 1, 1, 8, false, false}, {8, 8, 4, 3, true, false}} {
		for range 20 {
			logits := sample(r, c.n, "normal")
			var bias []float32
			if c.biased {
				bias = sample(r, c.n, "sparse")
			}
			for i := range logits {
				logits[i] = float32(math.Round(float64(logits[i]) * 2)) // ties
			}
			choice := make([]float32, c.n)
			for i := range choice {
				choice[i] = Sigmoid(logits[i])
				if c.biased {
					choice[i] += bias[i]
				}
			}
			size := c.n / c.groups
			type ranked struct {
				score float32
				i     int
			}
			best := func(list []ranked, k int) []int {
				sort.SliceStable(list, func(a, b int) bool { return list[a].score > list[b].score })
				var out []int
				for _, e := range list[:k] {
					out = append(out, e.i)
				}
				slices.Sort(out)
				return out
			}
			var groups []ranked
			for g := range c.groups {
				m := slices.Sorted(slices.Values(choice[g*size:][:size]))
				score := m[size-1]
				if size > 1 {
					score += m[size-2]
				}
				groups = append(groups, ranked{score, g})
			}
			var experts []ranked
			for _, g := range best(groups, c.keep) {
				for i := g * size; i < (g+1)*size; i++ {
					experts = append(experts, ranked{choice[i], i})
				}
			}
			want := best(experts, c.k)
			weights := make([]float32, c.k)
			var total float32
			for i, e := range want {
				weights[i] = Sigmoid(logits[e])
				total += weights[i]
			}
			for i := range weights {
				if c.normalize {
					weights[i] /= total + 1e-20
				}
				weights[i] *= 2.5
			}
			ids, w := make([]int32, c.k), make([]float32, c.k)
			Route(logits, bias, false, c.groups, c.keep, c.k, c.normalize, 2.5, ids, w, &tmp)
			for i := range ids {
				if int(ids[i]) != want[i] {
					t.Fatalf("%+v: experts %v, want %v", c, ids, want)
				}
			}
			equalBits(t, "weights", w, weights)
		}
	}
}

// Even a router that has underflowed shares nothing out of noise.
func TestRouteWithVanishingProbabilities(t *testing.T) {
	ids, w := make([]int32, 2), make([]float32, 2)
	Route([]float32{-100, -100, -100}, nil, false, 1, 1, 2, true, 1, ids, w, new(Scratch))
	sig := 1 / float32(math.MaxFloat32)
	equalBits(t, "weights", w, []float32{sig / (sig + sig + 1e-20), sig / (sig + sig + 1e-20)})
	if !slices.Equal(ids, []int32{0, 1}) {
		t.Errorf("ids %v", ids)
	}
}

func TestNothingAllocatesWithUsedScratch(t *testing.T) {
	var tmp Scratch
	var a [4]Activation
	r := rand.New(rand.NewPCG(22, 0))
	const n = 512
	x := sample(r, n, "normal")
	xs := [][]float32{x, x, x, x}
	ys := make([][]float32, 4)
	for i := range ys {
		ys[i] = make([]float32, 16)
	}
	cache := sample(r, 300*n, "normal")
	p, dst, ids, w := sample(r, 300, "normal"), make([]float32, n), make([]int32, 8), make([]float32, 8)
	matrices := make([]quantize.Matrix, 0, 20)
	for _, s := range specs(16, n) {
		matrices = append(matrices, encoded(r, s, "normal"))
	}
	if got := testing.AllocsPerRun(10, func() {
		for _, m := range matrices {
			for i := range a {
				a[i].Quantize(x, max(8, ActivationBits(m.Format)))
			}
			MatVec(m, 0, 16, xs, a[:], ys, &tmp)
			QAbs(dst, x[:8], m, 2, &tmp)
			QAbsBatch(ys[:0], xs[:0], m, 0, &tmp)
		}
		Score(p, x[:500], x[500:], cache, n, nil, 1)
		Softmax(p)
		Latent(dst, p, cache, n, nil, &tmp)
		IndexScore(p, x, x[:4], cache, 1)
		Route(x[:64], nil, false, 8, 4, 8, true, 1, ids, w, &tmp)
		RMSNorm(dst, x, x, 1e-6)
		SiLUMul(dst, x, x)
	}); got != 0 {
		t.Errorf("%g allocations", got)
	}
}
