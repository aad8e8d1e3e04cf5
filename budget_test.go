package hawkmoth_test

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// budgets are the greatest numbers of lines of a Go file that is no test; the
// first that applies to a file counts.
var budgets = []struct {
	what  string
	dir   string         // empty for all
	holds *regexp.Regexp // nil for all
	lines int
}{
	{"architecture", "runtime", regexp.MustCompile(`(?m)^var \w+ = Arch\{`), 250},
	{"weight format", "quantize", regexp.MustCompile(`(?m)^func encode(F|BF|Int)\w*\(`), 200},
	{"", "", nil, 600},
}

func TestFilesKeepTheirBudget(t *testing.T) {
	kinds := map[string]int{}
	err := filepath.WalkDir(".", func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && path != "." && (strings.HasPrefix(e.Name(), ".") || e.Name() == "build" || e.Name() == "bin"):
			return fs.SkipDir
		case e.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil || bytes.HasPrefix(text, []byte("// Code generated ")) {
			return err
		}
		for _, b := range budgets {
			if b.dir != "" && filepath.Dir(path) != b.dir || b.holds != nil && !b.holds.Match(text) {
				continue
			}
			kinds[b.what]++
			if n := bytes.Count(text, []byte("\n")); n > b.lines {
				t.Errorf("%s: %d lines, at most %d for a %s", path, n, b.lines, strings.TrimSpace(b.what+" file"))
			}
			break
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range budgets {
		if kinds[b.what] == 0 {
			t.Errorf("no %s file was found: the budget counts nothing", b.what)
		}
	}
	t.Log(kinds)
}
