//go:build amd64 && !noasm

package kernel

import (
	"unsafe"

	"hawkmoth/format"
	"hawkmoth/quantize"
)

// amxPanel is the argument of the tile kernels: rows of a matrix, and
// activations packed for them. The assembly knows the offsets.
type amxPanel struct {
	w         [amxPanelRows]unsafe.Pointer // codes of each row
	tail      [amxPanelRows]unsafe.Pointer // of the padded quad
	s         [amxPanelRows]unsafe.Pointer // scales of each row, one a block, if the format has groups
	rowScale  [amxPanelRows]float32
	quads     int // without the padded one
	hasTail   int
	allQuads  int
	next      uintptr        // what to prefetch
	tiles     unsafe.Pointer // [blocks][32][64]int8: the rows' codes
	packed    unsafe.Pointer // [pairs][blocks][2][16][16][4]int8: the activations
	scales    uintptr        // [pairs][blocks][vectors of a pair]float32: their scales; the assembly moves it
	vectors   int            // at least one
	out       uintptr        // [vectors] pointers to results; it moves too
	at        int            // bytes from there to the panel's
	mask      int            // bits of the rows that are written
	sums      unsafe.Pointer // [2][2][16][16]int32, working memory
	acc       unsafe.Pointer // [4][32][32]float32, working memory
	act       [panelRows]unsafe.Pointer
	dst       unsafe.Pointer // where act's codes are packed to
	allBlocks int
}

const amxPanelRows = 32

var (
	_ [768]byte  = [unsafe.Offsetof(amxPanel{}.rowScale)]byte{}
	_ [896]byte  = [unsafe.Offsetof(amxPanel{}.quads)]byte{}
	_ [952]byte  = [unsafe.Offsetof(amxPanel{}.vectors)]byte{}
	_ [984]byte  = [unsafe.Offsetof(amxPanel{}.sums)]byte{}
	_ [1000]byte = [unsafe.Offsetof(amxPanel{}.act)]byte{}
	_ [1136]byte = [unsafe.Offsetof(amxPanel{}.allBlocks)]byte{}
)

// amxScratch is the working memory for tiles.
type amxScratch struct {
	panel  amxPanel
	tiles  []byte
	packed []byte
	sums   []byte
	scales []float32 // of the activations
	groups []float32 // of the rows
	acc    []float32
	out    []unsafe.Pointer
}

// blockTile is the bytes of a tile; two lie beside each other.
const blockTile = panelRows * Block

// amxKernel is a format's row of kernels.
type amxKernel struct {
	spread, pack, multiply func(*byte)
	from                   int // the number of vectors from which on it pays
}

var amxKernels = map[format.ID]amxKernel{
	format.Int8Row:     {amxSpreadInt8, amxPackWide, amxMultiplyWide, 10},
	format.Int4Row:     {amxSpreadInt4, amxPackNarrow, amxMultiplyRow, 16},
	format.Int4Grouped: {amxSpreadInt4, amxPackNarrow, amxMultiplyGrouped, 16},
	format.Int3G64:     {amxSpreadInt3, amxPackNarrow, amxMultiplyGrouped, 16},
	format.Int2Row:     {amxSpreadInt2, amxPackNarrow, amxMultiplyRow, 16},
}

