// Command mkrandom writes a snapshot container of random weights, to measure
// speed at sizes that no fixture has. The weights mean nothing; they are small
// enough for every activation to stay finite.
package main

import (
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"hawkmoth/format"
	"hawkmoth/quantize"
	"hawkmoth/runtime"
)

// presets are the keys of config.json that differ: a model of 0.92 billion
// parameters, two layers of GLM-5.2, and all of it.
var presets = map[string]map[string]any{
	"bench": {"hidden_size": 1024, "num_hidden_layers": 16, "first_k_dense_replace": 1, "num_attention_heads": 16, "q_lora_rank": 512, "kv_lora_rank": 512,
		"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 4096, "moe_intermediate_size": 512, "n_routed_experts": 32,
		"num_experts_per_tok": 4, "vocab_size": 8192, "index_n_heads": 4, "index_head_dim": 128, "max_position_embeddings": 8192},
	"glm52x2": {"hidden_size": 6144, "num_hidden_layers": 2, "first_k_dense_replace": 1, "num_attention_heads": 64, "q_lora_rank": 2048, "kv_lora_rank": 512,
		"qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256, "intermediate_size": 12288, "moe_intermediate_size": 2048, "n_routed_experts": 256,
		"num_experts_per_tok": 8, "vocab_size": 154880, "index_n_heads": 32, "index_head_dim": 128, "max_position_embeddings": 65536},
}

func init() {
	all := maps.Clone(presets["glm52x2"])
	all["num_hidden_layers"], all["first_k_dense_replace"] = 78, 3
	presets["glm52"] = all
}

var common = map[string]any{"model_type": "glm_moe_dsa", "n_shared_experts": 1, "index_topk": 2048, "routed_scaling_factor": 2.5, "rope_theta": 1e6}

func main() {
	preset := flag.String("preset", "bench", "bench, glm52x2 or glm52")
	name := flag.String("format", "int4-grouped/64", "format of every matrix")
	only := flag.String("only", "", "write the tensors alone whose name the pattern finds")
	flag.Parse()
	if err := run(*preset, *name, *only, flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, "mkrandom:", err)
		os.Exit(1)
	}
}

func run(preset, name, only, dir string) error {
	keys := presets[preset]
	if keys == nil || dir == "" {
		return fmt.Errorf("usage: mkrandom [-preset bench|glm52x2|glm52] [-format F] [-only REGEX] DIR")
	}
	match, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	id, group, err := format.ParseFormat(name)
	if err != nil {
		return err
	}
	for k, v := range common {
		keys[k] = v
	}
	data, err := json.MarshalIndent(keys, "", " ")
	if err != nil {
		return err
	}
	c, err := runtime.ReadConfig(data)
	if err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), data, 0o644); err != nil {
		return err
	}
	wants := slices.DeleteFunc(c.Arch.Tensors(c), func(w quantize.Want) bool { return !match.MatchString(w.Name) })
	return write(filepath.Join(dir, "out-00000.safetensors"), wants, id, group)
}

func write(path string, wants []quantize.Want, id format.ID, group int) error {
	specs := map[string]format.Spec{}
	var entries []format.Entry
	for _, w := range wants {
		s := format.Spec{Format: format.F32, Rows: 1, Cols: w.Shape[0]}
		if w.Matrix() {
			s.Rows, s.Cols = w.Shape[0], w.Shape[1]
			if w.Role != quantize.Router {
				s.Format, s.Group = id, group
			}
		}
		in := s.Format.Info()
		if !in.Packed {
			entries = append(entries, format.Entry{Name: w.Name, DType: in.DType, Shape: w.Shape})
			continue
		}
		entries = append(entries, format.Entry{Name: w.Name, DType: in.DType, Shape: []int{int(s.Bytes())}},
			format.Entry{Name: w.Name + format.ScaleSuffix, DType: format.DTypeF32, Shape: []int{int(s.Scales())}})
		specs[w.Name] = s
	}
	out, err := format.Create(path, entries, format.StampMetadata(specs))
	if err != nil {
		return err
	}
	defer func() { _ = out.Abort() }()
	random := rand.New(rand.NewPCG(1, 2))
	for _, e := range entries {
		if err := fill(out, e, random); err != nil {
			return err
		}
	}
	return out.Commit()
}

// fill writes a tensor: any codes, one small scale, norms around 1, other
// floats around 0. Codes repeat after a block, which no engine can notice.
func fill(out *format.Writer, e format.Entry, random *rand.Rand) error {
	n := e.DType.Bits() / 8
	for _, d := range e.Shape {
		n *= d
	}
	block := make([]byte, min(n, 1<<22))
	scale := len(e.Name) > 3 && e.Name[len(e.Name)-3:] == format.ScaleSuffix
	for i := 0; i+8 <= len(block) || i < len(block); i += 8 {
		var v [8]byte
		switch {
		case scale:
			binary.LittleEndian.PutUint32(v[:], math.Float32bits(0.002))
			copy(v[4:], v[:4])
		case e.DType == format.DTypeF32:
			mean, width := float32(0), float32(0.05)
			if len(e.Shape) == 1 {
				mean, width = 1, 0.1
			}
			for j := 0; j < 8; j += 4 {
				binary.LittleEndian.PutUint32(v[j:], math.Float32bits(mean+width*(random.Float32()-0.5)))
			}
		case e.DType == format.DTypeBF16:
			for j := 0; j < 8; j += 2 {
				binary.LittleEndian.PutUint16(v[j:], uint16(math.Float32bits(0.05*(random.Float32()-0.5))>>16))
			}
		default:
			binary.LittleEndian.PutUint64(v[:], random.Uint64())
		}
		copy(block[i:], v[:])
	}
	for off := 0; off < n; off += len(block) {
		if err := out.WriteAt(e.Name, block[:min(len(block), n-off)], int64(off)); err != nil {
			return err
		}
	}
	return nil
}
