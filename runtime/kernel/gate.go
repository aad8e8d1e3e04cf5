package kernel

// Gating is how the gate and the up projection of an MLP join: silu(gate)·up,
// or with a Limit the clamped one of gpt-oss.
type Gating struct {
	// With g = min(gate, Limit) and u = up clamped to ±Limit it is
	// (u + 1)·(g·Sigmoid(Alpha·g)).
	Limit, Alpha float32
}

// Mul sets dst_i to the gated value; dst may be either operand.
func (g Gating) Mul(dst, gate, up []float32) {
	if g.Limit == 0 {
		SiLUMul(dst, gate, up)
		return
	}
	gate, up = gate[:len(dst)], up[:len(dst)]
	for i := range dst {
		x, u := gate[i], up[i]
		if x > g.Limit {
			x = g.Limit
		}
		if u > g.Limit {
			u = g.Limit
		} else if u < -g.Limit {
			u = -g.Limit
		}
		glu := float32(x * Sigmoid(float32(g.Alpha*x)))
		dst[i] = float32(u+1) * glu
	}
}

// SigmoidMul multiplies y_i by Sigmoid(x_i), or all by that of a single x.
func SigmoidMul(y, x []float32) {
	if len(x) == 1 {
		s := Sigmoid(x[0])
		for i := range y {
			y[i] *= s
		}
		return
	}
	for i, v := range x {
		y[i] *= Sigmoid(v)
	}
}
