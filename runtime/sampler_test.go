package runtime

import (
	"encoding/binary"
	"errors"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"hawkmoth/format"
)

func newTestSampler(t testing.TB, opt SamplerOptions) *Sampler {
	t.Helper()
	s, err := NewSampler(opt)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func sampleOne(t testing.TB, s *Sampler, logits []float32, history ...int32) int32 {
	t.Helper()
	id, err := s.Sample(logits, history)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// drawn is the set of ids that n draws give.
func drawn(t *testing.T, opt SamplerOptions, logits []float32, n int) []int32 {
	t.Helper()
	s := newTestSampler(t, opt)
	var ids []int32
	for range n {
		if id := sampleOne(t, s, logits); !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

func TestG7TiesGoToTheLowestID(t *testing.T) {
	logits := []float32{0, 1, -2, 1, 1}
	for _, c := range []struct {
		name string
		opt  SamplerOptions
		want []int32
	}{
		{"greedy", SamplerOptions{}, []int32{1}},
		{"greedy with top-k", SamplerOptions{TopK: 2}, []int32{1}},
		{"top-k of one", SamplerOptions{Temp: 1, TopK: 1}, []int32{1}},
		{"top-k through the tie", SamplerOptions{Temp: 1, TopK: 2}, []int32{1, 3}},
		{"top-p of almost nothing", SamplerOptions{Temp: 1, TopP: 1e-9}, []int32{1}},
		{"top-p through the tie", SamplerOptions{Temp: 1, TopP: 0.4}, []int32{1, 3}},
		{"min-p of one", SamplerOptions{Temp: 1, MinP: 1}, []int32{1, 3, 4}},
	} {
		if got := drawn(t, c.opt, logits, 200); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	if got := sampleOne(t, newTestSampler(t, SamplerOptions{}), []float32{float32(math.Copysign(0, -1)), 0}); got != 0 {
		t.Errorf("-0 and 0 are no tie: %d", got)
	}
}

func TestB20NonFiniteLogitsStop(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, c := range []struct {
		logits []float32
		says   []string
	}{
		{[]float32{0, nan, 1}, []string{"NaN at id 1", "1 of 3"}},
		{[]float32{0, 1, inf}, []string{"+Inf at id 2"}},
		{[]float32{-inf, 1, nan}, []string{"-Inf at id 0", "2 of 3"}},
		{nil, []string{"no logits"}},
	} {
		for _, opt := range []SamplerOptions{{}, {Temp: 1}, {Temp: 1, TopK: 1, TopP: 0.5, MinP: 0.1, RepeatPenalty: 1.1}} {
			_, err := newTestSampler(t, opt).Sample(c.logits, []int32{0, 1, 2})
			if !errors.Is(err, format.ErrCorrupt) {
				t.Errorf("%v with %+v: %v", c.logits, opt, err)
				continue
			}
			for _, s := range c.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%v: %q lacks %q", c.logits, err, s)
				}
			}
		}
	}
	// The largest finite values are no error.
	big := []float32{-math.MaxFloat32, math.MaxFloat32, 0}
	if got := drawn(t, SamplerOptions{Temp: 0.01, RepeatPenalty: 1000}, big, 20); !slices.Equal(got, []int32{1}) {
		t.Errorf("extreme logits: %v", got)
	}
}

func TestSamplerOptionsAreChecked(t *testing.T) {
	_, err := NewSampler(SamplerOptions{Temp: -1, TopK: -1, TopP: 1.1, MinP: math.NaN(), RepeatPenalty: math.Inf(1)})
	var all format.Problems
	if !errors.As(err, &all) || len(all) != 5 || !errors.Is(err, format.ErrUsage) {
		t.Errorf("%d problems, want 5:\n%v", len(all), err)
	}
}

// TestSamplerDistribution draws at fixed seeds and compares frequencies with
// the exact probabilities: χ² under its 99.9 % point.
func TestSamplerDistribution(t *testing.T) {
	p := []float64{0.4, 0.05, 0.3, 0.15, 0.1}
	logits := make([]float32, len(p))
	for i := range p {
		logits[i] = float32(math.Log(p[i])) + 3
	}
	powered := func(e float64, keep ...int) []float64 {
		out, sum := make([]float64, len(p)), 0.0
		for _, i := range keep {
			out[i] = math.Pow(p[i], e)
			sum += out[i]
		}
		for i := range out {
			out[i] /= sum
		}
		return out
	}
	critical := map[int]float64{0: 1e-9, 1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47}
	for _, c := range []struct {
		name string
		opt  SamplerOptions
		want []float64
	}{
		{"plain", SamplerOptions{Temp: 1}, powered(1, 0, 1, 2, 3, 4)},
		{"cold", SamplerOptions{Temp: 0.5}, powered(2, 0, 1, 2, 3, 4)},
		{"hot", SamplerOptions{Temp: 2}, powered(0.5, 0, 1, 2, 3, 4)},
		{"top-k", SamplerOptions{Temp: 1, TopK: 3}, powered(1, 0, 2, 3)},
		{"top-p", SamplerOptions{Temp: 1, TopP: 0.8}, powered(1, 0, 2, 3)},
		{"top-p is before the temperature", SamplerOptions{Temp: 5, TopP: 0.8}, powered(0.2, 0, 2, 3)},
		{"top-p is of what top-k left", SamplerOptions{Temp: 1, TopK: 3, TopP: 0.8}, powered(1, 0, 2)},
		{"min-p", SamplerOptions{Temp: 1, MinP: 0.3}, powered(1, 0, 2, 3)},
		{"min-p is before the temperature", SamplerOptions{Temp: 5, MinP: 0.3}, powered(0.2, 0, 2, 3)},
		{"all", SamplerOptions{Temp: 0.7, TopK: 4, TopP: 0.95, MinP: 0.2}, powered(1/0.7, 0, 2, 3, 4)},
		{"off", SamplerOptions{Temp: 1, TopK: 5, TopP: 1, RepeatPenalty: 1}, powered(1, 0, 1, 2, 3, 4)},
	} {
		for seed := range uint64(3) {
			const n = 20000
			c.opt.Seed = seed
			s := newTestSampler(t, c.opt)
			count := make([]float64, len(p))
			for range n {
				count[sampleOne(t, s, logits)]++
			}
			chi, free := 0.0, -1
			for i, w := range c.want {
				if w == 0 {
					if count[i] > 0 {
						t.Errorf("%s seed %d: token %d was drawn", c.name, seed, i)
					}
					continue
				}
				free++
				chi += (count[i] - n*w) * (count[i] - n*w) / (n * w)
			}
			if chi > critical[free] {
				t.Errorf("%s seed %d: χ² %.2f over %.2f: %v, want %v of %d", c.name, seed, chi, critical[free], count, c.want, n)
			}
		}
	}
}

func TestRepeatPenalty(t *testing.T) {
	long := make([]int32, 100) // of token 0
	long[20] = 1
	for _, c := range []struct {
		name    string
		opt     SamplerOptions
		logits  []float32
		history []int32
		want    int32
	}{
		{"divides a positive logit", SamplerOptions{RepeatPenalty: 2}, []float32{3, 2, 0}, []int32{0}, 1},
		{"multiplies a negative logit", SamplerOptions{RepeatPenalty: 2}, []float32{-1.5, -2, -4}, []int32{0}, 1},
		{"once for a token seen twice", SamplerOptions{RepeatPenalty: 2}, []float32{5, 2, 0}, []int32{0, 0}, 0},
		{"off at 1", SamplerOptions{RepeatPenalty: 1}, []float32{3, 2, 0}, []int32{0}, 0},
		{"off at 0", SamplerOptions{}, []float32{3, 2, 0}, []int32{0}, 0},
		{"below 1 rewards", SamplerOptions{RepeatPenalty: 0.5}, []float32{3, 2, 0}, []int32{1}, 1},
		{"only the last 64", SamplerOptions{RepeatPenalty: 2}, []float32{0, 3, 2}, long, 1},
		{"only as many as asked", SamplerOptions{RepeatPenalty: 2, RepeatLast: 1}, []float32{3, 2.9, 0}, []int32{0, 1}, 0},
		{"all", SamplerOptions{RepeatPenalty: 2, RepeatLast: -1}, []float32{0, 3, 2}, long, 2},
		{"ids outside are left alone", SamplerOptions{RepeatPenalty: 2}, []float32{3, 2, 0}, []int32{-1, 3, 1 << 30}, 0},
	} {
		if got := sampleOne(t, newTestSampler(t, c.opt), c.logits, c.history...); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
	logits := []float32{3, 2, 0}
	sampleOne(t, newTestSampler(t, SamplerOptions{RepeatPenalty: 2}), logits, 0, 1, 2)
	if !slices.Equal(logits, []float32{3, 2, 0}) {
		t.Errorf("the caller's logits became %v", logits)
	}
}

// goldenLogits needs no mathematical function, so that it is the same everywhere.
func goldenLogits(n int) []float32 {
	logits := make([]float32, n)
	for i := range logits {
		logits[i] = float32(i*7919%1009)/64 - 8
	}
	return logits
}

// TestSamplerGoldens: the same tokens on every platform and in every version.
func TestSamplerGoldens(t *testing.T) {
	logits := goldenLogits(1000)
	for _, c := range []struct {
		opt  SamplerOptions
		want []int32
	}{
		{SamplerOptions{Temp: 1, Seed: 1}, []int32{588, 86, 719, 27, 706, 554, 805, 587, 310, 126, 508, 66}},
		{SamplerOptions{Temp: 0.8, TopK: 40, TopP: 0.95, MinP: 0.05, Seed: 1}, []int32{165, 277, 963, 765, 198, 653, 996, 409, 831, 33, 132, 277}},
		{SamplerOptions{Temp: 1.5, TopP: 0.9, Seed: 42}, []int32{891, 113, 343, 310, 132, 878, 535, 20, 561, 113, 429, 772}},
		{SamplerOptions{Temp: 2, MinP: 0.01, Seed: 42}, []int32{851, 958, 132, 86, 185, 963, 924, 363, 647, 958, 536, 607}},
		{SamplerOptions{Temp: 1, TopK: 100, RepeatPenalty: 1.3, Seed: 1<<64 - 1}, []int32{376, 937, 864, 640, 462, 917, 53, 963, 627, 40, 277, 825}},
		{SamplerOptions{RepeatPenalty: 1.3}, []int32{765, 521, 277, 33, 798, 554, 310, 66, 831, 587, 343, 99}},
	} {
		s := newTestSampler(t, c.opt)
		var got []int32
		for range 12 {
			got = append(got, sampleOne(t, s, logits, got...))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%+v:\n got  %v\n want %v", c.opt, got, c.want)
		}
	}
}

func TestExpNegative(t *testing.T) {
	check := func(x float64) {
		got, want := expNegative(x), math.Exp(x)
		if diff := math.Abs(got - want); diff > 2*math.Abs(math.Nextafter(want, 2)-want) {
			t.Errorf("e^%v: %v, want %v", x, got, want)
		}
	}
	random := rand.New(rand.NewPCG(7, 8))
	for range 100000 {
		check(-random.Float64() * 50)
		check(-random.Float64())
		check(-random.Float64() * 760)
	}
	for _, x := range []float64{0, -math.SmallestNonzeroFloat64, -1e-300, -math.Ln2, -708.4, -744.9, -745.3, -1e300, math.Inf(-1)} {
		check(x)
	}
	// One bit pattern on every platform.
	h := fnv.New64a()
	for i := range 100000 {
		_ = binary.Write(h, binary.LittleEndian, math.Float64bits(expNegative(-float64(i)/128)))
	}
	if got, want := h.Sum64(), uint64(0xe94f9a423f8d9745); got != want {
		t.Errorf("the values hash to %#x, want %#x", got, want)
	}
}

// TestRankEqualsSort also holds with many ties.
func TestRankEqualsSort(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 10))
	for range 500 {
		all := make([]samplerChoice, 1+random.IntN(40))
		for i := range all {
			all[i] = samplerChoice{id: int32(i), logit: float64(random.IntN(8))}
		}
		n := random.IntN(len(all) + 5)
		s := &Sampler{kept: slices.Clone(all)}
		s.rank(n, func(samplerChoice) bool { return false })
		slices.SortFunc(all, compareChoices)
		if want := all[:min(n, len(all))]; !slices.Equal(s.kept, want) {
			t.Fatalf("%d best: %v, want %v", n, s.kept, want)
		}
	}
}

func BenchmarkSample(b *testing.B) {
	random := rand.New(rand.NewPCG(1, 1))
	logits := make([]float32, 151936)
	for i := range logits {
		logits[i] = float32(random.NormFloat64() * 3)
	}
	for _, c := range []struct {
		name string
		opt  SamplerOptions
	}{
		{"greedy", SamplerOptions{}},
		{"all", SamplerOptions{Temp: 1}},
		{"top-k", SamplerOptions{Temp: 0.8, TopK: 40, TopP: 0.95, MinP: 0.05}},
		{"top-p", SamplerOptions{Temp: 0.8, TopP: 0.95}},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := newTestSampler(b, c.opt)
			b.ReportAllocs()
			for b.Loop() {
				sampleOne(b, s, logits)
			}
		})
	}
}
