package format

import (
	"testing"

	"hawkmoth/internal/fixtures"
)

func TestOpenFixtures(t *testing.T) {
	for _, name := range []string{"glm_moe_dsa", "glm_moe_dsa_fp8", "glm_moe_dsa_dense_attention", "tiny-glm-g64"} {
		s, err := Open(fixtures.Path(t, name))
		if err != nil {
			t.Fatal(err)
		}
		if len(s.Names()) == 0 || len(s.Warnings) > 0 {
			t.Errorf("%s: %d tensors, warnings %v", name, len(s.Names()), s.Warnings)
		}
		for _, n := range s.Names() {
			x := s.Tensor(n)
			b, err := x.Shard.Bytes(x)
			if err != nil || int64(len(b)) != x.Size {
				t.Errorf("%s: %d of %d bytes, %v", n, len(b), x.Size, err)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
