// Package runtime knows what a model is and how a CPU runs it: configurations,
// architectures, sessions, the token loop.
package runtime

import (
	"slices"

	"hawkmoth/quantize"
)

// Arch is one architecture. Its file reads in the same order for every
// architecture: configuration, tensors, layer.
type Arch struct {
	Name       string
	ModelTypes []string // values of config.json's model_type
	// Config fills in c from the object's keys; problems stay in the object.
	Config func(o *object, c *Config)
	// Tensors lists every tensor that the architecture knows, in reading order;
	// converter, inspector and loader all work from this list.
	Tensors func(c *Config) []quantize.Want
	// Layer appends the commands of one decoder layer.
	Layer func(b *Builder, layer int)
}

var arches = []*Arch{&glmMoeDSA, &deepSeekV3, &deepSeekV32, &glm4MoeLite, &glm4MoE, &llama, &qwen3, &qwen3MoE, &olmoe, &mixtral, &minimaxM2, &gptOSS, &qwen3Next}

// Arches lists the architectures.
func Arches() []*Arch { return slices.Clone(arches) }

func archFor(modelType string) *Arch {
	for _, a := range arches {
		if slices.Contains(a.ModelTypes, modelType) {
			return a
		}
	}
	return nil
}
