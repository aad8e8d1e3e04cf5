package main

import (
	"errors"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/format"
	"hawkmoth/quantize"
)

const overlayLong = `Replace some tensors of a finished container without writing the container again:
the new ones go into extra shards, inside BASE or with -o into a directory of
their own, and the index of the directory says which shard counts. The base can
be loaded at every moment; --remove gives it back as it was, and --merge folds
an overlay into the base's shards.

--role takes a role in every layer, --tensors the names that a pattern finds.
The values come from the original checkpoint with --from, else from the base
itself: what was quantised there is decoded and loses a second time.`

const overlayExamples = `  convert overlay ./glm-5.2-snapshot --role kv_b --format int4-grouped/64 --from ./GLM-5.2
  convert overlay ./glm-5.2-snapshot --tensors 'layers\.[0-2]\.mlp' --format bf16 --from ./GLM-5.2 -o ./exact-dense
  convert overlay --list ./glm-5.2-snapshot
  convert overlay --remove kvb ./glm-5.2-snapshot
  convert overlay --merge kvb ./glm-5.2-snapshot`

// overlayFlags are what the command line says about an overlay.
type overlayFlags struct {
	tensors        string
	roles          []string
	format         string
	group          int
	from           string
	out            string
	name           string
	mtp            bool
	allowAmbiguous bool
	indexOnly      bool
	maxShard       string
	threads        int
	verify         bool
	dryRun         bool
	list           bool
	remove         string
	merge          string
}

func overlayCommand() *cobra.Command {
	var f overlayFlags
	cmd := &cobra.Command{
		Use: "overlay [flags] BASE", Short: "Replace some tensors of a finished container",
		Long: overlayLong, Example: overlayExamples, Args: cli.Args("BASE"),
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringArrayVar(&f.roles, "role", nil, "`ROLE` to replace in every layer, repeatable: "+roleNames())
	fs.StringVar(&f.tensors, "tensors", "", "`REGEX` that finds the names of the tensors to replace")
	fs.StringVar(&f.format, "format", "", "`FORMAT` that they get, such as int4-grouped/64 or bf16")
	fs.IntVar(&f.group, "group-size", quantize.DefaultGroup, "columns that share a scale in int4-grouped, `N` (0 is int4-row)")
	fs.StringVar(&f.from, "from", "", "`CHECKPOINT` that the values come from (default: BASE itself, with a second loss)")
	fs.StringVarP(&f.out, "out", "o", "", "`DIR` of its own for the overlay, for run --overlay DIR (default: inside BASE)")
	fs.BoolVar(&f.mtp, "mtp", false, "replace the MTP block's tensors too")
	fs.StringVar(&f.name, "name", "", "`NAME` of the overlay, the prefix of its shards (default: after the role)")
	fs.BoolVar(&f.allowAmbiguous, "allow-ambiguous", false, "write what only its stamp tells from another format")
	fs.BoolVar(&f.indexOnly, "index-only", false, "write inside BASE what only readers of the index read right")
	fs.StringVar(&f.maxShard, "max-shard-size", "5G", "`SIZE` at which a shard is full (500M, 5G)")
	fs.BoolVar(&f.dryRun, "dry-run", false, "print the plan and stop; also of --merge")
	fs.IntVarP(&f.threads, "threads", "t", 0, "goroutines that convert; 0 is one a processor")
	fs.BoolVar(&f.verify, "verify", true, "read the overlay again and report its error, of kv_b by head")
	fs.BoolVar(&f.list, "list", false, "list the overlays in BASE, and what they replace")
	fs.StringVar(&f.remove, "remove", "", "take the overlay `NAME` out of BASE")
	fs.StringVar(&f.merge, "merge", "", "fold the overlay `NAME` into the shards of BASE; with -o, from DIR")
	cmd.MarkFlagsMutuallyExclusive("list", "remove", "merge", "role")
	cmd.MarkFlagsMutuallyExclusive("list", "remove", "merge", "tensors")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case f.list:
			return listOverlays(cmd, args[0])
		case cmd.Flags().Changed("remove"):
			return removeOverlay(cmd, args[0], f.remove)
		case cmd.Flags().Changed("merge"):
			return mergeOverlay(cmd, args[0], &f)
		}
		return overlay(cmd, args[0], &f)
	}
	return cmd
}

func roleNames() string {
	var names []string
	for _, r := range quantize.Roles() {
		names = append(names, r.String())
	}
	return strings.Join(names, ", ")
}

