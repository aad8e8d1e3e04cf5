package runtime

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"

	"hawkmoth/format"
)

// SamplerOptions says how the next token is chosen. The zero value is greedy.
type SamplerOptions struct {
	Temp          float64 // 0 takes the largest logit
	TopK          int     // keep the k largest logits; 0 keeps all
	TopP          float64 // keep the fewest tokens whose probabilities reach p; 0 and 1 keep all
	MinP          float64 // keep tokens at least p times as likely as the best; 0 keeps all
	RepeatPenalty float64 // divides positive and multiplies negative logits of recent tokens; 0 and 1 do nothing
	RepeatLast    int     // how many tokens are recent: 0 is 64, below 0 is all
	Seed          uint64
}

// Sampler chooses tokens: penalty, top-k, top-p, min-p and temperature, in that
// order and with llama.cpp's meanings. The same options, logits and number of
// calls give the same token on every platform. It is for one goroutine.
type Sampler struct {
	SamplerOptions
	random *rand.PCG

	penalized []float64       // logits after the penalty
	choices   []samplerChoice // memory of kept
	kept      []samplerChoice
	recent    map[int32]bool
}

// samplerChoice is a token, its logit and later its weight.
type samplerChoice struct {
	id     int32
	logit  float64
	weight float64
}

const defaultRepeatLast = 64 // as llama.cpp

// NewSampler refuses values without meaning, all at once (format.ErrUsage).
func NewSampler(opt SamplerOptions) (*Sampler, error) {
	var bad format.Problems
	check := func(name string, v, lo, hi float64) {
		if !(v >= lo && v <= hi) {
			bad = append(bad, &format.Error{Kind: format.ErrUsage, What: name,
				Found: strconv.FormatFloat(v, 'g', -1, 64), Wanted: fmt.Sprintf("%g to %g", lo, hi)})
		}
	}
	check("temperature", opt.Temp, 0, 1000)
	check("top-k", float64(opt.TopK), 0, math.MaxInt32)
	check("top-p", opt.TopP, 0, 1)
	check("min-p", opt.MinP, 0, 1)
	check("repeat penalty", opt.RepeatPenalty, 0, 1000)
	if err := bad.Err(); err != nil {
		return nil, err
	}
	return &Sampler{SamplerOptions: opt, random: rand.NewPCG(opt.Seed, 0), recent: map[int32]bool{}}, nil
}

// Sample chooses the next token from logits [V], given the tokens so far.
// Equal logits rank by id, lowest first. A logit that is not finite is an error
// (format.ErrCorrupt) that names its id and value.
func (s *Sampler) Sample(logits []float32, history []int32) (int32, error) {
	if len(logits) == 0 {
		return 0, &format.Error{Kind: format.ErrCorrupt, What: "no logits to choose from"}
	}
	s.penalized = slices.Grow(s.penalized[:0], len(logits))[:len(logits)]
	for id, v := range logits {
		if f := float64(v); f-f == 0 {
			s.penalized[id] = f
			continue
		}
		return 0, nonFiniteLogit(logits, id)
	}
	s.penalize(history)
	best := 0
	for id, v := range s.penalized {
		if v > s.penalized[best] {
			best = id
		}
	}
	if s.Temp == 0 {
		return int32(best), nil
	}
	s.keep(s.penalized[best])
	return s.draw(s.penalized[best]), nil
}

func nonFiniteLogit(logits []float32, first int) error {
	count := 0
	for _, v := range logits {
		if f := float64(v); f-f != 0 {
			count++
		}
	}
	return &format.Error{Kind: format.ErrCorrupt, What: fmt.Sprintf("%d of %d logits are not finite", count, len(logits)),
		Found: fmt.Sprintf("%v at id %d", logits[first], first)}
}

func (s *Sampler) penalize(history []int32) {
	if s.RepeatPenalty == 0 || s.RepeatPenalty == 1 {
		return
	}
	last := s.RepeatLast
	if last == 0 {
		last = defaultRepeatLast
	}
	if last > 0 && len(history) > last {
		history = history[len(history)-last:]
	}
	clear(s.recent)
	for _, id := range history {
		if id < 0 || int(id) >= len(s.penalized) || s.recent[id] {
			continue
		}
		s.recent[id] = true
		if v := &s.penalized[id]; *v > 0 {
			*v /= s.RepeatPenalty
		} else {
			*v *= s.RepeatPenalty
		}
	}
}

