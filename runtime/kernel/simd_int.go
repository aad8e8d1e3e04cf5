//go:build (amd64 || arm64) && !noasm

package kernel

import (
	goruntime "runtime"
	"unsafe"

	"hawkmoth/format"
	"hawkmoth/quantize"
)

// tile is the argument of the integer kernels: up to four rows of a matrix and
// any number of activations. The assembly knows the offsets. It moves w, s, out
// and rowScale from tile to tile, in the end behind what they point into: as
// pointers they could there mean another, freed object to the garbage collector.
type tile struct {
	w        [4]uintptr        // codes of each row
	tail     [4]unsafe.Pointer // the codes of the last, padded quad of each row
	s        [4]uintptr        // scales of each row, if it has groups
	tailS    [4]unsafe.Pointer // the padded quad's scales, one a block
	act      unsafe.Pointer    // *Activation of the first of n
	n        int
	quads    int // without the padded one
	hasTail  int
	next     uintptr        // what to prefetch: the rows to come
	nextS    uintptr        // and their scales
	acc      unsafe.Pointer // [n][16]float32, working memory
	out      uintptr        // [n][4]float32: a product a row
	scales   [4]float32     // room for rowScale
	half     int            // bytes from the activations' sums of blocks to those of first halves
	rowScale uintptr        // a scale for each row
	tiles    int            // to work on; what follows leads from one to the next
	stepW    int            // bytes of the rows' codes
	stepS    int            // of their scales, if they have groups
	stepR    int            // of rowScale
}

// What the assembly relies on.
var (
	_ [128]byte = [unsafe.Offsetof(tile{}.act)]byte{}
	_ [192]byte = [unsafe.Offsetof(tile{}.scales)]byte{}
	_ [208]byte = [unsafe.Offsetof(tile{}.half)]byte{}
	_ [248]byte = [unsafe.Offsetof(tile{}.stepR)]byte{}
	_ [16]byte  = [unsafe.Offsetof(Activation{}.Q)]byte{}
	_ [40]byte  = [unsafe.Offsetof(Activation{}.Scale)]byte{}
	_ [64]byte  = [unsafe.Offsetof(Activation{}.codes)]byte{}
	_ [88]byte  = [unsafe.Offsetof(Activation{}.sums)]byte{}
	_ [112]byte = [unsafe.Sizeof(Activation{})]byte{}
)

// simdScratch is the working memory of the assembly's callers.
type simdScratch struct {
	panelScratch
	tile   tile
	floats floatTile
	acc    []float32
	out    []float32
	acts   []Activation // arranged
	codes  []int8
	tail   []byte
	scales []float32
	groups []float32
}

// tileKernel is an integer kernel of the active level.
type tileKernel struct {
	run    func(*byte)
	rows   int         // at a time, up to four
	groups int         // columns that share a scale in memory, 0 for none
	pairs  func(*byte) // for an even number of vectors, where the level has it
	// arrange writes an activation's codes in the order that the kernel wants, if
	// that is another.
	arrange func(dst, codes *int8, quads int)
}

// multiply runs the kernel for all vectors of a tile.
func (k *tileKernel) multiply(t *tile, act []Activation, out []float32) {
	p := (*byte)(unsafe.Pointer(t))
	even := len(act) &^ 1
	if active != i8mm || k.pairs == nil || even == 0 {
		k.run(p)
		return
	}
	t.n = even
	k.pairs(p)
	if even < len(act) {
		t.n, t.act, t.out = 1, unsafe.Pointer(&act[even]), address(out[4*even:])
		k.run(p)
		t.act = unsafe.Pointer(&act[0])
	}
	t.n = len(act)
}

// tileFor is the kernel for a matrix; ok is false if only the Go code serves it.
// Scales of groups that no kernel reads as they lie are spread to one a block.
func tileFor(s format.Spec) (k tileKernel, ok bool) {
	table := tiles()
	if s.Format != format.Int4Grouped {
		k = table[tileKey{s.Format, 0}]
		return k, k.run != nil
	}
	if k = table[tileKey{s.Format, s.Group}]; k.run == nil && s.Group%Block == 0 {
		k = table[tileKey{s.Format, Block}]
	}
	return k, k.run != nil
}

type tileKey struct {
	format format.ID
	group  int // for Int4Grouped
}

// prefetch is the least distance in bytes from the weights in work to those
// that are asked for.
const prefetch = 4096

// ahead is how many bytes after a tile's rows to prefetch while it is worked
// on: whole tiles, so that what is asked for lies in the order of the memory.
func ahead(tileBytes int) uintptr {
	if tileBytes == 0 {
		return 0
	}
	return uintptr((prefetch + tileBytes - 1) / tileBytes * tileBytes)
}

