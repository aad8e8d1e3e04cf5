package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The assembly in the repository is what the generator writes.
func TestAssemblyIsUpToDate(t *testing.T) {
	dir := t.TempDir()
	body := func(path string) []byte {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		_, b, _ = bytes.Cut(b, []byte("\n")) // the first line names the command with its paths
		return b
	}
	for family := range families {
		asm, stubs := filepath.Join(dir, family+"_amd64.s"), filepath.Join(dir, family+"_amd64.go")
		if out, err := exec.Command("go", "run", ".", "-family", family, "-out", asm, "-stubs", stubs, "-pkg", "kernel").CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", family, err, out)
		}
		for _, path := range []string{asm, stubs} {
			if !bytes.Equal(body(path), body(filepath.Join("..", filepath.Base(path)))) {
				t.Errorf("%s is not what the generator writes: run gen/all.sh", filepath.Base(path))
			}
		}
	}
}
