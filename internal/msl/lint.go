package msl

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// The subset that Apple's compiler and clang as C++, CUDA and C++ for OpenCL
// all accept with one meaning, and whose rounding is fixed by the standard:
//
//   - threadgroup memory only as parameter [[threadgroup(n)]]
//   - arguments in one constant struct of 4-byte fields and pointers; no tables
//     at program scope
//   - function constants on one line; no templated kernels
//   - an address space on every pointer, device const where a kernel only reads
//   - literals with f or h; no double, lambdas, atomics, recursion
//   - conversions between vectors written out; swizzles .xy .zw .lo .hi .xyz, read only
//   - whole simdgroups in uniform control flow: rows are guarded by a flag, not a return
//   - no operation whose order or rounding is the compiler's choice
var lints = []struct {
	re  *regexp.Regexp
	msg string
}{
	{regexp.MustCompile(`(?:^|[^\w.])(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?(?:[^fFhHeExXpP.\w]|$)`), "floating literal without suffix f or h"},
	{regexp.MustCompile(`\bdouble\b`), "double does not exist in MSL"},
	{regexp.MustCompile(`\btemplate\b[^;{]*\bkernel\b`), "templated kernel: use a function constant"},
	{regexp.MustCompile(`\bthreadgroup\s+\w+\s+\w+\s*\[`), "static threadgroup array: pass threadgroup memory as a parameter"},
	{regexp.MustCompile(`\bconstant\s+\w+\s+\w+\s*(\[[^\[]|=)`), "table at program scope: pass a buffer or use a function constant"},
	{regexp.MustCompile(`\b(virtual|new|delete|throw|try|goto|dynamic_cast|typeid|thread_local)\b`), "not in MSL"},
	{regexp.MustCompile(`\batomic_\w+`), "atomics are outside the subset"},
	{regexp.MustCompile(`\[[=&]?\]\s*\(`), "lambda: write a function"},
	{regexp.MustCompile(`\b(simd_sum|simd_product|simd_prefix\w*|quad_sum|dot|length|distance|normalize)\s*\(`), "the order of this sum is the compiler's: use simd_shuffle_xor and fma"},
	{regexp.MustCompile(`\b(exp2?|exp10|log2?|log10|rsqrt|pow|powr|sin|cos|tan|tanh|sinh|cosh|divide|mad|recip)\s*\(`), "the rounding of this function is the device's"},
	{regexp.MustCompile(`\bfast\s*::`), "fast functions round as they like"},
	{regexp.MustCompile(`(?:^|[^:\w])sqrt\s*\(`), "write precise::sqrt"},
}

var pragmas = []string{"#pragma METAL fp math_mode(safe)", "#pragma METAL fp contract(off)"}

var reLine = regexp.MustCompile(`(?m)^#line (\d+) "(.*)"$`)

// place is where an offset of a text comes from, by its #line directives.
func place(src string, at int) string {
	file, line, from := "line ", 1, 0
	for _, m := range reLine.FindAllStringSubmatchIndex(src[:at], -1) {
		line, _ = strconv.Atoi(src[m[2]:m[3]])
		file, from = src[m[4]:m[5]]+":", m[1]+1
	}
	if from > at {
		return file + strconv.Itoa(line)
	}
	return file + strconv.Itoa(line+strings.Count(src[from:at], "\n"))
}

// Lint says where a file leaves the subset, one "line n: what" or "file:n: what"
// for each place.
func Lint(src string) []string {
	s := blank(src)
	var out []string
	for _, l := range lints {
		for _, loc := range l.re.FindAllStringIndex(s, -1) {
			out = append(out, place(src, min(loc[0]+1, len(src)))+": "+l.msg)
		}
	}
	for _, p := range pragmas {
		if at := strings.Index(s, p); at < 0 || strings.Contains(s[:at], "{") {
			out = append(out, "line 1: "+p+" must come before the first function")
		}
	}
	f, err := Parse("", src)
	if err != nil {
		return append(out, err.Error())
	}
	for _, k := range f.Kernels {
		out = append(out, k.lint(src)...)
	}
	return out
}

// positions are the attributes whose types must agree, by what they count.
var positions = map[string]string{
	"thread_position_in_grid": "grid", "threads_per_grid": "grid",
	"thread_position_in_threadgroup": "threadgroup", "threads_per_threadgroup": "threadgroup",
	"threadgroup_position_in_grid": "threadgroups", "threadgroups_per_grid": "threadgroups",
}

func (k *Kernel) lint(src string) []string {
	var out []string
	bad := func(format string, args ...any) {
		out = append(out, fmt.Sprintf("%s: kernel %s: ", place(src, k.at), k.Name)+fmt.Sprintf(format, args...))
	}
	types, index, vector := map[string]string{}, map[string]bool{}, ""
	for _, p := range k.Params {
		if p.Attr == "buffer" || p.Attr == "threadgroup" {
			key := p.Attr + " " + strconv.Itoa(p.Index)
			if index[key] {
				bad("%s is used twice", key)
			}
			index[key] = true
			if p.Space == "" {
				bad("%s has no address space", p.Name)
			}
			continue
		}
		count, ok := positions[p.Attr]
		if !ok {
			continue
		}
		if t := types[count]; t != "" && t != p.Type {
			bad("%s must have type %s", p.Attr, t)
		}
		types[count] = p.Type
		if p.Type != "uint" && p.Type != "ushort" {
			if vector != "" && vector != p.Type {
				bad("position attributes of several vector types (%s, %s)", vector, p.Type)
			}
			vector = p.Type
		}
	}
	return out
}
