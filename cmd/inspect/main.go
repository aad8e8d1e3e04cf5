// Command inspect says what a snapshot container or a checkpoint is.
package main

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/cmd/internal/report"
	"hawkmoth/format"
)

func main() { cli.Main(command()) }

const inspectLong = `Say what is in a snapshot container or a plain checkpoint: architecture, sizes,
formats, what is missing or does not fit, and how each format is known.

DIR is a directory of safetensors files or one such file. Only headers are read,
so that the size of the model does not matter; --verify reads every byte. A
model that would not load makes the exit code 4 (or 3 if it is sound, but not
supported), and all that is in the way is listed at once. --json prints the
whole report as one object, which docs/report.md describes.`

const inspectExamples = `  inspect ./glm-5.2-snapshot
  inspect ./glm-5.2-snapshot --layers
  inspect --tensors '*kv_b_proj*' ./glm-5.2-snapshot
  inspect ./glm-5.2-snapshot --verify --json`

type flags struct {
	tensors string
	layers  bool
	verify  bool
	threads int
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
	fs.BoolVar(&f.layers, "layers", false, "map of formats, a row for each kind of layer and a column for each role")
	fs.BoolVar(&f.verify, "verify", false, "read every byte: values and scales that are not finite, zero scales, illegal padding, dead groups")
	fs.IntVarP(&f.threads, "threads", "t", 0, "goroutines that verify; 0 is one a processor")
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
		return inspect(cmd, dir, &f)
	}
	return root
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
	if f.threads < 0 {
		return cli.Usagef("--threads must not be negative")
	}
	snap, err := format.Open(dir)
	if err != nil {
		if code, _ := cli.Code(err); code == cli.Failed {
			return err
		}
		r := report.Failed(dir, err)
		return errors.Join(print(cmd, r, &flags{}), r.Err())
	}
	defer func() { err = errors.Join(err, snap.Close()) }()
	r, err := report.Build(snap)
	if err != nil {
		return err
	}
	r.Path = dir
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
	if f.verify {
		progress := cli.NewProgress(cmd, "verifying", r.VerifyBytes())
		err := r.Verify(cmd.Context(), f.threads, progress)
		progress.Done()
		if err != nil {
			return err
		}
	}
	if err := print(cmd, r, f); err != nil {
		return err
	}
	return verdict(r)
}

// print writes what was asked for; without a choice, the summary.
func print(cmd *cobra.Command, r *report.Report, f *flags) error {
	if cli.JSON(cmd) {
		return cli.PrintJSON(cmd, r)
	}
	return r.Write(cmd.OutOrStdout(), report.Sections{Tensors: f.tensors != "", Layers: f.layers, Verification: f.verify})
}

// verdict is the error that makes the exit code.
func verdict(r *report.Report) error {
	err := r.Err()
	if v := r.Verification; v != nil {
		err = errors.Join(err, v.Err(r.Path))
	}
	if dir := filepath.Dir(r.Path); r.Completeness != nil && r.Completeness.Missing > 0 && filepath.Ext(r.Path) == ".safetensors" {
		return cli.Hint(err, "only this file was read; \"inspect %s\" reads all shards there", dir)
	}
	return err
}
