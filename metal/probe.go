package metal

import (
	"encoding/binary"
	"fmt"
	"math"

	"hawkmoth/format"
	"hawkmoth/runtime/kernel"
)

var probeVariants = []Variant{{File: "probe.metal", Kernel: "probe"}}

// probes are operands a, b, c whose results a·b+c, fma(a, b, c), a/b and √c
// tell devices apart that fuse, approximate or flush.
var probes = []struct {
	a, b, c uint32
	what    string
}{
	{0x3F800800, 0x3F800800, 0xBF801000, "a product and a sum are fused"}, // (1+2^-12)² − (1+2^-11): 2^-24 only if fused
	{0x3F800001, 0x3F7FFFFF, 0xBF800000, "a product and a sum are fused"},
	{0x3F800000, 0x40400000, 0x40000000, "division or square root is not correctly rounded"},
	{0x40490FDB, 0x402DF854, 0x40400000, "division or square root is not correctly rounded"},
	{0x4B7FFFFF, 0x3F7FFFFD, 0x3F7FFFFF, "division or square root is not correctly rounded"},
	{0x3F8147AE, 0x3EAAAAAB, 0x3DCCCCCD, "division or square root is not correctly rounded"},
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

// runProbe gives four results as bits for each probe.
func runProbe(d Device) ([]uint32, error) {
	v := probeVariants[0]
	text, err := Source(v.File)
	if err != nil {
		return nil, err
	}
	lib, err := d.NewLibrary(v.File, text)
	if err != nil {
		return nil, err
	}
	defer lib.Release()
	p, err := lib.NewPipeline(v.Kernel, v.Constants...)
	if err != nil {
		return nil, err
	}
	defer p.Release()
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
	q, err := d.NewQueue()
	if err != nil {
		return nil, err
	}
	defer q.Release()
	cb := q.CommandBuffer()
	e := cb.Encoder(false)
	e.SetPipeline(p)
	e.SetBuffer(0, in, 0)
	e.SetBuffer(1, out, 0)
	e.SetBytes(2, binary.LittleEndian.AppendUint32(nil, uint32(len(probes))))
	e.Dispatch(Size{X: 1}, Size{X: 32})
	e.End()
	cb.Commit()
	if err := cb.Wait(); err != nil {
		return nil, err
	}
	got := make([]uint32, 4*len(probes))
	for i := range got {
		got[i] = binary.LittleEndian.Uint32(out.Bytes()[4*i:])
	}
	return got, nil
}
