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
	if halfway(s) {
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

// halfway says whether rounding the float64 sum s of an exact product and a
// float32 to float32 could be wrong.
func halfway(s float64) bool {
	u := math.Float64bits(s)
	return u<<35 == 1<<63 || u<<1 < 897<<53
}

// fma4 is acc_j = FMA(a_j, b_j, acc_j) for four j.
func fma4(acc, a, b *[4]float32) {
	s0 := float64(a[0])*float64(b[0]) + float64(acc[0])
	s1 := float64(a[1])*float64(b[1]) + float64(acc[1])
	s2 := float64(a[2])*float64(b[2]) + float64(acc[2])
	s3 := float64(a[3])*float64(b[3]) + float64(acc[3])
	if halfway(s0) || halfway(s1) || halfway(s2) || halfway(s3) {
		for j := range acc {
			acc[j] = fmaTie(a[j], b[j], acc[j])
		}
		return
	}
	acc[0], acc[1], acc[2], acc[3] = float32(s0), float32(s1), float32(s2), float32(s3)
}

// stripes adds a_i*b_i to the sixteen sums of acc; element i belongs to stripe
// (first+i) mod 16.
func stripes(acc *[16]float32, a, b []float32, first int) {
	b = b[:len(a)]
	n := 0
	if first%16 == 0 {
		n = len(a) &^ 15
		eight((*[8]float32)(acc[:8]), a[:n], b[:n], 0)
		eight((*[8]float32)(acc[8:]), a[:n], b[:n], 8)
	}
	for i := n; i < len(a); i++ {
		j := (first + i) & 15
		acc[j] = FMA(a[i], b[i], acc[j])
	}
}

// eight does the stripes from ..from+8 of whole runs of sixteen. The sums stay
// in registers as float64 between their roundings to float32.
func eight(acc *[8]float32, a, b []float32, from int) {
	s0, s1, s2, s3 := float64(acc[0]), float64(acc[1]), float64(acc[2]), float64(acc[3])
	s4, s5, s6, s7 := float64(acc[4]), float64(acc[5]), float64(acc[6]), float64(acc[7])
	for i := from; i+8 <= len(a); i += 16 {
		x, y := (*[8]float32)(a[i:]), (*[8]float32)(b[i:])
		t0 := float64(x[0])*float64(y[0]) + s0
		if halfway(t0) {
			t0 = float64(fmaTie(x[0], y[0], float32(s0)))
		}
		t1 := float64(x[1])*float64(y[1]) + s1
		if halfway(t1) {
			t1 = float64(fmaTie(x[1], y[1], float32(s1)))
		}
		t2 := float64(x[2])*float64(y[2]) + s2
		if halfway(t2) {
			t2 = float64(fmaTie(x[2], y[2], float32(s2)))
		}
		t3 := float64(x[3])*float64(y[3]) + s3
		if halfway(t3) {
			t3 = float64(fmaTie(x[3], y[3], float32(s3)))
		}
		t4 := float64(x[4])*float64(y[4]) + s4
		if halfway(t4) {
			t4 = float64(fmaTie(x[4], y[4], float32(s4)))
		}
		t5 := float64(x[5])*float64(y[5]) + s5
		if halfway(t5) {
			t5 = float64(fmaTie(x[5], y[5], float32(s5)))
		}
		t6 := float64(x[6])*float64(y[6]) + s6
		if halfway(t6) {
			t6 = float64(fmaTie(x[6], y[6], float32(s6)))
		}
		t7 := float64(x[7])*float64(y[7]) + s7
		if halfway(t7) {
			t7 = float64(fmaTie(x[7], y[7], float32(s7)))
		}
		s0, s1, s2, s3 = float64(float32(t0)), float64(float32(t1)), float64(float32(t2)), float64(float32(t3))
		s4, s5, s6, s7 = float64(float32(t4)), float64(float32(t5)), float64(float32(t6)), float64(float32(t7))
	}
	*acc = [8]float32{float32(s0), float32(s1), float32(s2), float32(s3), float32(s4), float32(s5), float32(s6), float32(s7)}
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
	if d, ok := dotSIMD(a, b); ok {
		return d
	}
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
