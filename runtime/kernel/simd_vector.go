//go:build (amd64 || arm64) && !noasm

package kernel

import (
	"math"
	"unsafe"

	"hawkmoth/format"
	"hawkmoth/quantize"
)

// The functions here have the names and the meaning of those without SIMD; they
// report false where the active level leaves the work to the Go code.

func first[T any](s []T) *T { return unsafe.SliceData(s) }

func dotSIMD(a, b []float32) (float32, bool) {
	if active == plain || !floatTails && len(a)%16 != 0 {
		return 0, false
	}
	b = b[:len(a)]
	var t floatTile
	var out [16]float32
	x := [1][]float32{b}
	t.setColumns(len(a), 16)
	for r := range t.w {
		t.w[r] = unsafe.Pointer(first(a))
	}
	t.x, t.out = unsafe.Pointer(&x[0]), unsafe.Pointer(&out[0])
	t.ask = uintptr(t.w[0])
	f32Tile(&t, 1)
	return out[0], true
}

// scoreAhead is how many rows lie between those in work and those that are asked
// for, one while four vectors are multiplied: all at once would wait.
const scoreAhead = 8

// scoreSIMD sets dst[s][i] to the product of x[s] and the row of position i,
// times scale.
func scoreSIMD(dst, x [][]float32, cache []float32, stride int, positions []int32, scale float32) bool {
	if active == plain {
		return false
	}
	if len(x) == 0 {
		return true
	}
	if !floatTails && len(x[0])%16 != 0 {
		return false
	}
	var t floatTile
	var out [16]float32
	n, width := len(dst[0]), len(x[0])
	t.setColumns(width, 16)
	t.out = unsafe.Pointer(&out[0])
	base := address(cache)
	for i := 0; i < n; i += 4 {
		rows := min(4, n-i)
		for r := range t.w {
			p := i + min(r, rows-1)
			if positions != nil {
				p = int(positions[p])
			}
			t.w[r] = unsafe.Pointer(first(cache[p*stride:][:width]))
		}
		row := 0 // of the four to ask for
		for s := 0; s < len(x); {
			k := dotVectors(len(x) - s)
			t.x, t.ask = unsafe.Pointer(&x[s]), uintptr(t.w[0])
			if at := i + scoreAhead + row; row < 4 && at < n && s >= row*len(x)/4 {
				t.ask = base + uintptr(at*4*stride)
				if positions != nil {
					t.ask = base + uintptr(int(positions[at])*4*stride)
				}
				row++
			}
			f32Tile(&t, k)
			for j, d := range dst[s : s+k] {
				d = d[i:][:rows]
				for r := range d {
					d[r] = out[4*j+r] * scale
				}
			}
			s += k
		}
	}
	return true
}

// scoreWidth is the widest query that Score joins on the stack.
const scoreWidth = 1024

func scoreOneSIMD(dst, qabs, qrope, cache []float32, stride int, positions []int32, scale float32) bool {
	n := len(qabs) + len(qrope)
	if active == plain || n > scoreWidth {
		return false
	}
	var joined [scoreWidth]float32
	copy(joined[copy(joined[:], qabs):], qrope)
	return scoreSIMD([][]float32{dst}, [][]float32{joined[:n]}, cache, stride, positions, scale)
}

func addScaledSIMD(out []float32, w float32, y []float32) bool {
	if active == plain || len(out) == 0 {
		return false
	}
	if !floatTails && len(out)%4 != 0 {
		return false
	}
	y = y[:len(out)]
	accumulateVec(out, []float32{w}, first(y), 0, nil)
	return true
}

// accumulateSIMD adds w_i times the row of position i to acc, in order.
func accumulateSIMD(acc, w, cache []float32, stride int, positions []int32) {
	if len(w) == 0 || len(acc) == 0 {
		return
	}
	if positions == nil {
		_ = cache[(len(w)-1)*stride:][:len(acc)]
		accumulateVec(acc, w, first(cache), 4*stride, nil)
		return
	}
	for _, p := range positions[:len(w)] {
		_ = cache[int(p)*stride:][:len(acc)]
	}
	accumulateVec(acc, w, first(cache), 4*stride, first(positions))
}

