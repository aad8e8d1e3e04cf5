package runtime

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"hawkmoth/format"
	"hawkmoth/quantize"
	"hawkmoth/runtime/kernel"
)

// Config is what a model's config.json says about its maths. Sizes are in
// elements; per-layer slices have Layers entries, or none where no layer differs.
type Config struct {
	Arch      *Arch
	ModelType string
	Prefix    string // of every tensor's name, in a model of text and more

	VocabSize, Hidden, Layers, Heads int
	Intermediate                     int    // width of a dense layer's MLP
	SparseMLP                        []bool // per layer: mixture of experts instead of a dense MLP
	RMSNormEps                       float32
	CentredNorms                     bool // norms multiply by 1 + weight
	MaxPositions                     int
	Tied                             bool // lm_head is the embedding
	EOS                              []int32

	Angles         kernel.Angles // of the rotation
	RopeInterleave bool          // main attention rotates pairs (2i, 2i+1), else (i, i+n/2)
	Rope           int           // rotated elements of a head
	ScoreGain      float64       // multiplies the scores beside 1/√width

	// Grouped-query attention (arXiv:2305.13245); none of it with MLA.
	KVHeads, HeadDim int
	QKVBias, OutBias bool
	OutGate          bool // q_proj gives each head its query and a gate of its output
	QKNorm           QKNorm
	Windows          []int // per layer: a token sees so many positions, itself included; 0 is all
	Sinks            bool  // a learnt score of each head that takes part in the softmax alone

	// Mixture of experts.
	Experts, ExpertsPerToken, SharedExperts int
	MoEIntermediate, SharedWidth            int
	Gating                                  kernel.Gating // of the routed experts
	SoftmaxRouter                           bool          // scores are the softmax over all experts, else sigmoids
	Groups, TopGroups                       int           // node-limited routing
	NormTopK                                bool
	RoutedScale                             float32
	moe                                     *moeNames

	// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434).
	QLoRA, KVLoRA int
	Nope, ValueHd int // per head: q·k without rotation, value

	// DeepSeek sparse attention (DeepSeek-V3.2): the lightning indexer.
	IndexHeads, IndexDim, IndexTopK int
	IndexRopeInterleave             bool
	SharedIndexer                   []bool // per layer: reuses the selection of the last layer that has an indexer

	Recurrent []bool   // per layer: a gated delta network instead of attention
	Delta     DeltaNet // its sizes

	MTPLayers int // multi-token-prediction blocks behind the last layer
}

// OpenConfig reads the config.json of a snapshot as ReadConfig does. Where there
// is none, the error is format.ErrIncomplete and wraps fs.ErrNotExist; an
// overlay, which needs none, is format.ErrUsage.
func OpenConfig(snap *format.Snapshot) (*Config, error) {
	data, err := snap.ReadJSONFile(configName)
	if errors.Is(err, fs.ErrNotExist) {
		if list, oerr := quantize.Overlays(snap.Dir); oerr == nil && len(list) > 0 {
			return nil, &format.Error{Kind: format.ErrUsage, Path: snap.Dir, What: "this is the overlay " + list[0].Name + ", whose tensors replace those of a model",
				Wanted: "the model's directory, with --overlay " + snap.Dir}
		}
		var e *format.Error
		if errors.As(err, &e) {
			e.Kind = format.ErrIncomplete
		}
	}
	if err != nil {
		return nil, err
	}
	c, err := ReadConfig(data)
	return c, format.In(snap.Dir, err)
}

const configName = "config.json"

