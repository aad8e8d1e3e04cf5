package hawkmoth_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"hawkmoth/format"
	"hawkmoth/internal/fixtures"
	"hawkmoth/quantize"
	"hawkmoth/runtime"
)

//go:generate go test -run ^TestDocs$ . -update

var update = flag.Bool("update", false, "write the generated parts of docs/")

// generated is every part of docs/ that lists what the code knows. It stands
// between "<!-- NAME: written by go generate -->" and "<!-- end -->".
var generated = []struct {
	file, name string
	text       func(t *testing.T) string
}{
	{"docs/container.md", "formats", formatTable},
	{"docs/container.md", "group sizes", groupSizes},
	{"docs/cli.md", "recipes", recipeTable},
	{"docs/cli.md", "convert", func(t *testing.T) string { return help(t, "convert") }},
	{"docs/cli.md", "inspect", func(t *testing.T) string { return help(t, "inspect") }},
	{"docs/cli.md", "run", func(t *testing.T) string { return help(t, "run") }},
	{"docs/models.md", "architectures", architectures},
	{"docs/models.md", "configurations", configurations},
}

func TestDocs(t *testing.T) {
	for _, g := range generated {
		t.Run(g.name, func(t *testing.T) {
			old, err := os.ReadFile(g.file)
			if err != nil {
				t.Fatal(err)
			}
			begin := "<!-- " + g.name + ": written by go generate -->\n"
			head, rest, ok1 := strings.Cut(string(old), begin)
			part, tail, ok2 := strings.Cut(rest, "<!-- end -->\n")
			if !ok1 || !ok2 {
				t.Fatalf("%s has no part %q", g.file, g.name)
			}
			text := strings.TrimSuffix(g.text(t), "\n") + "\n"
			switch {
			case part == text:
			case *update:
				if err := os.WriteFile(g.file, []byte(head+begin+text+"<!-- end -->\n"+tail), 0o644); err != nil {
					t.Fatal(err)
				}
			default:
				t.Errorf("%s: the part %q is not what the code says; run go generate .\nfound\n%s\nwanted\n%s", g.file, g.name, part, text)
			}
		})
	}
}

// TestDocsLinks follows the relative links of every page.
func TestDocsLinks(t *testing.T) {
	pages, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	pages = append(pages, "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
	if len(pages) < 8 {
		t.Fatalf("only %d pages", len(pages))
	}
	link := regexp.MustCompile(`\]\(([^)#]+)`)
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllSubmatch(text, -1) {
			to := string(m[1])
			if strings.Contains(to, "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), to)); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
	}
}

func formatTable(*testing.T) string {
	var b strings.Builder
	b.WriteString("| fmt | name | `N` is | bytes of a row of 100, 256 columns | scales `N.qs` | value | padding | written | run |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, in := range format.Formats() {
		scales := "–"
		switch {
		case !in.Packed:
		case in.ID == format.Int4Grouped:
			scales = "one per gs columns"
		case in.BlockRows == 0:
			scales = "one tag"
		case in.BlockRows > 1:
			scales = fmt.Sprintf("one per %d×%d block", in.BlockRows, in.BlockCols)
		case in.BlockCols > 0:
			scales = fmt.Sprintf("one per %d columns", in.BlockCols)
		default:
			scales = "one per row"
		}
		fmt.Fprintf(&b, "| %d | `%s` | %s | %d, %d | %s | %s | %s | %s | %s |\n", in.Ordinal, in.Name, in.DType,
			in.RowBytes(100), in.RowBytes(256), scales, in.Value, dash(in.Pad), yes(in.Write), yes(in.Run))
	}
	return b.String()
}

func groupSizes(*testing.T) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(format.GroupSizes), " ", ", "), "[]")
}

func recipeTable(*testing.T) string {
	var b strings.Builder
	b.WriteString("| role |")
	for _, r := range quantize.Recipes() {
		fmt.Fprintf(&b, " `%s` |", r.Name)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(quantize.Recipes())) + "\n")
	for _, role := range quantize.Roles() {
		if role == quantize.MTP {
			continue
		}
		fmt.Fprintf(&b, "| %s |", role)
		for _, r := range quantize.Recipes() {
			fmt.Fprintf(&b, " %s |", r.Roles[role])
		}
		b.WriteString("\n")
	}
	b.WriteString("| the MTP block |")
	for _, r := range quantize.Recipes() {
		fmt.Fprintf(&b, " %s |", r.MTP)
	}
	b.WriteString("\n\n")
	for _, r := range quantize.Recipes() {
		fmt.Fprintf(&b, "- `%s`: %s\n", r.Name, r.Doc)
	}
	return b.String()
}