// fourSums is the argument of accumulateFour. The assembly knows the offsets.
type fourSums struct {
	acc    [4]unsafe.Pointer // some columns of the sums
	w      [4]unsafe.Pointer // [n]float32 each
	rows   unsafe.Pointer    // the same columns of the first row
	stride int               // bytes between rows
	n      int
	picks  *int32                         // [n], or nil for the first n rows
	ask    [latentTile / askLines]uintptr // what to prefetch: askLines lines each
}

// askLines is a power of two, the assembly knows it.
const askLines = 32

var _ [96]byte = [unsafe.Offsetof(fourSums{}.ask)]byte{}

// nextRows are n rows that will be needed, the given ones or those from first on.
type nextRows struct {
	picks    []int32
	first, n int
}

func (r nextRows) at(i int) int {
	if r.picks != nil {
		return int(r.picks[i])
	}
	return r.first + i
}

// sumRows adds the rows times w[s][from:to] to sums[s], four sums at a time if
// the columns allow: those of a tile stay in the first-level cache for all.
// Meanwhile it asks for the next rows.
func sumRows(sums, w [][]float32, from, to int, rows []float32, stride int, picks []int32, next nextRows) {
	width, fours := len(sums[0]), 0
	if width%sumColumns == 0 {
		fours = len(sums) &^ 3
	}
	for s := fours; s < len(sums); s++ {
		accumulateSIMD(sums[s], w[s][from:to], rows, stride, picks)
	}
	if fours == 0 || from == to {
		return
	}
	if picks == nil {
		_ = rows[(to-from-1)*stride:][:width]
	}
	for _, pick := range picks {
		_ = rows[int(pick)*stride:][:width]
	}
	t := fourSums{stride: 4 * stride, n: to - from, picks: first(picks)}
	const columns = sumColumns
	base, asked, calls := address(rows), 0, width/columns*fours/4
	for c := 0; c < width; c += columns {
		t.rows = unsafe.Pointer(&rows[c])
		for s := 0; s < fours; s += 4 {
			call := c/columns*fours/4 + s/4 + 1
			for k := range t.ask {
				if t.ask[k] = base; asked < min(next.n*call/calls, next.n) {
					t.ask[k] += uintptr(4 * stride * next.at(asked))
					asked++
				}
			}
			for q := range t.acc {
				t.acc[q] = unsafe.Pointer(&sums[s+q][c:][:columns][0])
				t.w[q] = unsafe.Pointer(&w[s+q][from:to][0])
			}
			accumulateFour((*byte)(unsafe.Pointer(&t)), columns)
		}
	}
}

// latentTile is how many positions all queries take before the next ones.
const latentTile = 64

func latentSIMD(dst, p [][]float32, cache []float32, stride int, positions []int32, tmp *Scratch) bool {
	if active == plain {
		return false
	}
	if len(dst) == 0 {
		return true
	}
	width, n := len(dst[0]), len(p[0])
	if !floatTails && width%4 != 0 {
		return false
	}
	tmp.chunk = grow(tmp.chunk, len(dst)*width)
	clear(tmp.chunk)
	tmp.views = grow(tmp.views, len(dst))
	for s, d := range dst {
		clear(d)
		tmp.views[s] = tmp.chunk[s*width:][:width]
	}
	at := func(i int) int {
		if positions != nil {
			return int(positions[i])
		}
		return i
	}
	for i := 0; i < n; {
		chunk := at(i) / Chunk
		end := i
		for end < n && end < i+latentTile && at(end)/Chunk == chunk {
			end++
		}
		rows, picks, next := cache, []int32(nil), nextRows{n: min(latentTile, n-end)}
		if positions == nil {
			rows, next.first = cache[i*stride:], end-i
		} else {
			picks, next.picks = positions[i:end], positions[end:]
		}
		sumRows(tmp.views, p, i, end, rows, stride, picks, next)
		if end == n || at(end)/Chunk != chunk {
			for s, d := range dst {
				Add(d, tmp.views[s])
			}
			clear(tmp.chunk)
		}
		i = end
	}
	return true
}

