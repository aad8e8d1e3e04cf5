package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"reflect"
	"regexp"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"hawkmoth/format"
)

// testRoot is a command like ours: two arguments, a flag, a subcommand; what it
// does is the test's.
func testRoot(run func(cmd *cobra.Command) error) *cobra.Command {
	root := New("convert [flags] CHECKPOINT OUT", "short", "Convert things.")
	root.Args = Args("CHECKPOINT", "OUT")
	root.RunE = func(cmd *cobra.Command, _ []string) error { return run(cmd) }
	root.Flags().Int("group-size", 64, "columns that share a scale")
	root.Flags().StringP("output", "o", "", "directory")
	sub := &cobra.Command{Use: "overlay BASE", Args: Args("BASE"), RunE: root.RunE}
	sub.Flags().String("tensors", "", "regular expression")
	_ = sub.MarkFlagRequired("tensors")
	root.AddCommand(sub)
	return root
}

func execute(ctx context.Context, run func(*cobra.Command) error, args ...string) (code int, stdout, stderr string) {
	var o, e bytes.Buffer
	root := testRoot(run)
	root.SetOut(&o)
	root.SetErr(&e)
	code = Execute(ctx, root, args)
	return code, o.String(), e.String()
}

func fails(err error) func(*cobra.Command) error { return func(*cobra.Command) error { return err } }

func TestExitCodesOfErrors(t *testing.T) {
	missing := &fs.PathError{Op: "open", Path: "nowhere", Err: fs.ErrNotExist}
	tests := []struct {
		name string
		err  error
		code int
		kind string
	}{
		{"success", nil, 0, "ok"},
		{"plain", errors.New("no"), 1, "failed"},
		{"missing argument path", missing, 1, "failed"},
		{"missing argument path in an Error", &format.Error{Path: "nowhere", What: "cannot open", Err: missing}, 1, "failed"},
		{"conflict", &format.Error{Kind: format.ErrConflict, What: "other flags"}, 1, "conflict"},
		{"usage", Usagef("no"), 2, "usage"},
		{"unsupported", fmt.Errorf("config: %w", format.ErrUnsupported), 3, "unsupported"},
		{"corrupt", &format.Error{Kind: format.ErrCorrupt, What: "hole"}, 4, "corrupt"},
		{"incomplete", &format.Error{Kind: format.ErrIncomplete, What: "shard", Err: missing}, 4, "incomplete"},
		{"the gravest of a list", format.Problems{errors.New("no"), format.ErrUnsupported, format.ErrCorrupt}, 4, "corrupt"},
		{"unsupported among others", format.Problems{errors.New("no"), format.ErrUnsupported}, 3, "unsupported"},
		{"cancelled", fmt.Errorf("reading: %w", context.Canceled), 130, "interrupted"},
		{"hinted", Hint(format.ErrCorrupt, "download it again"), 4, "corrupt"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if code, kind := Code(tt.err); code != tt.code || kind != tt.kind {
				t.Errorf("Code(%v) = %d %s, want %d %s", tt.err, code, kind, tt.code, tt.kind)
			}
			if code, _, stderr := execute(t.Context(), fails(tt.err), "a", "b"); code != tt.code || (stderr == "") != (tt.err == nil) {
				t.Errorf("exit code %d, want %d; stderr %q", code, tt.code, stderr)
			}
		})
	}
}

