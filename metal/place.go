package metal

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"hawkmoth/format"
	"hawkmoth/quantize"
	"hawkmoth/runtime"
)

// Placement says where the operations that read a tensor run.
type Placement struct {
	Tensor string // empty: an operation for which there is no kernel
	Layer  int    // -1 outside the layers
	Spec   format.Spec
	Op     runtime.Kind
	Why    *Reason // they run on the CPU; nil: on the device
	Own    bool    // the reason is this tensor's, not that of another of its block
}

// Place decides for every tensor of a model, from formats and shapes alone, as
// the backend does when it runs. The experts of a layer go together. Of the
// operations that the model needs it adds those without a kernel.
func Place(needs []runtime.Need, found []quantize.Found, l Limits, disable ...string) []Placement {
	off := map[string]bool{}
	for _, s := range disable {
		off[s] = true
	}
	var list []Placement
	experts := map[int]*Reason{} // by layer, of the first that has one
	for _, f := range found {
		if f.MTP {
			continue
		}
		p := Placement{Tensor: f.Name, Layer: f.Layer, Spec: f.Spec, Op: runtime.KindOf(f.Want)}
		if err := why(p.Op, p.Spec, l, off); err != nil {
			p.Own = errors.As(err, &p.Why)
		}
		if p.Op == runtime.KindExperts && p.Why != nil && experts[f.Layer] == nil {
			errors.As(because(fmt.Sprint("expert ", f.Expert), p.Why), &p.Why)
			experts[f.Layer] = p.Why
		}
		list = append(list, p)
	}
	for i := range list {
		if p := &list[i]; p.Op == runtime.KindExperts {
			p.Why = experts[p.Layer]
		}
	}
	for _, n := range needs {
		if err := Lacks(n.Op); err != nil && l.SIMD {
			p := Placement{Layer: n.Layer, Op: n.Op, Own: true}
			errors.As(err, &p.Why)
			list = append(list, p)
		}
	}
	return list
}

// tensorKind is a tensor's name without the numbers of layer and expert, such as
// kv_b_proj, experts.up_proj or mlp.up_proj.
func tensorKind(name string) string {
	name = strings.TrimSuffix(name, ".weight")
	if at := strings.Index(name, ".experts."); at >= 0 {
		return "experts." + name[strings.LastIndex(name, ".")+1:]
	}
	parts := strings.Split(name, ".")
	if n := len(parts); strings.Contains(name, "model.layers.") && n > 4 && parts[n-2] != "self_attn" {
		return strings.Join(parts[n-2:], ".")
	}
	return parts[len(parts)-1]
}

// pattern finds the names of a kind, as convert overlay --tensors takes it.
func pattern(kind string) string {
	if matrix, ok := strings.CutPrefix(kind, "experts."); ok {
		return `\.experts\.\d+\.` + matrix
	}
	return regexp.QuoteMeta(kind)
}

// Notice is one line about a kind of tensor that leaves the device.
type Notice struct {
	Kind, Format string
	Text         string // for the user, without the backend's name
	Cure         string // a command or what to change; empty where nothing helps
}

// Notices are what to tell the user, once for each kind of tensor and reason,
// with what cures it; nothing if everything runs on the device. dir is the
// snapshot as the user spelt it.
func Notices(list []Placement, l Limits, dir string) []Notice {
	type key struct{ kind, format, why string }
	var order []key
	layers := map[key]int{}
	first := map[key]*Placement{}
	all := map[string]map[int]bool{}
	seen := map[string]bool{}
	for i := range list {
		p := &list[i]
		kind := tensorKind(p.Tensor)
		if p.Tensor == "" {
			kind = p.Op.String()
		}
		if all[kind] == nil {
			all[kind] = map[int]bool{}
		}
		all[kind][p.Layer] = true
		if !p.Own {
			continue
		}
		k := key{kind, p.Spec.Name(), p.Why.Error()}
		if p.Why.Cause == ForSwitch || p.Why.Cause == ForDevice {
			k = key{why: k.why} // one cause for many kinds
		}
		if first[k] == nil {
			first[k] = p
			order = append(order, k)
		}
		if at := fmt.Sprint(k, p.Layer); !seen[at] {
			seen[at] = true
			if p.Layer >= 0 {
				layers[k]++
			}
		}
	}
	var out []Notice
	for _, k := range order {
		p := first[k]
		n := Notice{Kind: k.kind, Format: k.format, Cure: cure(p, k.kind, l, dir)}
		switch {
		case k.kind == "" && p.Why.Cause == ForSwitch:
			n.Text = fmt.Sprintf("%s: the CPU runs %s of %d layers", k.why, workOf[p.Op].work, layers[k])
		case k.kind == "":
			n.Text = k.why + ": everything runs on the CPU"
		case p.Tensor == "" && p.Layer < 0:
			n.Text = fmt.Sprintf("%s; the CPU runs %s", k.why, workOf[p.Op].work)
		case p.Tensor == "":
			n.Text = fmt.Sprintf("%s, which %d layers need; they run %s on the CPU", k.why, layers[k], workOf[p.Op].work)
		case p.Layer < 0:
			n.Text = fmt.Sprintf("%s: %s: %s; the CPU runs %s", k.kind, k.format, k.why, workOf[p.Op].work)
		default:
			n.Text = fmt.Sprintf("%s: %s on %d/%d layers: %s; those layers run %s on the CPU", k.kind, k.format, layers[k], len(all[k.kind]), k.why, workOf[p.Op].work)
		}
		if n.Cure != "" {
			n.Text += ". Fix: " + n.Cure
		}
		out = append(out, n)
	}
	return out
}

// remedies are formats to try, small ones first where the tensor is large.
var remedies = []format.Spec{{Format: format.Int4Grouped, Group: 64}, {Format: format.Int8Row}, {Format: format.BF16}}

// cure is what brings a tensor back to the device: the same function as for the
// placement says that it does.
func cure(p *Placement, kind string, l Limits, dir string) string {
	switch p.Why.Cause {
	case ForSwitch:
		return "run without --disable " + p.Why.Switch
	case ForDevice:
		return "choose another device, see --list-devices, or --backend cpu"
	}
	if p.Spec.Rows == 1 || p.Tensor == "" {
		return "" // vectors stay as they are
	}
	for _, s := range remedies {
		s.Rows, s.Cols = p.Spec.Rows, p.Spec.Cols
		if _, ambiguous := format.Ambiguous(s); ambiguous || s.Format == p.Spec.Format && s.Group == p.Spec.Group || Supports(p.Op, s, l) != nil {
			continue
		}
		c := fmt.Sprintf("convert overlay %s --tensors '%s' --format %s", dir, pattern(kind), s.Format)
		if s.Group > 0 {
			c += fmt.Sprintf(" --group-size %d", s.Group)
		}
		return c
	}
	return ""
}

// Require is the error of --require-gpu: everything that would run on the CPU,
// a format.ErrUnsupported, or nil.
func Require(notices []Notice) error {
	if len(notices) == 0 {
		return nil
	}
	var problems format.Problems
	for _, n := range notices {
		problems = append(problems, &format.Error{Kind: format.ErrUnsupported, What: "--require-gpu: " + n.Text})
	}
	return problems.Err()
}
