package runtime

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hawkmoth/format"
	"hawkmoth/internal/fixtures"
	"hawkmoth/quantize"
)

// glmJSON is the fixture's config with some keys changed; nil takes one out.
func glmJSON(t testing.TB, change map[string]any) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(fixtures.Path(t, "glm_moe_dsa"), "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	return changed(t, data, change)
}

func changed(t testing.TB, data []byte, change map[string]any) []byte {
	t.Helper()
	var keys map[string]any
	if err := json.Unmarshal(data, &keys); err != nil {
		t.Fatal(err)
	}
	for k, v := range change {
		if v == nil {
			delete(keys, k)
		} else {
			keys[k] = v
		}
	}
	data, err := json.Marshal(keys)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestConfigRefusals(t *testing.T) {
	type m = map[string]any
	for _, tc := range []struct {
		name   string
		change m
		kind   error
		says   string
	}{
		{"unknown architecture", m{"model_type": "no_such_model"}, format.ErrUnsupported, "no_such_model"},
		{"activation", m{"hidden_act": "gelu"}, format.ErrUnsupported, "hidden_act"},
		{"attention bias", m{"attention_bias": true}, format.ErrUnsupported, "attention_bias"},
		{"router", m{"scoring_func": "softmax"}, format.ErrUnsupported, "scoring_func"},
		{"top-k method", m{"topk_method": "greedy"}, format.ErrUnsupported, "topk_method"},
		{"rope scaling", m{"rope_scaling": m{"type": "yarn"}}, format.ErrUnsupported, "rope_scaling"},
		{"rope type", m{"rope_parameters": m{"rope_type": "yarn", "rope_theta": 1e6}}, format.ErrUnsupported, "rope_type"},
		{"unknown key", m{"sliding_window": 4096}, format.ErrUnsupported, "sliding_window"},
		{"unknown key of rope", m{"rope_parameters": m{"rope_type": "default", "mscale": 2}}, format.ErrUnsupported, "mscale"},
		{"quantisation of others", m{"quantization_config": m{"quant_method": "awq"}}, format.ErrUnsupported, "quant_method"},
		{"fp8 blocks", m{"quantization_config": m{"quant_method": "fp8", "weight_block_size": []int{64, 64}}}, format.ErrUnsupported, "weight_block_size"},
		{"missing key", m{"vocab_size": nil}, format.ErrCorrupt, "vocab_size"},
		{"E7 every key tried is named", m{"n_routed_experts": nil}, format.ErrCorrupt, "n_routed_experts or num_local_experts or num_experts or moe_num_experts"},
		{"negative size", m{"num_hidden_layers": -1}, format.ErrCorrupt, "num_hidden_layers"},
		{"negative count", m{"num_nextn_predict_layers": -1}, format.ErrCorrupt, "num_nextn_predict_layers"},
		{"negative topk", m{"index_topk": -1}, format.ErrCorrupt, "index_topk"},
		{"huge size", m{"num_attention_heads": 1 << 40}, format.ErrCorrupt, "num_attention_heads"},
		{"huge product", m{"num_attention_heads": 1 << 23, "v_head_dim": 1 << 20, "num_key_value_heads": 1 << 23}, format.ErrCorrupt, "head sizes"},
		{"many experts", m{"num_hidden_layers": 4096, "n_routed_experts": 65536}, format.ErrCorrupt, "n_routed_experts"},
		{"negative epsilon", m{"rms_norm_eps": -5}, format.ErrCorrupt, "rms_norm_eps"},
		{"negative theta", m{"rope_parameters": m{"rope_theta": -1}}, format.ErrCorrupt, "rope_theta"},
		{"wrong type", m{"hidden_size": "big"}, format.ErrCorrupt, "hidden_size"},
		{"grouped-query heads", m{"num_key_value_heads": 2}, format.ErrUnsupported, "num_key_value_heads"},
		{"odd rotation", m{"qk_rope_head_dim": 15, "qk_head_dim": 39}, format.ErrCorrupt, "qk_rope_head_dim"},
		{"more chosen than there", m{"num_experts_per_tok": 9}, format.ErrCorrupt, "num_experts_per_tok"},
		{"groups", m{"n_group": 3}, format.ErrCorrupt, "n_group"},
		{"groups too small", m{"n_group": 8, "topk_group": 1}, format.ErrCorrupt, "topk_group"},
		{"list too short", m{"mlp_layer_types": []string{"dense"}}, format.ErrCorrupt, "mlp_layer_types"},
		{"word of a list", m{"mlp_layer_types": []string{"dense", "sparse", "sparse", "mamba"}}, format.ErrUnsupported, "mlp_layer_types[3]"},
		{"nothing to share", m{"indexer_types": []string{"shared", "full", "full", "full"}}, format.ErrCorrupt, "indexer_types[0]"},
		{"E7 nested text_config", m{"model_type": "glm4v_moe", "text_config": m{"model_type": "glm_moe_dsa"}}, format.ErrUnsupported, `text_config) is not supported (found model_type "glm4v_moe" around "glm_moe_dsa"`},
		{"several at once", m{"hidden_act": "gelu", "vocab_size": -3, "foo": 1}, format.ErrUnsupported, "foo"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := ReadConfig(glmJSON(t, tc.change))
			if !errors.Is(err, tc.kind) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v, %v; want %v with %q", c, err, tc.kind, tc.says)
			}
		})
	}
}

