package quantize

import (
	"slices"
	"strings"
	"testing"

	"hawkmoth/format"
)

// want is a tensor of a role, for recipes.
func want(role Role, name string, mtp bool, shape ...int) Want {
	return Want{Name: name, Shape: shape, Role: role, MTP: mtp, Expert: -1}
}

func TestRecipesGiveEveryTensorItsFormat(t *testing.T) {
	wants := []Want{
		want(Embed, "model.embed_tokens.weight", false, 256, 64),
		want(Attn, "model.layers.0.self_attn.q_a_proj.weight", false, 64, 64),
		want(KVB, "model.layers.0.self_attn.kv_b_proj.weight", false, 64, 64),
		want(Router, "model.layers.0.mlp.gate.weight", false, 8, 64),
		want(Norm, "model.layers.0.input_layernorm.weight", false, 64),
		want(Expert, "model.layers.0.mlp.experts.0.gate_proj.weight", false, 64, 64),
		want(Indexer, "model.layers.0.self_attn.indexer.wk.weight", false, 64, 64),
		want(Norm, "model.layers.0.self_attn.indexer.k_norm.weight", false, 64),
		want(MTP, "model.layers.1.eh_proj.weight", true, 64, 64),
		want(Expert, "model.layers.1.mlp.experts.0.gate_proj.weight", true, 64, 64),
		want(Router, "model.layers.1.mlp.gate.weight", true, 8, 64),
		want(Norm, "model.layers.1.enorm.weight", true, 64),
		want(Indexer, "model.layers.1.self_attn.indexer.wk.weight", true, 64, 64),
	}
	bits := func(pairs ...any) Flags {
		f := Flags{Bits: map[string]int{}}
		for i := 0; i < len(pairs); i += 2 {
			f.Bits[pairs[i].(string)] = pairs[i+1].(int)
		}
		return f
	}
	size := func(n int, f Flags) Flags { f.GroupSize = &n; return f }
	const g = "int4-grouped/64"
	tests := []struct {
		recipe string
		flags  Flags
		want   string // embed attn kv_b router norm expert indexer its-norm | eh_proj expert router norm indexer of the MTP block
	}{
		{"balanced", Flags{}, "int8-row int8-row int8-row f32 f32 " + g + " int8-row f32 int8-row int8-row f32 f32 int8-row"},
		{"small", Flags{}, "int8-row " + g + " " + g + " f32 f32 " + g + " " + g + " f32 int8-row int8-row f32 f32 int8-row"},
		{"colibri", Flags{}, "int8-row " + g + " " + g + " f32 f32 " + g + " drop drop drop drop drop drop drop"},
		{"colibri-metal", Flags{}, "int8-row int8-row " + g + " f32 f32 " + g + " int8-row f32 int8-row int8-row f32 f32 int8-row"},
		{"colibri-mtp", Flags{}, "drop drop drop drop drop drop drop drop int8-row int8-row f32 f32 drop"},
		{"colibri-indexer", bits("ebits", 8), "drop drop drop drop drop drop int8-row f32 drop drop drop drop drop"},
		{"balanced", Flags{Format: "bf16"}, "bf16 bf16 bf16 f32 f32 bf16 bf16 f32 bf16 bf16 f32 f32 bf16"},
		{"balanced", size(128, Flags{Format: "int4-grouped"}), strings.ReplaceAll("g g g f32 f32 g g f32 g g f32 f32 g", "g", "int4-grouped/128")},
		{"balanced", size(128, Flags{Format: g}), strings.ReplaceAll("g g g f32 f32 g g f32 g g f32 f32 g", "g", g)},
		{"colibri", size(0, Flags{}), "int8-row int4-row int4-row f32 f32 int4-row drop drop drop drop drop drop drop"},
		{"colibri", bits("ebits", 8), "int8-row int8-row int8-row f32 f32 int8-row drop drop drop drop drop drop drop"},
		{"colibri", bits("ebits", 8, "xbits", 3), "int8-row int8-row int8-row f32 f32 int3-g64 drop drop drop drop drop drop drop"},
		{"colibri", bits("kvb-bits", 16, "io-bits", 2), "int2-row " + g + " bf16 f32 f32 " + g + " drop drop drop drop drop drop drop"},
		{"balanced", bits("gate-bits", 3, "mtp-bits", 4, "indexer-bits", 4), "int8-row int8-row int8-row f32 f32 int3-g64 " + g + " f32 " + g + " " + g + " f32 f32 " + g},
		{"balanced", bits("gate-bits", 3, "xbits", 8), "int8-row int8-row int8-row f32 f32 int3-g64 int8-row f32 int8-row int8-row f32 f32 int8-row"},
		{"balanced", Flags{Tensors: []string{"layers\\.0=bf16", "kv_b=int2-row", "experts=int4-grouped"}},
			"int8-row bf16 int2-row bf16 bf16 " + g + " bf16 bf16 int8-row " + g + " f32 f32 int8-row"},
		{"colibri", Flags{Tensors: []string{"eh_proj=bf16", "kv_b=bf16", "kv_b=f16"}}, "int8-row " + g + " f16 f32 f32 " + g + " drop drop drop drop drop drop drop"},
	}
	for _, tt := range tests {
		r := recipe(t, tt.recipe, tt.flags)
		var got []string
		for _, w := range wants {
			c, _ := r.Choose(w)
			got = append(got, c.String())
		}
		if text := strings.Join(got, " "); text != tt.want {
			t.Errorf("%s %+v:\n got %s\nwant %s", tt.recipe, tt.flags, text, tt.want)
		}
	}
}

