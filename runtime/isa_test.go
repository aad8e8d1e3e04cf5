package runtime

import (
	"testing"

	"hawkmoth/internal/fixtures"
	"hawkmoth/quantize"
	"hawkmoth/runtime/kernel"
)

// TestSameBitsOnEveryISA forces every level of instructions that the machine
// has on a whole model: as one prompt, and in pieces that are too small for the
// kernels of many vectors.
func TestSameBitsOnEveryISA(t *testing.T) {
	best := kernel.ISA()
	defer func() {
		if err := kernel.UseISA(best); err != nil {
			t.Error(err)
		}
	}()
	ids := openOracle(t, "glm_moe_dsa").ids("input_ids")
	for _, spec := range bitFormats() {
		t.Run(spec.Name(), func(t *testing.T) {
			dir := convert(t, fixtures.Path(t, "glm_moe_dsa"), quantize.Flags{Format: spec.Name()})
			var want [][]float32
			for _, isa := range kernel.ISAs() {
				if err := kernel.UseISA(isa); err != nil {
					t.Fatal(err)
				}
				m := load(t, dir, 2)
				for _, chunk := range []int{len(ids), 9, 7, 2} {
					got := allLogits(t, session(t, m, len(ids), chunk), ids)
					if want == nil {
						want = got
					}
					if at, ok := sameBits(got, want); !ok {
						t.Errorf("%s, chunk %d: logits differ at %s", isa, chunk, at)
					}
				}
			}
		})
	}
}