// TestKinds: the operation that placement asks about is the one that runs.
func TestKinds(t *testing.T) {
	for want, w := range map[Kind]quantize.Want{
		KindEmbed: {Role: quantize.Embed, Shape: []int{8, 8}}, KindMatMul: {Role: quantize.Head, Shape: []int{8, 8}},
		KindRMSNorm:   {Role: quantize.Norm, Name: "model.layers.0.self_attn.kv_a_layernorm.weight", Shape: []int{8}},
		KindLayerNorm: {Role: quantize.Norm, Name: "model.layers.0.self_attn.indexer.k_norm.bias", Shape: []int{8}},
	} {
		if got := KindOf(w); got != want {
			t.Errorf("%s: %s, want %s", w.Name, got, want)
		}
	}
}

func TestConfigReadings(t *testing.T) {
	type m = map[string]any
	yes := func(list ...bool) []bool { return list }
	for _, tc := range []struct {
		name   string
		change m
		ok     func(c *Config) bool
	}{
		{"mlp_layer_types wins over first_k_dense_replace", m{"first_k_dense_replace": 3},
			func(c *Config) bool { return slices.Equal(c.SparseMLP, yes(false, true, true, true)) }},
		{"first_k_dense_replace alone", m{"first_k_dense_replace": 3, "mlp_layer_types": nil},
			func(c *Config) bool { return slices.Equal(c.SparseMLP, yes(false, false, false, true)) }},
		{"indexer_types", nil, func(c *Config) bool { return slices.Equal(c.SharedIndexer, yes(false, false, true, false)) }},
		{"every layer has an indexer by default", m{"indexer_types": nil}, func(c *Config) bool { return !slices.Contains(c.SharedIndexer, true) }},
		{"index_topk_pattern", m{"indexer_types": nil, "index_topk_pattern": "FSSF"}, func(c *Config) bool { return slices.Equal(c.SharedIndexer, yes(false, true, true, false)) }},
		{"index_topk_freq and its offset", m{"indexer_types": nil, "index_topk_freq": 2, "index_skip_topk_offset": 1},
			func(c *Config) bool { return slices.Equal(c.SharedIndexer, yes(false, true, false, true)) }},
		{"E7 num_local_experts", m{"n_routed_experts": nil, "num_local_experts": 8}, func(c *Config) bool { return c.Experts == 8 }},
		{"E7 moe_num_experts", m{"n_routed_experts": nil, "moe_num_experts": 8}, func(c *Config) bool { return c.Experts == 8 }},
		{"C6 bits null is unquantised", m{"quantization": m{"bits": nil}}, func(c *Config) bool { return true }},
		{"rope_theta at the top", m{"rope_parameters": nil, "rope_theta": 5e5}, func(c *Config) bool { return c.Angles.Theta == 5e5 }},
		{"one end token", m{"eos_token_id": 7}, func(c *Config) bool { return slices.Equal(c.EOS, []int32{7}) }},
		{"several end tokens", m{"eos_token_id": []int{7, 9}}, func(c *Config) bool { return slices.Equal(c.EOS, []int32{7, 9}) }},
		{"null is absent", m{"attention_bias": json.RawMessage("null")}, func(c *Config) bool { return true }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := ReadConfig(glmJSON(t, tc.change))
			if err != nil {
				t.Fatal(err)
			}
			if !tc.ok(c) {
				t.Errorf("read as %+v", c)
			}
		})
	}
}

