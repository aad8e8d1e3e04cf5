//go:build linux && (amd64 || arm64) && !nogpu

package metal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/x448/float16"

	"hawkmoth/internal/msl"
)

func checkText(t testing.TB) string {
	t.Helper()
	b, err := os.ReadFile("testdata/check.metal")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// chain runs the kernels of check.metal one after the other: two rows of x are
// normalised, multiplied by two matrices of nibbles at the same time and the
// results gathered by address; beside it runs a product of matrices.
type chain struct {
	d                   Device
	text                string
	hostBarrier, use    bool         // what a test may leave out
	host                func(*chain) // or change
	rows, cols, n, k    int
	x, xn, y, m, wm, xm Buffer
	w, s, g             [2]Buffer
	parts               Buffer
	xv, wantY, wantM    []float32
}

func newChain(d Device, text string) *chain {
	return &chain{d: d, text: text, hostBarrier: true, use: true, rows: 22, cols: 576, n: 64, k: 96}
}

// bytesOf views numbers as bytes.
func bytesOf[T any](v []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&v[0])), len(v)*int(unsafe.Sizeof(v[0])))
}

func (c *chain) buffer(b []byte, m Memory) (Buffer, error) {
	buf, err := c.d.NewBuffer(len(b), m)
	if err == nil {
		err = buf.Write(0, b)
	}
	return buf, err
}

const checkGroup = 64

var checkVariants = []Variant{
	{"check.metal", "norm", []Constant{{0, uint32(checkGroup)}}}, {"check.metal", "gemv", []Constant{{0, uint32(checkGroup)}}},
	{"check.metal", "gemm", []Constant{{0, uint32(checkGroup)}}}, {"check.metal", "gather", []Constant{{0, uint32(checkGroup)}}},
}

// fill makes the buffers and the expected results.
func (c *chain) fill() (err error) {
	r := rand.New(rand.NewPCG(1, 2))
	set := func(b *Buffer, data []byte) {
		if err == nil {
			*b, err = c.buffer(data, Private)
		}
	}
	empty := func(b *Buffer, n int) {
		if err == nil {
			*b, err = c.d.NewBuffer(n, Private)
		}
	}
	c.xv = make([]float32, c.cols)
	for i := range c.xv {
		c.xv[i] = float32(r.NormFloat64())
	}
	set(&c.x, bytesOf(c.xv))
	empty(&c.xn, 4*c.cols)
	empty(&c.y, 4*32)
	ss := 0.0
	for _, v := range c.xv {
		ss += float64(v) * float64(v)
	}
	norm := 1 / math.Sqrt(ss/float64(c.cols)+1e-6)
	c.wantY = make([]float32, max(32, c.rows))
	for m := range 2 {
		w, s := make([]byte, c.rows*c.cols/2), make([]float32, c.rows*c.cols/checkGroup)
		for i := range w {
			w[i] = byte(r.Uint32())
		}
		for i := range s {
			s[i] = 0.01 + 0.001*float32(i%7)
		}
		for row := range c.rows {
			sum := 0.0
			for j := range c.cols {
				q := w[(row*c.cols+j)/2] >> (4 * (j & 1)) & 15
				sum += float64(int(q)-8) * float64(s[(row*c.cols+j)/checkGroup]) * float64(c.xv[j]) * norm
			}
			c.wantY[row] += float32(sum) * float32(int(1)<<m)
		}
		set(&c.w[m], w)
		set(&c.s[m], bytesOf(s))
		empty(&c.g[m], 4*c.rows)
	}
	wm, xm := make([]float16.Float16, c.n*c.k), make([]float16.Float16, 8*c.k)
	for i := range wm {
		wm[i] = float16.Fromfloat32(float32(r.IntN(15) - 7))
	}
	for i := range xm {
		xm[i] = float16.Fromfloat32(float32(r.IntN(255) - 127))
	}
	set(&c.wm, bytesOf(wm))
	set(&c.xm, bytesOf(xm))
	empty(&c.m, 4*8*c.n)
	c.wantM = make([]float32, 8*c.n)
	for i := range 8 {
		for j := range c.n {
			for k := range c.k {
				c.wantM[i*c.n+j] += xm[i*c.k+k].Float32() * wm[j*c.k+k].Float32()
			}
		}
	}
	return err
}

func (c *chain) release() {
	for _, b := range []Buffer{c.x, c.xn, c.y, c.m, c.wm, c.xm, c.w[0], c.w[1], c.s[0], c.s[1], c.g[0], c.g[1], c.parts} {
		if b != nil {
			b.Release()
		}
	}
}

