// Package kernel is the arithmetic of every backend, written once in plain Go:
// block-quantised matrix products, float32 dot products in sixteen stripes,
// attention over latents, exp, norms, rotary embeddings and routing.
//
// It is the definition. An assembly or GPU version of a function is right when
// it returns the same bits. Nothing here allocates when it is given scratch
// that has been used before, and nothing starts a goroutine: callers split
// rows, heads and queries, none of which changes a bit.
//
// A product that feeds a sum is always written FMA or float32(a*b), because
// the compiler fuses x*y + z by itself on some machines.
package kernel

import "math"

// FMA is a*b + c with one rounding to float32, round half to even, on every
// machine.
//
// The product of two float32 is exact in float64, so s is off by one rounding.
// Rounding s again is wrong only where s lies halfway between two float32,
// which is one bit pattern of its low bits for a normal result.
func FMA(a, b, c float32) float32 {
	s := float64(a)*float64(b) + float64(c)
	if u := math.Float64bits(s); u<<35 == 1<<63 || u<<1 < 897<<53 {
		return fmaTie(a, b, c)
	}
	return float32(s)
}

// fmaTie is FMA for every operand: it rounds the sum to odd, which a second
// rounding to a shorter format cannot spoil.
//
//go:noinline
func fmaTie(a, b, c float32) float32 {
	p := float64(float64(a) * float64(b))
	z := float64(c)
	s := p + z
	t := s - p
	err := (p - (s - t)) + (z - t)
	if u := math.Float64bits(s); err < 0 || err > 0 { // false for a NaN, which infinities give
		if u&1 == 0 {
			if (err > 0) == (s > 0) {
				u++
			} else {
				u--
			}
			s = math.Float64frombits(u)
		}
	}
	return float32(s)
}

// stripes adds a_i*b_i to the sixteen sums of acc; element i belongs to stripe
// (first+i) mod 16.
func stripes(acc *[16]float32, a, b []float32, first int) {
	b = b[:len(a)]
	for i, x := range a {
		j := (first + i) & 15
		acc[j] = FMA(x, b[i], acc[j])
	}
}

// tree sums the sixteen stripes: halves are added to halves.
func tree(acc *[16]float32) float32 {
	for n := 8; n > 0; n /= 2 {
		for j := range n {
			acc[j] += acc[j+n]
		}
	}
	return acc[0]
}

// Dot is the dot product of a and b[:len(a)]: stripe j of sixteen takes the
// elements i = j mod 16 in increasing order with FMA from +0, then the stripes
// are added in a halving tree.
func Dot(a, b []float32) float32 {
	var acc [16]float32
	stripes(&acc, a, b, 0)
	return tree(&acc)
}

// sum is Dot with ones.
func sum(a []float32) float32 {
	var acc [16]float32
	for i, x := range a {
		acc[i&15] += x
	}
	return tree(&acc)
}
