package format

// DType is a tensor's element type as safetensors spells it.
type DType string

// The element types that have a name of their own in this code.
const (
	DTypeF32  DType = "F32"
	DTypeBF16 DType = "BF16"
	DTypeF16  DType = "F16"
	DTypeFP8  DType = "F8_E4M3"
	DTypeE8M0 DType = "F8_E8M0"
	DTypeU8   DType = "U8"
	DTypeI32  DType = "I32"
)

// dtypeBits is every element type of the safetensors format and its width in bits.
var dtypeBits = map[DType]int{
	"BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
	"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
	"I16": 16, "U16": 16, "F16": 16, "BF16": 16,
	"I32": 32, "U32": 32, "F32": 32,
	"I64": 64, "U64": 64, "F64": 64, "C64": 64,
}

// Bits is the width of an element; 0 for a type that safetensors does not know.
func (d DType) Bits() int { return dtypeBits[d] }
