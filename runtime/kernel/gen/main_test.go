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
	temp := t.TempDir()
	body := func(path string) []byte {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		_, b, _ = bytes.Cut(b, []byte("\n")) // the first line names the command with its paths
		return b
	}
	for family := range families {
		dir, pkg := "..", "kernel"
		if family == "encode" {
			dir, pkg = "../../../quantize", "quantize"
		}
		asm, stubs := filepath.Join(temp, family+"_amd64.s"), filepath.Join(temp, family+"_amd64.go")
		if out, err := exec.Command("go", "run", ".", "-family", family, "-out", asm, "-stubs", stubs, "-pkg", pkg).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", family, err, out)
		}
		for _, path := range []string{asm, stubs} {
			if !bytes.Equal(body(path), body(filepath.Join(dir, filepath.Base(path)))) {
				t.Errorf("%s is not what the generator writes: run gen/all.sh", filepath.Base(path))
			}
		}
	}
}
