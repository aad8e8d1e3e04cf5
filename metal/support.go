package metal

import (
	"fmt"
	"slices"

	"hawkmoth/format"
	"hawkmoth/runtime"
)

// support is a row of the table of what runs on a GPU: an operation with the
// matrix or vector that it reads.
type support struct {
	op     runtime.Kind
	format format.ID
	kernel string // that reads the weight
	group  int    // group sizes are multiples of it
	cols   int    // at most; 0: as many as a buffer holds
}

// maxExperts bounds what the kernels hold of a routing in threadgroup memory.
const maxExperts = 2048

// formats are the weight formats that the kernels decode; float ones come last.
var formats = []format.ID{format.Int8Row, format.Int4Row, format.Int2Row, format.Int4Grouped, format.Int3G64, format.FP8, format.BF16, format.F16, format.F32}

// supported is the table: what Supports promises and what the backend runs.
var supported = func() (rows []support) {
	for _, f := range formats {
		matmul := "matmul_int"
		if isFloat(f) {
			matmul = "matmul_float"
		}
		rows = append(rows,
			support{op: runtime.KindEmbed, format: f, kernel: "embed", group: 1},
			support{op: runtime.KindMatMul, format: f, kernel: matmul, group: 16},
			support{op: runtime.KindMLA, format: f, kernel: matmul, group: 16},
			support{op: runtime.KindExperts, format: f, kernel: "expert_matmul", group: 16},
			// Vectors are made f32 when they are loaded.
			support{op: runtime.KindRMSNorm, format: f, kernel: "rmsnorm", group: 1},
			support{op: runtime.KindLayerNorm, format: f, kernel: "layernorm", group: 1},
			support{op: runtime.KindRoute, format: f, kernel: "route", group: 1, cols: maxExperts})
	}
	// Operations without a weight: the format is that of an empty Spec.
	for op, kernel := range map[runtime.Kind]string{runtime.KindRope: "rope", runtime.KindSiLUMul: "silu_mul", runtime.KindAdd: "add", runtime.KindIndex: "topk"} {
		rows = append(rows, support{op: op, kernel: kernel})
	}
	return rows
}()

// isFloat says whether products take float32 activations.
func isFloat(f format.ID) bool {
	return f == format.F32 || f == format.BF16 || f == format.F16 || f == format.FP8
}

// lookup is the predicate: the row that serves an operation on a device, or the
// reason why there is none. The empty Spec asks for an operation without a weight.
func lookup(op runtime.Kind, s format.Spec, l Limits) (*support, error) {
	refuse := func(what, found, wanted string) error {
		return &format.Error{Kind: format.ErrUnsupported, What: what, Found: found, Wanted: wanted}
	}
	if !l.SIMD {
		return nil, refuse("the device has no operations over simdgroups of 32 threads", "", "")
	}
	i := slices.IndexFunc(supported, func(r support) bool { return r.op == op && r.format == s.Format })
	if i < 0 {
		return nil, refuse(fmt.Sprintf("no %s kernel for this format", op), s.Name(), "")
	}
	r := &supported[i]
	switch {
	case s.Format == format.Int4Grouped && (s.Group <= 0 || s.Group%r.group != 0):
		return nil, refuse(fmt.Sprintf("no %s kernel for this group size", op), s.Name(), fmt.Sprintf("a multiple of %d", r.group))
	case r.cols > 0 && s.Cols > r.cols:
		return nil, refuse(fmt.Sprintf("too wide for the %s kernel", op), fmt.Sprint(s.Cols), fmt.Sprintf("at most %d", r.cols))
	case s.Bytes() > int64(l.MaxBuffer) || s.ScaleBytes() > int64(l.MaxBuffer):
		return nil, refuse("larger than a buffer of the device", fmt.Sprint(s.Bytes()), fmt.Sprintf("at most %d bytes", l.MaxBuffer))
	}
	return r, nil
}

// TypicalLimits are those of an Apple GPU of family 7, for predictions where
// there is no device.
var TypicalLimits = Limits{MaxBuffer: 8 << 30, Memory: 1 << 62, ThreadgroupMemory: 32 << 10, Threads: 1024, Page: 16 << 10, SIMD: true, Unified: true, Residency: true}

// Supports says why an operation with a weight of this format and shape cannot
// run on a device with the given limits; nil means that the backend runs it there.
func Supports(op runtime.Kind, s format.Spec, l Limits) error {
	_, err := lookup(op, s, l)
	return err
}
