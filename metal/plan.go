package metal

import (
	"fmt"

	"hawkmoth/format"
	"hawkmoth/runtime"
)

// program is a list of commands with the place of each, made once.
type program struct{ steps []step }

// step is a command, or the part of a MatMul that runs in one place.
type step struct {
	cmd   runtime.Cmd
	why   error         // it runs on the CPU; nil: on the device
	host  []runtime.Cmd // the same for the CPU backend, made on first use
	count *Count
	cpu   *Count // charged where the whole pass runs on the CPU
	ran   Ran
}

// pass is some rows of a batch.
type pass struct {
	runtime.Batch     // S is the pass's own; Pos, Row and Tokens the batch's
	row           int // the first
}

// at is the row of a view that belongs to the pass's first token.
func (p pass) at(v runtime.View) int {
	switch v.Base {
	case runtime.BasePos:
		return p.Pos + p.row
	case runtime.BaseRow:
		return p.Row + p.row
	}
	return p.row
}

// why is the predicate with the switches.
func why(op runtime.Kind, s format.Spec, l Limits, off map[string]bool) error {
	for name, kinds := range map[string][]runtime.Kind{"fused-attention": {runtime.KindMLA, runtime.KindIndex}, "gpu-experts": {runtime.KindExperts}} {
		for _, k := range kinds {
			if k == op && off[name] {
				return switchedOff(name)
			}
		}
	}
	_, err := lookup(op, s, l)
	return err
}

// program finds or makes the program of a list.
func (b *Backend) program(cmds []runtime.Cmd) (*program, error) {
	if p := b.programs[&cmds[0]]; p != nil {
		return p, nil
	}
	p := &program{}
	for _, c := range cmds {
		m, ok := c.Op.(runtime.MatMul)
		if !ok {
			if err := b.add(p, c, b.reason(c.Op)); err != nil {
				return nil, err
			}
			continue
		}
		// Its matrices find their places one by one.
		var parts [2]runtime.MatMul
		var reason error
		for i, w := range m.W {
			at := 0
			if err := b.weightReason(runtime.KindMatMul, w); err != nil {
				at, reason = 1, err
			}
			parts[at].X = m.X
			parts[at].W, parts[at].Y = append(parts[at].W, w), append(parts[at].Y, m.Y[i])
		}
		for i, part := range parts {
			if len(part.W) == 0 {
				continue
			}
			c.Op = part
			var err error
			if i == 1 {
				err = reason
			}
			if err := b.add(p, c, err); err != nil {
				return nil, err
			}
		}
	}
	b.programs[&cmds[0]] = p
	return p, nil
}

func (b *Backend) add(p *program, c runtime.Cmd, reason error) error {
	s := step{cmd: c, why: reason, count: b.counter(c, reason)}
	if b.off["gpu-prefill"] {
		s.cpu = b.counter(c, errPrefill)
	}
	if e, ok := c.Op.(runtime.Experts); ok && reason == nil {
		if err := b.describe(e.Expert); err != nil {
			return err
		}
	}
	p.steps = append(p.steps, s)
	return nil
}

// errPrefill is the reason of everything that a switch keeps on the CPU.
var errPrefill = switchedOff("gpu-prefill")

func (b *Backend) weightReason(op runtime.Kind, w runtime.Weight) error {
	if err := b.Why(op, w.Spec()); err != nil {
		return err
	}
	return w.(*weight).why
}