// configOf is the config of another checkpoint with some keys changed.
func configOf(t testing.TB, name string, change map[string]any) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(fixtures.Path(t, name), "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	return changed(t, data, change)
}

func TestConfigsOfFamilies(t *testing.T) {
	type m = map[string]any
	for _, tc := range []struct {
		name, of string
		change   m
		ok       func(c *Config) bool // nil: refused
		says     string
	}{
		{name: "legacy yarn", of: "deepseek_v3", change: m{"rope_parameters": nil, "rope_theta": 1e4, "rope_scaling": m{"type": "yarn", "factor": 40, "mscale": 1, "mscale_all_dim": 1, "original_max_position_embeddings": 4096}},
			ok: func(c *Config) bool {
				return c.Angles.Factor == 40 && c.Angles.Gain == 1 && c.ScoreGain > 1.8 && c.Angles.Theta == 1e4
			}},
		{name: "two rotations", of: "deepseek_v3", change: m{"rope_scaling": m{"type": "yarn"}}, says: "rope_scaling beside rope_parameters"},
		{name: "linear scaling", of: "llama", change: m{"rope_parameters": m{"rope_type": "linear", "factor": 2}}, says: "rope_type"},
		{name: "sections of a rotation", of: "qwen3", change: m{"rope_parameters": m{"rope_type": "default", "mrope_section": []int{8, 4, 4}}}, says: "mrope_section"},
		{name: "num_experts", of: "qwen3_moe", change: m{"num_local_experts": nil, "num_experts": 8}, ok: func(c *Config) bool { return c.Experts == 8 }},
		{name: "experts_per_token", of: "gpt_oss", change: m{"num_experts_per_tok": nil, "experts_per_token": 3}, ok: func(c *Config) bool { return c.ExpertsPerToken == 3 }},
		{name: "every second layer", of: "qwen3_moe", change: m{"decoder_sparse_step": 2, "mlp_only_layers": []int{}},
			ok: func(c *Config) bool { return slices.Equal(c.SparseMLP, []bool{false, true, false}) }},
		{name: "layers that are not there", of: "qwen3_moe", change: m{"mlp_only_layers": []int{3}}, says: "mlp_only_layers"},
		{name: "sliding window of all", of: "mixtral", change: m{"sliding_window": 16}, ok: func(c *Config) bool { return slices.Equal(c.Windows, []int{16, 16, 16}) }},
		{name: "sliding window of some", of: "qwen3", change: m{"use_sliding_window": true, "sliding_window": 16}, says: "use_sliding_window"},
		{name: "sliding layers", of: "qwen3", change: m{"layer_types": []string{"sliding_attention", "full_attention", "full_attention"}}, says: "layer_types[0]"},
		{name: "windows without a list", of: "gpt_oss", change: m{"layer_types": nil}, ok: func(c *Config) bool { return slices.Equal(c.Windows, []int{16, 0, 16}) }},
		{name: "limit of gates", of: "gpt_oss", change: m{"swiglu_limit": 5}, ok: func(c *Config) bool { return c.Gating.Limit == 5 }},
		{name: "mxfp4", of: "gpt_oss", change: m{"quantization_config": m{"quant_method": "mxfp4"}}, says: "mxfp4"},
		{name: "clipped projections", of: "olmoe", change: m{"clip_qkv": 8}, says: "clip_qkv"},
		{name: "heads by default", of: "llama", change: m{"head_dim": nil, "num_key_value_heads": nil}, ok: func(c *Config) bool { return c.HeadDim == 16 && c.KVHeads == 4 }},
		{name: "heads that do not divide", of: "llama", change: m{"num_key_value_heads": 3}, says: "num_key_value_heads"},
		{name: "legacy rotary_dim", of: "minimax_m2", change: m{"rope_parameters": nil, "rope_theta": 5e6}, ok: func(c *Config) bool { return c.Rope == 8 }},
		{name: "rotary_dim beside rope_parameters", of: "minimax_m2", ok: func(c *Config) bool { return c.Rope == 16 }},
		{name: "full_attention_interval", of: "qwen3_next", change: m{"layer_types": nil, "full_attention_interval": 2}, ok: func(c *Config) bool { return slices.Equal(c.Recurrent, []bool{true, false, true}) }},
		{name: "heads of values", of: "qwen3_next", change: m{"linear_num_value_heads": 3}, says: "linear_num_value_heads"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := ReadConfig(configOf(t, tc.of, tc.change))
			switch {
			case tc.ok == nil:
				if err == nil || !strings.Contains(err.Error(), tc.says) {
					t.Errorf("got %v, want %q", err, tc.says)
				}
			case err != nil:
				t.Error(err)
			case !tc.ok(c):
				t.Errorf("read as %+v", c)
			}
		})
	}
}

