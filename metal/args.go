package metal

// The argument structs of the kernels, field by field those of kernels/*.metal
// and kernels/*.h. Strides are elements between rows.
type (
	embedArgs struct {
		Cols, RowBytes, ScaleCols, Group uint32
		YStride                          uint32
	}
	tokens    struct{ ID [512]uint32 }
	roundArgs struct{ Cols, Blocks, XStride, Heads, Chunks uint32 }
	// matMulArgs: see the struct's comments in matmul.metal.
	matMulArgs struct {
		First, Rows, RowStep             uint32
		Cols, RowBytes, ScaleCols, Group uint32
		Blocks, Count                    uint32
		XStride, XStep, YStride, YStep   uint32
	}
	normArgs struct {
		N, XStride, YStride uint32
		Eps                 float32
	}
	pointArgs struct{ N, AStride, BStride, YStride uint32 }
	ropeArgs  struct {
		XStride, YStride, XWidth, XAt, YWidth, YAt uint32
		N, Interleave, Items, Heads, Position      uint32
	}
	qAbsArgs struct {
		Cols, RowBytes, ScaleCols, Group uint32
		Nope, HeadRows, Rope, Heads      uint32
		QStride, QWidth, RopeStride      uint32
		Count                            uint32
	}
	attendArgs struct {
		Heads, Width, Cols, Position uint32
		Topk, ScoreStride            uint32
		Chunks, Span                 uint32
		Scale                        float32
	}
	indexArgs struct {
		Heads, Dim, Position, Topk    uint32
		QStride, WStride, ScoreStride uint32
		Scale, HeadScale              float32
	}
	routeArgs struct {
		Experts, Groups, TopGroups, Topk uint32
		Normalize, XStride, WStride      uint32
		Scale                            float32
	}
	groupArgs struct{ Pairs, Topk, Experts, Tile, Tiles uint32 }
	tile      struct{ Expert, First, Count uint32 }
	// expert is one matrix of an expert; W and Scales are addresses on the device.
	expert struct {
		W, Scales                                        uint64
		Format, RowBytes, ScaleCols, Group, Wide, Unused uint32
	}
	expertArgs struct{ Matrix, Rows, Cols, Blocks, XStride, YStride, ByPair, Narrow uint32 }
	sumArgs    struct{ Cols, Topk, WStride, YStride uint32 }
)