func TestFlagsDoNotChangeTheBuiltInRecipes(t *testing.T) {
	before := recipe(t, "balanced", Flags{}).Roles
	recipe(t, "balanced", Flags{Format: "bf16", Tensors: []string{"x=f16"}})
	after := recipe(t, "balanced", Flags{})
	if after.Roles != before || len(after.Overrides) != 0 {
		t.Error("balanced was changed")
	}
}

func TestFlagsAreRefusedAllAtOnce(t *testing.T) {
	n := 100
	r, err := RecipeFor("colibri")
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.With(Flags{GroupSize: &n, Format: "e8-iq3-lattice", Bits: map[string]int{"ebits": 5, "mtp-bits": 8},
		Tensors: []string{"novalue", "(=bf16", "x=int9", "x=drop", "x=int4-grouped/100"}})
	wantError(t, err, format.ErrUsage,
		"--group-size (found 100, wanted 0 (one scale a row) or one of [16 32 48 64 96 128 192 256])",
		`--format (found "e8-iq3-lattice", wanted f32, int8-row`,
		"--ebits (found 5, wanted 16, 8, 4, 3 or 2)",
		"--mtp-bits (found recipe colibri leaves that out",
		`tensor override (found "novalue", wanted REGEX=FORMAT[/GS])`,
		`tensor override "(=bf16": not a regular expression`,
		`tensor override "x=int9": no such format`,
		`tensor override "x=drop"`,
		`tensor override "x=int4-grouped/100": no such group size`)
}

func TestRecipeFile(t *testing.T) {
	r, err := ReadRecipe("mine.json", []byte(`{"name":"mine","doc":"d","base":"small","roles":{"kv_b":"int8-row","indexer":"drop"},
		"mtp":"drop","down":"int8-row","tensors":["o_proj=bf16"]}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		w    Want
		want string
	}{
		{want(KVB, "kv_b_proj.weight", false, 8, 64), "int8-row"},
		{want(Indexer, "indexer.wk.weight", false, 8, 64), "drop"},
		{want(MTP, "eh_proj.weight", true, 8, 64), "drop"},
		{want(Expert, "experts.0.down_proj.weight", false, 8, 64), "int8-row"},
		{want(Expert, "experts.0.up_proj.weight", false, 8, 64), "int4-grouped/64"},
		{want(Out, "o_proj.weight", false, 8, 64), "bf16"},
		{want(Attn, "q_a_proj.weight", false, 8, 64), "int4-grouped/64"},
	} {
		if c, _ := r.Choose(tt.w); c.String() != tt.want {
			t.Errorf("%s: %s, want %s", tt.w.Name, c, tt.want)
		}
	}
	if r.Name != "mine" || r.Shards != "out" {
		t.Errorf("name %q, shards %q", r.Name, r.Shards)
	}
}

func TestRecipeFileIsRefused(t *testing.T) {
	tests := map[string][]string{
		`{"role":{"kv_b":"int8-row"}}`:    {"mine.json: not a recipe", "role"},
		`{"mtp":"drop","mtp":"int8-row"}`: {"not a recipe", "mtp"},
		`[]`:                              {"not a recipe"},
		`{"base":"tiny"}`:                 {`no such recipe (found "tiny", wanted balanced,`},
		`{"roles":{"kvb":"f16","kv_b":"int5","norm":"int8-row"},"up":"q4","tensors":["x"]}`: {`no such role (found "kvb", wanted embed, head`,
			`roles: kv_b: no such format (found int5`, "roles: norm is always exact (found int8-row, wanted f32 or drop)", "mine.json: up: no such format", "tensor override"},
	}
	for text, parts := range tests {
		_, err := ReadRecipe("mine.json", []byte(text))
		wantError(t, err, format.ErrUsage, parts...)
	}
}

func FuzzReadRecipe(f *testing.F) {
	f.Add([]byte(`{"base":"small","roles":{"kv_b":"int4-grouped/64"},"tensors":["x=bf16"]}`))
	f.Add([]byte(`{"mtp":"drop"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := ReadRecipe("f", data)
		if err != nil {
			return
		}
		for _, c := range append(slices.Clone(r.Roles[:]), r.MTP) {
			if !c.Drop && !c.Format.Info().Write {
				t.Errorf("accepted %s", c)
			}
		}
	})
}
