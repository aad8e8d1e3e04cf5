//go:build amd64 && !noasm

package kernel

import (
	"unsafe"

	"hawkmoth/format"
	"hawkmoth/quantize"
)

// panelRows is the rows of a panel, a lane each.
const panelRows = 16

// panel is the argument of the kernels for many vectors, which spread sixteen
// rows once for all of them. The assembly knows the offsets.
type panel struct {
	w        [panelRows]unsafe.Pointer // codes of each row
	tail     [panelRows]unsafe.Pointer // of the padded quad
	quads    int                       // without the padded one
	hasTail  int
	next     uintptr        // what to prefetch
	tiles    unsafe.Pointer // [blocks][16][16]uint32: the spread codes
	act      [4]unsafe.Pointer
	allQuads int
	scales   unsafe.Pointer // [blocks][16]float32, if the format has groups
	out      unsafe.Pointer // [4][16]float32: vector, row
	rowScale [panelRows]float32
	buf      unsafe.Pointer // [4][16][64]byte, working memory
}

var (
	_ [288]byte = [unsafe.Offsetof(panel{}.act)]byte{}
	_ [344]byte = [unsafe.Offsetof(panel{}.rowScale)]byte{}
	_ [408]byte = [unsafe.Offsetof(panel{}.buf)]byte{}
)

// panelScratch is the working memory for panels.
type panelScratch struct {
	amx   amxScratch
	panel panel
	tiles []byte
	bytes []byte
}

// panelKernel spreads a panel and multiplies it with four vectors; that pays
// from so many vectors on.
type panelKernel struct {
	spread, multiply func(*byte)
	from             int
}

// panelRowsSIMD is intRowsSIMD for many vectors.
func panelRowsSIMD(m quantize.Matrix, lo, hi int, act []Activation, y [][]float32, first int, tmp *Scratch) bool {
	if amxRows(m, lo, hi, act, y, first, tmp) {
		return true
	}
	k := panels[min(active, avx512)][m.Format]
	if k.spread == nil || len(act) < k.from || m.Format == format.Int4Grouped && m.Group%Block != 0 {
		return false
	}
	l := &layouts[m.Format]
	group := l.group
	if group < 0 {
		group = m.Group
	}
	blocks := (m.Cols + Block - 1) / Block
	s := &tmp.simd
	p := &s.panel
	rowBytes, scales, quadBytes := m.RowBytes(), m.ScaleCols(), quad*l.blockBytes
	p.quads = m.Cols / (quad * Block)
	p.allQuads = (blocks + quad - 1) / quad
	p.hasTail = p.allQuads - p.quads
	s.tiles, s.out = grow(s.tiles, p.allQuads*quad*panelRows*Block), grow(s.out, 4*panelRows)
	p.tiles, p.out = unsafe.Pointer(unsafe.SliceData(s.tiles)), unsafe.Pointer(unsafe.SliceData(s.out))
	s.bytes = grow(s.bytes, 4*panelRows*64)
	p.buf = unsafe.Pointer(unsafe.SliceData(s.bytes))
	if p.hasTail > 0 {
		s.tail = grow(s.tail, panelRows*quadBytes)
		for r := range p.tail {
			p.tail[r] = unsafe.Pointer(&s.tail[r*quadBytes])
		}
	}
	if group > 0 {
		s.groups = grow(s.groups, p.allQuads*quad*panelRows)
		clear(s.groups[blocks*panelRows:])
		p.scales = unsafe.Pointer(unsafe.SliceData(s.groups))
	}
	for o := lo; o < hi; o += panelRows {
		n := min(panelRows, hi-o)
		for r := range panelRows {
			row := o + min(r, n-1)
			codes := m.W[row*rowBytes:][:rowBytes]
			p.w[r] = unsafe.Pointer(unsafe.SliceData(codes))
			p.rowScale[r] = 1
			if group == 0 {
				p.rowScale[r] = m.S[row]
			} else {
				spreadScales(s.groups[r:], m.S[row*scales:][:scales], blocks, group/Block)
			}
			if p.hasTail > 0 {
				d := s.tail[r*quadBytes:][:quadBytes]
				clear(d[copy(d, codes[p.quads*quadBytes:]):])
			}
		}
		p.next = uintptr(p.w[0]) + uintptr(panelRows*rowBytes)
		k.spread((*byte)(unsafe.Pointer(p)))
		for i := 0; i < len(act); i += len(p.act) {
			vectors := min(len(p.act), len(act)-i)
			for j := range p.act {
				p.act[j] = unsafe.Pointer(&act[i+min(j, vectors-1)])
			}
			k.multiply((*byte)(unsafe.Pointer(p)))
			for j, ys := range y[i : i+vectors] {
				copy(ys[o-first:][:n], s.out[j*panelRows:])
			}
		}
	}
	return true
}

// spreadScales writes a row's scale of every block to every sixteenth of dst.
func spreadScales(dst, s []float32, blocks, each int) {
	g, left := 0, each
	for b := range blocks {
		dst[b*panelRows] = s[g]
		if left--; left == 0 {
			g, left = g+1, each
		}
	}
}
