package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/internal/fixtures"
)

// mount is a new tmpfs of the given size; the test is skipped where mounting
// is not allowed.
func mount(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("SKIPPED: cannot mount a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmounting: %v", err)
		}
	})
	return dir
}

// TestE4DiskTooSmall: known before a byte is written.
func TestE4DiskTooSmall(t *testing.T) {
	disk := mount(t, "1m")
	code, _, stderr := run(t, fixtures.TinyGLMDir(t), filepath.Join(disk, "out"))
	if code != cli.Failed || !strings.Contains(stderr, filepath.Join(disk, "out")+": the disk cannot hold the container: no space left on device (found 1.0 MB free, wanted 6.5 MB)") {
		t.Errorf("exit %d, stderr\n%s", code, stderr)
	}
	if left := names(t, disk); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestE4ReadOnlyDisk(t *testing.T) {
	disk := mount(t, "64m")
	out := filepath.Join(disk, "out")
	if err := os.Mkdir(out, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", disk, "tmpfs", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Skipf("SKIPPED: cannot remount: %v", err)
	}
	dir := fixtures.TinyGLMDir(t)
	for _, to := range []string{out, filepath.Join(disk, "new")} {
		code, _, stderr := run(t, dir, to)
		if code != cli.Failed || !strings.Contains(stderr, to) || !strings.Contains(stderr, "read-only file system") {
			t.Errorf("%s: exit %d, stderr\n%s", to, code, stderr)
		}
	}
	if left := names(t, out); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// TestE4OverlayOnAFullDisk: refused before a byte, and nothing is left.
func TestE4OverlayOnAFullDisk(t *testing.T) {
	checkpoint, base := finished(t)
	disk := mount(t, "100k")
	out := filepath.Join(disk, "over")
	code, _, stderr := run(t, "overlay", base, "--role", "kv_b", "--format", "int4-grouped/64", "--from", checkpoint, "-o", out)
	if code != cli.Failed || !strings.Contains(stderr, "the disk cannot hold the overlay: no space left on device (found 102.4 kB free, wanted 195.6 kB)") {
		t.Errorf("exit %d, stderr\n%s", code, stderr)
	}
	if left := names(t, disk); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}
