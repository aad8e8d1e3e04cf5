package runtime

import (
	"hawkmoth/format"
	"hawkmoth/quantize"
	"hawkmoth/runtime/kernel"
)

// Backend executes commands on one device. All backends give the same bits
// (docs/arithmetic.md). It is for one goroutine at a time.
type Backend interface {
	Name() string
	// Supports says why op cannot run with a matrix of this format and shape;
	// nil means that Run accepts it. Prediction and dispatch both ask here.
	Supports(op Kind, s format.Spec) error
	// Load makes a matrix usable; its bytes stay where they are where possible.
	Load(m quantize.Matrix) (Weight, error)
	// Alloc gives a zeroed buffer.
	Alloc(rows, width int, elem Elem) (Vec, error)
	// Free gives a buffer back; nothing may use it afterwards.
	Free(v Vec)
	// Run executes the commands in order for the tokens of b.
	Run(cmds []Cmd, b Batch) error
	// Read copies a row of a float buffer to dst.
	Read(v View, row int, dst []float32) error
	Close() error
}

// Weight is a backend's handle of a loaded matrix.
type Weight interface{ Spec() format.Spec }

// Elem is the element type of a buffer.
type Elem uint8

// The element types: activations and caches are Float, selections Int (int32).
const (
	Float Elem = iota
	Int
)

// Vec is a backend's buffer of Rows rows of Width elements: a row for each
// token of a batch, or for each position of a cache.
type Vec struct {
	ID, Rows, Width int
	Elem            Elem
}

// View is the columns [Off, Off+N) of a buffer. Which row belongs to the i-th
// token of the batch is Base's to say.
type View struct {
	Vec
	Off, N int
	Base   Base
}

// Base is where a view's rows start.
type Base uint8

// The i-th token's row is i, Batch.Pos+i (caches) or Batch.Row+i (the head's input).
const (
	BaseZero Base = iota
	BasePos
	BaseRow
)

// All is the view of whole rows.
func (v Vec) All() View { return View{Vec: v, N: v.Width} }

// Cols is a view of n columns from off on.
func (v Vec) Cols(off, n int) View { return View{Vec: v, Off: off, N: n} }

// At moves the view to another base.
func (v View) At(b Base) View {
	v.Base = b
	return v
}

// Batch is what one Run works on: S rows, which are consecutive positions from
// Pos on. The body needs their tokens; the head takes the rows of the residual
// stream from Row on.
type Batch struct {
	S, Pos, Row int
	Tokens      []int32
}

// Cmd is one operation with its place in the model, for profiles and errors.
type Cmd struct {
	Op
	Layer int
	Stage Stage
}

// Op is an operation; its concrete type holds the operands.
type Op interface{ Kind() Kind }

// Kind names an operation, for Supports and reports.
type Kind uint8

// The operations. S is the number of tokens in the batch.
const (
	KindEmbed Kind = iota
	KindMatMul
	KindRMSNorm
	KindLayerNorm
	KindRope
	KindSiLUMul
	KindAdd
	KindMLA
	KindIndex
	KindRoute
	KindExperts
	KindAttention
	KindAddBias
	KindGate
	KindDeltaNet
	KindSplit
	// What an operation's variants are to a backend that has only the plain one.
	KindHeadNorm       // RMSNorm of heads, or with 1 + W
	KindSoftmaxRoute   // Route with softmax scores or without a correction
	KindClampedExperts // Experts with biases or clamped gates
)

var kindNames = []string{"embed", "matmul", "rmsnorm", "layernorm", "rope", "silu_mul", "add", "mla", "index", "route", "experts",
	"attention", "add_bias", "gate", "delta_net", "split", "head_norm", "softmax_route", "clamped_experts"}

func (k Kind) String() string { return kindNames[k] }

