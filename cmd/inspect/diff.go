package main

import (
	"errors"

	"github.com/spf13/cobra"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/cmd/internal/report"
	"hawkmoth/format"
)

const diffLong = `Hold two snapshots against each other, tensor by tensor: what only one of them
has, other shapes, other formats and sizes, other keys of config.json. Only
headers are read; --values decodes every tensor that both have and gives the
relative error sqrt(Σ(a−b)²/Σa²). The exit code is 0 if they are equal and 1 if
they are not.`

const diffExamples = `  inspect diff ./glm-5.2-snapshot ./other
  inspect diff --values ./GLM-5.2 ./glm-5.2-snapshot
  inspect diff ./a ./b --json`

func diffCommand() *cobra.Command {
	var values bool
	var threads int
	cmd := &cobra.Command{
		Use: "diff [flags] A B", Short: "Compare two snapshots tensor by tensor",
		Long: diffLong, Example: diffExamples, Args: cli.Args("A", "B"),
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.BoolVar(&values, "values", false, "compare the decoded values, too; reads every byte")
	fs.IntVarP(&threads, "threads", "t", 0, "goroutines that read; 0 is one a processor")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if threads < 0 {
			return cli.Usagef("--threads must not be negative")
		}
		return diff(cmd, args[0], args[1], values, threads)
	}
	return cmd
}

func diff(cmd *cobra.Command, a, b string, values bool, threads int) (err error) {
	var sides []*report.Report
	var problems format.Problems
	for _, dir := range []string{a, b} {
		snap, err := format.Open(dir)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		defer func() { err = errors.Join(err, snap.Close()) }()
		r, err := report.Build(snap)
		if err != nil {
			return err
		}
		r.Path = dir
		sides = append(sides, r)
	}
	if err := problems.Err(); err != nil {
		return err
	}
	d, contents := report.Compare(sides[0], sides[1])
	if values {
		progress := cli.NewProgress(cmd, "comparing", contents.Bytes())
		err := contents.Compare(cmd.Context(), threads, progress)
		progress.Done()
		if err != nil {
			return err
		}
	}
	if cli.JSON(cmd) {
		err = cli.PrintJSON(cmd, d)
	} else {
		err = d.Write(cmd.OutOrStdout())
	}
	return errors.Join(err, d.Err())
}