func u32(v ...uint32) []byte { return bytesOf(v) }

// run encodes the chain and compares the results.
func (c *chain) run() error {
	defer c.release()
	if err := c.fill(); err != nil {
		return err
	}
	if c.host != nil {
		c.host(c)
	}
	lib, err := c.d.NewLibrary("check.metal", c.text)
	if err != nil {
		return err
	}
	p := map[string]Pipeline{}
	defer lib.Release()
	for _, v := range checkVariants {
		if p[v.Kernel], err = lib.NewPipeline(v.Kernel, v.Constants...); err != nil {
			return err
		}
		defer p[v.Kernel].Release()
	}
	parts := make([]byte, 0, 32)
	for m := range 2 {
		parts = binary.LittleEndian.AppendUint64(parts, c.g[m].Address())
		parts = append(parts, u32(uint32(c.rows), uint32(m))...)
	}
	if c.parts, err = c.buffer(parts, Shared); err != nil {
		return err
	}
	q, err := c.d.NewQueue()
	if err != nil {
		return err
	}
	defer q.Release()
	cb := q.CommandBuffer()
	e := cb.Encoder(true)
	e.SetPipeline(p["norm"])
	e.SetBuffer(0, c.x, 0)
	e.SetBuffer(1, c.xn, 0)
	e.SetBytes(2, u32(uint32(c.cols), math.Float32bits(1e-6)))
	e.SetThreadgroupMemory(0, 128)
	e.Dispatch(Size{X: 1}, Size{X: 256})
	e.SetPipeline(p["gemm"])
	e.SetBuffer(0, c.wm, 0)
	e.SetBuffer(1, c.xm, 0)
	e.SetBuffer(2, c.m, 0)
	e.SetBytes(3, u32(uint32(c.n), uint32(c.k)))
	e.SetThreadgroupMemory(0, 512)
	e.Dispatch(Size{X: c.n / 32}, Size{X: 128})
	if c.hostBarrier {
		e.Barrier()
	}
	for m := range 2 {
		e.SetPipeline(p["gemv"])
		e.SetBuffer(0, c.w[m], 0)
		e.SetBuffer(1, c.s[m], 0)
		e.SetBuffer(2, c.xn, 0)
		e.SetBuffer(3, c.g[m], 0)
		e.SetBytes(4, u32(uint32(c.rows), uint32(c.cols)))
		e.SetThreadgroupMemory(0, 1024)
		e.Dispatch(Size{X: (c.rows + 3) / 4}, Size{X: 128})
	}
	e.Barrier()
	e.SetPipeline(p["gather"])
	e.SetBuffer(0, c.parts, 0)
	e.SetBuffer(1, c.y, 0)
	e.SetBytes(2, u32(2))
	if c.use {
		e.Use(c.g[0], c.g[1])
	}
	e.Dispatch(Size{X: 1}, Size{X: 32})
	e.End()
	cb.Commit()
	if err := cb.Wait(); err != nil {
		return err
	}
	return c.compare()
}

var errValue = errors.New("a value differs from the reference")

func (c *chain) compare() error {
	y, m := make([]float32, 32), make([]float32, 8*c.n)
	if err := errors.Join(c.y.Read(0, bytesOf(y)), c.m.Read(0, bytesOf(m))); err != nil {
		return err
	}
	for i, v := range y {
		if !(math.Abs(float64(v-c.wantY[i])) < 1e-4) {
			return fmt.Errorf("%w: y[%d] = %g, want %g", errValue, i, v, c.wantY[i])
		}
	}
	for i, v := range m {
		if v != c.wantM[i] {
			return fmt.Errorf("%w: m[%d] = %g, want %g", errValue, i, v, c.wantM[i])
		}
	}
	return nil
}

func TestCheckerPassesCorrectKernels(t *testing.T) {
	for seed := range uint64(5) {
		for _, check := range []bool{false, true} {
			if err := newChain(emulator(t, EmulatorOptions{Seed: seed, Check: check}), checkText(t)).run(); err != nil {
				t.Errorf("seed %d, check %v: %v", seed, check, err)
			}
		}
	}
}

