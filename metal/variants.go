package metal

import (
	"embed"
	"slices"
	"strings"
)

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

// Variants are all pipelines that the backend uses.
func Variants() []Variant {
	return slices.Concat(probeVariants)
}