// keep fills s.kept with the tokens that pass top-k, top-p and min-p: best
// first if one of the first two is on, else by id.
func (s *Sampler) keep(top float64) {
	s.choices = s.choices[:0]
	for id, v := range s.penalized {
		s.choices = append(s.choices, samplerChoice{id: int32(id), logit: v})
	}
	s.kept = s.choices
	if s.TopK > 0 && s.TopK < len(s.kept) {
		s.rank(s.TopK, func(samplerChoice) bool { return false })
	}
	if s.TopP > 0 && s.TopP < 1 {
		total := 0.0
		for i := range s.kept {
			c := &s.kept[i]
			c.weight = expNegative(c.logit - top)
			total += c.weight
		}
		sum, enough := 0.0, float64(s.TopP*total)
		s.rank(len(s.kept), func(c samplerChoice) bool {
			sum += c.weight
			return sum >= enough
		})
	}
	if s.MinP > 0 {
		s.kept = slices.DeleteFunc(s.kept, func(c samplerChoice) bool { return expNegative(c.logit-top) < s.MinP })
	}
}

// rank leaves in s.kept its n best, best first, or fewer if last says that one
// is the last. A heap, because few are wanted of many.
func (s *Sampler) rank(n int, last func(samplerChoice) bool) {
	heap := s.kept
	down := func(i int) {
		for child := 2*i + 1; child < len(heap); child = 2*i + 1 {
			if child+1 < len(heap) && compareChoices(heap[child+1], heap[child]) < 0 {
				child++
			}
			if compareChoices(heap[i], heap[child]) < 0 {
				return
			}
			heap[i], heap[child] = heap[child], heap[i]
			i = child
		}
	}
	for i := len(heap)/2 - 1; i >= 0; i-- {
		down(i)
	}
	for len(heap) > 0 && len(s.kept)-len(heap) < n {
		end := len(heap) - 1
		heap[0], heap[end] = heap[end], heap[0]
		heap = heap[:end]
		down(0)
		if last(s.kept[end]) {
			break
		}
	}
	s.kept = s.kept[len(heap):]
	slices.Reverse(s.kept)
}

// compareChoices puts larger logits first, of equal ones the lower id.
func compareChoices(a, b samplerChoice) int {
	if c := cmp.Compare(b.logit, a.logit); c != 0 {
		return c
	}
	return cmp.Compare(a.id, b.id)
}

// draw takes one of the kept tokens by its probability at the temperature.
func (s *Sampler) draw(top float64) int32 {
	total := 0.0
	for i := range s.kept {
		c := &s.kept[i]
		c.weight = expNegative((c.logit - top) / s.Temp)
		total += c.weight
	}
	// 53 random bits; a product rounded by itself, so that no platform fuses it.
	point := float64(float64(s.random.Uint64()>>11) * 0x1p-53 * total)
	sum := 0.0
	for _, c := range s.kept {
		if sum += c.weight; sum > point {
			return c.id
		}
	}
	// Rounding can leave the point at the very end: the last of any weight.
	for i := len(s.kept) - 1; i > 0; i-- {
		if s.kept[i].weight > 0 {
			return s.kept[i].id
		}
	}
	return s.kept[0].id
}

// expNegative is e^x for x ≤ 0 within 2 ulp, with one bit pattern everywhere:
// math.Exp is assembly on some platforms, and compilers fuse x*y+z on some.
func expNegative(x float64) float64 {
	const (
		log2e = 0x1.71547652b82fep+0
		ln2Hi = 0x1.62e42fee00000p-1 // few enough bits that k*ln2Hi is exact
		ln2Lo = 0x1.a39ef35793c76p-33
	)
	if x < -745.2 {
		return 0
	}
	k := math.Floor(float64(x*log2e) + 0.5)
	r := x - float64(k*ln2Hi)
	r -= float64(k * ln2Lo)
	sum := expTaylor[0]
	for _, c := range expTaylor[1:] {
		sum = float64(sum*r) + c
	}
	return math.Ldexp(sum, int(k))
}

// expTaylor is 1/n! from n = 14 down to 0; |r| ≤ ln2/2 leaves an error under 2^-60.
var expTaylor = func() (c [15]float64) {
	f := 1.0
	for n := range c {
		if n > 0 {
			f *= float64(n)
		}
		c[len(c)-1-n] = 1 / f
	}
	return c
}()
