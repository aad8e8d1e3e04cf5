package quantize

import (
	"fmt"

	"hawkmoth/format"
)

// Unfinished is format.ErrIncomplete for a directory that a conversion has begun
// to write and not ended; nil for every other.
func Unfinished(dir string) error {
	m, err := ReadManifest(dir)
	if err != nil || m.Modified == nil {
		return nil // what is wrong with the record is for its readers to say
	}
	done := fmt.Sprintf("%d shards", len(m.Shards))
	if m.Planned > 0 { // older records do not tell
		done = fmt.Sprintf("%d of %d shards", len(m.Shards), m.Planned)
	}
	return &format.Error{Kind: format.ErrIncomplete, Path: dir, What: "unfinished conversion, " + done + "; the same convert command continues"}
}