// ReadConfig reads config.json. Keys that change the maths and that the
// architecture does not implement are refused, all of them at once
// (format.ErrUnsupported); values that contradict each other are
// format.ErrCorrupt.
func ReadConfig(data []byte) (*Config, error) {
	o := &object{path: configName}
	if err := json.Unmarshal(data, &o.raw); err != nil {
		return nil, &format.Error{Kind: format.ErrCorrupt, Path: o.path, What: "not a JSON object", Err: err}
	}
	c := &Config{ModelType: o.text("model_type")}
	if prefix, ok := wrappers[c.ModelType]; ok {
		o.quantization()
		text := o.sub("text_config")
		text.problems = o.problems
		o, c.ModelType, c.Prefix = text, text.text("model_type"), prefix
	}
	c.Arch = archFor(c.ModelType)
	if nested := o.inner("text_config"); c.Arch == nil && nested != nil {
		return nil, &format.Error{Kind: format.ErrUnsupported, Path: o.path, What: "a text model inside another (text_config) is not supported",
			Found: fmt.Sprintf("model_type %q around %q", c.ModelType, nested.text("model_type")), Wanted: "a checkpoint of the text model alone, whose config.json is that text_config"}
	}
	if c.Arch == nil {
		var known []string
		for _, a := range arches {
			known = append(known, a.ModelTypes...)
		}
		return nil, &format.Error{Kind: format.ErrUnsupported, Path: o.path, What: "no such architecture (model_type)",
			Found: fmt.Sprintf("%q", c.ModelType), Wanted: strings.Join(known, ", ")}
	}
	c.Arch.Config(o, c)
	o.rest()
	if err := o.problems.Err(); err != nil {
		return nil, err
	}
	return c, nil
}

// wrappers are the model_types of models of text and more whose text_config is
// an architecture, with the prefix of their text's tensors. What else they hold
// does not concern text.
var wrappers = map[string]string{"kimi_k25": "language_model."}

// neutralKeys do not change what a forward pass computes.
var neutralKeys = []string{
	"head_dim", // restates the head sizes for MLA, whose own keys win; others read it
	"_name_or_path", "architectures", "attention_dropout", "auto_map", "bos_token_id", "chunk_size_feed_forward", "dtype", "ep_size",
	"id2label", "initializer_range", "is_decoder", "is_encoder_decoder", "keep_in_fp32_modules", "label2id", "moe_router_dtype",
	"output_attentions", "output_hidden_states", "output_router_logits", "pad_token_id", "pretraining_tp", "problem_type", "return_dict",
	"router_aux_loss_coef", "aux_loss_alpha", "seq_aux", "router_jitter_noise", "torch_dtype", "transformers_version", "use_cache",
}

// object reads a JSON object key by key and collects what is wrong with it.
type object struct {
	path     string
	raw      map[string]json.RawMessage
	used     map[string]bool
	problems format.Problems
}

func (o *object) fail(kind error, what, found, wanted string) {
	o.problems = append(o.problems, &format.Error{Kind: kind, Path: o.path, What: what, Found: found, Wanted: wanted})
}

// get decodes the first present and non-null of the names into dst.
func (o *object) get(dst any, names ...string) bool {
	if o.used == nil {
		o.used = map[string]bool{}
	}
	found := false
	for _, name := range names {
		o.used[name] = true
		raw, ok := o.raw[name]
		if !ok || string(raw) == "null" || found {
			continue
		}
		if err := json.Unmarshal(raw, dst); err != nil {
			o.fail(format.ErrCorrupt, name, clip(raw), fmt.Sprintf("%T", dst)[1:])
			continue
		}
		found = true
	}
	return found
}

func clip(raw []byte) string {
	var b bytes.Buffer
	if json.Compact(&b, raw) == nil {
		raw = b.Bytes()
	}
	if len(raw) > 60 {
		return string(raw[:57]) + "..."
	}
	return string(raw)
}

func (o *object) text(names ...string) string {
	var s string
	o.get(&s, names...)
	return s
}

func (o *object) flag(def bool, names ...string) bool {
	o.get(&def, names...)
	return def
}

// number reads a real number above 0; absent is def.
func (o *object) number(def float64, names ...string) float64 {
	v := def
	if o.get(&v, names...) && !(v > 0 && v < 1e30) {
		o.fail(format.ErrCorrupt, names[0], fmt.Sprint(v), "a number above 0")
		return def
	}
	return v
}

// size reads a size that must be there, at least 1.
func (o *object) size(names ...string) int {
	n := int64(0)
	if !o.get(&n, names...) {
		o.fail(format.ErrCorrupt, "missing key", "", strings.Join(names, " or "))
		return 1
	}
	return o.within(n, 1, names[0])
}

// count reads a number of things that may be none; absent is def.
func (o *object) count(def int, names ...string) int {
	n := int64(def)
	o.get(&n, names...)
	return o.within(n, 0, names[0])
}

