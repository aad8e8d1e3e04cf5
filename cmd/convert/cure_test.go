package main

import (
	"slices"
	"strings"
	"testing"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/internal/fixtures"
)

// TestRefusalHasACommand: what a recipe cannot do with a small model comes with
// the command that does it.
func TestRefusalHasACommand(t *testing.T) {
	for _, tt := range []struct {
		args []string
		more []string // flags of the cure
	}{
		{[]string{fixtures.Path(t, "llama"), outDir(t), "--recipe", "small", "-q"}, []string{"--tensor", `layers.[0-9]+.mlp.down_proj=int4-grouped/48`}},
		{[]string{"plan", fixtures.Path(t, "mixtral")}, []string{"--tensor", `layers.[0-9]+.block_sparse_moe.experts.[0-9]+.w2=int4-grouped/48`}},
		{[]string{"plan", fixtures.Path(t, "tiny-glm-g64"), "--allow-requantize", "--format", "int8-row"}, []string{"--allow-bigger"}},
	} {
		code, _, stderr := run(t, tt.args...)
		_, hint, _ := strings.Cut(stderr, "\nhint: convert ")
		words := strings.Fields(strings.ReplaceAll(hint, "'", ""))
		if code != cli.Usage || !slices.Equal(words[max(0, len(words)-len(tt.more)):], tt.more) {
			t.Errorf("%q: exit %d, want a command with %q in\n%s", tt.args, code, tt.more, stderr)
			continue
		}
		must(t, words...)
	}
	// No flag finds what is missing.
	if _, _, stderr := run(t, "plan", fixtures.Path(t, "llama"), "--tensor", "nothing=bf16", "--recipe", "small"); !strings.Contains(stderr, `hint: see "convert plan --help"`) {
		t.Errorf("%s", stderr)
	}
}

// TestFlagsThatMatchNothing: a flag about tensors that the model has not is a
// mistake about the model.
func TestFlagsThatMatchNothing(t *testing.T) {
	for _, tt := range [][]string{{"llama", "--kvb-bits"}, {"llama", "--xbits"}, {"llama", "--indexer-bits"}, {"mixtral", "--down-bits"}, {"glm_moe_dsa", "--mtp-bits"}} {
		code, _, stderr := run(t, "plan", fixtures.Path(t, tt[0]), tt[1], "8", "--allow-ambiguous")
		if code != cli.Usage || !strings.Contains(stderr, tt[1]+" matches no tensor (found a model without ") {
			t.Errorf("%q: exit %d, stderr %s", tt, code, stderr)
		}
	}
	must(t, "plan", fixtures.Path(t, "llama"), "--o-bits", "8", "--ebits", "8")
}
