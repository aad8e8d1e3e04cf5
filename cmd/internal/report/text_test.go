package report

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/format"
	"hawkmoth/internal/fixtures"
)

const tinySummary = `tiny: container, loadable

architecture  GlmMoeDsa (glm_moe_dsa): 6 layers, 1 dense and 5 with experts
              hidden 192, heads 4, experts 8 of which a token reads 2 and 1 shared
              4 heads of latent attention (MLA), the indexer's best 2048 positions
              vocabulary 4096, context 2048
parameters    6.3 M, active per token 3.3 M (2.2 MB of weights)
size          4.3 MB in 1 shard, 5.48 bits/weight, 99.8 % of the parameters quantised
completeness  205 of 205 tensors; layers 0-5 complete
MTP block     layer 6: absent
indexer       layers 0-5: absent
stamps        0 of 170 packed matrices; 57 without a stamp can be read in several ways
placement     metal, predicted for Apple GPUs of family 7 or newer: all layers on the GPU

format           tensors  parameters    bytes  bits/weight
int4-grouped/64      168       4.7 M   2.6 MB         4.51
int8-row               2       1.6 M   1.6 MB         8.17
f32                   35      11.6 k  46.2 kB        32.00

role         tensors  parameters     bytes  bits/weight  formats
embed              1     786.4 k  802.8 kB         8.17  int8-row
head               1     786.4 k  802.8 kB         8.17  int8-row
norm              25       3.8 k   15.4 kB        32.00  f32
attn              18     423.9 k  241.5 kB         4.56  int4-grouped/64
kv_b               6     344.1 k  193.5 kB         4.50  int4-grouped/64
o_proj             6     294.9 k  165.9 kB         4.50  int4-grouped/64
router             5       7.7 k   30.7 kB        32.00  f32
router_bias        5          40     160 B        32.00  f32
dense              3     294.9 k  165.9 kB         4.50  int4-grouped/64
shared            15     368.6 k  207.4 kB         4.50  int4-grouped/64
expert           120       2.9 M    1.7 MB         4.50  int4-grouped/64

warnings
`

const tinyMap = `outside the layers: embed int8, head int8, norm f32

layer  norm    attn     kv_b     o_proj   router  router_bias  dense    shared   expert   indexer  mtp     bytes/layer
0      f32     int4/64  int4/64  int4/64  –       –            int4/64  –        –        absent   –          268.5 kB
1-5    f32     int4/64  int4/64  int4/64  f32     f32          –        int4/64  int4/64  absent   –          482.0 kB
6 MTP  absent  absent   absent   absent   absent  absent       –        absent   absent   absent   absent          0 B

int4/64 = int4-grouped/64, int8 = int8-row
`

func TestTextOfAFixture(t *testing.T) {
	snap, err := format.Open(fixtures.Path(t, "tiny-glm-g64"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = snap.Close() }()
	r, err := Build(snap)
	if err == nil {
		err = r.AddLayers()
	}
	if err != nil {
		t.Fatal(err)
	}
	r.Path = "tiny"
	var text strings.Builder
	if err := r.Summary(&text); err != nil {
		t.Fatal(err)
	}
	head, tail, _ := strings.Cut(text.String(), "warnings\n")
	if head+"warnings\n" != tinySummary {
		t.Errorf("%s\nwanted\n%s", head, tinySummary)
	}
	if !strings.Contains(tail, "attention is dense; beyond 2048 tokens") {
		t.Errorf("warnings: %s", tail)
	}
	text.Reset()
	if err := r.Write(&text, Sections{Layers: true}); err != nil {
		t.Fatal(err)
	}
	if text.String() != tinyMap {
		t.Errorf("%s\nwanted\n%s", text.String(), tinyMap)
	}
}

func TestAmount(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1.0 k", 999_949: "999.9 k", 999_950: "1.0 M", 743_400_000_000: "743.4 B", 3e15: "3000.0 T"} {
		if got := cli.Amount(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

func TestWrapRanges(t *testing.T) {
	if got := strings.Join(wrapRanges("0-2,6,10,14,18", 8), "|"); got != "0-2,6,10,|14,18" {
		t.Error(got)
	}
}

// TestManyProblemsStayReadable lists problems of one kind under one heading.
func TestManyProblemsStayReadable(t *testing.T) {
	r := Failed("dir", format.Problems{
		&format.Error{Kind: format.ErrCorrupt, Path: "dir/a.safetensors", What: "shard is truncated", Found: "1 bytes", Wanted: "2"},
		errors.New("something else"),
	})
	for i := range 20 {
		r.problem(&format.Error{Kind: format.ErrCorrupt, Path: "dir/b.safetensors", Tensor: fmt.Sprintf("layers.%d.x", i), What: "shape", Wanted: "[2]"})
	}
	want := `corrupt: dir/a.safetensors: shard is truncated (found 1 bytes, wanted 2)
failed: something else
corrupt: shape
  layers.{0-19}.x (20 tensors) in b.safetensors: wanted [2]`
	if got := strings.Join(r.problemLines(), "\n"); got != want {
		t.Errorf("%s\nwanted\n%s", got, want)
	}
	if r.ListAll(); len(r.problemLines()) != 22 {
		t.Errorf("all: %s", strings.Join(r.problemLines(), "\n"))
	}
	if err := r.Err(); !errors.Is(err, format.ErrCorrupt) || r.Verdict != NotLoadable {
		t.Errorf("%v %s", err, r.Verdict)
	}
}
