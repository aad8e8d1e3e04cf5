package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/internal/fixtures"
	"hawkmoth/quantize"
	"hawkmoth/runtime"
)

// oracleText writes the text of the reference's 8 windows of 256 tokens.
func oracleText(t *testing.T, dir string) string {
	t.Helper()
	ids, err := rowsOfIDs(fixtures.Path(t, "tiny-glm.oracle.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	m, err := runtime.Load(dir, runtime.NewCPU(1))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	path := filepath.Join(t.TempDir(), "book.txt")
	if err := os.WriteFile(path, []byte(m.Tokenizer.Decode(ids)), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// rowsOfIDs is input_ids of any shape, one after the other.
func rowsOfIDs(path string) ([]int32, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return idsOf(data[len(data)-4*8*256:]), nil
}

func TestPerplexity(t *testing.T) {
	dir := fixtures.TinyGLMDir(t)
	text := oracleText(t, dir)
	st, err := os.Stat(text)
	if err != nil {
		t.Fatal(err)
	}
	stdout, stderr := must(t, "ppl", dir, text, "--json")
	r := objects[pplReport](t, stdout)[0]
	if want := tinyReference(t).NLL; stderr != "" || math.Abs(r.NLL-want) > 1e-4 || r.Windows != 8 || r.Tokens != 8*255 || r.Window != 256 {
		t.Errorf("%+v, want NLL %v, stderr %q", r, want, stderr)
	}
	if r.Value != math.Exp(r.NLL) || math.Abs(r.BitsPerByte-r.NLL*8*255/math.Ln2/float64(r.Bytes)) > 1e-12 || r.Bytes >= st.Size() || r.Bytes < st.Size()*9/10 || r.Seconds <= 0 {
		t.Errorf("%+v of a text of %d bytes", r, st.Size())
	}
	part := func(dir string, args ...string) pplReport {
		t.Helper()
		stdout, _ := must(t, append([]string{"ppl", dir, text, "--json", "-w", "50", "--tokens", "150"}, args...)...)
		r := objects[pplReport](t, stdout)[0]
		r.Seconds = 0
		return r
	}
	one := part(dir, "-t", "1", "--backend", "cpu")
	if other := part(dir, "-t", "7", "--chunk", "33", "--backend", "cpu"); one != other || one.Tokens != 3*49 {
		t.Errorf("%+v, with other threads and chunks %+v", one, other)
	}
	// What was lost to four bits shows, and not more of it than it should.
	if g64 := part(container(t)); g64.NLL < one.NLL-0.05 || g64.NLL > one.NLL+0.1 || g64.NLL == one.NLL {
		t.Errorf("NLL %v of int4-grouped/64, %v of bf16", g64.NLL, one.NLL)
	}
	stdout, stderr = must(t, "ppl", dir, text, "-w", "100", "--tokens", "201")
	pattern := `^perplexity [0-9.]+ · NLL [0-9.]+ nats/token · [0-9.]+ bits/byte · 198 tokens in 2 windows of 100 · .* tok/s\)\n$`
	if stderr != "" || !regexp.MustCompile(pattern).MatchString(stdout) {
		t.Errorf("stdout %q, stderr %q", stdout, stderr)
	}
}

func TestPerplexityRefuses(t *testing.T) {
	dir := fixtures.TinyGLMDir(t)
	short := filepath.Join(t.TempDir(), "short.txt")
	if err := os.WriteFile(short, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "config.json")
	for _, tt := range []struct {
		args []string
		code int
		says string
	}{
		{nil, cli.Usage, "missing argument DIR"},
		{[]string{dir}, cli.Usage, "missing argument FILE"},
		{[]string{dir, short, "more"}, cli.Usage, `unexpected argument "more"`},
		{[]string{dir, short}, cli.Usage, "holds 1 token: at least 2 are needed"},
		{[]string{dir, filepath.Join(dir, "none")}, cli.Failed, "no such file or directory"},
		{[]string{dir, config, "-w", "1"}, cli.Usage, "--window must be at least 2"},
		{[]string{dir, config, "--tokens", "-1"}, cli.Usage, "--tokens not negative"},
		{[]string{dir, config, "-c", "100"}, cli.Usage, "unknown flag -c"},
		{[]string{fixtures.Path(t, "glm_moe_dsa"), config}, cli.Corrupt, "text needs a tokenizer"},
	} {
		code, stdout, stderr := run(t, append([]string{"ppl"}, tt.args...)...)
		if code != tt.code || stdout != "" || !strings.Contains(stderr, tt.says) {
			t.Errorf("%q: exit %d, stderr %q, want %d and %q", tt.args, code, stderr, tt.code, tt.says)
		}
	}
}

func TestBench(t *testing.T) {
	a := fixtures.TinyGLMDir(t)
	b := convert(t, a, "balanced", quantize.Flags{})
	args := []string{"bench", a, b, "-p", "8,3", "-n", "4", "-d", "0,16", "-r", "2", "-t", "2", "--backend", "cpu"}
	tests := []string{"pp8", "pp3", "tg4", "pp8@d16", "pp3@d16", "tg4@d16"}

	stdout, stderr := must(t, append(args, "-o", "json")...)
	reports := objects[benchReport](t, stdout)
	if len(reports) != 1 || len(reports[0].Rows) != 12 || reports[0].ReadGBs <= 0 || stderr != "" {
		t.Fatalf("stdout %s stderr %q", stdout, stderr)
	}
	bytesOf := map[string]int64{}
	for i, row := range reports[0].Rows {
		model := []string{a, b}[i%2]
		generates := strings.HasPrefix(row.Test, "tg")
		if row.Model != model || row.Test != tests[i/2] || row.Backend != "cpu" || row.Placed != "2 threads" || row.Rate <= 0 || row.SD < 0 ||
			(row.Bytes > 0) != generates || (row.GBs > 0) != generates || (row.Share > 0) != generates {
			t.Errorf("%d: %+v", i, row)
		}
		if generates {
			bytesOf[row.Model+row.Test] = row.Bytes
			if want := float64(row.Bytes) * row.Rate / 1e9; math.Abs(row.GBs-want) > 1e-9*want || math.Abs(row.Share-row.GBs/reports[0].ReadGBs) > 1e-9 {
				t.Errorf("%+v", row)
			}
		}
	}
	if bytesOf[a+"tg4"] <= bytesOf[b+"tg4"] || bytesOf[a+"tg4@d16"] <= bytesOf[a+"tg4"] {
		t.Errorf("a smaller format or context reads more: %v", bytesOf)
	}

	stdout, _ = must(t, append(args, "-o", "csv")...)
	rows, err := csv.NewReader(strings.NewReader(stdout)).ReadAll()
	if err != nil || len(rows) != 13 || strings.Join(rows[0], " ") != "model test backend placement tokens_per_second sd bytes_per_token gb_per_second read_gb_per_second" {
		t.Fatalf("%v: %s", err, stdout)
	}
	for i, row := range rows[1:] {
		if row[1] != tests[i/2] {
			t.Errorf("%q", row)
		}
		for _, cell := range row[4:] {
			if _, err := strconv.ParseFloat(cell, 64); err != nil {
				t.Errorf("%q in %q", cell, row)
			}
		}
	}

	stdout, _ = must(t, "bench", b, "-p", "8", "-n", "4", "-r", "1", "-t", "1", "--backend", "cpu")
	lines := strings.Split(strings.TrimSuffix(stdout, "\n"), "\n")
	if len(lines) != 4 || !strings.HasPrefix(lines[2], fmt.Sprintf("| %s | pp8 | cpu | 1 thread | ", b)) || !strings.Contains(lines[3], " GB/s | ") {
		t.Errorf("%s", stdout)
	}
	for _, line := range lines {
		if strings.Count(line, "|") != 8 {
			t.Errorf("%q has not 7 columns", line)
		}
	}
}

func TestBenchRefuses(t *testing.T) {
	dir := fixtures.Path(t, "glm_moe_dsa")
	for _, tt := range []struct {
		args []string
		says string
	}{
		{nil, "missing argument DIR"},
		{[]string{dir, "-r", "0"}, "-r must be at least 1"},
		{[]string{dir, "-p", "0", "-n", "0"}, "-p or -n above 0"},
		{[]string{dir, "-p", "8", "-n", "-4"}, "nothing negative"},
		{[]string{dir, "-d", "-1"}, "nothing negative"},
		{[]string{dir, "-o", "yaml"}, `-o must be md, json or csv, not "yaml"`},
		{[]string{dir, "-p", "many"}, "--prompt: invalid value"},
		{[]string{dir, "-p", "500", "-d", "20"}, "pp500@d20 does not fit into the context (found 520 tokens, wanted at most 512, the model's limit)"},
	} {
		code, stdout, stderr := run(t, append([]string{"bench"}, tt.args...)...)
		if code != cli.Usage || stdout != "" || !strings.Contains(stderr, tt.says) {
			t.Errorf("%q: exit %d, stderr %q, want %q", tt.args, code, stderr, tt.says)
		}
	}
}

// TestDemo runs where nothing of the repository is.
func TestDemo(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	t.Setenv("TMP", temp)
	t.Chdir(t.TempDir())
	stdout, stderr := must(t, "demo")
	holds(t, stdout, "1. Convert: ", "  $ convert tiny-glm tiny-glm-g64 --recipe small --tensor 'q_b=int8-row'\n", "282 tensors, 14.6 MB in, 5.4 MB out, 5.93 bits/weight",
		demoWhy, "2. Inspect: ", "tiny-glm-g64: container, loadable\n", "attn              18     423.9 k  309.1 kB         5.83  12 int4-grouped/64, 6 int8-row\n",
		"expert           120       2.9 M    1.7 MB         4.50  int4-grouped/64\n", "3. Run: ", "  "+demoPrompt+" ")
	holds(t, stderr, "generation: 64 tokens")
	holdsOnly(t, temp)
	holdsOnly(t, ".")

	kept, _ := must(t, "demo", "--keep", "./tiny", "-q")
	holds(t, kept, "Kept in ./tiny: ")
	holdsOnly(t, "tiny", "tiny-glm", "tiny-glm-g64")
	// The commands that it prints do what it did.
	again, _ := must(t, "tiny/tiny-glm-g64", "-p", demoPrompt, "-n", "64")
	_, said, _ := strings.Cut(stdout, "\n  "+demoPrompt)
	if said != again {
		t.Errorf("the demo said %q, its command %q", said, again)
	}

	stdout, stderr = must(t, "demo", "--json")
	text, steps := "", ""
	for _, e := range objects[map[string]json.RawMessage](t, stdout) {
		var name, part string
		if err := json.Unmarshal(e["event"], &name); err != nil {
			t.Fatal(err)
		}
		_ = json.Unmarshal(e["text"], &part)
		text += part
		if name != "token" {
			steps += name + " "
		}
	}
	if text+"\n" != again || steps != "convert inspect end " || stderr != "" {
		t.Errorf("steps %q, text %q, stderr %q", steps, text, stderr)
	}

	root := command()
	root.SetOut(broken{})
	root.SetErr(io.Discard)
	if code := cli.Execute(t.Context(), root, []string{"demo"}); code != cli.Failed {
		t.Errorf("nobody reads the demo: exit %d", code)
	}
	if code, stdout, stderr := run(t, "demo", "--keep", "tiny"); code != cli.Failed || stdout != "" || !strings.Contains(stderr, "file exists") {
		t.Errorf("exit %d, stdout %q, stderr %q", code, stdout, stderr)
	}
	holdsOnly(t, temp)
}

// broken is a pipe that nobody reads.
type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, syscall.EPIPE }

func TestListDevices(t *testing.T) {
	stdout, stderr := must(t, "--list-devices", "--json")
	list := objects[[]listedDevice](t, stdout)[0]
	if stderr != "" || list[0] != (listedDevice{Backend: "cpu", Name: "this processor", Usable: true}) {
		t.Errorf("stdout %s, stderr %q", stdout, stderr)
	}
	for _, d := range list {
		if d.Usable != (d.Why == "") || d.Usable && d.Name == "" {
			t.Errorf("%+v", d)
		}
	}
	stdout, _ = must(t, "--list-devices")
	if strings.Count(stdout, "\n") != len(list) || !strings.HasPrefix(stdout, "cpu        0  this processor\n") {
		t.Errorf("%s", stdout)
	}
	if code, _, stderr := run(t, "--list-devices", "x"); code != cli.Usage || !strings.Contains(stderr, `unexpected argument "x"`) {
		t.Errorf("exit %d, stderr %q", code, stderr)
	}
}

func TestDevicesThatAreNotThere(t *testing.T) {
	dir := fixtures.Path(t, "glm_moe_dsa")
	out := filepath.Join(t.TempDir(), "x")
	for _, tt := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--backend", "cpu", "--device", "0"}, cli.Usage, "--device is for a GPU: --backend cpu has none"},
		{[]string{"--backend", "emulator", "--device", "1"}, cli.Usage, "--device: backend emulator has no such device (found 1, wanted less than 1)"},
		{[]string{"--device", "99"}, 0, "--device: "},
	} {
		code, _, stderr := run(t, append([]string{"logits", dir, "--ids", "1", "-o", out}, tt.args...)...)
		if code != tt.code && tt.code != 0 || code == 0 || !strings.Contains(stderr, tt.says) {
			t.Errorf("%q: exit %d, stderr %q", tt.args, code, stderr)
		}
	}
}
