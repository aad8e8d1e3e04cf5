package metal

import (
	"errors"
	"fmt"
	"slices"
	"strings"

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

// Cause is the kind of reason for which something runs on the CPU.
type Cause string

// The causes.
const (
	ForFormat    Cause = "format"
	ForGroupSize Cause = "group size"
	ForShape     Cause = "shape"
	ForOperation Cause = "operation"
	ForMemory    Cause = "memory"
	ForDevice    Cause = "device"
	ForSwitch    Cause = "switch" // the user's: see Switches
)

// Reason is why something runs on the CPU. It is a format.ErrUnsupported.
type Reason struct {
	Cause  Cause
	Switch string // that was thrown
	Err    error
}

func (r *Reason) Error() string { return strings.TrimPrefix(r.Err.Error(), ": ") }

// Unwrap is the text's own error.
func (r *Reason) Unwrap() error { return r.Err }

func refuse(c Cause, what, found, wanted string) error {
	return &Reason{Cause: c, Err: &format.Error{Kind: format.ErrUnsupported, What: what, Found: found, Wanted: wanted}}
}

// switchedOff is the reason of what a switch keeps on the CPU.
func switchedOff(name string) error {
	return &Reason{Cause: ForSwitch, Switch: name, Err: &format.Error{Kind: format.ErrUnsupported, What: "switched off: " + name}}
}

// because says which of several weights has the reason.
func because(where string, err error) error {
	inner := new(Reason)
	if !errors.As(err, &inner) || inner.Cause == ForSwitch || inner.Cause == ForDevice {
		return err
	}
	return &Reason{Cause: inner.Cause, Err: fmt.Errorf("%s: %w", where, err)}
}

// workOf names what an operation does: its kernel, and what the CPU does instead.
var workOf = map[runtime.Kind]struct{ kernel, work string }{
	runtime.KindEmbed:     {"embedding", "the embedding"},
	runtime.KindMatMul:    {"product", "these products"},
	runtime.KindRMSNorm:   {"norm", "norms"},
	runtime.KindLayerNorm: {"norm", "norms"},
	runtime.KindMLA:       {"attention", "attention"},
	runtime.KindRoute:     {"routing", "routing"},
	runtime.KindExperts:   {"expert", "the routed experts"},
	runtime.KindIndex:     {"indexer", "the indexer"},
	runtime.KindRope:      {"rotation", "rotations"},
	runtime.KindSiLUMul:   {"gating", "gating"},
	runtime.KindAdd:       {"sum", "sums"},

	runtime.KindAttention:      {"attention", "attention"},
	runtime.KindAddBias:        {"bias", "biases"},
	runtime.KindGate:           {"gate", "gates"},
	runtime.KindDeltaNet:       {"delta rule", "the delta rule"},
	runtime.KindSplit:          {"copy", "copies"},
	runtime.KindHeadNorm:       {"norm", "norms"},
	runtime.KindSoftmaxRoute:   {"routing", "routing"},
	runtime.KindClampedExperts: {"expert", "the routed experts"},
}

// Lacks says that there is no kernel for an operation, whatever its weights;
// nil if there is one.
func Lacks(op runtime.Kind) error {
	if slices.ContainsFunc(supported, func(r support) bool { return r.op == op }) {
		return nil
	}
	return errNoKernel(op)
}

func errNoKernel(op runtime.Kind) error {
	return refuse(ForOperation, "no kernel for the operation "+op.String(), "", "")
}

// lookup is the predicate: the row that serves an operation on a device, or the
// reason why there is none. The empty Spec asks for an operation without a weight.
func lookup(op runtime.Kind, s format.Spec, l Limits) (*support, error) {
	if !l.SIMD {
		return nil, refuse(ForDevice, "the device has no operations over simdgroups of 32 threads", "", "")
	}
	if err := Lacks(op); err != nil {
		return nil, err
	}
	i := slices.IndexFunc(supported, func(r support) bool { return r.op == op && r.format == s.Format })
	if i < 0 {
		return nil, refuse(ForFormat, fmt.Sprintf("no %s kernel for this format", workOf[op].kernel), "", "")
	}
	r := &supported[i]
	switch {
	case s.Format == format.Int4Grouped && (s.Group <= 0 || s.Group%r.group != 0):
		return nil, refuse(ForGroupSize, fmt.Sprintf("no %s kernel for this group size", workOf[op].kernel), fmt.Sprint(s.Group), fmt.Sprintf("a multiple of %d", r.group))
	case r.cols > 0 && s.Cols > r.cols:
		return nil, refuse(ForShape, fmt.Sprintf("too wide for the %s kernel", workOf[op].kernel), fmt.Sprint(s.Cols), fmt.Sprintf("at most %d", r.cols))
	case max(s.Bytes(), s.ScaleBytes()) > int64(l.MaxBuffer-2*l.Page): // it is wrapped in whole pages
		return nil, refuse(ForShape, "larger than a buffer of the device", fmt.Sprint(s.Bytes()), fmt.Sprintf("at most %d bytes", l.MaxBuffer))
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
