package quantize

import (
	"encoding/binary"
	"slices"

	"hawkmoth/format"
)

// GroupFit says how the codes of an int4-grouped matrix agree with a group
// size. Method absmax gives the largest weight of a group the code 7 or −7
// (−8 where the scale is negative), so that a group without one was cut
// elsewhere. Codes that another method made prove nothing.
type GroupFit struct {
	Group  int
	Groups int64 // with a code that is not zero
	Flat   int64 // of these, without a code of magnitude 7 or more
}

// groupUnit divides every group size that can be told from a scale count.
const groupUnit = 16

// FitGroups counts, for each group size, the groups of packed int4 rows of
// cols columns. The sizes are multiples of 16, as all in format.GroupSizes.
func FitGroups(codes []byte, cols int, sizes []int) []GroupFit {
	fits := make([]GroupFit, len(sizes))
	for i, gs := range sizes {
		fits[i].Group = gs
	}
	width := format.Int4Grouped.Info().RowBytes(cols)
	units := (cols + groupUnit - 1) / groupUnit
	alive, extreme := make([]bool, units), make([]bool, units)
	for ; len(codes) >= width; codes = codes[width:] {
		for u := range units {
			lo := u * groupUnit / 2
			alive[u], extreme[u] = scanInt4(codes[lo:min(lo+groupUnit/2, width)], min(cols-u*groupUnit, groupUnit))
		}
		for i, gs := range sizes {
			for u := 0; u < units; u += gs / groupUnit {
				end := min(u+gs/groupUnit, units)
				if slices.Contains(alive[u:end], true) {
					fits[i].Groups++
					if !slices.Contains(extreme[u:end], true) {
						fits[i].Flat++
					}
				}
			}
		}
	}
	return fits
}

// scanInt4 says whether n packed codes hold one that is not zero, and one of
// magnitude 7 or more.
func scanInt4(b []byte, n int) (alive, extreme bool) {
	if len(b) == 8 && n == groupUnit {
		const ones = 0x1111111111111111
		w := binary.LittleEndian.Uint64(b)
		return w != 8*ones, hasNibble(w, 0) || hasNibble(w, ones) || hasNibble(w, 15*ones)
	}
	for i := range n {
		code := b[i/2] >> (4 * (i % 2)) & 15
		alive = alive || code != 8
		extreme = extreme || code <= 1 || code == 15
	}
	return alive, extreme
}

// hasNibble says whether some nibble of w is that of pattern, which repeats one.
func hasNibble(w, pattern uint64) bool {
	const low, high = 0x1111111111111111, 0x8888888888888888
	x := w ^ pattern
	return (x-low)&^x&high != 0
}
