package kernel

import "math"

// Angles says how a position becomes angles of rotation. It is comparable, so
// that layers with the same one share a table.
type Angles struct {
	Theta   float64
	Scaling Scaling // how the frequencies are stretched to a longer context
	Factor  float64 // by which the context is longer
	// Between Low and High turns (or, for Llama3, cycles in the original context)
	// the stretching fades out; Original is that context's positions.
	Low, High, Original float64
	Truncate            bool    // YaRN: the fading begins and ends at whole frequencies
	Gain                float64 // multiplies cosines and sines; 0 means 1
}

// Scaling is a way to stretch the frequencies.
type Scaling uint8

// The ways: none, YaRN (arXiv:2309.00071), that of Llama 3.1.
const (
	Unscaled Scaling = iota
	YaRN
	Llama3
)

// frequencies are the angles of position 1, dim/2 of them, in the float32 steps
// of transformers.
func (a Angles) frequencies(dim int) []float32 {
	freq := make([]float32, dim/2)
	low, high := a.fade(dim)
	for i := range freq {
		period := float32(fractionalPower(a.Theta, float32(2*i)/float32(dim)))
		freq[i] = 1 / period
		switch a.Scaling {
		case YaRN:
			ramp := min(max((float32(i)-low)/(high-low), 0), 1)
			keep := 1 - ramp
			stretched := 1 / float32(float32(a.Factor)*period)
			freq[i] = float32(stretched*(1-keep)) + float32(freq[i]*keep)
		case Llama3:
			freq[i] = a.llama3(freq[i])
		}
	}
	return freq
}

// fade is the range of frequencies in which YaRN goes from none to all.
func (a Angles) fade(dim int) (from, to float32) {
	if a.Scaling != YaRN {
		return 0, 1
	}
	at := func(turns float64) float64 { // the frequency that turns so often in the original context
		return float64(dim) * naturalLog(a.Original/float64(turns*2*math.Pi)) / (2 * naturalLog(a.Theta))
	}
	low, high := at(a.High), at(a.Low)
	if a.Truncate {
		low, high = math.Floor(low), math.Ceil(high)
	}
	low, high = max(low, 0), min(high, float64(dim-1))
	if low == high {
		high += 0.001
	}
	return float32(low), float32(high)
}

func (a Angles) llama3(f float32) float32 {
	wave := float32(2*math.Pi) / f
	low, high := float32(a.Low), float32(a.High)
	switch {
	case wave > float32(a.Original/a.Low):
		return f / float32(a.Factor)
	case wave < float32(a.Original/a.High):
		return f
	}
	smooth := (float32(a.Original)/wave - low) / (high - low)
	return float32((1-smooth)*f)/float32(a.Factor) + float32(smooth*f)
}

// MScale is YaRN's 0.1·m·ln(factor) + 1, and 1 for a context that is not longer.
func MScale(factor, m float64) float64 {
	if factor <= 1 {
		return 1
	}
	return float64(0.1*m*naturalLog(factor)) + 1
}

// naturalLog is ln x for a finite x > 0 by operations that every machine rounds
// alike: x = m·2ᵉ with m near 1, and ln m = 2·artanh((m−1)/(m+1)).
func naturalLog(x float64) float64 {
	m, e := math.Frexp(x)
	if m < math.Sqrt2/2 {
		m, e = 2*m, e-1
	}
	s := (m - 1) / (m + 1)
	z := float64(s * s)
	sum := 0.0
	for k := 25.0; k > 0; k -= 2 {
		sum = 1/k + float64(z*sum)
	}
	return float64(float64(e)*math.Ln2) + float64(2*s*sum)
}