// reason says why an operation cannot run on the device.
func (b *Backend) reason(op runtime.Op) error {
	k := op.Kind()
	if err := Lacks(k); err != nil {
		return err
	}
	switch op := op.(type) {
	case runtime.Embed:
		return b.weightReason(k, op.W)
	case runtime.RMSNorm:
		return b.weightReason(k, op.W)
	case runtime.LayerNorm:
		if err := b.weightReason(k, op.W); err != nil {
			return err
		}
		return b.weightReason(k, op.B)
	case runtime.MLA:
		return b.weightReason(k, op.KVB)
	case runtime.Route:
		return b.weightReason(k, op.Bias)
	case runtime.Experts:
		if len(op.Expert) > maxExperts {
			return refuse(ForShape, "too many experts for the kernels", fmt.Sprint(len(op.Expert)), fmt.Sprintf("at most %d", maxExperts))
		}
		for i, e := range op.Expert {
			for _, w := range []runtime.Weight{e.Gate, e.Up, e.Down} {
				if err := b.weightReason(k, w); err != nil {
					return because(fmt.Sprint("expert ", i), err)
				}
			}
		}
		return nil
	case runtime.Rope, runtime.SiLUMul, runtime.Add, runtime.Index:
		return b.Why(k, format.Spec{})
	}
	return errNoKernel(k)
}

// pass encodes the steps of some rows and commits them.
func (b *Backend) pass(p *program, part pass) error {
	if err := b.prepareRopes(p, part.Pos+part.row+part.S); err != nil {
		return err
	}
	for i := range p.steps {
		s := &p.steps[i]
		if b.off["gpu-prefill"] && part.S > 1 {
			s.cpu.CPU++
			s.ran.CPU++
			if err := b.onCPU(s, part); err != nil {
				return err
			}
			continue
		}
		if s.why != nil {
			s.count.CPU++
			s.ran.CPU++
			if err := b.onCPU(s, part); err != nil {
				return err
			}
			continue
		}
		s.count.GPU++
		s.ran.GPU++
		b.encode(s.cmd.Op, part)
		if b.enc.err != nil {
			return b.enc.err
		}
	}
	b.commit()
	return nil
}

func (b *Backend) encode(op runtime.Op, p pass) {
	switch op := op.(type) {
	case runtime.Embed:
		b.embed(op, p)
	case runtime.MatMul:
		b.matMul(op, p)
	case runtime.RMSNorm:
		b.rmsNorm(op, p)
	case runtime.LayerNorm:
		b.layerNorm(op, p)
	case runtime.Rope:
		b.rope(op, p)
	case runtime.SiLUMul:
		b.siluMul(op, p)
	case runtime.Add:
		b.addRows(op, p)
	case runtime.MLA:
		b.mla(op, p)
	case runtime.Index:
		b.index(op, p)
	case runtime.Route:
		b.route(op, p)
	case runtime.Experts:
		b.runExperts(op, p)
	}
}

// touched calls f for every buffer of an operation; shift says that its rows
// are the tokens of the batch, so that a pass starts at its own.
func touched(op runtime.Op, f func(v runtime.Vec, shift, write bool)) {
	view := func(write bool, views ...runtime.View) {
		for _, v := range views {
			f(v.Vec, v.Base == runtime.BaseZero, write)
		}
	}
	switch op := op.(type) {
	case runtime.Embed:
		view(true, op.Y)
	case runtime.MatMul:
		view(false, op.X)
		view(true, op.Y...)
	case runtime.RMSNorm:
		view(false, op.X)
		view(true, op.Y)
	case runtime.LayerNorm:
		view(false, op.X)
		view(true, op.Y)
	case runtime.Rope:
		view(false, op.X)
		view(true, op.Y)
	case runtime.SiLUMul:
		view(false, op.Gate, op.Up)
		view(true, op.Y)
	case runtime.Add:
		view(false, op.X)
		view(true, op.Y)
	case runtime.MLA:
		view(false, op.Q, op.QRope)
		view(true, op.Y)
		f(op.Cache, false, false)
		if op.Select != nil {
			f(*op.Select, true, false)
		}
	case runtime.Index:
		view(false, op.Q, op.HeadWeight)
		f(op.Keys, false, false)
		f(op.Select, true, true)
	case runtime.Attention:
		view(false, op.Q)
		view(true, op.Y)
		f(op.K, false, false)
		f(op.V, false, false)
	case runtime.AddBias:
		view(true, op.Y)
	case runtime.Gate:
		view(false, op.X)
		view(true, op.Y)
	case runtime.Split:
		view(false, op.X)
		view(true, op.Y, op.Z)
	case runtime.DeltaNet:
		view(false, op.QKVZ, op.BA)
		view(true, op.Y, op.Z)
		f(op.Conv, false, true)
		f(op.State, false, true)
	case runtime.Route:
		view(false, op.X)
		view(true, op.Weights)
		f(op.IDs, true, true)
	case runtime.Experts:
		view(false, op.X, op.Weights)
		view(true, op.Y)
		f(op.IDs, true, false)
	}
}

