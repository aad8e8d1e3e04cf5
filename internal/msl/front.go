// Package msl runs Metal Shading Language on machines without Metal: it reads
// the kernel signatures of a file and has clang compile its text, unchanged
// but for function constants, as C++ for the CPU or as CUDA for PTX.
package msl

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Param is one parameter of a kernel.
type Param struct {
	Type  string // as written, without the name
	Name  string
	Attr  string // buffer, threadgroup, thread_position_in_grid, …
	Index int    // of a buffer or threadgroup parameter
	Const bool   // a buffer that the kernel only reads
	Space string // device, constant, threadgroup or empty
}

// Kernel is one kernel function.
type Kernel struct {
	Name   string
	Params []Param
	at     int // offset in the text
}

// FuncConst is one function constant.
type FuncConst struct {
	Type, Name string
	Index      int
}

// Value gives a function constant its value: a bool, int32, uint32 or float32.
type Value struct {
	Index int
	Value any
}

// File is what Parse found in a kernel file.
type File struct {
	Name, Source string
	Kernels      []Kernel
	Consts       []FuncConst
}

var (
	reKernel = regexp.MustCompile(`\bkernel\s+void\s+(\w+)\s*\(`)
	reConst  = regexp.MustCompile(`\bconstant\s+(\w+)\s+(\w+)\s*\[\[\s*function_constant\s*\(\s*(\d+)\s*\)\s*\]\]\s*;`)
	reAttr   = regexp.MustCompile(`^\s*(.*?)\b(\w+)\s*\[\[\s*(\w+)\s*(?:\(\s*(\d+)\s*\))?\s*\]\]\s*$`)
	reConstQ = regexp.MustCompile(`\bconst\b`)
	reSpace  = regexp.MustCompile(`\b(device|constant|threadgroup|thread)\b`)
)

// Kernel finds a kernel by name, or nil.
func (f *File) Kernel(name string) *Kernel {
	i := slices.IndexFunc(f.Kernels, func(k Kernel) bool { return k.Name == name })
	if i < 0 {
		return nil
	}
	return &f.Kernels[i]
}

// Buffer finds the parameter of a buffer index; its Type is empty if there is none.
func (k *Kernel) Buffer(index int) Param {
	i := slices.IndexFunc(k.Params, func(p Param) bool { return p.Attr == "buffer" && p.Index == index })
	if i < 0 {
		return Param{}
	}
	return k.Params[i]
}

// blank replaces comments and string literals by spaces, keeping offsets.
func blank(src string) string {
	b := []byte(src)
	erase := func(from, to int) {
		for i := from; i < to; i++ {
			if b[i] != '\n' {
				b[i] = ' '
			}
		}
	}
	for i := 0; i < len(src); {
		end := i + 1
		rest := src[i:]
		switch {
		case strings.HasPrefix(rest, "//"):
			if n := strings.IndexByte(rest, '\n'); n >= 0 {
				end = i + n
			} else {
				end = len(src)
			}
			erase(i, end)
		case strings.HasPrefix(rest, "/*"):
			if n := strings.Index(rest[2:], "*/"); n >= 0 {
				end = i + n + 4
			} else {
				end = len(src)
			}
			erase(i, end)
		case rest[0] == '"':
			if n := strings.IndexAny(rest[1:], "\"\n"); n >= 0 {
				end = i + n + 2
				erase(i+1, end-1)
			}
		}
		i = end
	}
	return string(b)
}

// Parse reads the kernel signatures and function constants of a file.
func Parse(name, src string) (*File, error) {
	s := blank(src)
	f := &File{Name: name, Source: src}
	for _, c := range reConst.FindAllStringSubmatch(s, -1) {
		n, err := strconv.Atoi(c[3])
		if err != nil {
			return nil, fmt.Errorf("%s: function constant %s: %w", name, c[2], err)
		}
		f.Consts = append(f.Consts, FuncConst{c[1], c[2], n})
	}
	for _, loc := range reKernel.FindAllStringSubmatchIndex(s, -1) {
		k := Kernel{Name: s[loc[2]:loc[3]], at: loc[0]}
		for _, p := range arguments(s[loc[1]:]) {
			m := reAttr.FindStringSubmatch(strings.ReplaceAll(p, "\n", " "))
			if m == nil {
				return nil, fmt.Errorf("%s: %s: kernel %s: parameter %q has no attribute", name, place(src, k.at), k.Name, strings.TrimSpace(p))
			}
			q := Param{Type: strings.TrimSpace(m[1]), Name: m[2], Attr: m[3]}
			if m[4] != "" {
				q.Index, _ = strconv.Atoi(m[4])
			}
			if limit := map[string]int{"buffer": 31, "threadgroup": 8}[q.Attr]; limit > 0 && q.Index >= limit {
				return nil, fmt.Errorf("%s: %s: kernel %s: %s index %d (limit %d)", name, place(src, k.at), k.Name, q.Attr, q.Index, limit-1)
			}
			q.Space = strings.Replace(reSpace.FindString(q.Type), "thread ", "", 1)
			q.Const = q.Space == "constant" || reConstQ.MatchString(q.Type)
			k.Params = append(k.Params, q)
		}
		f.Kernels = append(f.Kernels, k)
	}
	return f, nil
}

