package msl

import (
	"strings"
	"testing"
)

const good = `// kernel void no(device float* x) in a comment
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)
#include <metal_stdlib>
using namespace metal;
constant uint FC_A [[function_constant(0)]];
constant bool FC_B [[ function_constant( 7 ) ]] ;
struct Args { uint n; float scale; };
/* kernel void neither() {} */
kernel void k(device const float* x [[buffer(0)]],
              device vec<float, 4>* y [[buffer(3)]],
              constant Args& a [[buffer(1)]], threadgroup half* t [[threadgroup(2)]],
              uint3 g [[threadgroup_position_in_grid]]) {
  y[g.x] = float4(x[g.x] * 1.5f * a.scale * 0x1p-3f) + float4(float(FC_A), 1e-5f, .5f, 2.0h);
}
`

func TestParse(t *testing.T) {
	f, err := Parse("good.metal", good)
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Kernels) != 1 || len(f.Consts) != 2 || f.Consts[1] != (FuncConst{"bool", "FC_B", 7}) {
		t.Fatalf("%+v", f)
	}
	want := []Param{
		{"device const float*", "x", "buffer", 0, true, "device"},
		{"device vec<float, 4>*", "y", "buffer", 3, false, "device"},
		{"constant Args&", "a", "buffer", 1, true, "constant"},
		{"threadgroup half*", "t", "threadgroup", 2, false, "threadgroup"},
		{"uint3", "g", "threadgroup_position_in_grid", 0, false, ""},
	}
	for i, p := range f.Kernel("k").Params {
		if p != want[i] {
			t.Errorf("parameter %d: %+v, want %+v", i, p, want[i])
		}
	}
	if f.Kernel("no") != nil {
		t.Error("a kernel was found in a comment")
	}
	for _, bad := range []string{"kernel void k(device float* x) {}", "kernel void k(device float* x [[buffer(31)]]) {}", "kernel void k(threadgroup float* x [[threadgroup(8)]]) {}"} {
		if _, err := Parse("bad.metal", bad); err == nil || !strings.HasPrefix(err.Error(), "bad.metal: line 1: kernel k") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestLint(t *testing.T) {
	if l := Lint(good); l != nil {
		t.Errorf("complaints about a good file: %q", l)
	}
	for _, tt := range []struct{ old, new, want string }{
		{"1e-5f", "1.0e-5", "line 14: floating literal"},
		{"1.5f", "1.5", "line 14: floating literal"},
		{", .5f", ", .5", "line 14: floating literal"},
		{"float(FC_A)", "float(double(FC_A))", "line 14: double does not exist"},
		{"  y[g.x]", "  threadgroup float z[4];\n  y[g.x]", "line 14: static threadgroup array"},
		{"struct Args", "constant float table[2] = {1.0f, 2.0f};\nstruct Args", "line 8: table at program scope"},
		{"  y[g.x]", "  auto f = [&](float v) { return v; };\n  y[g.x]", "line 14: lambda"},
		{"x[g.x] *", "exp(x[g.x]) *", "line 14: the rounding of this function"},
		{"x[g.x] *", "fast::divide(x[g.x], 2.0f) *", "line 14: the rounding of this function"},
		{"x[g.x] *", "simd_sum(x[g.x]) *", "line 14: the order of this sum"},
		{"x[g.x] *", "sqrt(x[g.x]) *", "line 14: write precise::sqrt"},
		{"x[g.x] *", "atomic_load_explicit(x) *", "line 14: atomics"},
		{"#pragma METAL fp contract(off)\n", "", "line 1: #pragma METAL fp contract(off)"},
		{"device const float* x", "const float* x", "line 10: kernel k: x has no address space"},
		{"buffer(3)", "buffer(0)", "line 10: kernel k: buffer 0 is used twice"},
		{"uint3 g [[", "uint2 q [[thread_position_in_grid]], uint3 g [[", "line 10: kernel k: position attributes of several vector types"},
		{"/* kernel void neither() {} */", "#line 40 \"part.h\"\nstatic inline float f() { return 1.0; }\n#line 9 \"good.metal\"\n", "part.h:40: floating literal"},
	} {
		if strings.Count(good, tt.old) != 1 {
			t.Fatalf("%q: no place for the plant", tt.old)
		}
		l := Lint(strings.Replace(good, tt.old, tt.new, 1))
		if len(l) == 0 || !strings.HasPrefix(l[0], tt.want) {
			t.Errorf("%s: %q, want %q", tt.new, l, tt.want)
		}
	}
}

func TestFunctionConstantsNeedTheirType(t *testing.T) {
	f, err := Parse("good.metal", good)
	if err != nil {
		t.Fatal(err)
	}
	lits, err := f.literals([]Value{{7, true}, {0, uint32(5)}})
	if err != nil || lits[0] != "5u" || lits[1] != "true" {
		t.Errorf("%q, %v", lits, err)
	}
	for _, tt := range []struct {
		vals []Value
		want string
	}{
		{[]Value{{0, uint32(5)}}, "7 (FC_B) has no value"},
		{[]Value{{0, int32(5)}, {7, true}}, "0 (FC_A) has type uint, not int32"},
		{[]Value{{0, uint32(5)}, {7, true}, {8, true}}, "no function constant 8"},
	} {
		if _, err := f.literals(tt.vals); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: %v", tt.vals, err)
		}
	}
}

