package metal

import (
	"unsafe"

	"hawkmoth/format"
	"hawkmoth/runtime"
)

// expertTable is the descriptors of a block's experts on the device.
type expertTable struct {
	v       *vector
	format  [3]format.ID // of gate, up and down; anyFormat where experts differ
	cut     [3]bool
	layouts [3][numLayouts]bool // that some expert reads
	floats  [3]bool
}

// describe writes the descriptors of a block's experts.
func (b *Backend) describe(experts []runtime.ExpertWeights) error {
	if b.experts[&experts[0]] != nil {
		return nil
	}
	t := &expertTable{}
	list := make([]expert, 3*len(experts))
	var kinds [3][]*weight
	for i, e := range experts {
		for m, x := range []runtime.Weight{e.Gate, e.Up, e.Down} {
			w := x.(*weight)
			kinds[m] = append(kinds[m], w)
			list[3*i+m] = expert{w.codes.address(), w.scales.address(), uint32(w.m.Format), uint32(w.m.RowBytes()), uint32(w.m.ScaleCols()), uint32(w.m.Group), uint32(w.wide), 0}
			if l, ok := layouts[w.m.Format]; ok {
				t.layouts[m][l] = true
			} else {
				t.floats[m] = true
			}
		}
	}
	for m, ws := range kinds {
		t.format[m], t.cut[m] = sharedFormat(ws)
	}
	p := unsafe.Slice((*byte)(unsafe.Pointer(&list[0])), len(list)*int(unsafe.Sizeof(list[0])))
	var err error
	if t.v, err = b.vector(len(p)); err != nil {
		return err
	}
	b.experts[&experts[0]] = t
	return t.v.buf.Write(0, p)
}

func (b *Backend) route(op runtime.Route, p pass) {
	if !b.use(special{kernel: "route"}) {
		return
	}
	b.in(0, b.view(op.X, p))
	b.at(1, op.Bias.(*weight).vec)
	b.out(2, b.rows(op.IDs, p.row))
	b.out(3, b.view(op.Weights, p))
	a := &b.enc.args.route
	*a = routeArgs{uint32(op.X.N), uint32(op.Groups), uint32(op.TopGroups), uint32(op.TopK), oneIf(op.Normalize), uint32(op.X.Width), uint32(op.Weights.Width), op.Scale}
	arg(b, 4, a)
	b.enc.enc.SetThreadgroupMemory(0, 16*(3*ceil(op.X.N, 4)+2*ceil(op.Groups, 4)))
	b.dispatch(Size{p.S, 1, 1}, Size{across, 1, 1})
}

// moePairs is the order of the pairs of a token and one of its experts.
type moePairs struct {
	pairs, tiles, tile int
	token, place, list ref
	table              *expertTable
}

func (b *Backend) runExperts(op runtime.Experts, p pass) {
	// The pairs' tiles are the second dimension of a grid.
	if step := maxGroups / op.IDs.Width; p.S > step {
		for first := 0; first < p.S; first += step {
			part := p
			part.row += first
			part.S = min(step, p.S-first)
			b.runExperts(op, part)
		}
		return
	}
	width, hidden := op.Expert[0].Gate.Spec().Rows, op.X.N
	g := moePairs{pairs: p.S * op.IDs.Width, tile: 1, table: b.experts[&op.Expert[0]]}
	if p.S > 1 {
		g.tile = int(tiles[len(tiles)-1])
	}
	g.tiles = min(g.pairs, g.pairs/g.tile+len(op.Expert))
	g.token = b.work(scratchTokens, 4*g.pairs)
	g.place = b.work(scratchPlaces, 4*g.pairs)
	g.list = b.work(scratchTiles, int(unsafe.Sizeof(tile{}))*g.tiles)
	gate := b.work(scratchGate, 4*g.pairs*width)
	up := b.work(scratchUp, 4*g.pairs*width)
	act := b.work(scratchAct, 4*g.pairs*width)
	down := b.work(scratchDown, 4*g.pairs*hidden)

	ga := &b.enc.args.group
	*ga = groupArgs{uint32(g.pairs), uint32(op.IDs.Width), uint32(len(op.Expert)), uint32(g.tile), uint32(g.tiles)}
	if !b.use(special{kernel: "group_pairs"}) {
		return
	}
	b.in(0, b.rows(op.IDs, p.row))
	b.out(1, g.token)
	b.out(2, g.place)
	b.out(3, g.list)
	arg(b, 4, ga)
	b.enc.enc.SetThreadgroupMemory(0, ceil(8*(len(op.Expert)+1), 16)*16)
	b.dispatch(Size{1, 1, 1}, Size{across, 1, 1})

	x := b.view(op.X, p)
	rx := b.roundFor(g.table, 0, 1, x, p.S, hidden, op.X.Width)
	b.expertMatMul(g, 0, x, op.X.Width, rx, gate, width, hidden)
	b.expertMatMul(g, 1, x, op.X.Width, rx, up, width, hidden)
	b.gate(gate, up, act, pointArgs{uint32(width), uint32(width), uint32(width), uint32(width)}, g.pairs)
	ra := b.roundFor(g.table, 2, 2, act, g.pairs, width, width)
	b.expertMatMul(g, 2, act, width, ra, down, hidden, width)

	if !b.use(special{kernel: "expert_sum"}) {
		return
	}
	b.in(0, down)
	b.in(1, b.view(op.Weights, p))
	b.in(2, g.place)
	b.out(3, b.view(op.Y, p))
	sa := &b.enc.args.sum
	*sa = sumArgs{uint32(hidden), uint32(op.IDs.Width), uint32(op.Weights.Width), uint32(op.Y.Width)}
	arg(b, 4, sa)
	b.dispatch(Size{ceil(hidden, across), p.S, 1}, Size{across, 1, 1})
}

// roundFor rounds vectors to every layout that one of two matrices reads.
func (b *Backend) roundFor(t *expertTable, m1, m2 int, x ref, rows, cols, stride int) (r [numLayouts]rounded) {
	for l := range numLayouts {
		if t.layouts[m1][l] || t.layouts[m2][l] {
			r[l] = b.round(l, x, rows, cols, stride)
		}
	}
	return r
}

func (b *Backend) expertMatMul(g moePairs, matrix int, x ref, stride int, r [numLayouts]rounded, y ref, rows, cols int) {
	k := special{kernel: "expert_matmul", format: g.table.format[matrix], cut: g.table.cut[matrix], tile: uint8(g.tile), dots: b.limits.Dots}
	narrow := g.table.floats[matrix] && !aligned(x, stride)
	if narrow {
		k.format, k.cut = anyFormat, false
	}
	if !b.use(k) {
		return
	}
	b.at(0, spot{g.table.v.buf, 0})
	b.in(1, g.list)
	b.in(2, g.token)
	if !g.table.floats[matrix] {
		x = whole(b.empty)
	}
	b.in(3, x)
	for l := range numLayouts {
		q, sx := whole(b.empty), whole(b.empty)
		if g.table.layouts[matrix][l] {
			q, sx = r[l].q, r[l].sx
		}
		b.in(4+2*int(l), q)
		b.in(5+2*int(l), sx)
	}
	b.out(10, y)
	a := &b.enc.args.expert
	*a = expertArgs{uint32(matrix), uint32(rows), uint32(cols), uint32(ceil(cols, 64)), uint32(stride), uint32(rows), oneIf(matrix == 2), oneIf(narrow)}
	arg(b, 11, a)
	b.enc.enc.Use(b.reached...)
	b.dispatch(Size{ceil(rows, rowsOfGroup), g.tiles, 1}, Size{group, 1, 1})
}