func TestUsageErrorsExit2WithAHint(t *testing.T) {
	tests := []struct {
		args   []string
		stderr string
	}{
		{[]string{"a", "b", "--gruop-size=3"}, "convert: unknown flag --gruop-size\nhint: did you mean --group-size? see \"convert --help\"\n"},
		{[]string{"a", "b", "--zzzzzzzz"}, "convert: unknown flag --zzzzzzzz\nhint: see \"convert --help\"\n"},
		{[]string{"a", "b", "-Z"}, "convert: unknown flag -Z\nhint: see \"convert --help\"\n"},
		{[]string{"a", "b", "--quite"}, "convert: unknown flag --quite\nhint: did you mean --quiet? see \"convert --help\"\n"},
		{[]string{"a", "b", "--group-size", "many"}, "convert: --group-size: invalid value (found \"many\", wanted a whole number)\nhint: see \"convert --help\"\n"},
		{[]string{"a", "b", "--group-size"}, "convert: --group-size needs a value\nhint: see \"convert --help\"\n"},
		{[]string{"a"}, "convert: missing argument OUT\nhint: see \"convert --help\"\n"},
		{[]string{"a", "b", "c"}, "convert: unexpected argument \"c\"\nhint: see \"convert --help\"\n"},
		{[]string{"overlya", "a", "b"}, "convert: unexpected argument \"b\"\nhint: did you mean \"overlay\"? see \"convert --help\"\n"},
		{[]string{"overlay", "a"}, "convert: --tensors is required\nhint: see \"convert overlay --help\"\n"},
		{[]string{"overlay", "--tensor", "x", "a"}, "convert: unknown flag --tensor\nhint: did you mean --tensors? see \"convert overlay --help\"\n"},
		{[]string{"-q", "-v", "a", "b"}, "convert: --quiet and --verbose exclude each other\nhint: see \"convert --help\"\n"},
	}
	for _, tt := range tests {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			ran := false
			code, stdout, stderr := execute(t.Context(), func(*cobra.Command) error { ran = true; return nil }, tt.args...)
			if code != 2 || stderr != tt.stderr || stdout != "" || ran {
				t.Errorf("exit %d, ran %v, stdout %q, stderr\n%s\nwant 2 and\n%s", code, ran, stdout, stderr, tt.stderr)
			}
		})
	}
}

func TestUnknownSubcommandSuggestsOne(t *testing.T) {
	root := New("inspect", "short", "Inspect things.") // no Args: cobra looks for subcommands
	root.AddCommand(&cobra.Command{Use: "verify", RunE: func(*cobra.Command, []string) error { return nil }})
	var e bytes.Buffer
	root.SetErr(&e)
	code := Execute(t.Context(), root, []string{"verifi"})
	want := "inspect: unknown command \"verifi\" for \"inspect\"\nhint: did you mean \"verify\"? see \"inspect --help\"\n"
	if code != 2 || e.String() != want {
		t.Errorf("exit %d, stderr\n%s\nwant\n%s", code, e.String(), want)
	}
}

func TestArgs(t *testing.T) {
	tests := []struct {
		names, args []string
		want        string
	}{
		{[]string{"DIR"}, []string{"a"}, ""},
		{[]string{"DIR"}, nil, "missing argument DIR"},
		{[]string{"DIR", "[OUT]"}, []string{"a"}, ""},
		{[]string{"DIR", "[OUT]"}, []string{"a", "b", "c"}, `unexpected argument "c"`},
		{[]string{"DIR", "FILE..."}, []string{"a"}, "missing argument FILE"},
		{[]string{"DIR", "FILE..."}, []string{"a", "b", "c"}, ""},
		{nil, []string{"a"}, `unexpected argument "a"`},
	}
	for _, tt := range tests {
		got := ""
		if err := Args(tt.names...)(&cobra.Command{}, tt.args); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("Args(%v)(%v) = %q, want %q", tt.names, tt.args, got, tt.want)
		}
	}
}

func TestProblemsArePrintedAllAtOnce(t *testing.T) {
	err := fmt.Errorf("opening: %w", format.Problems{
		&format.Error{Kind: format.ErrCorrupt, Path: "a.safetensors", Tensor: "w", What: "size", Found: "4 bytes", Wanted: "8 bytes"},
		format.Problems{&format.Error{Kind: format.ErrUnsupported, What: "no such dtype"}},
	})
	code, _, stderr := execute(t.Context(), fails(err), "a", "b")
	want := "convert: 2 problems\n  a.safetensors: w: size (found 4 bytes, wanted 8 bytes)\n  no such dtype\n"
	if code != 4 || stderr != want {
		t.Errorf("exit %d, stderr\n%s\nwant\n%s", code, stderr, want)
	}
}

