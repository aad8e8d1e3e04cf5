package report

import (
	"errors"
	"slices"
	"strings"

	"hawkmoth/format"
	"hawkmoth/metal"
	"hawkmoth/quantize"
	"hawkmoth/runtime"
)

// Backends lists the names that AddBackend knows.
var Backends = []string{"metal", "cuda", "cpu"}

// ways are the paths of our own backends: an operation is placed by its weight,
// matrix by matrix, but for the experts of a layer, which go together.
var ways = []struct {
	path string
	ops  []runtime.Kind
}{
	{"embedding", []runtime.Kind{runtime.KindEmbed}},
	{"norms", []runtime.Kind{runtime.KindRMSNorm, runtime.KindLayerNorm, runtime.KindHeadNorm}},
	{"products", []runtime.Kind{runtime.KindMatMul, runtime.KindAddBias}},
	{"attention", []runtime.Kind{runtime.KindMLA, runtime.KindAttention, runtime.KindSplit, runtime.KindGate, runtime.KindDeltaNet}},
	{"routing", []runtime.Kind{runtime.KindRoute, runtime.KindSoftmaxRoute}},
	{"routed experts", []runtime.Kind{runtime.KindExperts, runtime.KindClampedExperts}},
}

// devices are the GPUs that a prediction is about.
var devices = map[string]string{"metal": "Apple GPUs of family 7 or newer", "cuda": "NVIDIA GPUs of compute capability 7.5 or newer"}

// limitsOf are the limits of a device that is not at hand. A device with less
// memory leaves more to the CPU and says so when it loads.
func limitsOf(backend string) metal.Limits {
	l := metal.TypicalLimits
	if backend == "cuda" {
		l.MaxBuffer, l.Page, l.Unified, l.Residency = 1<<37, 1, false, false
	}
	return l
}

// AddBackend predicts what a backend of our own would run on the GPU: the
// answer is that of the function that places the commands of a run. It is
// format.ErrUsage for a name that is not in Backends and without a known model.
func (r *Report) AddBackend(name string) error {
	if err := r.needsModel("--backend"); err != nil {
		return err
	}
	switch {
	case !slices.Contains(Backends, name):
		return &format.Error{Kind: format.ErrUsage, What: "--backend: no such backend", Found: name, Wanted: strings.Join(Backends, ", ")}
	case name == "cpu":
		r.Placements = append(r.Placements, r.placeBackend(name, "no GPU: everything runs on the CPU", func(runtime.Kind, format.Spec) error { return errNoGPU }))
	default:
		r.Placements = append(r.Placements, r.placeGPU(name, limitsOf(name)))
	}
	return nil
}

func (r *Report) placeGPU(name string, l metal.Limits) Placement {
	p := r.placeBackend(name, "metal.Supports, which places the commands of a run too", func(op runtime.Kind, s format.Spec) error { return metal.Supports(op, s, l) })
	p.Device = devices[name]
	return p
}

// errNoGPU needs no explanation and is not listed as a reason.
var errNoGPU = errors.New("no GPU")

func (r *Report) placeBackend(name, source string, supports func(runtime.Kind, format.Spec) error) Placement {
	p := Placement{By: name, Source: source, Dimensions: []string{}, Warnings: []string{}}
	needs := r.config.Needs()
	if name == "cpu" {
		needs = nil
	}
	model := mainModel(r.census.Readings())
	for _, way := range ways {
		x := newPlacer(way.path, nil)
		for _, f := range model {
			op := runtime.KindOf(f.Want)
			if !slices.Contains(way.ops, op) {
				continue
			}
			x.see(f.Layer)
			switch err := supports(op, f.Spec); {
			case err == nil:
			case errors.Is(err, errNoGPU):
				x.layers[f.Layer] = onCPU
			default:
				x.off(f.Layer, PlacedReason{State: onCPU, Role: f.Role.String(), Format: f.Spec.Name(), Why: strings.TrimPrefix(err.Error(), ": "), Cure: r.cure(f, supports)})
			}
		}
		for _, n := range needs {
			if !slices.Contains(way.ops, n.Op) {
				continue
			}
			if err := metal.Lacks(n.Op); err != nil {
				x.off(n.Layer, PlacedReason{State: onCPU, Role: n.Op.String(), Why: strings.TrimPrefix(err.Error(), ": ")})
			}
		}
		if len(x.layers) > 0 {
			p.Paths = append(p.Paths, x.done())
		}
	}
	return p
}

// remedies are formats to try, the least lossy of the small ones first.
var remedies = []format.Spec{{Format: format.Int8Row}, {Format: format.Int4Grouped, Group: 64}, {Format: format.BF16}}

// cure is the command after which the same function says that a tensor runs on
// the GPU; empty where none does.
func (r *Report) cure(f *quantize.Found, supports func(runtime.Kind, format.Spec) error) string {
	list := remedies
	if f.Role == quantize.Expert || f.Role == quantize.KVB {
		list = []format.Spec{remedies[1], remedies[0]}
	}
	for _, s := range list {
		s.Rows, s.Cols = f.Spec.Rows, f.Spec.Cols
		if _, doubt := format.Ambiguous(s); doubt || !f.Matrix() || supports(runtime.KindOf(f.Want), s.Canonical()) != nil {
			continue
		}
		args := "--role " + f.Role.String()
		if f.Tensor.Name == f.Tied {
			args = "--role " + quantize.Embed.String()
		}
		if f.Role == quantize.KVB {
			args = "--tensors kv_b_proj"
		}
		args += " --format " + s.Format.String()
		if s.Group > 0 {
			args += " --group-size 64"
		}
		return r.overlayCommand(args, f.Spec.Format)
	}
	return ""
}
