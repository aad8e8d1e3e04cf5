package kernel

import (
	"math"

	"hawkmoth/quantize"
)

// Chunk is the number of positions, counted from position 0 of the cache,
// whose share of a context is summed before it joins the others.
const Chunk = 256

// QAbs absorbs the rows of kv_b that make keys into a query:
// dst[kvl] = Σ_r q[r] · Wk[rowStart+r], r increasing, fused, from +0; a weight
// is decoded to float32 first. len(q) rows of m are read; m.Cols = len(dst).
func QAbs(dst, q []float32, m quantize.Matrix, rowStart int, tmp *Scratch) {
	tmp.row = grow(tmp.row, m.Cols)
	clear(dst)
	for r, x := range q {
		Dequant(m, rowStart+r, tmp.row)
		AddScaled(dst, x, tmp.row)
	}
}

// QAbsBatch is QAbs for several queries of one head: dst[s][kvl] from q[s].
// Each row of m is decoded once.
func QAbsBatch(dst, q [][]float32, m quantize.Matrix, rowStart int, tmp *Scratch) {
	tmp.row = grow(tmp.row, m.Cols)
	for _, d := range dst {
		clear(d)
	}
	if len(q) == 0 {
		return
	}
	for r := range q[0] {
		Dequant(m, rowStart+r, tmp.row)
		for s, d := range dst {
			AddScaled(d, q[s][r], tmp.row)
		}
	}
}

// Score sets dst[i] = Dot(qabs‖qrope, row)·scale, where row is that of position
// positions[i] in the cache, or of position i if positions is nil. A cache row
// holds the latent [len(qabs)] and then the rotated key [len(qrope)]; rows are
// stride floats apart. The stripes run over the concatenated vector.
func Score(dst, qabs, qrope, cache []float32, stride int, positions []int32, scale float32) {
	for i := range dst {
		t := i
		if positions != nil {
			t = int(positions[i])
		}
		row := cache[t*stride:][:len(qabs)+len(qrope)]
		var acc [16]float32
		stripes(&acc, qabs, row, 0)
		stripes(&acc, qrope, row[len(qabs):], len(qabs))
		dst[i] = tree(&acc) * scale
	}
}

// Softmax replaces the scores p by e_i/Z with e_i = Exp(p_i − max) and Z the
// sum of the e in the sixteen stripes of Dot. A stripe is chosen by the place
// in p, also where p holds the scores of selected positions.
func Softmax(p []float32) {
	top := float32(math.Inf(-1))
	for _, s := range p {
		if s > top {
			top = s
		}
	}
	for i, s := range p {
		p[i] = Exp(s - top)
	}
	z := sum(p)
	for i, e := range p {
		p[i] = e / z
	}
}

// Latent is the context of a query: dst[len] = Σ p_i · cache row, the first
// len(dst) floats of each. The positions are those of Score, in increasing
// order. Within a chunk of positions the sum is fused and sequential from +0;
// the chunks are added to +0 in increasing order, so that an empty chunk makes
// no difference.
func Latent(dst, p, cache []float32, stride int, positions []int32, tmp *Scratch) {
	tmp.chunk = grow(tmp.chunk, len(dst))
	acc := tmp.chunk
	clear(dst)
	clear(acc)
	chunk := 0
	for i, w := range p {
		t := i
		if positions != nil {
			t = int(positions[i])
		}
		if t/Chunk != chunk {
			Add(dst, acc)
			clear(acc)
			chunk = t / Chunk
		}
		AddScaled(acc, w, cache[t*stride:][:len(dst)])
	}
	Add(dst, acc)
}

// IndexScore is the score of the DSA indexer (arXiv:2512.02556, eq. 1) of one
// query for the positions 0 … len(dst)−1: with the head dimension hd =
// len(q)/len(w), keys [len(dst), hd] and s_h = Dot(q_h, k_t)·scale (one
// rounding), dst[t] = Σ_h w_h·max(s_h, 0), h increasing, fused, from +0.
func IndexScore(dst, q, w, keys []float32, scale float32) {
	if len(w) == 0 {
		clear(dst)
		return
	}
	hd := len(q) / len(w)
	for t := range dst {
		k := keys[t*hd:][:hd]
		var acc float32
		for h, wh := range w {
			s := Dot(q[h*hd:][:hd], k) * scale
			if s <= 0 { // a NaN stays
				s = 0
			}
			acc = FMA(wh, s, acc)
		}
		dst[t] = acc
	}
}