// TestManyProblemsStayReadable: a model without any of its 58,000 tensors makes
// a few lines, unless all are asked for.
func TestManyProblemsStayReadable(t *testing.T) {
	var list format.Problems
	for layer := range 75 {
		for expert := range 256 {
			for _, part := range []string{"gate", "up", "down"} {
				list = append(list, &format.Error{Kind: format.ErrCorrupt, Path: fmt.Sprintf("m/out-%05d.safetensors", layer), What: "shape", Wanted: "[2 2]",
					Tensor: fmt.Sprintf("layers.%d.experts.%d.%s_proj", layer, expert, part), Found: map[bool]string{true: "[2 3]", false: "[3 2]"}[part == "down"]})
			}
		}
	}
	list = append(list, &format.Error{Kind: format.ErrCorrupt, Path: "m/out-00000.safetensors", Tensor: "norm", What: "dtype", Found: "I64"})
	for i := range 12 {
		list = append(list, &format.Error{Kind: format.ErrIncomplete, Path: fmt.Sprintf("m/more-%c.safetensors", 'a'+i), What: "shard is missing"})
	}
	_, _, stderr := execute(t.Context(), fails(list), "a", "b")
	want := `convert: 57613 problems
  shape
    layers.{0-74}.experts.{0-255}.gate_proj (19200 tensors) in 75 shards: found [3 2], wanted [2 2]
    layers.{0-74}.experts.{0-255}.up_proj (19200 tensors) in 75 shards: found [3 2], wanted [2 2]
    layers.{0-74}.experts.{0-255}.down_proj (19200 tensors) in 75 shards: found [2 3], wanted [2 2]
  m/out-00000.safetensors: norm: dtype (found I64)
  shard is missing
    m/more-a.safetensors
    m/more-b.safetensors
    m/more-c.safetensors
    m/more-d.safetensors
    m/more-e.safetensors
    m/more-f.safetensors
    m/more-g.safetensors
    m/more-h.safetensors
    … and 4 more; -v prints all
`
	if stderr != want {
		t.Errorf("%s\nwanted\n%s", stderr, want)
	}
	if _, _, stderr := execute(t.Context(), fails(list), "a", "b", "-v"); strings.Count(stderr, "\n") != len(list)+1 {
		t.Errorf("-v: %d lines, want %d", strings.Count(stderr, "\n"), len(list)+1)
	}
	for i := range list {
		list[i] = fmt.Errorf("fault %d", i)
	}
	if _, _, stderr := execute(t.Context(), fails(list), "a", "b"); strings.Count(stderr, "\n") > 30 {
		t.Errorf("%d lines", strings.Count(stderr, "\n"))
	}
}