// TestTextConfig: the text of a model of text and more has its own config and a
// prefix of its tensors' names.
func TestTextConfig(t *testing.T) {
	wrap := func(outer, change map[string]any) []byte {
		outer["text_config"] = json.RawMessage(configOf(t, "deepseek_v3", change))
		data, err := json.Marshal(outer)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	c, err := ReadConfig(wrap(map[string]any{"model_type": "kimi_k25", "vision_config": map[string]any{"depth": 2}}, map[string]any{"model_type": "kimi_k2"}))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range c.Arch.Tensors(c) {
		if !strings.HasPrefix(w.Name, "language_model.") || w.Fused != "" && !strings.HasPrefix(w.Fused, "language_model.") {
			t.Fatalf("%s, fused in %q", w.Name, w.Fused)
		}
	}
	for says, data := range map[string][]byte{
		"no_such":      wrap(map[string]any{"model_type": "no_such"}, nil),
		"quant_method": wrap(map[string]any{"model_type": "kimi_k25", "quantization_config": map[string]any{"quant_method": "modelopt"}}, nil),
		"foo":          wrap(map[string]any{"model_type": "kimi_k25"}, map[string]any{"foo": 1}),
	} {
		if _, err := ReadConfig(data); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want %q", err, says)
		}
	}
}

// FuzzReadConfig: whatever the file says, there is a config with positive
// shapes and a bounded list of tensors, or an error.
func FuzzReadConfig(f *testing.F) {
	f.Add(glmJSON(f, nil))
	f.Add(glmJSON(f, map[string]any{"mlp_layer_types": nil, "indexer_types": nil, "layer_types": nil, "num_hidden_layers": 40, "num_nextn_predict_layers": 2}))
	f.Add([]byte(`{"model_type":"glm_moe_dsa","num_hidden_layers":-1}`))
	for _, name := range oracles {
		f.Add(configOf(f, name, nil))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ReadConfig(data)
		if err != nil {
			return
		}
		wants := c.Arch.Tensors(c)
		if len(wants) > 8*maxExperts {
			t.Fatalf("%d tensors", len(wants))
		}
		for _, w := range wants {
			for _, n := range w.Shape {
				if n < 1 || n > format.MaxDim {
					t.Fatalf("%s has shape %v", w.Name, w.Shape)
				}
			}
		}
		if c.Summary() == "" {
			t.Fatal("no summary")
		}
	})
}