// intRowsSIMD is matVec for the formats that the active level serves.
func intRowsSIMD(m quantize.Matrix, lo, hi int, act []Activation, y [][]float32, first int, tmp *Scratch) bool {
	k, ok := tileFor(m.Spec)
	if !ok || len(act) == 0 {
		return ok
	}
	l := &layouts[m.Format]
	blocks := (m.Cols + Block - 1) / Block
	for i := range act {
		if whole := (blocks + quad - 1) / quad; len(act[i].codes) != whole*quad*Block*((l.bits+7)/8) || len(act[i].Scale) != blocks {
			return false
		}
	}
	if panelRowsSIMD(m, lo, hi, act, y, first, tmp) {
		return true
	}
	group := l.group
	if group < 0 {
		group = m.Group
	}
	s := &tmp.simd
	t := &s.tile
	rowBytes, scales, quadBytes := m.RowBytes(), m.ScaleCols(), quad*l.blockBytes
	if k.arrange != nil && len(act[0].codes) > 0 {
		act = s.arrange(k, act)
	}
	t.act, t.n = unsafe.Pointer(unsafe.SliceData(act)), len(act)
	s.acc, s.out = grow(s.acc, 16*len(act)), grow(s.out, 4*len(act)*maxTiles)
	t.acc = unsafe.Pointer(unsafe.SliceData(s.acc))
	t.quads = m.Cols / (quad * Block)
	t.hasTail = 0
	t.half = (blocks + quad - 1) / quad * quad * 4
	tailBlocks := blocks - t.quads*quad
	if tailBlocks > 0 {
		t.hasTail = 1
		s.tail, s.scales = grow(s.tail, 4*quadBytes), grow(s.scales, 4*tailScales)
		for r := range 4 {
			t.tail[r], t.tailS[r] = unsafe.Pointer(&s.tail[r*quadBytes]), unsafe.Pointer(&s.scales[r*tailScales])
		}
	}
	spreadGroups := group > 0 && group != k.groups
	if spreadGroups {
		s.groups = grow(s.groups, 4*t.quads*quad)
	}
	next, nextS := ahead(k.rows*rowBytes), uintptr(0)
	if rowBytes > 0 {
		nextS = next / uintptr(k.rows*rowBytes) * uintptr(k.rows*scales*4) // as many tiles
	}
	simple := tailBlocks == 0 && !spreadGroups
	_ = m.W[lo*rowBytes : hi*rowBytes]
	_ = m.S[lo*scales : hi*scales]
	w, sc := address(m.W), address(m.S)
	t.stepW, t.stepS = k.rows*rowBytes, 0
	if group > 0 {
		t.stepS = 4 * k.rows * scales
	}
	for o := lo; o < hi; o += tilesOf(k.rows, simple, hi-o) * k.rows {
		tiles, n := tilesOf(k.rows, simple, hi-o), min(k.rows, hi-o)
		t.tiles, t.stepR = tiles, 0
		t.out, t.rowScale = address(s.out), address(t.scales[:])
		for r := range k.rows {
			row := o + min(r, n-1)
			t.w[r] = w + uintptr(row*rowBytes)
			if group == 0 {
				t.scales[r] = m.S[row]
			} else {
				t.s[r] = sc + uintptr(4*row*scales)
				t.scales[r] = 1
			}
			if !simple {
				s.prepareRow(r, m.W[row*rowBytes:][:rowBytes], m.S[row*scales:][:scales], quadBytes, tailBlocks, group, spreadGroups)
			}
		}
		if group == 0 && n == k.rows {
			t.rowScale, t.stepR = sc+uintptr(4*o), 4*k.rows
		}
		t.next, t.nextS = t.w[0]+next, t.s[0]+nextS
		k.multiply(t, act, s.out)
		out := s.out
		for at := o - first; at < o-first+tiles*k.rows; at += k.rows {
			for _, ys := range y[:len(act)] {
				if n == 4 {
					*(*[4]float32)(ys[at:]) = [4]float32(out)
				} else {
					copy(ys[at:][:n], out)
				}
				out = out[4:]
			}
		}
	}
	goruntime.KeepAlive(m)
	return true
}

// arrange copies activations with their codes in the kernel's order.
func (s *simdScratch) arrange(k tileKernel, act []Activation) []Activation {
	n := len(act[0].codes)
	s.acts, s.codes = append(s.acts[:0], act...), grow(s.codes, n*len(act))
	for i := range act {
		s.acts[i].codes = s.codes[i*n:][:n]
		k.arrange(&s.acts[i].codes[0], &act[i].codes[0], n/(quad*Block))
	}
	return s.acts
}

// address is where a slice begins, as a number; somebody must keep it alive.
func address[T any](s []T) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(s))) }

// maxTiles bounds the tiles of a call, which nothing can interrupt.
const maxTiles = 16

// tilesOf is how many tiles the next call takes of the rows that are left.
func tilesOf(rows int, simple bool, left int) int {
	if !simple || !manyTiles {
		return 1
	}
	return max(1, min(maxTiles, left/rows))
}

// tailScales is the room for a padded quad's scales, of half blocks at most.
const tailScales = 2 * quad

// prepareRow copies what the kernels cannot read as it lies: the last quad of
// row r of the tile, and scales of groups that they do not know.
func (s *simdScratch) prepareRow(r int, codes []byte, sc []float32, quadBytes, tailBlocks, group int, spread bool) {
	t := &s.tile
	whole := t.quads * quad
	if spread {
		d := s.groups[r*whole:][:whole]
		for b := range d {
			d[b] = sc[b*Block/group]
		}
		t.s[r] = address(d)
	}
	if tailBlocks == 0 {
		return
	}
	d := s.tail[r*quadBytes:][:quadBytes]
	clear(d[copy(d, codes[t.quads*quadBytes:]):])
	if group > 0 {
		step := min(group, Block)
		ts := s.scales[r*tailScales:][:tailScales]
		clear(ts)
		for i := range tailBlocks * Block / step {
			if g := (whole*Block + i*step) / group; g < len(sc) {
				ts[i] = sc[g]
			}
		}
	}
}
