package quantize

import (
	"strings"
)

// Role is what a tensor does in a model. Recipes, the inspector's map and the
// error report speak of roles; architectures assign them.
type Role uint8

// The roles. Norm covers every vector of a norm or bias.
const (
	Embed      Role = iota // token embedding
	Head                   // lm_head
	Norm                   // norm weights and biases
	Attn                   // q_a, q_b, kv_a (or q, k, v)
	KVB                    // kv_b
	Out                    // o_proj
	Router                 // expert router
	RouterBias             // e_score_correction_bias
	Dense                  // MLP of a dense layer
	Shared                 // shared experts
	Expert                 // routed experts
	Indexer                // DSA indexer matrices
	MTP                    // eh_proj and whatever only the MTP block has
	numRoles
)

var roleNames = [numRoles]string{"embed", "head", "norm", "attn", "kv_b", "o_proj", "router", "router_bias", "dense", "shared", "expert", "indexer", "mtp"}

func (r Role) String() string {
	if r < numRoles {
		return roleNames[r]
	}
	return "unknown"
}

// Roles lists every role in order.
func Roles() []Role {
	all := make([]Role, numRoles)
	for i := range all {
		all[i] = Role(i)
	}
	return all
}

// Want is a tensor that an architecture reads, under its checkpoint name.
type Want struct {
	Name     string
	Shape    []int // [out, in] for a matrix, [n] for a vector
	Role     Role
	Layer    int  // -1 outside the layers
	Expert   int  // -1 outside the routed experts
	MTP      bool // belongs to the multi-token-prediction block
	Optional bool // the model runs without it
	// Tied names the tensor that takes this one's place where it is absent
	// (lm_head, when the embeddings are tied).
	Tied string
	// Fused names a 3-D tensor [E, rows, in] that may hold this matrix as
	// rows FusedRow.. of expert Expert, when the checkpoint has fused experts.
	Fused    string
	FusedRow int
	// FusedStep > 1 is the distance of the matrix's rows there, which are then
	// others' in between. FusedT says that the fused tensor is transposed,
	// [E, in, rows]. A vector may be a part of a fused [E, n].
	FusedStep int
	FusedT    bool
}

// Matrix says whether the tensor has rows to quantise.
func (w Want) Matrix() bool { return len(w.Shape) == 2 }

// InIndexer says whether the tensor is a part of an indexer, such as the norm of
// its keys.
func (w Want) InIndexer() bool { return w.Role == Indexer || strings.Contains(w.Name, ".indexer.") }
