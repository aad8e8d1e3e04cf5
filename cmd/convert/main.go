// Command convert quantises a checkpoint into a snapshot container.
package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/format"
	"hawkmoth/quantize"
	"hawkmoth/runtime"
)

func main() { cli.Main(command()) }

const convertLong = `Quantise a checkpoint (BF16, F16, F32 or FP8 safetensors with config.json) into a
snapshot container in the directory OUT.

The whole job is checked before a byte is read. A run that was interrupted or
killed continues where it stopped when the same command is given again, and the
result is the same to the byte; until then inspect and run call it unfinished.
--list prints the formats, the recipes and what each role gets.

The flags that end in bits take 16 (bf16), 8 (int8-row), 4 (int4-grouped, or
int4-row with --group-size 0), 3 (int3-g64) and 2 (int2-row).`

const convertExamples = `  convert ./GLM-5.2 ./glm-5.2-snapshot
  convert ./GLM-5.2 ./glm-5.2-small --recipe small --tensor 'kv_b_proj=int8-row'`

// flags are what the command line says about a conversion.
type flags struct {
	recipe         string
	format         string
	group          string
	tensors        []string
	bits           map[string]*int
	allowAmbiguous bool
	allowBigger    bool
	requantize     bool
	maxShard       string
	dryRun         bool
	resume         bool
	overwrite      bool
	threads        int
	verify         bool
	list           bool
}

func command() *cobra.Command {
	var f flags
	root := cli.New("convert [flags] CHECKPOINT OUT", "Quantise a checkpoint into a snapshot container", convertLong)
	root.Example = convertExamples
	root.Args = func(cmd *cobra.Command, args []string) error {
		switch {
		case f.list:
			return cli.Args()(cmd, args)
		case f.dryRun:
			return cli.Args("CHECKPOINT", "[OUT]")(cmd, args)
		}
		return cli.Args("CHECKPOINT", "OUT")(cmd, args)
	}
	root.RunE = func(cmd *cobra.Command, args []string) error {
		if f.list {
			return printList(cmd)
		}
		return convert(cmd, args, &f)
	}
	f.register(root)
	root.Flags().BoolVar(&f.dryRun, "dry-run", false, "print the plan and stop (as \"convert plan\"); OUT may be left out")
	root.Flags().BoolVar(&f.list, "list", false, "print the formats, the recipes and the architectures")
	root.Flags().BoolVar(&f.resume, "resume", false, "only continue an earlier run (without the flag: continue if there is one)")
	root.Flags().BoolVar(&f.overwrite, "overwrite", false, "start anew where another conversion wrote; its files stay until they are replaced")
	root.Flags().IntVarP(&f.threads, "threads", "t", 0, "goroutines that convert; 0 is one a processor")
	root.Flags().BoolVar(&f.verify, "verify", true, "read the container again and report its error")
	root.MarkFlagsMutuallyExclusive("resume", "overwrite")
	root.MarkFlagsMutuallyExclusive("list", "dry-run")

	plan := &cobra.Command{
		Use: "plan [flags] CHECKPOINT [OUT]", Short: "Print what a conversion would do",
		Long:    "Print what a conversion would do, from headers alone: formats, sizes and bits per\nweight of every role, or everything that is wrong with the job.",
		Example: "  convert plan ./GLM-5.2\n  convert plan ./GLM-5.2 ./out --recipe small --json",
		Args:    cli.Args("CHECKPOINT", "[OUT]"),
	}
	pf := flags{dryRun: true}
	pf.register(plan)
	plan.Flags().BoolVar(&pf.overwrite, "overwrite", false, "as for convert")
	plan.RunE = func(cmd *cobra.Command, args []string) error { return convert(cmd, args, &pf) }
	root.AddCommand(plan, overlayCommand())
	return root
}