type (
	// Embed writes the rows of W [vocab, H] that the batch's tokens name to Y [S, H].
	Embed struct {
		W Weight
		Y View
	}
	// MatMul computes Y[i] [S, O_i] = W[i] [O_i, I] · X [S, I]; X is rounded once
	// for all matrices of one activation width.
	MatMul struct {
		X View
		W []Weight
		Y []View
	}
	// RMSNorm computes Y = X / rms(X) · W, [S, n]; with Heads > 1 for each of so
	// many pieces of X by itself, W [n/Heads]; with Centred the factor is 1 + W.
	RMSNorm struct {
		X, Y    View
		W       Weight
		Eps     float32
		Heads   int
		Centred bool
	}
	// LayerNorm computes Y = (X − mean) / std · W + B, [S, n].
	LayerNorm struct {
		X, Y View
		W, B Weight
		Eps  float32
	}
	// Rope rotates columns [XAt, XAt+N) of each of Heads heads of XWidth columns
	// and writes them to [YAt, YAt+N) of heads of YWidth columns. Rest copies the
	// head's other columns too (XWidth = YWidth).
	Rope struct {
		X, Y                        View
		Heads                       int
		XWidth, XAt, YWidth, YAt, N int
		Interleave                  bool // pairs (2i, 2i+1) in, else (i, i+N/2); halves out
		Rest                        bool
		Angles                      kernel.Angles
	}
	// SiLUMul computes Y = silu(Gate) · Up, [S, n].
	SiLUMul struct{ Gate, Up, Y View }
	// Add computes Y += X, [S, n].
	Add struct{ X, Y View }
	// MLA is absorbed multi-head latent attention: Q holds Heads heads whose first
	// Nope columns are unrotated (QWidth columns a head), QRope [S, Heads·Rope] the
	// rotated ones, Cache [ctx, KVLoRA+Rope] the latents, KVB [Heads·(Nope+Value),
	// KVLoRA]; Y is [S, Heads·Value]. With Select (rows of TopK positions) a token
	// at a position ≥ TopK attends to its selection only.
	MLA struct {
		Q, QRope, Y                              View
		Cache                                    Vec
		KVB                                      Weight
		Heads, QWidth, Nope, Rope, Value, KVLoRA int
		Scale                                    float32
		Select                                   *Vec
	}
	// Index scores all cached keys for each token and writes the TopK best
	// positions, increasing, to Select; tokens with TopK or fewer positions are
	// left alone, because MLA then attends to all of them.
	Index struct {
		Q, HeadWeight    View // [S, Heads·Dim], [S, Heads]
		Keys             Vec  // [ctx, Dim]
		Heads, Dim       int
		Scale, HeadScale float32 // Dim^-0.5, Heads^-0.5
		Select           Vec
	}
	// Attention is grouped-query attention: Q [S, Heads·HeadDim], K and V caches of
	// [ctx, KVHeads·HeadDim], of which consecutive Heads/KVHeads heads share one;
	// Y [S, Heads·HeadDim]. A token sees the Window positions up to its own, all if
	// 0. Sinks [Heads], nil for none, are scores that only the softmax sees.
	Attention struct {
		Q, Y                            View
		K, V                            Vec
		Heads, KVHeads, HeadDim, Window int
		Scale                           float32
		Sinks                           Weight
	}
	// AddBias computes Y += W, [S, n].
	AddBias struct {
		W Weight
		Y View
	}
	// DeltaNet is a gated delta network (arXiv:2412.06464) up to its norm. QKVZ
	// [S, KeyHeads·(2·KeyDim + 2·r·ValueDim)] and BA [S, KeyHeads·2·r] hold a group
	// for each head of the keys, which r = ValueHeads/KeyHeads of the values share.
	// Conv [1, (Taps−1+rows)·channels] holds the last rows of queries, keys and
	// values before the convolution with ConvW [channels·Taps], State [1,
	// ValueHeads·KeyDim·ValueDim] what a head remembers; both begin anew at position
	// 0. Y and Z are [S, ValueHeads·ValueDim].
	DeltaNet struct {
		QKVZ, BA, Y, Z                               View
		ConvW, ALog, DtBias                          Weight
		Conv, State                                  Vec
		KeyHeads, KeyDim, ValueHeads, ValueDim, Taps int
	}
	// Gate computes Y *= sigmoid(X), [S, n]; X may be [S, 1].
	Gate struct{ X, Y View }
	// Split copies the first half of each of X's heads to Y and the second to Z.
	Split struct {
		X, Y, Z View
		Heads   int
	}
	// Route turns router logits X [S, experts] into the chosen experts IDs [S, TopK]
	// (increasing) and their Weights [S, TopK]. The scores are sigmoids, or with
	// Softmax that of all logits; Bias, nil for none, counts for the choice alone.
	Route struct {
		X                       View
		Bias                    Weight
		Softmax                 bool
		IDs                     Vec
		Weights                 View
		Groups, TopGroups, TopK int
		Normalize               bool
		Scale                   float32
	}
	// Experts computes Y [S, H] = Σ weight · down(gating(gate·x, up·x)) over the
	// chosen experts in increasing order; biases follow the products.
	Experts struct {
		Gating  kernel.Gating
		X       View
		IDs     Vec
		Weights View
		Expert  []ExpertWeights
		Y       View
	}
	// ExpertWeights are the three matrices of one routed expert.
	ExpertWeights struct {
		Gate, Up, Down Weight
		Bias           *ExpertBias // nil: none
	}
	// ExpertBias are the biases of one routed expert's matrices.
	ExpertBias struct{ Gate, Up, Down Weight }
)

// Kind implements Op.
func (Embed) Kind() Kind { return KindEmbed }

// Kind implements Op.
func (MatMul) Kind() Kind { return KindMatMul }

// Kind implements Op.
func (o RMSNorm) Kind() Kind {
	if o.Heads > 1 || o.Centred {
		return KindHeadNorm
	}
	return KindRMSNorm
}

// Kind implements Op.
func (LayerNorm) Kind() Kind { return KindLayerNorm }

// Kind implements Op.
func (Rope) Kind() Kind { return KindRope }

// Kind implements Op.
func (SiLUMul) Kind() Kind { return KindSiLUMul }

// Kind implements Op.
func (Add) Kind() Kind { return KindAdd }

// Kind implements Op.
func (MLA) Kind() Kind { return KindMLA }

// Kind implements Op.
func (Index) Kind() Kind { return KindIndex }

// Kind implements Op.
func (Attention) Kind() Kind { return KindAttention }

// Kind implements Op.
func (AddBias) Kind() Kind { return KindAddBias }

// Kind implements Op.
func (Gate) Kind() Kind { return KindGate }

// Kind implements Op.
func (Split) Kind() Kind { return KindSplit }

// Kind implements Op.
func (DeltaNet) Kind() Kind { return KindDeltaNet }

// channels is how wide a token is in the convolution.
func (o DeltaNet) channels() int { return 2*o.KeyHeads*o.KeyDim + o.ValueHeads*o.ValueDim }

// Kind implements Op.
func (o Route) Kind() Kind {
	if o.Softmax || o.Bias == nil {
		return KindSoftmaxRoute
	}
	return KindRoute
}

// Kind implements Op.
func (o Experts) Kind() Kind {
	if o.Gating != (kernel.Gating{}) || len(o.Expert) > 0 && o.Expert[0].Bias != nil {
		return KindClampedExperts
	}
	return KindExperts
}