// arguments splits s, which starts behind an opening parenthesis, at the
// commas before the closing one.
func arguments(s string) []string {
	var parts []string
	depth, start := 1, 0
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '(', '[', '<':
			depth++
		case ')', ']', '>':
			if depth--; depth == 0 {
				return append(parts, s[start:i])
			}
		case ',':
			if depth == 1 {
				parts = append(parts, s[start:i])
				start = i + 1
			}
		}
	}
	return parts
}

// literals are the values of the file's function constants as C++ text, in the
// order of f.Consts. Each needs a value of its type.
func (f *File) literals(vals []Value) ([]string, error) {
	out := make([]string, len(f.Consts))
	for i, c := range f.Consts {
		j := slices.IndexFunc(vals, func(v Value) bool { return v.Index == c.Index })
		if j < 0 {
			return nil, fmt.Errorf("%s: function constant %d (%s) has no value", f.Name, c.Index, c.Name)
		}
		lit, typ := "", ""
		switch v := vals[j].Value.(type) {
		case bool:
			lit, typ = strconv.FormatBool(v), "bool"
		case int32:
			lit, typ = strconv.Itoa(int(v)), "int"
		case uint32:
			lit, typ = strconv.FormatUint(uint64(v), 10)+"u", "uint"
		case float32:
			lit, typ = strconv.FormatFloat(float64(v), 'x', -1, 32)+"f", "float"
		}
		if typ != c.Type {
			return nil, fmt.Errorf("%s: function constant %d (%s) has type %s, not %T", f.Name, c.Index, c.Name, c.Type, vals[j].Value)
		}
		out[i] = lit
	}
	for _, v := range vals {
		if !slices.ContainsFunc(f.Consts, func(c FuncConst) bool { return c.Index == v.Index }) {
			return nil, fmt.Errorf("%s: no function constant %d", f.Name, v.Index)
		}
	}
	return out, nil
}

// define rewrites the declarations of the function constants, the only change
// to a file's text.
func (f *File) define(def func(i int, c FuncConst) string) string {
	i := -1
	return reConst.ReplaceAllStringFunc(f.Source, func(string) string {
		i++
		return def(i, f.Consts[i])
	})
}

const undef = "#undef kernel\n#undef device\n#undef constant\n#undef thread\n#undef threadgroup\n#line 1 \"trampolines\"\n"

// ctype is a parameter's type without address spaces.
func ctype(t string) string {
	return strings.Join(strings.Fields(reSpace.ReplaceAllString(t, "")), " ")
}

// argument is the C++ expression that a trampoline passes for a parameter;
// pointer and threadgroup are formats for an index, value for a type and an index.
func argument(p Param, pointer, value, threadgroup string) (string, error) {
	ty := ctype(p.Type)
	switch {
	case p.Attr == "buffer" && strings.HasSuffix(ty, "&"):
		return fmt.Sprintf(value, strings.TrimSuffix(ty, "&"), p.Index), nil
	case p.Attr == "buffer":
		return fmt.Sprintf("(%s)"+pointer, ty, p.Index), nil
	case p.Attr == "threadgroup":
		return fmt.Sprintf("(%s)"+threadgroup, ty, p.Index), nil
	}
	if from, ok := scalars[p.Attr]; ok && (ty == "uint" || ty == "ushort") {
		return ty + "(" + from + ")", nil
	}
	if from, ok := vectors[p.Attr]; ok {
		switch ty {
		case "uint":
			return from + "[0]", nil
		case "uint2":
			return fmt.Sprintf("metal::uint2(%s[0], %[1]s[1])", from), nil
		case "uint3":
			return fmt.Sprintf("metal::uint3(%s[0], %[1]s[1], %[1]s[2])", from), nil
		}
	}
	return "", fmt.Errorf("parameter %s: %s of type %q is not supported", p.Name, p.Attr, p.Type)
}