// register adds the flags that decide what is written.
func (f *flags) register(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.SortFlags = false
	var names []string
	for _, r := range quantize.Recipes() {
		names = append(names, r.Name)
	}
	fs.StringVar(&f.recipe, "recipe", names[0], "`NAME` of a recipe ("+strings.Join(names, ", ")+") or a JSON file")
	fs.StringVar(&f.format, "format", "", "one `FORMAT` for every matrix, such as int4-grouped/64")
	fs.StringVar(&f.group, "group-size", "", "columns that share a scale in int4-grouped, `N` (64; 0 is int4-row)")
	fs.StringArrayVar(&f.tensors, "tensor", nil, "a format for the tensors whose name the pattern finds, `REGEX=FORMAT[/N]`; repeatable, the last wins")
	f.bits = map[string]*int{}
	for _, b := range quantize.BitFlags() {
		f.bits[b.Name] = fs.Int(b.Name, 0, "`BITS` of "+b.Doc)
	}
	fs.BoolVar(&f.allowAmbiguous, "allow-ambiguous", false, "write what only its stamp tells from another format")
	fs.BoolVar(&f.allowBigger, "allow-bigger", false, "quantise even if that makes nothing smaller")
	fs.BoolVar(&f.requantize, "allow-requantize", false, "convert a converted container from its decoded values, losing more")
	fs.StringVar(&f.maxShard, "max-shard-size", "5G", "`SIZE` at which a shard is full (500M, 5G)")
}