// planted are mistakes, each with the words by which it must be reported.
var planted = []struct {
	name, old, new string
	host           func(*chain)
	want           string // alternatives separated by |
}{
	{name: "no barrier before use", old: "xs[i] = x[base + i];\n    threadgroup_barrier(mem_flags::mem_threadgroup);", new: "xs[i] = x[base + i];", want: "data race|uninitialised threadgroup"},
	{name: "no barrier before refill", old: "      acc = fma(sr[(base + i) / FC_GROUP], d, acc);\n    }\n    threadgroup_barrier(mem_flags::mem_threadgroup);", new: "      acc = fma(sr[(base + i) / FC_GROUP], d, acc);\n    }", want: "data race"},
	{name: "barrier for the wrong memory", old: "xs[i] = x[base + i];\n    threadgroup_barrier(mem_flags::mem_threadgroup);", new: "xs[i] = x[base + i];\n    threadgroup_barrier(mem_flags::mem_device);", want: "data race"},
	{name: "simdgroup barrier where simdgroups meet", old: "xs[i] = x[base + i];\n    threadgroup_barrier", new: "xs[i] = x[base + i];\n    simdgroup_barrier", want: "data race|uninitialised threadgroup"},
	{name: "all lanes store", old: "if (lane == 0 && live) y[row] = acc;", new: "if (live) y[row] = acc;", want: "data race"},
	{name: "threadgroups share rows", old: "const uint row = tg * nsg + sg;", new: "const uint row = tg + sg;", want: "data race"},
	{name: "no barrier between simdgroups", old: "part[sg] = s;\n  threadgroup_barrier(mem_flags::mem_threadgroup);", new: "part[sg] = s;", want: "data race|uninitialised threadgroup"},
	{name: "partial sums beyond the last", old: "lane < nsg ? part[lane] : 0.0f", new: "part[lane]", want: "uninitialised threadgroup"},
	{name: "matrix tile without barrier", old: "+ i % 32u];\n    threadgroup_barrier(mem_flags::mem_threadgroup);", new: "+ i % 32u];", want: "data race|uninitialised threadgroup"},
	{name: "no guard of rows", old: "row < args.rows", new: "true", want: "out of bounds"},
	{name: "threadgroup memory too short", old: "min(256u, args.cols - base)", new: "min(260u, args.cols - base)", want: "out of bounds"},
	{name: "next group's scale", old: "sr[(base + i) / FC_GROUP]", new: "sr[(base + i + 64u) / FC_GROUP]", want: "out of bounds"},
	{name: "wide tile store", old: "simdgroup_store(c, y + n0, args.n);", new: "simdgroup_store(c, y + n0, args.n + 8u);", want: "out of bounds"},
	{name: "misaligned vector", old: "(wr + (base + i) / 2u)", new: "(wr + (base + i) / 2u + 1u)", want: "misaligned|type_mismatch"},
	{name: "shuffle under a condition of lanes", old: "  acc = tree(acc);", new: "  if (lane < 16u) acc = tree(acc);", want: "diverged"},
	{name: "barrier under a condition of simdgroups", old: "    threadgroup_barrier(mem_flags::mem_threadgroup);\n  }\n  acc = tree", new: "    if (sg == 0u) threadgroup_barrier(mem_flags::mem_threadgroup);\n  }\n  acc = tree", want: "barrier|data race"},
	{name: "early return before a barrier", old: "  float acc = 0.0f;\n", new: "  if (!live) return;\n  float acc = 0.0f;\n", want: "threadgroup_barrier of threadgroup 5 reached by 64 of 128"},
	{name: "matrix operation in some lanes", old: "simdgroup_multiply_accumulate(c, a, b, c);", new: "if (tid % 2u == 0u) simdgroup_multiply_accumulate(c, a, b, c);", want: "diverged"},
	{name: "write through const", old: "part[sg] = s;", new: "{ part[sg] = s; ((device float*)x)[0] = s; }", want: "read-only"},
	{name: "shift by the width", old: "float(1 << parts[j].shift)", new: "float(1 << (parts[j].shift + 32))", want: "shift"},
	{name: "signed overflow", old: "float(1 << parts[j].shift)", new: "float((2147483647 + parts[j].shift) - 2147483647 + 1)", want: "add_overflow"},
	{name: "float beyond int", old: "  y[i] = s;", new: "  y[i] = s + float(int(3.0e9f + s)) * 0.0f;", want: "float_cast"},
	{name: "pointer beyond its buffer", old: "parts[j].p[i]", new: "parts[j].p[i + 16u]", want: "out of bounds"},
	{name: "results left out", old: "if (i < parts[j].n) s +=", new: "s +=", want: "out of bounds"},
	{name: "output half written", old: "i < args.n; i += nth) y[ulong(row)", new: "i < args.n / 2u; i += nth) y[ulong(row)", want: "uninitialised buffer"},
	{name: "high nibble first", old: "(q[j] & 15)", new: "(q[j] >> 4)", want: "value"},
	{name: "read of what was written", old: "y[ulong(row) * args.n + i] = xr[i] * r;", new: "{ y[ulong(row) * args.n + i] = xr[i] * r; y[ulong(row) * args.n + i] = xr[i]; }",
		host: func(c *chain) { c.xn.Release(); c.xn = c.x }, want: "another binding"},
	{name: "no barrier between dispatches", host: func(c *chain) { c.hostBarrier = false }, want: "data race|uninitialised buffer"},
	{name: "buffer not used", host: func(c *chain) { c.use = false }, want: "out of bounds"},
	{name: "buffer too short", host: func(c *chain) { c.g[1].Release(); c.g[1], _ = c.d.NewBuffer(4*(c.rows-1), Private) }, want: "out of bounds"},
	{name: "inputs read early", old: "  acc = tree(acc);", new: "  inputs_ready();\n  acc = tree(acc);", want: "before inputs_ready"},
	{name: "output written early", old: "y[ulong(row) * args.n + i] = xr[i] * r;", new: "y[ulong(row) * args.n + i] = xr[i] * r;\n  inputs_ready();", want: "before inputs_ready"},
	{name: "double", old: "float acc = 0.0f;", new: "double acc = 0.0f;", want: "double does not exist"},
	{name: "literal of type double", old: "float s = 0.0f;\n  for (uint i = tid", new: "float s = 0.0;\n  for (uint i = tid", want: "literal"},
	{name: "sum in the device's order", old: "acc = tree(acc);", new: "acc = simd_sum(acc);", want: "order of this sum"},
	{name: "function with the device's rounding", old: "1.0f / precise::sqrt(t / float(args.n) + args.eps)", new: "rsqrt(t / float(args.n) + args.eps)", want: "rounding"},
	{name: "no pragma", old: "#pragma METAL fp contract(off)\n", new: "", want: "contract(off)"},
	{name: "index used twice", old: "device float* y [[buffer(3)]]", new: "device float* y [[buffer(2)]]", want: "used twice"},
}

