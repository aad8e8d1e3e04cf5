package quantize

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hawkmoth/format"
)

// TestUnfinished: from its first byte until its last a conversion, or one that
// replaces a lost shard, says how far it is.
func TestUnfinished(t *testing.T) {
	p := oraclePlan(t, "small", Flags{})
	out := outDir(t)
	says := func(done int) {
		t.Helper()
		err := Unfinished(out)
		want := fmt.Sprintf("%s: unfinished conversion, %d of %d shards; the same convert command continues", out, done, len(p.Shards))
		if !errors.Is(err, format.ErrIncomplete) || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	finished := func() {
		t.Helper()
		execute(t, p, out, ExecuteOptions{})
		if err := Unfinished(out); err != nil {
			t.Error(err)
		}
		if data, err := os.ReadFile(filepath.Join(out, ManifestName)); err != nil || strings.Contains(string(data), "planned") {
			t.Errorf("%v, the record of what is done: %s", err, data)
		}
	}
	if err := Unfinished(out); err != nil {
		t.Errorf("nothing there: %v", err)
	}
	ctx, o := stopAfter(t, 2)
	if _, err := Execute(ctx, p, out, o); err == nil {
		t.Fatal("was not stopped")
	}
	says(2)
	finished()
	for _, i := range []int{1, 2} {
		if err := os.Remove(filepath.Join(out, p.Shards[i].Name)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, o = stopAfter(t, 2)
	if _, err := Execute(ctx, p, out, o); err == nil {
		t.Fatal("was not stopped")
	}
	says(len(p.Shards) - 1)
	finished()
}