// amxRows is intRowsSIMD for many vectors on the matrix unit.
func amxRows(m quantize.Matrix, lo, hi int, act []Activation, y [][]float32, first int, tmp *Scratch) bool {
	k, ok := amxKernels[m.Format]
	if active != amx || !ok || len(act) < k.from || m.Cols == 0 || m.Format == format.Int4Grouped && m.Group%Block != 0 {
		return false
	}
	l := &layouts[m.Format]
	group := l.group
	if group < 0 {
		group = m.Group
	}
	blocks := (m.Cols + Block - 1) / Block
	s := &tmp.simd.amx
	p := &s.panel
	rowBytes, scales, quadBytes := m.RowBytes(), m.ScaleCols(), quad*l.blockBytes
	p.quads = m.Cols / (quad * Block)
	p.allQuads = (blocks + quad - 1) / quad
	p.hasTail = p.allQuads - p.quads
	p.allBlocks = p.allQuads * quad
	s.sums, s.acc = grow(s.sums, 4*4*panelRows*panelRows), grow(s.acc, 4*amxPanelRows*amxPanelRows)
	p.sums, p.acc = unsafe.Pointer(unsafe.SliceData(s.sums)), unsafe.Pointer(unsafe.SliceData(s.acc))
	s.pack(k, act, l.bits > 8)
	s.tiles = grow(s.tiles, p.allBlocks*2*blockTile)
	p.tiles = unsafe.Pointer(unsafe.SliceData(s.tiles))
	if p.hasTail > 0 {
		tmp.simd.tail = grow(tmp.simd.tail, amxPanelRows*quadBytes)
		for r := range p.tail {
			p.tail[r] = unsafe.Pointer(&tmp.simd.tail[r*quadBytes])
		}
	}
	each, padded := group/Block, p.allBlocks
	copied := group > 0 && (each > 1 || p.hasTail > 0) // no scale for every block in memory
	if copied {
		s.groups = grow(s.groups, padded*amxPanelRows)
		clear(s.groups)
	}
	s.out = grow(s.out, len(act))
	for i, ys := range y[:len(act)] {
		s.out[i] = unsafe.Pointer(unsafe.SliceData(ys[:hi-first]))
	}
	for o := lo; o < hi; o += amxPanelRows {
		n := min(amxPanelRows, hi-o)
		for r := range amxPanelRows {
			row := o + min(r, n-1)
			codes, sc := m.W[row*rowBytes:][:rowBytes], m.S[row*scales:][:scales]
			p.w[r] = unsafe.Pointer(unsafe.SliceData(codes))
			p.rowScale[r] = 1
			switch {
			case group == 0:
				p.rowScale[r] = sc[0]
			case copied:
				d := s.groups[r*padded:][:padded]
				for b := range blocks {
					d[b] = sc[b/each]
				}
				p.s[r] = unsafe.Pointer(unsafe.SliceData(d))
			default:
				p.s[r] = unsafe.Pointer(unsafe.SliceData(sc))
			}
			if p.hasTail > 0 {
				d := tmp.simd.tail[r*quadBytes:][:quadBytes]
				clear(d[copy(d, codes[p.quads*quadBytes:]):])
			}
		}
		p.next = uintptr(p.w[0]) + uintptr(amxPanelRows*rowBytes)
		k.spread((*byte)(unsafe.Pointer(p)))
		p.packed, p.scales = unsafe.Pointer(unsafe.SliceData(s.packed)), address(s.scales)
		p.vectors, p.out = len(act), address(s.out)
		p.at, p.mask = 4*(o-first), 1<<n-1
		k.multiply((*byte)(unsafe.Pointer(p)))
	}
	return true
}

// pack makes tiles of the activations and lays their scales beside each other:
// two sixteens in the two tiles of a block, or the high and low parts of one.
// What stands for missing vectors does not show.
func (s *amxScratch) pack(k amxKernel, act []Activation, wide bool) {
	p := &s.panel
	blocks, pair := p.allBlocks, 2*panelRows
	if wide {
		pair = panelRows
	}
	pairs := (len(act) + pair - 1) / pair
	s.packed = grow(s.packed, pairs*blocks*2*blockTile)
	s.scales = grow(s.scales, pairs*blocks*pair)
	for first := 0; first < pairs*pair; first += panelRows {
		scales := s.scales[first/pair*blocks*pair+first%pair:]
		for j := range panelRows {
			a := &act[min(first+j, len(act)-1)]
			p.act[j] = unsafe.Pointer(unsafe.SliceData(a.codes))
			for b, x := range a.Scale {
				scales[b*pair+j] = x
			}
			for b := len(a.Scale); b < blocks; b++ {
				scales[b*pair+j] = 0
			}
		}
		p.dst = unsafe.Pointer(&s.packed[(first/pair*blocks*2+first%pair/panelRows)*blockTile])
		k.pack((*byte)(unsafe.Pointer(p)))
	}
}