var scalars = map[string]string{
	"thread_index_in_threadgroup":    "t->tiitg",
	"thread_index_in_simdgroup":      "t->lane",
	"simdgroup_index_in_threadgroup": "t->sg",
	"simdgroups_per_threadgroup":     "t->nsg",
	"threads_per_simdgroup":          "32",
}

var vectors = map[string]string{
	"threadgroup_position_in_grid":   "t->tgpig",
	"thread_position_in_threadgroup": "t->tpitg",
	"threads_per_threadgroup":        "t->d->tg",
	"threadgroups_per_grid":          "t->d->grid",
	"thread_position_in_grid":        "msl_gpos(t).v",
}

func (f *File) call(k *Kernel, pointer, value, threadgroup string) (string, error) {
	var args []string
	for _, p := range k.Params {
		a, err := argument(p, pointer, value, threadgroup)
		if err != nil {
			return "", fmt.Errorf("%s: %s: kernel %s: %w", f.Name, place(f.Source, k.at), k.Name, err)
		}
		args = append(args, a)
	}
	return k.Name + "(" + strings.Join(args, ", ") + ")", nil
}

// cpu is the translation unit for the emulator: all kernels of the file, with
// function constants as variables that msl_constant sets, since on Metal too
// they are no constants for the compiler's front end.
func (f *File) cpu() (string, error) {
	var b, table, set strings.Builder
	text := f.define(func(_ int, c FuncConst) string {
		fmt.Fprintf(&set, "  case %d: __builtin_memcpy(&%s, p, sizeof %[2]s); break;\n", c.Index, c.Name)
		return fmt.Sprintf("__attribute__((section(\"mslconst\"))) static %s %s;", c.Type, c.Name)
	})
	fmt.Fprintf(&b, "#include <metal_stdlib>\n#line 1 %q\n%s\n%s#include \"emu.h\"\n", f.Name, text, undef)
	b.WriteString(`__attribute__((section("mslconst"), used)) static uint msl_const_first;
extern "C" char __start_mslconst[], __stop_mslconst[];
extern "C" const char *msl_const_range(int end) { return end ? __stop_mslconst : __start_mslconst; }
struct msl_g3 { uint v[3]; };
MSL_NOTSAN static inline msl_g3 msl_gpos(const MslThread *t) {
  msl_g3 g;
  for (int i = 0; i < 3; i++) g.v[i] = t->tgpig[i] * t->d->tg[i] + t->tpitg[i];
  return g;
}
`)
	fmt.Fprintf(&b, "extern \"C\" void msl_constant(int i, const void *p) {\n  switch (i) {\n%s  }\n}\n", set.String())
	for i := range f.Kernels {
		k := &f.Kernels[i]
		c, err := f.call(k, "t->d->bufs[%d].p", "*(%s*)t->d->bufs[%d].p", "t->tgmem[%d]")
		if err != nil {
			return "", err
		}
		if strings.Contains(f.body(k), "inputs_ready();") {
			c = "msl_early(1);\n  " + c
		}
		fmt.Fprintf(&b, "MSL_NOTSAN static void msl_t_%s(const MslThread *t) {\n  %s;\n}\n", k.Name, c)
		var sizes [31]string
		for i := range sizes {
			sizes[i] = "0"
			if p := k.Buffer(i); strings.HasSuffix(p.Type, "&") {
				sizes[i] = "sizeof(" + strings.TrimSuffix(ctype(p.Type), "&") + ")"
			}
		}
		fmt.Fprintf(&table, "  {%q, msl_t_%s, {%s}},\n", k.Name, k.Name, strings.Join(sizes[:], ", "))
	}
	fmt.Fprintf(&b, "extern \"C\" const MslKernel msl_kernels[] = {\n%s  {0, 0, {}}};\n", table.String())
	return b.String(), nil
}

// ParamKind says what a kernel in PTX takes for one parameter.
type ParamKind uint8

const (
	Pointer ParamKind = iota // the address of a buffer
	Bytes                    // a constant struct by value
	Shared                   // an offset into dynamic shared memory
)

// EntryParam is one parameter of a kernel in PTX.
type EntryParam struct {
	Kind        ParamKind
	Index       int // of the buffer or threadgroup argument
	Size, Align int // bytes
}

// Entry is the signature of a kernel in PTX.
type Entry struct {
	Name   string
	Params []EntryParam
}