func architectures(*testing.T) string {
	var b strings.Builder
	b.WriteString("| architecture | `model_type` in config.json |\n|---|---|\n")
	for _, a := range runtime.Arches() {
		fmt.Fprintf(&b, "| %s | `%s` |\n", a.Name, strings.Join(a.ModelTypes, "`, `"))
	}
	return b.String()
}

// configurations is what ReadConfig makes of published models' files, which are
// third-party data beside the repository: where they are absent, the table
// stays as it is and the test is skipped.
func configurations(t *testing.T) string {
	t.Helper()
	dir := fixtures.Shared(t, "configs/hub")
	files, err := filepath.Glob(filepath.Join(dir, "*.json.gz"))
	if err != nil || len(files) < 100 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	clean := strings.NewReplacer("|", "\\|", "\n", "; ", "config.json: ", "")
	var b strings.Builder
	b.WriteString("| file | read as, or refused because |\n|---|---|\n")
	for _, file := range files {
		if strings.HasSuffix(file, "_hf_quant_config.json.gz") { // lies beside a config.json and is no model
			continue
		}
		c, err := runtime.ReadConfig(fixtures.Gunzip(t, file))
		text := ""
		if err == nil {
			text = "**" + c.Arch.Name + "**: " + c.Summary()
		} else {
			text = "refused: " + reasons(err)
		}
		name := strings.TrimSuffix(strings.TrimSuffix(filepath.Base(file), ".json.gz"), "_config")
		fmt.Fprintf(&b, "| %s | %s |\n", strings.Replace(name, "--", "/", 1), clean.Replace(text))
	}
	return b.String()
}

// reasons is an error's problems, but the list of architectures, which stands
// above, and all unknown keys but three.
func reasons(err error) string {
	var lines []string
	unknown := 0
	for line := range strings.Lines(err.Error()) {
		line, _, _ = strings.Cut(strings.TrimSpace(line), ", wanted glm_moe_dsa,")
		if strings.Count(line, "(") > strings.Count(line, ")") {
			line += ")"
		}
		if strings.Contains(line, "is not known and may change the maths") {
			if unknown++; unknown > 3 {
				continue
			}
		}
		lines = append(lines, line)
	}
	if unknown > 3 {
		lines = append(lines, fmt.Sprintf("and %d more such keys", unknown-3))
	}
	return strings.Join(lines, "; ")
}

// build compiles a command into a directory of the test.
func build(t *testing.T, name string) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), name)
	if out, err := exec.Command("go", "build", "-o", bin, "./cmd/"+name).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return bin
}

// help is the help of a command and of all its subcommands.
func help(t *testing.T, name string) string {
	t.Helper()
	bin := build(t, name)
	var b strings.Builder
	for queue := [][]string{{name}}; len(queue) > 0; queue = queue[1:] {
		path := queue[0]
		cmd := exec.CommandContext(context.Background(), bin, append(slices.Clone(path[1:]), "--help")...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %v\n%s", path, err, stderr.String())
		}
		text := string(out)
		fmt.Fprintf(&b, "### %s\n\n```text\n%s```\n\n", strings.Join(path, " "), trimLines(text))
		_, commands, _ := strings.Cut(text, "Available Commands:\n")
		commands, _, _ = strings.Cut(commands, "\n\n")
		for line := range strings.Lines(commands) {
			if f := strings.Fields(line); len(f) > 0 && f[0] != "completion" && f[0] != "help" {
				queue = append(queue, append(slices.Clone(path), f[0]))
			}
		}
	}
	return b.String()
}

func trimLines(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return b.String()
}

func dash(s string) string {
	if s == "" {
		return "–"
	}
	return s
}

func yes(v bool) string {
	if v {
		return "yes"
	}
	return "–"
}