// maxSize bounds every size, so that products of two of them fit.
const maxSize = 1 << 24

func (o *object) within(n, least int64, name string) int {
	if n < least || n > maxSize {
		o.fail(format.ErrCorrupt, name, fmt.Sprint(n), fmt.Sprintf("%d … %d", least, maxSize))
		return int(least)
	}
	return int(n)
}

// only refuses any value but the ones that the code implements; absent is fine.
func (o *object) only(name string, values ...any) {
	var v any
	if !o.get(&v, name) || slices.Contains(values, v) {
		return
	}
	var want []string
	for _, w := range values {
		want = append(want, fmt.Sprintf("%v", w))
	}
	o.fail(format.ErrUnsupported, name+" changes the maths and is not implemented", clip(o.raw[name]), strings.Join(want, " or "))
}

// ignore marks keys that do not matter for a reason that the caller knows.
func (o *object) ignore(names ...string) {
	var v any
	for _, name := range names {
		o.get(&v, name)
	}
}

// list reads a per-layer list of words; absent gives nil.
func (o *object) list(layers int, names []string, words ...string) []string {
	var l []string
	if !o.get(&l, names...) {
		return nil
	}
	if len(l) != layers {
		o.fail(format.ErrCorrupt, names[0]+": entries", fmt.Sprint(len(l)), fmt.Sprintf("one a layer, %d", layers))
		return nil
	}
	for i, w := range l {
		if !slices.Contains(words, w) {
			o.fail(format.ErrUnsupported, fmt.Sprintf("%s[%d]", names[0], i), w, strings.Join(words, " or "))
		}
	}
	return l
}

// ids reads one token id or a list of them.
func (o *object) ids(name string) []int32 {
	var v json.RawMessage
	if !o.get(&v, name) {
		return nil
	}
	var one int32
	var many []int32
	switch {
	case json.Unmarshal(v, &one) == nil:
		return []int32{one}
	case json.Unmarshal(v, &many) == nil:
		return many
	}
	o.fail(format.ErrCorrupt, name, clip(v), "a token id or a list of them")
	return nil
}

// sub opens a nested object; absent gives an empty one.
func (o *object) sub(name string) *object {
	s := &object{path: o.path + ": " + name}
	o.get(&s.raw, name)
	return s
}

// inner is a nested object that is only looked at; nil if absent.
func (o *object) inner(name string) *object {
	s := &object{path: o.path + ": " + name}
	if json.Unmarshal(o.raw[name], &s.raw) != nil || len(s.raw) == 0 {
		return nil
	}
	return s
}

// close adds the nested object's problems to o's.
func (o *object) close(s *object) {
	s.rest()
	o.problems = append(o.problems, s.problems...)
}

// rest refuses every key that nobody has read and that is not known to be neutral.
func (o *object) rest() {
	for _, name := range slices.Sorted(maps.Keys(o.raw)) {
		if !o.used[name] && !slices.Contains(neutralKeys, name) && string(o.raw[name]) != "null" {
			o.fail(format.ErrUnsupported, fmt.Sprintf("key %q is not known and may change the maths", name), clip(o.raw[name]), "")
		}
	}
}

// quantization checks that a checkpoint's own quantisation is one that the
// converter decodes; {"bits": null} means none.
func (o *object) quantization() {
	q := o.sub("quantization_config")
	if len(q.raw) > 0 {
		q.only("quant_method", "fp8")
		q.only("fmt", "e4m3", "float8_e4m3fn")
		q.only("scale_fmt", "ue8m0") // powers of two, held as any other scale
		q.only("activation_scheme", "dynamic")
		q.only("weight_per_tensor", false)
		q.only("act_per_tensor", false)
		var block []int
		if q.get(&block, "weight_block_size") && !slices.Equal(block, []int{128, 128}) {
			q.fail(format.ErrUnsupported, "weight_block_size", fmt.Sprint(block), "[128 128]")
		}
		var skip any // which modules stay bf16 shows in the tensors' own dtypes
		q.get(&skip, "modules_to_not_convert", "ignored_layers")
	}
	o.close(q)
	n := o.sub("quantization")
	n.only("bits")
	n.only("group_size")
	o.close(n)
}