func addSIMD(out, y []float32) bool {
	if active == plain {
		return false
	}
	addVec(out, y[:len(out)])
	return true
}

func scaleBySIMD(y, x, w []float32, r float32) bool {
	if active == plain {
		return false
	}
	scaleByVec(y, x, w, r)
	return true
}

func siluMulSIMD(dst, gate, up []float32) bool {
	if active == plain {
		return false
	}
	siluMulVec(dst, gate, up)
	return true
}

func softmaxSIMD(p []float32, sink float32) bool {
	if active == plain {
		return false
	}
	var tops, sums [16]float32
	greatestVec(p, &tops)
	top := sink
	for _, s := range tops {
		if s > top {
			top = s
		}
	}
	expSumVec(p, top, &sums)
	divideVec(p, tree(&sums)+Exp(sink-top))
	return true
}

func quantizeSIMD(a *Activation, x []float32, bits int) bool {
	if active == plain {
		return false
	}
	whole := len(x) / Block
	limit := float32(int(1)<<(bits-1) - 1)
	var last [Block]float32
	rest := x[whole*Block:]
	copy(last[:], rest)
	if whole > 0 {
		quantizeVec(first(x), whole, limit, first(a.Q), first(a.Scale))
	}
	if len(rest) > 0 {
		quantizeVec(&last[0], 1, limit, &a.Q[whole*Block], &a.Scale[whole])
	}
	clear(a.Q[len(x):])
	blocks := (len(a.Scale) + quad - 1) / quad * quad
	n := blocks * Block
	a.codes, a.sums = grow(a.codes, n*((bits+7)/8)), grow(a.sums, 3*blocks)
	switch {
	case blocks == 0:
	case bits == 8:
		packVec(first(a.Q), blocks/2, first(a.codes), first(a.sums))
	default:
		packWideVec(first(a.Q), blocks, first(a.codes), &a.codes[n], first(a.sums))
	}
	return true
}

// indexSIMD is IndexScore with room for four dot products of every head.
func indexSIMD(dst, q, w, keys []float32, hd int, scale float32) bool {
	const most = 128
	if active == plain || len(w) > most || !floatTails && hd%16 != 0 {
		return false
	}
	var t floatTile
	var dots [4*most + 12]float32
	var heads [most][]float32
	for h := range w {
		heads[h] = q[h*hd:][:hd]
	}
	t.setColumns(hd, 16)
	for i := 0; i < len(dst); i += 4 {
		rows := min(4, len(dst)-i)
		for r := range t.w {
			t.w[r] = unsafe.Pointer(first(keys[(i+min(r, rows-1))*hd:][:hd]))
		}
		for h := 0; h < len(w); {
			k := dotVectors(len(w) - h)
			t.x, t.out = unsafe.Pointer(&heads[h]), unsafe.Pointer(&dots[4*h])
			t.ask = uintptr(t.w[0]) + uintptr(4*hd*(scoreAhead+h/4%4))
			f32Tile(&t, k)
			h += k
		}
		var sums [4]float32
		indexSumVec(&dots[0], first(w), len(w), scale, &sums[0])
		copy(dst[i:][:rows], sums[:])
	}
	return true
}

// dequantSIMD decodes n rows for the formats that kv_b and embeddings mostly
// have.
func dequantSIMD(m quantize.Matrix, row, n int, dst []float32) bool {
	if active == plain {
		return false
	}
	decode := decodeBlocks
	switch m.Format {
	case format.Int8Row, format.Int4Row:
	case format.Int4Grouped:
		if m.Group%Block != 0 {
			return false
		}
	case format.BF16, format.F16, format.FP8:
		if !floatTails {
			return false // the Go decoder does
		}
		decode = decodeFloats
	default:
		return false
	}
	rowBytes, scales := m.RowBytes(), m.ScaleCols()
	for i := range n {
		r := row + i
		scaleRow := r
		if m.Format == format.FP8 {
			scaleRow = r / fp8Block
		}
		decode(m, dst[i*m.Cols:][:m.Cols], m.W[r*rowBytes:][:rowBytes], m.S[scaleRow*scales:][:scales])
	}
	return true
}

