package kernel

// Softplus is ln(1 + eˣ) = max(x, 0) + ln(1 + t) with t = Exp(−|x|), where
// ln(1 + t) = 2·artanh(s), s = t/(2 + t) ≤ 1/3, by its series up to s¹⁵.
func Softplus(x float32) float32 {
	a, top := x, x
	if x < 0 {
		a, top = -x, 0
	}
	t := Exp(-a)
	s := t / (2 + t)
	z := float32(s * s)
	p := softplusPoly[0]
	for _, c := range softplusPoly[1:] {
		p = FMA(p, z, c)
	}
	return top + float32(float32(2*s)*p)
}

var softplusPoly = [8]float32{1.0 / 15, 1.0 / 13, 1.0 / 11, 1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3, 1}

// CausalConv sets y_c = SiLU(Σ_j w[c·taps+j]·rows[j][c]): the sum over the taps
// rows of n = len(y) floats each, the oldest first, fused, from +0.
func CausalConv(y, w, rows []float32, taps int) {
	n := len(y)
	for c := range y {
		var acc float32
		for j := range taps {
			acc = FMA(w[c*taps+j], rows[j*n+c], acc)
		}
		y[c] = SiLU(acc)
	}
}

// L2Norm sets x_i = (x_i·r)·gain with r = 1/sqrt(Dot(x,x) + 1e-6).
func L2Norm(x []float32, gain float32) {
	r := 1 / sqrt(Dot(x, x)+1e-6)
	for i, v := range x {
		x[i] = float32(v*r) * gain
	}
}

// Decay is the share of a state that a token leaves, Exp(−Exp(aLog)·Softplus(a + bias)).
func Decay(a, aLog, bias float32) float32 {
	return Exp(-float32(Exp(aLog) * Softplus(a+bias)))
}

// DeltaRule is a step of the gated delta rule (arXiv:2412.06464) of one head
// with a state [len(k), len(v)]: all of it is multiplied by decay; what it has
// for k, m = Σ k_i·state_i, is corrected towards v by adding k_i·((v − m)·beta)
// to every row; y = Σ q_i·state_i. Sums go over increasing i, fused, from +0.
// v is overwritten.
func DeltaRule(y, state, q, k, v []float32, decay, beta float32, tmp *Scratch) {
	n := len(v)
	for i := range state {
		state[i] *= decay
	}
	tmp.row = grow(tmp.row, n)
	clear(tmp.row)
	for i, x := range k {
		AddScaled(tmp.row, x, state[i*n:][:n])
	}
	for j, m := range tmp.row {
		v[j] = float32(v[j]-m) * beta
	}
	clear(y)
	for i, x := range k {
		AddScaled(state[i*n:][:n], x, v)
		AddScaled(y, q[i], state[i*n:][:n])
	}
}