// chosen is the recipe with the command line's changes.
func (f *flags) chosen(cmd *cobra.Command) (*quantize.Recipe, error) {
	r, err := quantize.RecipeFor(f.recipe)
	if err != nil {
		data, ferr := os.ReadFile(f.recipe)
		switch {
		case errors.Is(ferr, fs.ErrNotExist) && !strings.ContainsAny(f.recipe, `./\`):
			return nil, err
		case ferr != nil:
			return nil, &format.Error{Kind: format.ErrUsage, What: "--recipe", Err: ferr}
		}
		if r, err = quantize.ReadRecipe(f.recipe, data); err != nil {
			return nil, err
		}
	}
	change := quantize.Flags{Format: f.format, Tensors: f.tensors, Bits: map[string]int{}}
	if f.group != "" {
		n, err := strconv.Atoi(f.group)
		if err != nil {
			return nil, &format.Error{Kind: format.ErrUsage, What: "--group-size", Found: strconv.Quote(f.group), Wanted: "a number"}
		}
		change.GroupSize = &n
	}
	for name, value := range f.bits {
		if cmd.Flags().Changed(name) {
			change.Bits[name] = *value
		}
	}
	return r.With(change)
}

// size reads "5G", "500M", "5GB" or bytes, in decimal units.
func size(text string) (int64, error) {
	n, ok := cli.ParseBytes(text)
	if !ok {
		return 0, &format.Error{Kind: format.ErrUsage, What: "--max-shard-size", Found: strconv.Quote(text), Wanted: "a size such as 500M or 5G"}
	}
	return n, nil
}

func convert(cmd *cobra.Command, args []string, f *flags) error {
	recipe, err := f.chosen(cmd)
	if err != nil {
		return err
	}
	shard, err := size(f.maxShard)
	if err != nil {
		return err
	}
	c, err := openCheckpoint(args[0])
	if err != nil {
		return err
	}
	defer func() { _ = c.snap.Close() }()
	plan, err := f.plan(cmd, args, c, recipe, quantize.PlanOptions{MaxShard: shard, AllowAmbiguous: f.allowAmbiguous, AllowBigger: f.allowBigger, AllowRequantize: f.requantize})
	if err != nil {
		return err
	}
	r := newReport(args[0], c.config.Arch.Name, plan)
	if len(args) > 1 {
		r.Output = args[1]
		d, err := quantize.Survey(plan, args[1], f.overwrite)
		if err != nil {
			return err
		}
		r.Destination = &destination{Needed: d.Needed, Free: d.Free, Complete: d.Complete}
		for i, kept := range d.Kept {
			r.Shards[i].Kept = kept
		}
		if f.resume && !d.Recorded() {
			return &format.Error{Kind: format.ErrUsage, Path: args[1], What: "--resume: there is no earlier run to continue"}
		}
	}
	for _, w := range plan.Warnings {
		cli.Warn(cmd, "%s", w)
	}
	if f.dryRun {
		return r.print(cmd)
	}
	cli.Note(cmd, "%s", r.intent())
	return r.run(cmd, plan, f)
}

// checkpoint is an open checkpoint and what its architecture wants of it.
type checkpoint struct {
	snap   *format.Snapshot
	config *runtime.Config
}

func openCheckpoint(dir string) (*checkpoint, error) {
	if err := quantize.Unfinished(dir); err != nil {
		return nil, err
	}
	snap, err := format.Open(dir)
	if err != nil {
		return nil, err
	}
	c := &checkpoint{snap: snap}
	if c.config, err = runtime.OpenConfig(snap); err != nil {
		return nil, errors.Join(err, snap.Close())
	}
	return c, nil
}

// plan is quantize.NewPlan, with the tokenizer held against the embedding as
// run will. A tokenizer of a kind that is not served is copied all the same.
func (c *checkpoint) plan(recipe *quantize.Recipe, opts quantize.PlanOptions) (*quantize.Plan, error) {
	plan, err := quantize.NewPlan(c.snap, c.config.Arch.Tensors(c.config), recipe, opts)
	text, terr := runtime.OpenText(c.snap, c.config)
	if no := text.NoText; err == nil && no != nil && !errors.Is(no, fs.ErrNotExist) { // of which the plan warns
		plan.Warnings = append(plan.Warnings, fmt.Sprintf("run will take token ids only, no text: %v", no))
	}
	switch {
	case terr == nil:
		return plan, err
	case err == nil:
		return nil, terr
	}
	return nil, format.Problems{err, terr}
}

func (r *report) run(cmd *cobra.Command, plan *quantize.Plan, f *flags) error {
	ctx := cmd.Context()
	total := plan.Total().BytesIn
	progress := cli.NewProgress(cmd, "convert", r.read())
	defer progress.Done()
	start := time.Now()
	result, err := quantize.Execute(ctx, plan, r.Output, quantize.ExecuteOptions{
		Threads: f.threads, Overwrite: f.overwrite, Progress: progress.Add,
		Shard: func(name string, kept bool) {
			if kept {
				name += ", kept from the earlier run"
			}
			progress.Line(name)
		},
	})
	progress.Done()
	if err != nil {
		if ctx.Err() != nil {
			return cli.Hint(err, "%s", r.resumption())
		}
		return err
	}
	r.Result = &outcome{Written: result.Written, Kept: result.Kept, Seconds: time.Since(start).Seconds()}
	if read := r.read(); r.Result.Seconds > 0 && result.Written > 0 {
		r.Result.BytesPerSecond = float64(read) / r.Result.Seconds
	}
	if f.verify {
		plan.EachTensor = cli.Verbose(cmd)
		progress := cli.NewProgress(cmd, "verify", total)
		defer progress.Done()
		progress.Line(r.Output)
		start = time.Now()
		r.Verification, err = quantize.Verify(ctx, plan, r.Output, f.threads, progress.Add)
		progress.Done()
		if err != nil {
			if ctx.Err() != nil {
				return cli.Hint(err, "the container is complete; the same command verifies it again")
			}
			return err
		}
		r.Result.VerifySeconds = time.Since(start).Seconds()
		if n := r.Verification.BelowFloor; n > 0 {
			cli.Warn(cmd, "%d rows hold weights below the smallest scale: they became zeros", n)
		}
	}
	r.PeakMemory = cli.PeakMemory()
	return r.print(cmd)
}
