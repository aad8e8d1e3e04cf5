// Command inspect says what a snapshot container or a checkpoint is.
package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/cmd/internal/report"
	"hawkmoth/format"
)

func main() { cli.Main(command()) }

const inspectLong = `Say what is in a snapshot container or a plain checkpoint: architecture, sizes,
formats, what is missing or does not fit, and how each format is known.

DIR is a directory of safetensors files or one such file. Only headers are read,
so that the size of the model does not matter; --verify and --against read every
byte. Flags that ask for a section print it instead of the summary.

--backend predicts what run would put on the GPU, with the function that places
the commands of a run; --engine predicts it of another engine, from the gates of
its source: which layers, what falls back, and which command cures it. --memory
and --ctx-size say whether a run fits and how many experts stay in memory.
--html writes all of it as one page.

A model that would not load makes the exit code 4 (or 3 if it is sound, but not
supported), and all that is in the way is listed at once. So does a damaged MTP
block, although run needs it for drafts only, what --verify finds, and a tensor
that --against cannot compare. --json prints the whole report as one object,
which docs/report.md describes.`

const inspectExamples = `  inspect ./glm-5.2-snapshot
  inspect ./glm-5.2-snapshot --layers
  inspect --tensors '*kv_b_proj*' ./glm-5.2-snapshot
  inspect ./glm-5.2-snapshot --backend metal --engine colibri-1.12
  inspect ./glm-5.2-snapshot --ctx-size 32768 --memory 96G
  inspect ./glm-5.2-snapshot --html report.html --against ./GLM-5.2
  inspect ./glm-5.2-snapshot --verify --json`

type flags struct {
	tensors  string
	layers   bool
	backends []string
	engines  []string
	context  int
	memory   string
	against  string
	html     string
	verify   bool
	threads  int
	overlays []string

	budget int64 // of memory
}

// allTensors is the pattern of --tensors without a value.
const allTensors = "*"

func command() *cobra.Command {
	var f flags
	root := cli.New("inspect [flags] DIR", "Say what a snapshot or a checkpoint is", inspectLong)
	root.Example = inspectExamples
	fs := root.Flags()
	fs.SortFlags = false
	fs.StringVar(&f.tensors, "tensors", "", "list tensors: all, or those whose name matches `GLOB`")
	fs.Lookup("tensors").NoOptDefVal = allTensors
	fs.BoolVar(&f.layers, "layers", false, "map of formats, a row for each kind of layer and a column for each role; --backend and --engine mark what falls back")
	fs.StringArrayVar(&f.backends, "backend", nil, "what run would put on the GPU with backend `NAME` ("+strings.Join(report.Backends, ", ")+"); repeatable")
	fs.StringArrayVar(&f.engines, "engine", nil, "what another engine would run on the GPU, `NAME` ("+strings.Join(report.Engines(), ", ")+"); repeatable")
	fs.IntVarP(&f.context, "ctx-size", "c", 0, "memory of a run with `N` tokens of context (with --memory alone: "+strconv.Itoa(defaultContext)+")")
	fs.StringVar(&f.memory, "memory", "", "whether a run fits into `SIZE` (96G) and how many experts stay there")
	fs.StringVar(&f.against, "against", "", "error of every tensor against the original `CHECKPOINT`; reads both")
	fs.StringVar(&f.html, "html", "", "write the report with its map to `FILE`, one page that needs nothing else")
	fs.BoolVar(&f.verify, "verify", false, "read every byte: values and scales that are not finite, zero scales, illegal padding, dead groups, group sizes")
	fs.IntVarP(&f.threads, "threads", "t", 0, "goroutines that read; 0 is one a processor")
	fs.StringArrayVar(&f.overlays, "overlay", nil, "`DIR` whose tensors replace those of the snapshot (repeatable, the last wins)")
	root.Args = func(cmd *cobra.Command, args []string) error {
		if f.tensors == allTensors && len(args) == 2 {
			return nil
		}
		return cli.Args("DIR")(cmd, args)
	}
	root.RunE = func(cmd *cobra.Command, args []string) error {
		dir, err := f.pattern(args)
		if err != nil {
			return err
		}
		if err := f.check(cmd); err != nil {
			return err
		}
		return inspect(cmd, dir, &f)
	}
	root.AddCommand(diffCommand())
	return root
}

// defaultContext is the context of --memory without --ctx-size.
const defaultContext = 4096

// check says what is wrong with flags before anything is read.
func (f *flags) check(cmd *cobra.Command) error {
	var problems format.Problems
	if f.threads < 0 {
		problems = append(problems, cli.Usagef("--threads must not be negative"))
	}
	for _, name := range f.backends {
		if !slices.Contains(report.Backends, name) {
			problems = append(problems, &format.Error{Kind: format.ErrUsage, What: "--backend: no such backend", Found: name, Wanted: strings.Join(report.Backends, ", ")})
		}
	}
	for _, name := range f.engines {
		if !slices.Contains(report.Engines(), name) {
			problems = append(problems, &format.Error{Kind: format.ErrUsage, What: "--engine: no such engine", Found: name, Wanted: strings.Join(report.Engines(), ", ")})
		}
	}
	if cmd.Flags().Changed("memory") {
		var ok bool
		if f.budget, ok = cli.ParseBytes(f.memory); !ok {
			problems = append(problems, &format.Error{Kind: format.ErrUsage, What: "--memory", Found: strconv.Quote(f.memory), Wanted: "a size such as 96G"})
		}
	}
	if f.context < 0 || f.context == 0 && cmd.Flags().Changed("ctx-size") {
		problems = append(problems, cli.Usagef("--ctx-size must be positive"))
	}
	if cmd.Flags().Changed("html") && f.html == "" {
		problems = append(problems, cli.Usagef("--html needs a file name"))
	}
	if len(problems) == 1 {
		return problems[0]
	}
	return problems.Err()
}

