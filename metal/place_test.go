//go:build linux && (amd64 || arm64) && !nogpu

package metal

import (
	"errors"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"hawkmoth/format"
	"hawkmoth/internal/fixtures"
	"hawkmoth/quantize"
	"hawkmoth/runtime"
)

// without takes rows out of the table of kernels for the time of a test.
func without(t *testing.T, drop func(s support) bool) {
	all := supported
	t.Cleanup(func() { supported = all })
	supported = slices.DeleteFunc(slices.Clone(all), drop)
}

func modelWants(m *runtime.Model) []quantize.Found { return m.Census.Found }

// TestPredictedIsCountedForEveryTensor: Place, which knows headers, says for
// every tensor where the run counts it; reasons and all.
func TestPredictedIsCountedForEveryTensor(t *testing.T) {
	plain, tight := emulatorLimits, emulatorLimits
	plain.SIMD, plain.Residency = false, false
	tight.MaxBuffer = 100_000
	kvb := func(f string) quantize.Flags { return quantize.Flags{Tensors: []string{"kv_b_proj=" + f}} }
	cases := []struct {
		name    string
		flags   *quantize.Flags // nil: the checkpoint as it is
		limits  *Limits
		disable []string
		drop    func(s support) bool
		off     bool // something runs on the CPU
	}{
		{name: "bf16"},
		{name: "mixed", flags: &quantize.Flags{Tensors: []string{"layers.1=int2-row", "layers.2=int3-g64", "o_proj=int8-row", "layers.3.*experts=fp8-e4m3-b128"}}},
		{name: "one expert of another group size", flags: &quantize.Flags{Format: "int4-grouped/64", Tensors: []string{`layers.2.mlp.experts.5.*=int4-grouped/16`}}},
		{name: "no kernel for kv_b", flags: &quantize.Flags{Tensors: []string{"layers.2.*kv_b_proj=int3-g64"}}, off: true,
			drop: func(s support) bool { return s.op == runtime.KindMLA && s.format == format.Int3G64 }},
		{name: "no kernel for an expert", flags: &quantize.Flags{Format: "int4-row", Tensors: []string{`layers.2.mlp.experts.5.up_proj=int2-row`}}, off: true,
			drop: func(s support) bool { return s.op == runtime.KindExperts && s.format == format.Int2Row }},
		{name: "no kernel for a product", flags: &quantize.Flags{Format: "int4-row", Tensors: []string{`q_a_proj=int2-row`}}, off: true,
			drop: func(s support) bool { return s.op == runtime.KindMatMul && s.format == format.Int2Row }},
		{name: "no simdgroups", limits: &plain, off: true},
		{name: "small buffers", limits: &tight, off: true},
		{name: "switches", disable: []string{"gpu-experts", "fused-attention"}, off: true},
	}
	for _, f := range []string{"int8-row", "int4-row", "int4-grouped/64", "int4-grouped/128", "int4-grouped/16", "fp8-e4m3-b128", "int3-g64"} {
		flags := kvb(f)
		cases = append(cases, cases[0])
		cases[len(cases)-1].name, cases[len(cases)-1].flags = "kv_b "+f, &flags
	}
	ids := oracleIDs(t, "glm_moe_dsa")[:20]
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if c.drop != nil {
				without(t, c.drop)
			}
			dir := fixtures.Path(t, "glm_moe_dsa")
			if c.flags != nil {
				dir = convert(t, dir, *c.flags)
			}
			d := emulator(t, EmulatorOptions{Limits: c.limits})
			l := d.Limits()
			b := newBackend(t, d, c.disable...)
			m := load(t, dir, b)
			want := logits(t, load(t, dir, runtime.NewCPU(1)), ids, 16, 16, true)
			compare(t, c.name, logits(t, m, ids, 16, 16, true), want)
			placed, ran := Place(m.Config.Needs(), modelWants(m), l, c.disable...), b.WeightsRan()
			if len(placed) != len(ran) {
				t.Fatalf("%d tensors placed, %d loaded", len(placed), len(ran))
			}
			off := false
			reasons := map[string]bool{}
			for _, n := range b.Counts() {
				reasons[n.Why] = true
			}
			for i, p := range placed {
				if onCPU := p.Why != nil; onCPU != (ran[i].CPU > 0) || onCPU == (ran[i].GPU > 0) {
					t.Errorf("%s: predicted %v, counted %+v", p.Tensor, p.Why, ran[i])
				}
				if p.Why != nil {
					off = true
					if !reasons[p.Why.Error()] {
						t.Errorf("%s: predicted %q, counted %v", p.Tensor, p.Why, reasons)
					}
				}
			}
			notices := Notices(placed, l, "SNAP")
			if off != c.off || (len(notices) > 0) != off || (Require(notices) != nil) != off {
				t.Errorf("off the device: %v; notices %+v", off, notices)
			}
			for _, n := range notices {
				t.Log(n.Text)
			}
		})
	}
}

// TestRemedyCures: the notice's command, executed, ends the notice.
func TestRemedyCures(t *testing.T) {
	without(t, func(s support) bool {
		return s.format == format.Int2Row && (s.op == runtime.KindMLA || s.op == runtime.KindExperts)
	})
	dir := convert(t, fixtures.Path(t, "glm_moe_dsa"), quantize.Flags{Tensors: []string{"kv_b_proj=int2-row", `experts\..*up_proj=int2-row`}})
	notices := func() []Notice {
		d := emulator(t, EmulatorOptions{})
		l := d.Limits()
		return Notices(Place(nil, modelWants(load(t, dir, newBackend(t, d))), l), l, dir)
	}
	before := notices()
	if len(before) != 2 || !strings.HasPrefix(before[0].Text, "kv_b_proj: int2-row on 4/4 layers: no attention kernel for this format") {
		t.Fatalf("%+v", before)
	}
	if err := Require(before); !errors.Is(err, format.ErrUnsupported) {
		t.Errorf("%v", err)
	}
	bin := filepath.Join(t.TempDir(), "convert")
	if out, err := exec.Command("go", "build", "-o", bin, "hawkmoth/cmd/convert").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, n := range before {
		words := regexp.MustCompile(`'[^']*'|\S+`).FindAllString(strings.TrimPrefix(n.Cure, "convert "), -1)
		for i, w := range words {
			words[i] = strings.Trim(w, "'")
		}
		if out, err := exec.Command(bin, words...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", n.Cure, err, out)
		}
	}
	if after := notices(); len(after) != 0 {
		t.Errorf("after the remedies: %+v", after)
	}
}