// request is what the flags ask for.
func (f *overlayFlags) request() (req quantize.OverlayRequest, err error) {
	var problems format.Problems
	fail := func(err error) { problems = append(problems, err) }
	for _, name := range f.roles {
		i := slices.IndexFunc(quantize.Roles(), func(r quantize.Role) bool { return r.String() == name })
		if i < 0 {
			fail(&format.Error{Kind: format.ErrUsage, What: "--role", Found: strconv.Quote(name), Wanted: roleNames()})
			continue
		}
		req.Roles = append(req.Roles, quantize.Roles()[i])
	}
	if f.tensors != "" {
		if req.Match, err = regexp.Compile(f.tensors); err != nil {
			fail(&format.Error{Kind: format.ErrUsage, What: "--tensors", Err: err})
		}
	}
	if len(f.roles) == 0 && f.tensors == "" {
		fail(cli.Usagef("--role or --tensors is needed to say what is replaced"))
	}
	if f.format == "" {
		fail(cli.Usagef("--format is needed, such as int4-grouped/64"))
	} else if req.Choice, err = quantize.ParseChoice(f.format, f.group); err != nil {
		fail(err)
	}
	if req.MaxShard, err = size(f.maxShard); err != nil {
		fail(err)
	}
	req.MTP, req.Name, req.Dir, req.AllowAmbiguous, req.IndexOnly = f.mtp, f.name, f.out, f.allowAmbiguous, f.indexOnly
	return req, problems.Err()
}

func overlay(cmd *cobra.Command, dir string, f *overlayFlags) (err error) {
	req, err := f.request()
	if err != nil {
		return err
	}
	if err := isDir(dir); err != nil {
		return err
	}
	base, err := openCheckpoint(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, base.snap.Close()) }()
	req.HeadRows = base.config.Nope + base.config.ValueHd
	var from *format.Snapshot
	if f.from != "" && !sameDir(f.from, dir) {
		if from, err = format.Open(f.from); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, from.Close()) }()
	}
	o, err := quantize.NewOverlay(base.snap, from, base.config.Arch.Tensors(base.config), req)
	if err != nil {
		return err
	}
	d, err := o.Survey()
	if err != nil {
		return err
	}
	r := newOverlayReport(dir, f.from, o, d)
	for _, w := range r.Warnings {
		cli.Warn(cmd, "%s", w)
	}
	if f.dryRun {
		return r.print(cmd)
	}
	cli.Note(cmd, "%s", r.intent())
	if err := r.write(cmd, o, f.threads); err != nil {
		return err
	}
	if f.verify {
		if err := r.verify(cmd, o, f.threads); err != nil {
			return err
		}
	}
	r.PeakMemory = cli.PeakMemory()
	if err := r.print(cmd); err != nil {
		return err
	}
	cli.Note(cmd, "%s", r.next())
	return nil
}

func (r *overlayReport) write(cmd *cobra.Command, o *quantize.Overlay, threads int) error {
	ctx := cmd.Context()
	progress := cli.NewProgress(cmd, "overlay", r.Total.BytesIn)
	defer progress.Done()
	start := time.Now()
	result, err := o.Write(ctx, quantize.ExecuteOptions{Threads: threads, Progress: progress.Add, Shard: func(name string, kept bool) {
		if kept {
			name += ", kept from the earlier run"
		}
		progress.Line(name)
	}})
	progress.Done()
	if err != nil {
		if ctx.Err() != nil {
			return cli.Hint(err, "the base is as it was; the same command continues")
		}
		return err
	}
	r.Result = &outcome{Written: result.Written, Kept: result.Kept, Seconds: time.Since(start).Seconds()}
	if result.Kept == 0 && r.Result.Seconds > 0 {
		r.Result.BytesPerSecond = float64(r.Total.BytesIn) / r.Result.Seconds
	}
	return nil
}

func (r *overlayReport) verify(cmd *cobra.Command, o *quantize.Overlay, threads int) (err error) {
	progress := cli.NewProgress(cmd, "verify", r.Total.BytesIn)
	defer progress.Done()
	progress.Line(r.Output)
	start := time.Now()
	r.Verification, err = o.Verify(cmd.Context(), threads, progress.Add)
	progress.Done()
	if err != nil {
		if cmd.Context().Err() != nil {
			return cli.Hint(err, "the overlay is complete; the same command verifies it again")
		}
		return err
	}
	r.Result.VerifySeconds = time.Since(start).Seconds()
	for _, e := range r.Verification.Tensors {
		if e.Base > 0.5 {
			cli.Warn(cmd, "%s of the base is %s off the values of %s: is that the checkpoint that the base was made from?", e.Tensor, cli.RelativeError(e.Base), r.Source)
			break
		}
	}
	if n := r.Verification.BelowFloor; n > 0 {
		cli.Warn(cmd, "%d rows hold weights below the smallest scale: they became zeros", n)
	}
	return nil
}

func isDir(dir string) error {
	st, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if !st.IsDir() {
		return &format.Error{Kind: format.ErrUsage, Path: dir, What: "is a file", Wanted: "the directory of a container"}
	}
	return nil
}

func sameDir(a, b string) bool {
	x, xerr := os.Stat(a)
	y, yerr := os.Stat(b)
	return xerr == nil && yerr == nil && os.SameFile(x, y)
}