// pattern tells GLOB from DIR where the pattern of --tensors is an argument of
// its own: DIR is the one that exists.
func (f *flags) pattern(args []string) (string, error) {
	if len(args) == 1 {
		return args[0], nil
	}
	_, err0 := os.Lstat(args[0])
	_, err1 := os.Lstat(args[1])
	switch {
	case err0 == nil && err1 != nil:
		f.tensors = args[1]
		return args[0], nil
	case err0 != nil && err1 == nil:
		f.tensors = args[0]
		return args[1], nil
	}
	return "", cli.Usagef("which of %q and %q is the pattern? write --tensors=GLOB DIR", args[0], args[1])
}

func inspect(cmd *cobra.Command, dir string, f *flags) (err error) {
	if f.html != "" {
		if err := format.CanWrite(f.html); err != nil {
			return err
		}
	}
	snap, err := format.Open(dir, f.overlays...)
	if err != nil {
		if code, _ := cli.Code(err); code == cli.Failed {
			return err
		}
		r := report.Failed(dir, err)
		return errors.Join(print(cmd, r, &flags{}), f.writeHTML(cmd, r), r.Err())
	}
	defer func() { err = errors.Join(err, snap.Close()) }()
	r, err := report.Build(snap)
	if err != nil {
		return err
	}
	r.Path = dir
	if err := f.add(cmd, r); err != nil {
		return err
	}
	if err := errors.Join(print(cmd, r, f), f.writeHTML(cmd, r)); err != nil {
		return err
	}
	return verdict(r)
}

// add fills in the sections that were asked for. Errors of tensors come first,
// since others show them.
func (f *flags) add(cmd *cobra.Command, r *report.Report) error {
	if f.against != "" {
		if err := f.compare(cmd, r); err != nil {
			return err
		}
	}
	if f.tensors != "" {
		if err := r.AddTensors(f.tensors); err != nil {
			return err
		}
	}
	if f.layers {
		if err := r.AddLayers(); err != nil {
			return err
		}
	}
	if err := f.place(r); err != nil {
		return err
	}
	if f.context > 0 || f.budget > 0 {
		context := f.context
		if context == 0 && r.Architecture != nil {
			context = min(defaultContext, r.Architecture.Context)
		}
		if err := r.AddMemory(context, f.budget); err != nil {
			return err
		}
	}
	if f.verify {
		progress := cli.NewProgress(cmd, "verifying", r.VerifyBytes())
		err := r.Verify(cmd.Context(), f.threads, progress)
		progress.Done()
		return err
	}
	return nil
}

// place adds the predictions. A page without a choice has that of Metal and
// those of the engines that run the model.
func (f *flags) place(r *report.Report) error {
	for _, name := range f.backends {
		if err := r.AddBackend(name); err != nil {
			return err
		}
	}
	for _, name := range f.engines {
		if err := r.AddEngine(name); err != nil {
			return err
		}
	}
	if f.html == "" || len(f.engines)+len(f.backends) > 0 || r.Architecture == nil {
		return nil
	}
	if err := r.AddBackend("metal"); err != nil {
		return err
	}
	names := report.Engines()
	slices.Reverse(names)
	for _, name := range names {
		if err := r.AddEngine(name); err != nil && !errors.Is(err, format.ErrUnsupported) {
			return err
		}
	}
	return nil
}

func (f *flags) compare(cmd *cobra.Command, r *report.Report) (err error) {
	checkpoint, err := format.Open(f.against)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, checkpoint.Close()) }()
	progress := cli.NewProgress(cmd, "comparing", r.AgainstBytes())
	defer progress.Done()
	return r.AddAgainst(cmd.Context(), checkpoint, f.threads, progress)
}

func (f *flags) writeHTML(cmd *cobra.Command, r *report.Report) error {
	if f.html == "" {
		return nil
	}
	var page bytes.Buffer
	if err := r.HTML(&page); err != nil {
		return err
	}
	if err := format.WriteFileAtomic(f.html, page.Bytes()); err != nil {
		return err
	}
	cli.Note(cmd, "wrote %s, %s", f.html, cli.Bytes(int64(page.Len())))
	return nil
}

// print writes what was asked for; without a choice, the summary.
func print(cmd *cobra.Command, r *report.Report, f *flags) error {
	if cli.Verbose(cmd) {
		r.ListAll()
	}
	if cli.JSON(cmd) {
		return cli.PrintJSON(cmd, r)
	}
	return r.Write(cmd.OutOrStdout(), report.Sections{Tensors: f.tensors != "", Layers: f.layers, Placement: len(f.engines)+len(f.backends) > 0,
		Memory: r.Memory != nil, Against: r.Against != nil, Verification: f.verify})
}

// verdict is the error that makes the exit code.
func verdict(r *report.Report) error {
	err := r.Err()
	if v := r.Verification; v != nil {
		err = errors.Join(err, v.Err(r.Path))
	}
	if a := r.Against; a != nil {
		err = errors.Join(err, a.Err(r.Path))
	}
	if dir := filepath.Dir(r.Path); r.Completeness != nil && r.Completeness.Missing > 0 && filepath.Ext(r.Path) == ".safetensors" {
		return cli.Hint(err, "only this file was read; \"inspect %s\" reads all shards there", dir)
	}
	return err
}
