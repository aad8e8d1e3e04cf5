// Command run executes snapshot containers and plain checkpoints.
package main

import (
	"errors"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/format"
	"hawkmoth/metal"
	"hawkmoth/runtime"
)

func main() { cli.Main(command()) }

const runLong = `Run a model: continue a prompt, one token after the other.

The same container and the same tokens give the same logits on every machine,
with any number of threads; --fingerprint prints a hash of them per token.
DIR is a snapshot container or a plain checkpoint (BF16, F16, F32, FP8).`

const runExamples = `  run ./tiny-glm-g64 -p "Once upon a time" -n 64
  cat prompt.txt | run ./glm-5.2-snapshot -n 200 --temp 0.7 --top-p 0.95 -s 42
  run ./tiny-glm-g64 -p "The king" -n 32 --prof --fingerprint`

func command() *cobra.Command {
	root := cli.New("run DIR", "Run a model", runLong)
	root.Example = runExamples
	var g generateFlags
	var list bool
	root.Args = func(cmd *cobra.Command, args []string) error {
		if list {
			return cli.Args()(cmd, args)
		}
		return cli.Args("DIR")(cmd, args)
	}
	root.RunE = func(cmd *cobra.Command, args []string) error {
		if list {
			return listDevices(cmd)
		}
		return generate(cmd, args[0], &g)
	}
	g.register(root)
	root.Flags().BoolVar(&list, "list-devices", false, "print the devices, whether they can be used and why not")
	root.AddCommand(pplCommand(), logitsCommand(), demoCommand(), benchCommand())
	return root
}

// modelFlags are the flags of every command that loads a model.
type modelFlags struct {
	threads    int
	ctx, chunk int
	backend    string
	device     int
	disable    []string
	residency  string
	requireGPU bool
	overlays   []string

	limits metal.Limits // of the GPU that open found
	off    []string     // what is disabled on it
	placed []*placement // of the models that load opened, in order
}

func (f *modelFlags) register(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.IntVarP(&f.threads, "threads", "t", 0, "threads; 0 = one a processor")
	fl.IntVarP(&f.ctx, "ctx-size", "c", 0, "tokens that fit into the context; 0 = as many as needed, up to the model's limit")
	fl.IntVar(&f.chunk, "chunk", 0, "prompt tokens processed at a time; changes memory and speed, never the result (0 = 256)")
	fl.StringVar(&f.backend, "backend", "auto", "auto (a GPU if there is one, else the CPU), cpu, metal, cuda or emulator")
	fl.IntVar(&f.device, "device", 0, "index of the GPU, see --list-devices")
	fl.StringSliceVar(&f.disable, "disable", nil, "for finding faults and measuring: "+strings.Join(metal.Switches, ", ")+"; changes speed, never the result")
	fl.StringVar(&f.residency, "residency", "on", "on or off: have the system keep the weights wired for the GPU (macOS 15)")
	fl.BoolVar(&f.requireGPU, "require-gpu", false, "fail with exit code 3 if anything would not run on a GPU")
	fl.StringArrayVar(&f.overlays, "overlay", nil, "directory whose tensors replace those of DIR (repeatable, the last wins)")
}

// load opens the model and prints what is special about it.
func (f *modelFlags) load(cmd *cobra.Command, dir string) (*runtime.Model, error) {
	if f.threads < 0 {
		return nil, cli.Usagef("--threads must not be negative")
	}
	if f.residency != "on" && f.residency != "off" {
		return nil, cli.Usagef("--residency must be on or off, not %q", f.residency)
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

// session makes a session for the tokens that a command will need.
func (f *modelFlags) session(m *runtime.Model, need int) (*runtime.Session, error) {
	ctx := f.ctx
	if ctx == 0 {
		ctx = min(need, m.Config.MaxPositions)
	}
	return m.NewSession(ctx, f.chunk)
}

// needTokenizer refuses text where the model has no tokenizer.
func needTokenizer(m *runtime.Model) error {
	if m.Tokenizer != nil {
		return nil
	}
	return &format.Error{Kind: format.ErrIncomplete, Path: m.Snapshot.Dir, What: "text needs a tokenizer, and there is no tokenizer.json", Err: os.ErrNotExist}
}
