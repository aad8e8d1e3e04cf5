package quantize

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestE4DiskFillsUp between two shards: the finished one stays, of the next
// nothing does, and with space the same plan continues.
func TestE4DiskFillsUp(t *testing.T) {
	disk := t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=8m"); err != nil {
		t.Skipf("SKIPPED: cannot mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(disk, syscall.MNT_DETACH) })
	p := oraclePlan(t, "balanced", Flags{})
	out, ballast := filepath.Join(disk, "out"), filepath.Join(disk, "ballast")
	begun := 0
	fill := func(string, bool) {
		if begun++; begun == 2 {
			_ = os.WriteFile(ballast, make([]byte, 8<<20), 0o644) // as far as it goes
		}
	}
	_, err := Execute(t.Context(), p, out, ExecuteOptions{Shard: fill})
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), filepath.Join(out, "out-00001.safetensors")) {
		t.Errorf("error %v", err)
	}
	left := files(t, out)
	if len(left) != 2 || left["out-00000.safetensors"] == "" || left[ManifestName] == "" {
		t.Errorf("left: %d files", len(left))
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	ref := outDir(t)
	execute(t, p, ref, ExecuteOptions{})
	if r := execute(t, p, out, ExecuteOptions{}); r.Kept != 1 {
		t.Errorf("%+v", r)
	}
	sameFiles(t, files(t, out), files(t, ref))
}