func TestCheckerFindsPlantedMistakes(t *testing.T) {
	for _, p := range planted {
		t.Run(p.name, func(t *testing.T) {
			text := checkText(t)
			if p.old != "" && strings.Count(text, p.old) != 1 {
				t.Fatalf("%d places for the plant", strings.Count(text, p.old))
			}
			if p.old != "" {
				text = strings.Replace(text, p.old, p.new, 1)
			}
			c := newChain(emulator(t, EmulatorOptions{Seed: 11, Check: true}), text)
			c.host = p.host
			err := c.run()
			if err == nil {
				t.Fatal("missed")
			}
			for want := range strings.SplitSeq(p.want, "|") {
				if strings.Contains(err.Error(), want) {
					t.Logf("%.300v", err)
					return
				}
			}
			t.Errorf("reported as %v, want %s", err, p.want)
		})
	}
}

// What only Apple's compiler would refuse: pointers of the wrong memory.
func TestCheckTypesRefusesAddressSpaces(t *testing.T) {
	emulator(t, EmulatorOptions{})
	for _, tt := range []struct{ name, old, new string }{
		{"as it is", "", ""},
		{"threadgroup as device", "threadgroup float* xs [[", "device float* xs [["},
		{"cast to another memory", "(device const uchar4*)(wr", "(threadgroup const uchar4*)(wr"},
		{"assignment to a const buffer", "part[sg] = s;", "x[0] = s;"},
		{"assignment to an argument", "const uint n0 =", "args.n = 3u; const uint n0 ="},
		{"pointer into another memory", "device const float* sr = scales", "threadgroup const float* sr = scales"},
	} {
		text := checkText(t)
		if tt.old != "" && !strings.Contains(text, tt.old) {
			t.Fatalf("%s: no place for the plant", tt.name)
		}
		f, err := msl.Parse("check.metal", strings.Replace(text, tt.old, tt.new, 1))
		if err != nil {
			t.Fatal(err)
		}
		if tt.name == "threadgroup as device" {
			f.Source = strings.Replace(f.Source, "float d = 0.0f;", "threadgroup float* z = xs; float d = z[0];", 1)
		}
		if err := msl.CheckTypes(f); (err == nil) != (tt.old == "") {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
