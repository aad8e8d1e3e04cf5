// Package hawkmoth_test checks what holds for the repository as a whole.
package hawkmoth_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "hawkmoth"

// arrows lists, for each room, the rooms that it may reach; every package of
// the module needs its row. Test files may use testRooms besides.
var arrows = map[string][]string{
	"":                            {},
	"format":                      {},
	"quantize":                    {"format"},
	"runtime/kernel":              {"format", "quantize"},
	"runtime":                     {"format", "quantize", "runtime/kernel"},
	"runtime/jinja":               {},
	"runtime/chat":                {"format", "runtime/jinja"},
	"metal":                       {"format", "quantize", "runtime/kernel", "runtime", "internal/msl"},
	"cmd/internal/cli":            {"format"},
	"cmd/internal/clitest":        {"format", "cmd/internal/cli"},
	"cmd/internal/report":         {"format", "quantize", "runtime/kernel", "runtime", "metal", "internal/msl", "cmd/internal/cli"},
	"cmd/convert":                 {"format", "quantize", "runtime/kernel", "runtime", "metal", "internal/msl", "cmd/internal/cli", "cmd/internal/report"},
	"cmd/inspect":                 {"format", "quantize", "runtime/kernel", "runtime", "metal", "internal/msl", "cmd/internal/cli", "cmd/internal/report"},
	"cmd/run":                     {"format", "quantize", "runtime/kernel", "runtime", "runtime/chat", "runtime/jinja", "metal", "internal/msl", "cmd/internal/cli", "cmd/internal/report", "internal/fixtures"},
	"internal/fixtures":           {},
	"internal/fixtures/converted": {"format", "quantize", "internal/fixtures"},
	"internal/guard":              {},
	"internal/msl":                {},
	"benchmarks/mkrandom":         {"format", "quantize", "runtime/kernel", "runtime"},
	"internal/genptx":             {"format", "quantize", "runtime/kernel", "runtime", "metal", "internal/msl"},
}

// testRooms is what the tests of any room may import besides its own arrows;
// the repository's own tests may import every room.
var testRooms = []string{"internal/fixtures", "internal/fixtures/converted", "internal/guard", "cmd/internal/clitest"}

// foreign lists what the packages below cmd must not import, with the reason.
var foreign = map[string]string{
	"github.com/spf13/cobra":            "what the user types belongs to cmd",
	"github.com/schollz/progressbar/v3": "progress belongs to cmd",
	"log":                               "an error is returned, not logged",
	"log/slog":                          "an error is returned, not logged",
	"testing":                           "the product does not link the testing package",
	"C":                                 "cgo is not used",
}

type listed struct {
	ImportPath                               string
	Imports, Deps, TestImports, XTestImports []string
}

// list is every package of the module for a platform, with all that it links.
func list(t *testing.T, goos, tags string) []listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-tags", tags, "-json=ImportPath,Imports,Deps,TestImports,XTestImports", "./...")
	cmd.Env = append(os.Environ(), "GOOS="+goos, "CGO_ENABLED=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	var all []listed
	for dec := json.NewDecoder(bufio.NewReader(bytes.NewReader(out))); ; {
		var p listed
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, ours := room(p.ImportPath); ours {
			all = append(all, p)
		}
	}
}

// room is the package's path inside the module.
func room(path string) (string, bool) {
	if path == module {
		return "", true
	}
	return strings.CutPrefix(path, module+"/")
}

// violations is what the packages import against the arrows.
func violations(packages []listed) []string {
	var bad []string
	for _, p := range packages {
		name, _ := room(p.ImportPath)
		allowed, known := arrows[name]
		if !known {
			bad = append(bad, name+" has no row in the table of arrows")
			continue
		}
		for _, dep := range p.Deps {
			if to, ours := room(dep); ours && !slices.Contains(allowed, to) {
				bad = append(bad, name+" reaches "+to)
			}
		}
		for _, dep := range p.Imports {
			if why, ok := foreign[dep]; ok && !strings.HasPrefix(name, "cmd/") {
				bad = append(bad, name+" imports "+dep+": "+why)
			}
		}
		for _, dep := range slices.Concat(p.TestImports, p.XTestImports) {
			to, ours := room(dep)
			if ours && to != name && name != "" && !slices.Contains(allowed, to) && !slices.Contains(testRooms, to) {
				bad = append(bad, "a test of "+name+" imports "+to)
			}
		}
	}
	return bad
}

func TestImportArrows(t *testing.T) {
	for _, platform := range []struct{ goos, tags string }{{"linux", ""}, {"linux", "noasm"}, {"darwin", ""}, {"windows", ""}} {
		packages := list(t, platform.goos, platform.tags)
		if len(packages) < 4 {
			t.Fatalf("%s: only %d packages listed", platform.goos, len(packages))
		}
		for _, v := range violations(packages) {
			t.Errorf("%s: %s", platform.goos, v)
		}
	}
}

func TestImportArrowsAreNoticed(t *testing.T) {
	tests := []struct {
		pkg  listed
		want string
	}{
		{listed{ImportPath: "hawkmoth/format", Deps: []string{"io", "hawkmoth/quantize"}}, "format reaches quantize"},
		{listed{ImportPath: "hawkmoth/runtime", Deps: []string{"hawkmoth/metal"}}, "runtime reaches metal"},
		{listed{ImportPath: "hawkmoth/cmd/convert", Deps: []string{"hawkmoth/internal/fixtures"}}, "cmd/convert reaches internal/fixtures"},
		{listed{ImportPath: "hawkmoth/util"}, "util has no row in the table of arrows"},
		{listed{ImportPath: "hawkmoth/runtime", Imports: []string{"log"}}, "runtime imports log: an error is returned, not logged"},
		{listed{ImportPath: "hawkmoth/format", XTestImports: []string{"hawkmoth/runtime"}}, "a test of format imports runtime"},
		{listed{ImportPath: "hawkmoth/format", Deps: []string{"io"}, XTestImports: []string{"hawkmoth/format", "hawkmoth/internal/fixtures"}}, ""},
		{listed{ImportPath: "hawkmoth/cmd/run", Imports: []string{"log"}, Deps: []string{"hawkmoth/internal/fixtures"}}, ""},
	}
	for _, tt := range tests {
		if got := strings.Join(violations([]listed{tt.pkg}), "; "); got != tt.want {
			t.Errorf("%+v: %q, want %q", tt.pkg, got, tt.want)
		}
	}
}
