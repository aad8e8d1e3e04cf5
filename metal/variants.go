package metal

import (
	"embed"
	"fmt"
	"slices"
	"strings"
)

//go:generate go run hawkmoth/internal/genptx ptx/kernels.ptx.zst

//go:embed kernels/*.metal
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

// Source is the text of a kernel file, such as "probe.metal".
func Source(name string) (string, error) {
	b, err := kernelFiles.ReadFile("kernels/" + name)
	return string(b), err
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

// Variants are all pipelines that the backend uses.
func Variants() []Variant {
	return slices.Concat(probeVariants)
}