var reParam = regexp.MustCompile(`\.param (?:\.align (\d+) \.b8 \w+\[(\d+)\]|\.u(\d+)[^,\n]* \w+)`)

// measure takes the sizes of the parameters from the PTX.
func (e *Entry) measure(ptx string) error {
	at := strings.Index(ptx, ".entry "+e.Name+"(")
	if at < 0 {
		return fmt.Errorf("no entry %s in the PTX", e.Name)
	}
	sig, _, _ := strings.Cut(ptx[at:], "{")
	found := reParam.FindAllStringSubmatch(sig, -1)
	if len(found) != len(e.Params) {
		return fmt.Errorf("entry %s has %d parameters, not %d", e.Name, len(found), len(e.Params))
	}
	for i, m := range found {
		p := &e.Params[i]
		if m[3] != "" {
			bits, _ := strconv.Atoi(m[3])
			p.Size, p.Align = bits/8, bits/8
			continue
		}
		p.Align, _ = strconv.Atoi(m[1])
		p.Size, _ = strconv.Atoi(m[2])
	}
	return nil
}

// cuda is the translation unit for clang -x cuda: one specialised kernel. Nothing
// says that buffers have no other name: loads of memory that is never written may
// cross barriers, and the assembler moves them to where they are used.
func (f *File) cuda(k *Kernel, vals []Value) (string, Entry, error) {
	e := Entry{Name: k.Name + "_cuda"}
	lits, err := f.literals(vals)
	if err != nil {
		return "", e, err
	}
	text := f.define(func(i int, c FuncConst) string {
		return fmt.Sprintf("static constexpr %s %s = %s;", c.Type, c.Name, lits[i])
	})
	var sig []string
	for _, p := range k.Params {
		q := EntryParam{Index: p.Index}
		switch ty := ctype(p.Type); {
		case p.Attr == "buffer" && strings.HasSuffix(ty, "&"):
			q.Kind = Bytes
			sig = append(sig, fmt.Sprintf("%s v%d", strings.TrimSuffix(ty, "&"), p.Index))
		case p.Attr == "buffer":
			sig = append(sig, fmt.Sprintf("%s b%d", ty, p.Index))
		case p.Attr == "threadgroup":
			q.Kind = Shared
			sig = append(sig, fmt.Sprintf("uint s%d", p.Index))
		default:
			continue
		}
		e.Params = append(e.Params, q)
	}
	call, err := f.call(k, "b%d", "v%[2]d", "(msl_smem + s%d)")
	if err != nil {
		return "", e, err
	}
	for _, said := range []string{"next_may_start();", "inputs_ready();"} {
		if !strings.Contains(f.body(k), said) {
			call = "metal::" + said + "\n  " + call
		}
	}
	return fmt.Sprintf("#include <metal_stdlib>\n#pragma clang force_cuda_host_device begin\n#line 1 %q\n%s\n#pragma clang force_cuda_host_device end\n%s#include \"cuda.h\"\n"+
		"extern \"C\" __attribute__((global)) void %s(%s) {\n  MslThread tt;\n  msl_thread(tt);\n  const MslThread *t = &tt;\n  %s;\n}\n",
		f.Name, text, undef, e.Name, strings.Join(sig, ", "), call), e, nil
}

// body is the text from a kernel's start to the next.
func (f *File) body(k *Kernel) string {
	text := f.Source[k.at:]
	for i := range f.Kernels {
		if at := f.Kernels[i].at; at > k.at {
			text = text[:min(len(text), at-k.at)]
		}
	}
	return text
}

// early marks what devices of compute capability 9.0 on understand: kernels
// start before those that they depend on have finished; see kernels/ready.h.
const early = "//+sm_90 "

// Early is PTX for devices of compute capability 9.0 on.
func Early(ptx string) string {
	return strings.Replace(strings.ReplaceAll(ptx, early, ""), ".target sm_75", ".target sm_90", 1)
}

// strict is the translation unit for clang's C++ for OpenCL, whose rules for
// address spaces are MSL's.
func (f *File) strict() string {
	text := f.define(func(_ int, c FuncConst) string {
		v := map[string]string{"bool": "true", "float": "1.0f"}[c.Type]
		if v == "" {
			v = "64"
		}
		return fmt.Sprintf("constant %s %s = %s;", c.Type, c.Name, v)
	})
	return fmt.Sprintf("#include <metal_stdlib>\n#line 1 %q\n%s", f.Name, text)
}
