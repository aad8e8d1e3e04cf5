// Command run executes snapshot containers and plain checkpoints.
package main

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/format"
	"hawkmoth/metal"
	"hawkmoth/runtime"
)

func main() { cli.Main(command()) }

const runLong = `Run a model: continue a prompt, one token after the other.

If the model has a chat template, the prompt is one message of a conversation
and the model answers it; --raw continues the text as it is. --chat goes on
after the answer: a line is a message, also in a script on standard input.

The same container and the same tokens give the same logits on every machine,
with any number of threads; --fingerprint prints a hash of them per token.
DIR is a snapshot container or a plain checkpoint (BF16, F16, F32, FP8). The
prompt comes from -p, -f or standard input; a line break at the very end of a
file or of standard input is left out.`

const runExamples = `  run ./tiny-glm-g64 -p "Once upon a time" -n 64
  cat prompt.txt | run ./glm-5.2-snapshot -n 200 --temp 0.7 --top-p 0.95 -s 42
  run ./tiny-glm-g64 -p "The king" -n 32 --prof --fingerprint
  run ./glm-5.2-snapshot --chat --system "Be brief."`

func command() *cobra.Command {
	root := cli.New("run DIR", "Run a model", runLong)
	root.Example = runExamples
	var g generateFlags
	var list bool
	root.Args = func(cmd *cobra.Command, args []string) error {
		switch {
		case list:
			return cli.Args()(cmd, args)
		case len(args) == 0:
			return cli.Hint(cli.Usagef("missing argument DIR"), `no model at hand? "run demo" brings one; see "run --help"`)
		}
		return cli.Args("DIR")(cmd, args)
	}
	root.RunE = func(cmd *cobra.Command, args []string) error {
		if list {
			return listDevices(cmd)
		}
		if g.chat {
			return converse(cmd, args[0], &g)
		}
		return generate(cmd, args[0], &g)
	}
	g.registerAll(root)
	root.Flags().BoolVar(&list, "list-devices", false, "print the devices, whether they can be used and why not")
	root.AddCommand(pplCommand(), logitsCommand(), demoCommand(), benchCommand())
	return root
}

// maxThreads is far above any machine's; more is a slip of the keyboard.
const maxThreads = 4096

// modelFlags are the flags of every command that loads a model.
type modelFlags struct {
	threads    int
	ctx, chunk int // ctx only after registerContext
	backend    string
	device     int
	disable    []string
	residency  string
	deviceFlag *pflag.Flag
	requireGPU bool
	overlays   []string

	limits metal.Limits // of the GPU that open found
	off    []string     // what is disabled on it
	placed []*placement // of the models that load opened, in order
}

func (f *modelFlags) register(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.SortFlags = false
	fl.IntVarP(&f.threads, "threads", "t", 0, fmt.Sprintf("`N` threads, at most %d; 0 = one a physical core, or a processor where the system does not tell cores", maxThreads))
	fl.IntVar(&f.chunk, "chunk", 0, fmt.Sprintf("prompt `TOKENS` processed at a time; changes memory and speed, never the result; 0 = %d", runtime.DefaultChunk))
	fl.StringVar(&f.backend, "backend", "auto", "`NAME`: auto (a GPU if there is one, else the CPU), "+strings.Join(backendNames[1:], ", "))
	fl.IntVar(&f.device, "device", 0, "`INDEX` of the GPU, see --list-devices")
	f.deviceFlag = fl.Lookup("device")
	fl.BoolVar(&f.requireGPU, "require-gpu", false, "fail with exit code 3 if anything would not run on a GPU")
	fl.StringArrayVar(&f.overlays, "overlay", nil, "`DIR` whose tensors replace those of the model; repeatable, the last wins")
	fl.StringVar(&f.residency, "residency", "on", "`on|off`: have the system keep the weights wired for the GPU (macOS 15)")
	fl.StringSliceVar(&f.disable, "disable", nil, "`PART` to do without when finding faults or measuring, never changes the result: "+strings.Join(metal.Switches, ", "))
}

// registerContext is for the commands whose context is the user's to choose.
func (f *modelFlags) registerContext(cmd *cobra.Command) {
	cmd.Flags().IntVarP(&f.ctx, "ctx-size", "c", 0, "`TOKENS` that fit into the context; 0 = as many as needed, up to the model's limit")
}

// check says what is wrong with the flags before anything is opened.
func (f *modelFlags) check() error {
	var bad format.Problems
	within := func(flag string, n, most int) {
		if n < 0 || n > most {
			bad = append(bad, &format.Error{Kind: format.ErrUsage, What: flag, Found: fmt.Sprint(n), Wanted: fmt.Sprintf("0 to %d", most)})
		}
	}
	oneOf := func(flag, value string, values ...string) {
		if !slices.Contains(values, value) {
			bad = append(bad, &format.Error{Kind: format.ErrUsage, What: flag, Found: fmt.Sprintf("%q", value), Wanted: strings.Join(values, ", ")})
		}
	}
	within("--threads", f.threads, maxThreads)
	within("--ctx-size", f.ctx, math.MaxInt32)
	within("--chunk", f.chunk, math.MaxInt32)
	within("--device", f.device, math.MaxInt32)
	oneOf("--backend", f.backend, backendNames...)
	oneOf("--residency", f.residency, "on", "off")
	if f.backend == "cpu" && f.deviceFlag.Changed {
		bad = append(bad, cli.Usagef("--device is for a GPU: --backend cpu has none"))
	}
	for _, part := range f.disable {
		oneOf("--disable", part, metal.Switches...)
	}
	return bad.Err()
}

// load opens the model and prints what is special about it.
func (f *modelFlags) load(cmd *cobra.Command, dir string) (*runtime.Model, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	p, err := f.open(cmd)
	if err != nil {
		return nil, err
	}
	m, err := runtime.Load(dir, p.backend(), f.overlays...)
	if err != nil {
		return nil, errors.Join(err, p.backend().Close())
	}
	if err := f.place(cmd, m, p, dir); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	f.placed = append(f.placed, p)
	for _, w := range m.Warnings {
		cli.Warn(cmd, "%s", w)
	}
	return m, nil
}

// session makes a session with room for need tokens, or for as many as -c or
// the model allow. Less than what cannot be shortened is refused.
func (f *modelFlags) session(m *runtime.Model, what string, least, need int) (*runtime.Session, error) {
	ctx, limit := min(need, m.Config.MaxPositions), "the model's limit"
	if f.ctx > 0 {
		ctx, limit = f.ctx, "by --ctx-size"
	}
	if least > ctx {
		return nil, &format.Error{Kind: format.ErrUsage, What: what + " does not fit into the context", Found: count(least, "token"), Wanted: fmt.Sprintf("at most %d, %s", ctx, limit)}
	}
	return m.NewSession(ctx, f.chunk)
}

// needTokenizer refuses text where the model has no tokenizer.
func needTokenizer(m *runtime.Model) error {
	if m.Tokenizer != nil {
		return nil
	}
	e := &format.Error{What: "text needs a tokenizer", Err: m.NoText}
	if errors.Is(m.NoText, fs.ErrNotExist) {
		e.Kind = format.ErrIncomplete
	}
	return cli.Hint(e, `"run logits" takes token ids`)
}

// count is a number of things: "1 token", "2 tokens".
func count(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}