func TestJSONErrors(t *testing.T) {
	one := &format.Error{Kind: format.ErrCorrupt, Path: "a", Tensor: "w", What: "size", Found: "4", Wanted: "8"}
	tests := []struct {
		name string
		err  error
		args []string
		want string
	}{
		{"one", one, nil, `{"error":{"kind":"corrupt","message":"a: w: size (found 4, wanted 8)","path":"a","tensor":"w","found":"4","wanted":"8"},"exit":4}`},
		{"list", format.Problems{one, errors.New("no <b>")}, nil, `{"error":{"kind":"corrupt","message":"2 problems","problems":[` +
			`{"kind":"corrupt","message":"a: w: size (found 4, wanted 8)","path":"a","tensor":"w","found":"4","wanted":"8"},{"kind":"failed","message":"no <b>"}]},"exit":4}`},
		{"list of one", format.Problems{one}, nil, `{"error":{"kind":"corrupt","message":"a: w: size (found 4, wanted 8)","path":"a","tensor":"w","found":"4","wanted":"8"},"exit":4}`},
		{"usage, though the flags could not be parsed", nil, []string{"--nope"}, `{"error":{"kind":"usage","message":"unknown flag --nope","hint":"see \"convert --help\""},"exit":2}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			args := append(append([]string{"a", "b"}, tt.args...), "--json")
			code, stdout, stderr := execute(t.Context(), fails(tt.err), args...)
			if stdout != "" || !sameJSON(t, stderr, tt.want) {
				t.Errorf("exit %d, stdout %q, stderr\n%s\nwant\n%s", code, stdout, stderr, tt.want)
			}
		})
	}
}

func sameJSON(t *testing.T, a, b string) bool {
	t.Helper()
	var x, y any
	if err := errors.Join(json.Unmarshal([]byte(a), &x), json.Unmarshal([]byte(b), &y)); err != nil {
		t.Errorf("not JSON: %v", err)
	}
	return strings.Count(a, "\n") == 1 && reflect.DeepEqual(x, y)
}

func TestInterruptedIsOneLineAnd130(t *testing.T) {
	tests := []struct {
		name string
		err  error
		args []string
		code int
		want string
	}{
		{"context error", context.Canceled, nil, 130, "convert: interrupted\n"},
		{"any error after it", format.Problems{format.ErrCorrupt, fs.ErrClosed}, nil, 130, "convert: interrupted\n"},
		{"hint", Hint(context.Canceled, "the same command resumes"), nil, 130, "convert: interrupted; the same command resumes\n"},
		{"json", context.Canceled, []string{"--json"}, 130, `{"error":{"kind":"interrupted","message":"interrupted"},"exit":130}` + "\n"},
		{"finished all the same", nil, nil, 0, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			code, _, stderr := execute(ctx, func(*cobra.Command) error { cancel(); return tt.err }, append(tt.args, "a", "b")...)
			if code != tt.code || stderr != tt.want {
				t.Errorf("exit %d, stderr %q, want %d %q", code, stderr, tt.code, tt.want)
			}
		})
	}
}

// TestMainIsInterruptedBySIGINT runs this test binary as the command, whose
// context the signal must cancel.
func TestMainIsInterruptedBySIGINT(t *testing.T) {
	if goruntime.GOOS == "windows" {
		t.Skip("SKIPPED: no SIGINT to send on windows")
	}
	if os.Getenv("CLI_TEST_CHILD") == "1" {
		os.Args = []string{"convert", "a", "b"}
		Main(testRoot(func(cmd *cobra.Command) error {
			p, _ := os.FindProcess(os.Getpid())
			if err := p.Signal(os.Interrupt); err != nil {
				return err
			}
			<-cmd.Context().Done()
			return cmd.Context().Err()
		}))
	}
	signal.Reset(os.Interrupt)
	cmd := exec.Command(os.Args[0], "-test.run=^TestMainIsInterruptedBySIGINT$")
	cmd.Env = append(os.Environ(), "CLI_TEST_CHILD=1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	err := cmd.Run()
	if cmd.ProcessState.ExitCode() != 130 || stderr.String() != "convert: interrupted\n" {
		t.Errorf("%v, stderr %q", err, stderr.String())
	}
}

func TestHelpNamesTheExitCodes(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"overlay", "-h"}} {
		code, stdout, stderr := execute(t.Context(), fails(nil), args...)
		if code != 0 || stderr != "" || !strings.HasSuffix(stdout, "\n"+exitCodes) {
			t.Errorf("%v: exit %d, stderr %q, stdout\n%s", args, code, stderr, stdout)
		}
		for _, flag := range []string{"-q, --quiet", "-v, --verbose", "--json", "--no-color"} {
			if !strings.Contains(stdout, flag) {
				t.Errorf("%v: no %s in\n%s", args, flag, stdout)
			}
		}
	}
}

func TestVersion(t *testing.T) {
	code, stdout, _ := execute(t.Context(), fails(nil), "--version")
	if code != 0 || !regexp.MustCompile(`^convert \S.*\n$`).MatchString(stdout) {
		t.Errorf("exit %d, stdout %q", code, stdout)
	}
}

func TestNotesAndWarnings(t *testing.T) {
	tests := []struct{ flag, stdout, stderr string }{
		{"--no-color", "", "note 1\nwarning: warn 2\n"},
		{"-q", "", ""},
		{"--json", "{\"a\":\"<\"}\n", "{\"warning\":\"warn 2\"}\n"},
	}
	for _, tt := range tests {
		_, stdout, stderr := execute(t.Context(), func(cmd *cobra.Command) error {
			Note(cmd, "note %d", 1)
			Warn(cmd, "warn %d", 2)
			if JSON(cmd) {
				return PrintJSON(cmd, map[string]string{"a": "<"})
			}
			return nil
		}, tt.flag, "a", "b")
		if stdout != tt.stdout || stderr != tt.stderr {
			t.Errorf("%s: stdout %q stderr %q, want %q %q", tt.flag, stdout, stderr, tt.stdout, tt.stderr)
		}
	}
}

func TestProgressOffATerminal(t *testing.T) {
	tests := []struct{ flag, want string }{
		{"-v", "convert: out-0.safetensors (0 B of 3.0 kB)\nconvert: out-1.safetensors (1.5 kB of 3.0 kB)\n"},
		{"-q", ""},
		{"--json", ""},
	}
	for _, tt := range tests {
		code, stdout, stderr := execute(t.Context(), func(cmd *cobra.Command) error {
			p := NewProgress(cmd, "convert", 3000)
			defer p.Done()
			p.Line("out-0.safetensors")
			p.Add(1500)
			p.Line("out-1.safetensors")
			p.Add(1500)
			p.Done()
			return nil
		}, tt.flag, "a", "b")
		if code != 0 || stdout != "" || stderr != tt.want {
			t.Errorf("%s: exit %d, stdout %q, stderr %q, want %q", tt.flag, code, stdout, stderr, tt.want)
		}
	}
}

func TestColorsOnlyOnATerminal(t *testing.T) {
	tests := []struct {
		terminal      bool
		flag          string
		noColor, term string
		want          bool
	}{
		{true, "-v", "", "xterm", true},
		{false, "-v", "", "xterm", false},
		{true, "--no-color", "", "xterm", false},
		{true, "--json", "", "xterm", false},
		{true, "-v", "1", "xterm", false},
		{true, "-v", "", "dumb", false},
	}
	for _, tt := range tests {
		t.Setenv("NO_COLOR", tt.noColor)
		t.Setenv("TERM", tt.term)
		_, _, _ = execute(t.Context(), func(cmd *cobra.Command) error {
			if got := colored(cmd, tt.terminal); got != tt.want {
				t.Errorf("%+v: colored %v", tt, got)
			}
			return nil
		}, tt.flag, "a", "b")
	}
	if Terminal(&bytes.Buffer{}) {
		t.Error("a buffer is no terminal")
	}
	if f, err := os.Open(os.DevNull); err == nil {
		defer func() { _ = f.Close() }()
		if Terminal(f) {
			t.Error("the null device is no terminal")
		}
	}
}

func TestBytes(t *testing.T) {
	tests := map[int64]string{
		0: "0 B", 999: "999 B", 1000: "1.0 kB", 1500: "1.5 kB", 999_949: "999.9 kB", 999_950: "1.0 MB",
		1_500_000_000: "1.5 GB", 370_000_000_000: "370.0 GB", 2_000_000_000_000: "2.0 TB", -1500: "-1.5 kB", 1<<63 - 1: "9.2 EB",
	}
	for n, want := range tests {
		if got := Bytes(n); got != want {
			t.Errorf("Bytes(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestDuration(t *testing.T) {
	tests := map[time.Duration]string{
		0: "0 ms", 850 * time.Millisecond: "850 ms", 999_600 * time.Microsecond: "1.0 s", 12345 * time.Millisecond: "12.3 s",
		59_960 * time.Millisecond: "1m00s", 187 * time.Second: "3m07s", 3599_600 * time.Millisecond: "1h00m",
		125 * time.Minute: "2h05m", 50 * time.Hour: "50h00m", -time.Second: "-1.0 s",
	}
	for d, want := range tests {
		if got := Duration(d); got != want {
			t.Errorf("Duration(%v) = %q, want %q", d, got, want)
		}
	}
}

func TestTableAlignsNumbersRight(t *testing.T) {
	table := NewTable("role", "format", "tensors", "size", "took", "note")
	table.Add("expert", "int4-grouped/64", 1234, "1.5 GB", "3m07s", "")
	table.Add("kv_b", string(Red)+"int8-row"+reset, 5, "870.0 MB", "–", "0-3,7")
	want := "role    format           tensors      size   took  note\n" +
		"expert  int4-grouped/64     1234    1.5 GB  3m07s\n" +
		"kv_b    \x1b[31mint8-row\x1b[0m               5  870.0 MB      –  0-3,7\n"
	if got := table.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	var b strings.Builder
	if n, err := table.WriteTo(&b); err != nil || int(n) != len(want) || b.String() != want {
		t.Errorf("WriteTo: %d bytes, %v", n, err)
	}
}

func TestPeakMemory(t *testing.T) {
	if goruntime.GOOS == "windows" {
		t.Skip("SKIPPED: not known on windows")
	}
	before := PeakMemory()
	block := make([]byte, 64<<20)
	for i := 0; i < len(block); i += 1024 {
		block[i] = 1
	}
	after := PeakMemory()
	goruntime.KeepAlive(block)
	if before < 1<<20 || after < 64<<20 || after > 64<<30 {
		t.Errorf("%s before and %s after touching 64 MiB", Bytes(before), Bytes(after))
	}
}

func TestTableKeepsLabelsLeft(t *testing.T) {
	table := NewTable("layer", "n").Left(0)
	table.Add("1,3,5", 1)
	table.Add("0", 22)
	if got, want := table.String(), "layer   n\n1,3,5   1\n0      22\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestParseBytes(t *testing.T) {
	for text, want := range map[string]int64{"96G": 96e9, "1.5GB": 15e8, "5 G": 0, "500m": 5e8, "7": 7, "2tb": 2e12, "": 0, "-1G": 0, "G": 0, "nan": 0, "1e30": 0, "0": 0, "12 apples": 0} {
		if got, ok := ParseBytes(text); got != want || ok != (want > 0) {
			t.Errorf("%q: %d, %v, want %d", text, got, ok, want)
		}
	}
}

func TestShellWord(t *testing.T) {
	for in, want := range map[string]string{"/a/b-c_1.2": "/a/b-c_1.2", "a b": "'a b'", "it's": `'it'\''s'`, "": "''", "$x;": "'$x;'"} {
		if got := ShellWord(in); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}

// TestProgressFitsItsLine: what wraps would stay on the screen in halves.
func TestProgressFitsItsLine(t *testing.T) {
	for _, columns := range []int{20, 60, 80, 120, 200} {
		bar, room := fit(columns, 24)
		p := &Progress{label: "convert", room: room}
		name := p.called("out-00000.safetensors, kept from the earlier run")
		if columns >= 60 && len(name)+bar+52 > columns || bar < 1 || bar > 24 {
			t.Errorf("%d columns: a bar of %d after %q", columns, bar, name)
		}
	}
	if p := (&Progress{label: "convert", room: 40}); p.called("out-00000.safetensors") != "convert out-00000.safetensors" || p.called("") != "convert" {
		t.Error("there was room")
	}
}

// TestNearNames: an argument that names nothing may be a misspelt subcommand or
// something that lies beside it.
func TestNearNames(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "glm-5.2-snapshot"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ arg, hint string }{
		{"overlya", `hint: did you mean "convert overlay"? see "convert --help"` + "\n"},
		{filepath.Join(dir, "glm-5.2-snapsho"), "hint: did you mean " + filepath.Join(dir, "glm-5.2-snapshot") + "?\n"},
		{filepath.Join(dir, "glm5.2-snapshot") + "/", "hint: did you mean " + filepath.Join(dir, "glm-5.2-snapshot") + "?\n"},
		{filepath.Join(dir, "llama"), ""},
		{filepath.Join(dir, "nowhere", "glm-5.2-snapshot"), ""},
	} {
		_, err := os.ReadDir(tt.arg)
		err = &format.Error{Path: tt.arg, What: "cannot open", Err: err}
		code, _, stderr := execute(t.Context(), fails(err), tt.arg, "b")
		_, hint, _ := strings.Cut(stderr, "\n")
		if code != Failed || hint != tt.hint {
			t.Errorf("%s: exit %d, %s, want %s", tt.arg, code, stderr, tt.hint)
		}
	}
}

// TestNumbersOfOneKindLookAlike: what the commands write them with.
func TestNumbersOfOneKindLookAlike(t *testing.T) {
	for _, tt := range []struct{ got, want string }{
		{Amount(999), "999"}, {Amount(743_900_000_000), "743.9 B"}, {Amount(7_300_000), "7.3 M"},
		{RelativeError(0), "0"}, {RelativeError(0.00684), "0.684 %"}, {RelativeError(0.1126), "11.3 %"}, {RelativeError(1.0022), "100 %"},
		{RelativeError(0.0999), "9.99 %"}, {RelativeError(1.9e-6), "0.000190 %"},
		{Share(0.998), "99.8 %"}, {Share(0), "0.0 %"},
		{Rate(0.5), "0.50"}, {Rate(9.994), "9.99"}, {Rate(9.996), "10.0"}, {Rate(310.24), "310.2"},
	} {
		if tt.got != tt.want {
			t.Errorf("%s, want %s", tt.got, tt.want)
		}
	}
}

func TestFlattenKeepsEveryJoinedProblem(t *testing.T) {
	a, b, c := errors.New("a"), errors.New("b"), &format.Error{Kind: format.ErrUsage, What: "c", Err: errors.New("cause")}
	err := errors.Join(format.Problems{a, format.Problems{b}}, c)
	if got := flatten(err); !slices.Equal(got, []error{a, b, c}) {
		t.Errorf("%q", got)
	}
}