func TestPTXRefusesLooseRounding(t *testing.T) {
	for ptx, want := range map[string]string{
		"add.rn.f32 %f1, %f2, %f3; fma.rn.f32 %f1; div.rn.f32; sqrt.rn.f32; mul.lo.s32; mul.wide.u32; add.s64": "",
		"mul.f32 	%f1": "mul.f32", "add.f16 %rs1": "add.f16", "sub.f64 %fd1": "sub.f64",
		"sqrt.approx.f32": "sqrt.approx.f32", "div.full.f32": "div.full.f32", "mul.rn.ftz.f32": "mul.rn.ftz.f32", "ex2.approx.ftz.f32": "ex2.approx.ftz.f32",
	} {
		err := checkPTX("k", ptx)
		if (err == nil) != (want == "") || err != nil && !strings.HasSuffix(err.Error(), ": "+want) {
			t.Errorf("%s: %v, want %q", ptx, err, want)
		}
	}
}

func TestEarly(t *testing.T) {
	const ptx = ".target sm_75\n//+sm_90 griddepcontrol.wait;\nret; // an end"
	if got, want := Early(ptx), ".target sm_90\ngriddepcontrol.wait;\nret; // an end"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestArchive(t *testing.T) {
	in := []Compiled{
		{Key: "a k 0=1", Hash: "h", Entry: Entry{"k_cuda", []EntryParam{{Pointer, 0, 8, 8}, {Bytes, 2, 12, 4}, {Shared, 1, 4, 4}}}, PTX: "// text\n.entry k_cuda()"},
		{Key: "b", PTX: "x"},
	}
	b, err := Pack(in)
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := Pack(in); string(again) != string(b) {
		t.Error("an archive is not the same the second time")
	}
	out, err := Unpack(b)
	if err != nil {
		t.Fatal(err)
	}
	if got := out["b"]; got.PTX != "x" {
		t.Errorf("%+v", got)
	}
	if _, err := Unpack(b[:len(b)-3]); err == nil {
		t.Error("a truncated archive was read")
	}
}

func TestEntryIsMeasured(t *testing.T) {
	e := Entry{"k_cuda", []EntryParam{{Kind: Pointer}, {Kind: Bytes, Index: 1}, {Kind: Shared}}}
	ptx := ".visible .entry k_cuda(\n\t.param .u64 .ptr .global .align 4 k_cuda_param_0,\n\t.param .align 8 .b8 k_cuda_param_1[24],\n\t.param .u32 k_cuda_param_2\n)\n{\n"
	if err := e.measure(ptx); err != nil || e.Params[0].Size != 8 || e.Params[1].Size != 24 || e.Params[1].Align != 8 || e.Params[2].Size != 4 {
		t.Errorf("%+v, %v", e, err)
	}
	if err := (&Entry{Name: "k_cuda"}).measure(ptx); err == nil {
		t.Error("parameters too many were accepted")
	}
}