// onCPU waits for the device and runs a step on the CPU backend, on the same
// memory where the two share it and on copies of the rows in use where not.
func (b *Backend) onCPU(s *step, p pass) error {
	b.commit()
	if err := b.wait(0); err != nil {
		return err
	}
	if s.host == nil {
		s.host = []runtime.Cmd{{Op: hostOp(s.cmd.Op), Layer: s.cmd.Layer, Stage: s.cmd.Stage}}
	}
	var err error
	move := func(back bool) func(v runtime.Vec, shift, write bool) {
		return func(v runtime.Vec, shift, write bool) {
			d := b.vecs[v.ID]
			n := min(d.size, 4*v.Width*(p.Pos+p.Row+p.row+p.S))
			switch {
			case b.limits.Unified || err != nil:
			case back && write:
				err = d.buf.Write(0, d.host[:n])
			case !back:
				if d.host == nil {
					d.host = bytesOfFloats(make([]float32, d.size/4))
				}
				err = d.buf.Read(0, d.host[:n])
			}
			from := 0
			if shift && !back {
				from = p.row
			}
			v.Rows -= from
			b.cpu.Lend(v, d.host[4*from*v.Width:])
		}
	}
	touched(s.cmd.Op, move(false))
	if err != nil {
		return err
	}
	batch := runtime.Batch{S: p.S, Pos: p.Pos + p.row, Row: p.Row + p.row}
	if p.Tokens != nil {
		batch.Tokens = p.Tokens[p.row:][:p.S]
	}
	if err := b.cpu.Run(s.host, batch); err != nil {
		return err
	}
	touched(s.cmd.Op, move(true))
	return err
}

// hostOp is an operation with the CPU backend's weights.
func hostOp(op runtime.Op) runtime.Op {
	on := func(w runtime.Weight) runtime.Weight {
		if w == nil {
			return nil
		}
		return w.(*weight).cpu
	}
	switch op := op.(type) {
	case runtime.Embed:
		op.W = on(op.W)
		return op
	case runtime.MatMul:
		ws := make([]runtime.Weight, len(op.W))
		for i, w := range op.W {
			ws[i] = on(w)
		}
		op.W = ws
		return op
	case runtime.RMSNorm:
		op.W = on(op.W)
		return op
	case runtime.LayerNorm:
		op.W, op.B = on(op.W), on(op.B)
		return op
	case runtime.MLA:
		op.KVB = on(op.KVB)
		return op
	case runtime.Route:
		op.Bias = on(op.Bias)
		return op
	case runtime.Attention:
		op.Sinks = on(op.Sinks)
		return op
	case runtime.AddBias:
		op.W = on(op.W)
		return op
	case runtime.DeltaNet:
		op.ConvW, op.ALog, op.DtBias = on(op.ConvW), on(op.ALog), on(op.DtBias)
		return op
	case runtime.Experts:
		es := make([]runtime.ExpertWeights, len(op.Expert))
		for i, e := range op.Expert {
			es[i] = runtime.ExpertWeights{Gate: on(e.Gate), Up: on(e.Up), Down: on(e.Down)}
			if e.Bias != nil {
				es[i].Bias = &runtime.ExpertBias{Gate: on(e.Bias.Gate), Up: on(e.Bias.Up), Down: on(e.Bias.Down)}
			}
		}
		op.Expert = es
		return op
	}
	return op
}
