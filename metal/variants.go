package metal

import (
	"embed"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

//go:generate go run hawkmoth/internal/genptx ptx/kernels.ptx.zst

//go:embed kernels
var kernelFiles embed.FS

// Sources are the names of the kernel files, sorted.
func Sources() []string {
	entries, _ := kernelFiles.ReadDir("kernels")
	var names []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".metal") {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names
}

var include = regexp.MustCompile(`(?m)^#include "(\w+\.h)"$`)

// Source is the text of a kernel file, such as "probe.metal", with the files
// that it includes put in, each once: Metal compiles a text and knows no files.
func Source(name string) (string, error) { return source(name, map[string]bool{}) }

func source(name string, seen map[string]bool) (string, error) {
	b, err := kernelFiles.ReadFile("kernels/" + name)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	text, from := string(b), 0
	for _, m := range include.FindAllStringSubmatchIndex(text, -1) {
		out.WriteString(text[from:m[0]])
		from = m[1]
		file := text[m[2]:m[3]]
		if seen[file] {
			continue
		}
		seen[file] = true
		part, err := source(file, seen)
		if err != nil {
			return "", fmt.Errorf("%s includes: %w", name, err)
		}
		line := 1 + strings.Count(text[:m[1]], "\n")
		fmt.Fprintf(&out, "#line 1 %q\n%s\n#line %d %q", file, strings.TrimRight(part, "\n"), line+1, name)
	}
	out.WriteString(text[from:])
	return out.String(), nil
}

// Variant is one specialisation of one kernel: a pipeline that the backend may
// ask for. Drivers that cannot compile at run time hold exactly these.
type Variant struct {
	File, Kernel string
	Constants    []Constant // one for each function constant of the file
}

// Key names a variant: its file, kernel and constants by index.
func (v Variant) Key() string {
	constants := slices.Clone(v.Constants)
	slices.SortFunc(constants, func(a, b Constant) int { return a.Index - b.Index })
	key := v.File + " " + v.Kernel
	for _, c := range constants {
		key += fmt.Sprintf(" %d=%v", c.Index, c.Value)
	}
	return key
}

// Variants are all pipelines that the backend uses on a device with or without
// Limits.Dots.
func Variants(dots bool) []Variant {
	return slices.Concat(probeVariants, backendVariants(dots))
}
