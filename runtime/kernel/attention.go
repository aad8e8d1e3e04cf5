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
	tmp.one, tmp.two = [1][]float32{dst}, [1][]float32{q}
	if qabsSIMD(tmp.one[:], tmp.two[:], m, rowStart, tmp) {
		return
	}
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
	if qabsSIMD(dst, q, m, rowStart, tmp) {
		return
	}
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
	if scoreOneSIMD(dst, qabs, qrope, cache, stride, positions, scale) {
		return
	}
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

// ScoreBatch is Score for several queries that see the same positions: dst[s]
// from q[s], the latent and the rotated part joined. A row of the cache is read
// once for all of them.
func ScoreBatch(dst, q [][]float32, cache []float32, stride int, positions []int32, scale float32) {
	if scoreSIMD(dst, q, cache, stride, positions, scale) {
		return
	}
	for s, d := range dst {
		Score(d, q[s], nil, cache, stride, positions, scale)
	}
}

// Softmax replaces the scores p by e_i/Z with e_i = Exp(p_i − max) and Z the
// sum of the e in the sixteen stripes of Dot. A stripe is chosen by the place
// in p, also where p holds the scores of selected positions.
func Softmax(p []float32) { SoftmaxSink(p, noSink) }

// noSink is a score that changes no softmax.
var noSink = float32(math.Inf(-1))

// SoftmaxSink is Softmax with one more score, which takes part in the maximum
// and, after the tree, in Z alone.
func SoftmaxSink(p []float32, sink float32) {
	if softmaxSIMD(p, sink) {
		return
	}
	top := sink
	for _, s := range p {
		if s > top {
			top = s
		}
	}
	for i, s := range p {
		p[i] = Exp(s - top)
	}
	z := sum(p) + Exp(sink-top)
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
	tmp.one, tmp.two = [1][]float32{dst}, [1][]float32{p}
	if latentSIMD(tmp.one[:], tmp.two[:], cache, stride, positions, tmp) {
		return
	}
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

// LatentBatch is Latent for several queries that see the same positions: dst[s]
// from p[s]. A tile of the cache is read once for all of them.
func LatentBatch(dst, p [][]float32, cache []float32, stride int, positions []int32, tmp *Scratch) {
	if latentSIMD(dst, p, cache, stride, positions, tmp) {
		return
	}
	for s, d := range dst {
		Latent(d, p[s], cache, stride, positions, tmp)
	}
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
	if indexSIMD(dst, q, w, keys, hd, scale) {
		return
	}
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
