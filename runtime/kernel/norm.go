package kernel

// RMSNorm sets y_i = (x_i·r)·w_i with r = 1/sqrt(Dot(x,x)/n + eps); y may be x.
func RMSNorm(y, x, w []float32, eps float32) {
	y, w = y[:len(x)], w[:len(x)]
	r := 1 / sqrt(Dot(x, x)/float32(len(x))+eps)
	if scaleBySIMD(y, x, w, r) {
		return
	}
	for i, v := range x {
		y[i] = float32(v*r) * w[i]
	}
}

// LayerNorm sets y_i = fma(c_i·r, w_i, b_i), where c is x less its mean (the
// sixteen-stripe sum divided by n) and r = 1/sqrt(Dot(c,c)/n + eps); y may be x.
func LayerNorm(y, x, w, b []float32, eps float32) {
	y, w, b = y[:len(x)], w[:len(x)], b[:len(x)]
	n := float32(len(x))
	mean := sum(x) / n
	for i, v := range x {
		y[i] = v - mean
	}
	r := 1 / sqrt(Dot(y, y)/n+eps)
	for i, c := range y {
		y[i] = FMA(float32(c*r), w[i], b[i])
	}
}