// decodeBlocks decodes a row of int8 or int4 codes.
func decodeBlocks(m quantize.Matrix, dst []float32, codes []byte, s []float32) {
	blocks := func(dst *float32, codes *byte, n, at int) {
		switch m.Format {
		case format.Int8Row:
			decodeInt8Vec(dst, codes, n, &s[0])
		case format.Int4Row:
			decodeInt4Vec(dst, codes, n, &s[0], math.MaxInt)
		default:
			decodeInt4Vec(dst, codes, n, &s[at*Block/m.Group], m.Group/Block)
		}
	}
	whole := m.Cols / Block
	if whole > 0 {
		blocks(first(dst), first(codes), whole, 0)
	}
	if m.Cols%Block != 0 {
		var last [Block]float32
		var tail [Block]byte
		copy(tail[:], codes[whole*layouts[m.Format].blockBytes:])
		blocks(&last[0], &tail[0], 1, whole)
		copy(dst[whole*Block:], last[:])
	}
}

// fp8Block is the rows and columns that share a scale of FP8.
const fp8Block = 128

// decodeFloats decodes a row of narrow floats.
func decodeFloats(m quantize.Matrix, dst []float32, codes []byte, s []float32) {
	size, run := len(codes)/max(1, m.Cols), m.Cols
	if m.Format == format.FP8 {
		run = fp8Block
	}
	for at := 0; at < m.Cols; at += run {
		n := min(run, m.Cols-at)
		scale := &zero
		if len(s) > 0 {
			scale = &s[at/run]
		}
		if n >= 16 {
			widenVec(m.Format, &dst[at], &codes[at*size], n/16, scale)
		}
		if n%16 != 0 {
			var last [16]float32
			var tail [32]byte
			copy(tail[:], codes[(at+n&^15)*size:(at+n)*size])
			widenVec(m.Format, &last[0], &tail[0], 1, scale)
			copy(dst[at+n&^15:at+n], last[:])
		}
	}
}

var zero float32

// qabsRows is how many decoded rows wait for the queries.
const qabsRows = 32

func qabsSIMD(dst, q [][]float32, m quantize.Matrix, rowStart int, tmp *Scratch) bool {
	if active == plain {
		return false
	}
	if len(q) < absorbQueries && absorbRows(dst, q, m, rowStart) {
		return true
	}
	for _, d := range dst {
		clear(d)
	}
	if len(q) == 0 || m.Cols == 0 {
		return true
	}
	if !floatTails && m.Cols%4 != 0 {
		return false
	}
	tmp.row = grow(tmp.row, qabsRows*m.Cols)
	for r := 0; r < len(q[0]); r += qabsRows {
		n := min(qabsRows, len(q[0])-r)
		if !dequantSIMD(m, rowStart+r, n, tmp.row) {
			for i := range n {
				Dequant(m, rowStart+r+i, tmp.row[i*m.Cols:][:m.Cols])
			}
		}
		sumRows(dst, q, r, r+n, tmp.row, m.Cols, nil, nextRows{})
	}
	return true
}

// kthSIMD is the k-th largest of the scores, 0 < k < len(scores), found by
// halving the interval of its order key; false if it is a NaN.
func kthSIMD(scores []float32, k int) (float32, bool) {
	low, high := orderKey(float32(math.Inf(-1))), orderKey(float32(math.Inf(1)))+1
	if active == plain || !haveCount || countVec(scores, keyFloat(low)) < k {
		return 0, false
	}
	for high-low > 1 {
		if middle := low + (high-low)/2; countVec(scores, keyFloat(middle)) >= k {
			low = middle
		} else {
			high = middle
		}
	}
	return keyFloat(low), true
}

// keyFloat is the number of an order key.
func keyFloat(key uint32) float32 {
	if key>>31 == 0 {
		return math.Float32frombits(^key)
	}
	return math.Float32frombits(key &^ (1 << 31))
}
