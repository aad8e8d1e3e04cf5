package quantize

import (
	"strings"

	"hawkmoth/format"
)

// SharedWithModel says whether a multi-token-prediction block runs without the
// tensor, taking the main model's or, for the indexer, doing without.
func (w Want) SharedWithModel() bool { return w.Role == Embed || w.Role == Head || w.InIndexer() }

// RoughForMTP says whether a format has one scale a row at 4 bits or fewer:
// eh_proj multiplies [embedding; hidden], whose columns differ in size.
func RoughForMTP(id format.ID) bool { return id == format.Int4Row || id == format.Int2Row }

// RoughMTP is what is known of an MTP block whose named tensors are in such
// formats.
func RoughMTP(names []string) string {
	return "one scale a row at 4 bits or fewer, which rounds whole halves of eh_proj to zero: its drafts will hardly ever be accepted (int8-row or int4-grouped keep it alive): " +
		strings.Join(format.Collapse(names), ", ")
}
