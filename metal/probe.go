package metal

import (
	"encoding/binary"
	"fmt"
	"math"

	"hawkmoth/format"
	"hawkmoth/runtime/kernel"
)

var probeVariants = []Variant{{File: "probe.metal", Kernel: "probe"}, {File: "probe.metal", Kernel: "stream"}}

// probes are operands a, b, c whose results a·b+c, fma(a, b, c), a/b and √c
// tell devices apart that fuse, approximate or flush.
var probes = []struct {
	a, b, c uint32
	what    string
}{
	{0x3F800800, 0x3F800800, 0xBF801000, "a product and a sum are fused"}, // (1+2^-12)² − (1+2^-11): 2^-24 only if fused
	{0x3F800001, 0x3F7FFFFF, 0xBF800000, "a product and a sum are fused"},
	{0x3F800000, 0x40400000, 0x40000000, "division or square root is not correctly rounded"},
	{0x4B7FFFFF, 0x3F7FFFFD, 0x3F7FFFFF, "division or square root is not correctly rounded"},
	// a·(1/b) and c·(1/√c) are off by one bit
	{0x409AB0C5, 0x402B038E, 0x40E1CDA6, "division or square root is not correctly rounded"},
	{0x4087A7F6, 0x3FA59102, 0x3F84621B, "division or square root is not correctly rounded"},
	{0x40998051, 0x404808BF, 0x40372F5A, "division or square root is not correctly rounded"},
	{0x41034956, 0x401AE25E, 0x40529D70, "division or square root is not correctly rounded"},
	{0x00800000, 0x40000000, 0x00000000, "denormals are flushed to zero"}, // the smallest normal, halved
	{0x00000003, 0x3F800000, 0x00000001, "denormals are flushed to zero"},
	{0x3F800000, 0xFF800000, 0x7F800000, "infinities are not kept"},
}

// Probe runs a small kernel and reports, wrapping format.ErrUnsupported, how the
// device's arithmetic differs from docs/arithmetic.md. Nothing may claim the same
// bits as the CPU on a device that fails.
func Probe(d Device) error {
	refuse := func(what string, err error) error {
		return &format.Error{Kind: format.ErrUnsupported, What: d.Name() + ": " + what + ", so its results would not be the CPU's", Err: err}
	}
	if !d.Limits().SIMD {
		return refuse("no operations over simdgroups of 32 threads", nil)
	}
	got, err := runProbe(d)
	if err != nil {
		return refuse("the arithmetic cannot be checked", err)
	}
	for i, p := range probes {
		a, b, c := math.Float32frombits(p.a), math.Float32frombits(p.b), math.Float32frombits(p.c)
		want := [4]float32{float32(a*b) + c, kernel.FMA(a, b, c), a / b, float32(math.Sqrt(float64(c)))}
		for j, w := range want {
			g := got[4*i+j]
			if g != math.Float32bits(w) && (w == w || !isNaN(g)) {
				names := []string{"a*b+c", "fma(a,b,c)", "a/b", "sqrt(c)"}
				return refuse(fmt.Sprintf("%s (%s of %#08x, %#08x, %#08x is %#08x, not %#08x)", p.what, names[j], p.a, p.b, p.c, g, math.Float32bits(w)), nil)
			}
		}
	}
	return nil
}

func isNaN(bits uint32) bool { return bits&0x7FFFFFFF > 0x7F800000 }

// oneKernel is a pipeline of a queue, for a kernel that runs alone.
type oneKernel struct {
	d Device
	l Library
	p Pipeline
	q Queue
}

func openKernel(d Device, v Variant) (k oneKernel, err error) {
	k.d = d
	text, err := Source(v.File)
	if err != nil {
		return k, err
	}
	if k.l, err = d.NewLibrary(v.File, text); err != nil {
		return k, err
	}
	if k.p, err = k.l.NewPipeline(v.Kernel, v.Constants...); err == nil {
		k.q, err = d.NewQueue()
	}
	if err != nil {
		k.release()
	}
	return k, err
}

func (k oneKernel) release() {
	if k.q != nil {
		k.q.Release()
	}
	if k.p != nil {
		k.p.Release()
	}
	k.l.Release()
}

// run dispatches the kernel with two buffers and its arguments.
func (k oneKernel) run(in, out Buffer, args []byte, groups, threads int) (Times, error) {
	cb := k.q.CommandBuffer()
	e := cb.Encoder(false)
	e.SetPipeline(k.p)
	e.SetBuffer(0, in, 0)
	e.SetBuffer(1, out, 0)
	e.SetBytes(2, args)
	e.Dispatch(Size{X: groups}, Size{X: threads})
	e.End()
	cb.Commit()
	err := cb.Wait()
	return cb.Times(), err
}

// runProbe gives four results as bits for each probe.
func runProbe(d Device) ([]uint32, error) {
	k, err := openKernel(d, probeVariants[0])
	if err != nil {
		return nil, err
	}
	defer k.release()
	in, err := d.NewBuffer(12*len(probes), Shared)
	if err != nil {
		return nil, err
	}
	defer in.Release()
	out, err := d.NewBuffer(16*len(probes), Shared)
	if err != nil {
		return nil, err
	}
	defer out.Release()
	for i, p := range probes {
		for j, x := range []uint32{p.a, p.b, p.c} {
			binary.LittleEndian.PutUint32(in.Bytes()[12*i+4*j:], x)
		}
	}
	if _, err := k.run(in, out, binary.LittleEndian.AppendUint32(nil, uint32(len(probes))), 1, 32); err != nil {
		return nil, err
	}
	got := make([]uint32, 4*len(probes))
	for i := range got {
		got[i] = binary.LittleEndian.Uint32(out.Bytes()[4*i:])
	}
	return got, nil
}

// Bandwidth is the rate at which the device reads n bytes of its memory, in
// bytes a second: the best of several runs, to compare kernels with.
func Bandwidth(d Device, n int) (float64, error) {
	const groups, threads = 4096, 256
	n = min(n, d.Limits().MaxBuffer) / 16 * 16
	k, err := openKernel(d, probeVariants[1])
	if err != nil {
		return 0, err
	}
	defer k.release()
	in, err := d.NewBuffer(n, Private)
	if err != nil {
		return 0, err
	}
	defer in.Release()
	if err := in.Zero(); err != nil {
		return 0, err
	}
	out, err := d.NewBuffer(4*groups*threads, Private)
	if err != nil {
		return 0, err
	}
	defer out.Release()
	args := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, uint32(n/16)), groups*threads)
	best := 0.0
	for range 5 {
		t, err := k.run(in, out, args, groups, threads)
		if err != nil {
			return 0, err
		}
		best = max(best, float64(n)/t.GPU.Seconds())
	}
	return best, nil
}
