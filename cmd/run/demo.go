package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/cmd/internal/report"
	"hawkmoth/format"
	"hawkmoth/internal/fixtures"
	"hawkmoth/quantize"
	"hawkmoth/runtime"
)

const (
	demoPrompt = "Once upon a time there was a"
	demoTokens = 64
	demoRecipe = "small" // int4-grouped/64
	demoTensor = "q_b=int8-row"
	demoWhy    = "q_b is int8-row, not int4-grouped/64: colibri, which reads no stamps, would take the two scales of its rows of 96 for groups of 48"
)

func demoCommand() *cobra.Command {
	var keep string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Convert, inspect and run a small built-in model",
		Long: `Convert a built-in model of 7.3 million parameters (GLM-5 architecture, trained
on public-domain books) from BF16 to int4-grouped/64, inspect the container and
let it continue a sentence. Takes seconds and needs no download.`,
		Example: "  run demo\n  run demo --keep ./tiny     # keeps checkpoint and container to play with",
		Args:    cli.Args(),
	}
	cmd.Flags().StringVar(&keep, "keep", "", "directory to keep the checkpoint and the container in; must not exist")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		dir := keep
		if keep == "" {
			if dir, err = os.MkdirTemp("", "hawkmoth-demo-"); err != nil {
				return err
			}
			defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
			// A closed pipe, as of "run demo | head", must not end the process before that.
			broken := make(chan os.Signal, 1)
			signal.Notify(broken, syscall.SIGPIPE)
			defer signal.Stop(broken)
		} else if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		return demo(cmd, dir, keep != "")
	}
	return cmd
}

// demoEvent is a line of --json output for a step; the last step prints the
// events of run.
type demoEvent struct {
	Event  string            `json:"event"` // "convert" or "inspect"
	Total  *quantize.Summary `json:"total,omitempty"`
	Report *report.Report    `json:"report,omitempty"`
}

// demo is the main job in three steps; each prints the command that does the
// same to any other model.
func demo(cmd *cobra.Command, dir string, kept bool) error {
	out, text := cmd.OutOrStdout(), cmd.OutOrStdout()
	if cli.JSON(cmd) {
		text = io.Discard
	}
	source, container := filepath.Join(dir, "tiny-glm"), filepath.Join(dir, "tiny-glm-g64")
	step := func(title, command string) {
		fmt.Fprintf(text, "\n%s\n  $ %s\n", cli.Paint(cmd, out, cli.Bold, title), command)
	}
	if err := os.Mkdir(source, 0o755); err != nil {
		return err
	}
	if err := fixtures.Extract(source); err != nil {
		return err
	}
	step("1. Convert: BF16 checkpoint to a snapshot container", fmt.Sprintf("convert tiny-glm tiny-glm-g64 --recipe %s --tensor '%s'", demoRecipe, demoTensor))
	if err := demoConvert(cmd, text, source, container); err != nil {
		return err
	}
	step("2. Inspect: what is in it", "inspect tiny-glm-g64")
	if err := demoInspect(cmd, text, container); err != nil {
		return err
	}
	step("3. Run: continue a sentence", fmt.Sprintf("run tiny-glm-g64 -p %q -n %d", demoPrompt, demoTokens))
	fmt.Fprintf(text, "  %s", cli.Paint(cmd, out, cli.Bold, demoPrompt))
	if err := demoRun(cmd, container); err != nil {
		return err
	}
	if kept {
		fmt.Fprintf(text, "\nKept in %s: try run, inspect and convert on them.\n", dir)
	}
	return nil
}

func demoConvert(cmd *cobra.Command, text io.Writer, source, container string) (err error) {
	start := time.Now()
	snap, err := format.Open(source)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, snap.Close()) }()
	c, err := runtime.OpenConfig(snap)
	if err != nil {
		return err
	}
	recipe, err := quantize.RecipeFor(demoRecipe)
	if err != nil {
		return err
	}
	if recipe, err = recipe.With(quantize.Flags{Tensors: []string{demoTensor}}); err != nil {
		return err
	}
	plan, err := quantize.NewPlan(snap, c.Arch.Tensors(c), recipe, quantize.PlanOptions{})
	if err != nil {
		return err
	}
	if _, err := quantize.Execute(cmd.Context(), plan, container, quantize.ExecuteOptions{}); err != nil {
		return err
	}
	t := plan.Total()
	if cli.JSON(cmd) {
		return cli.PrintJSON(cmd, demoEvent{Event: "convert", Total: &t})
	}
	fmt.Fprintf(text, "  %d tensors, %s in, %s out, %.2f bits/weight, %s\n", t.Tensors, cli.Bytes(t.BytesIn), cli.Bytes(t.BytesOut), t.BitsPerWeight, cli.Duration(time.Since(start)))
	fmt.Fprintf(text, "  %s\n", demoWhy)
	return nil
}

func demoInspect(cmd *cobra.Command, text io.Writer, container string) (err error) {
	snap, err := format.Open(container)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, snap.Close()) }()
	r, err := report.Build(snap)
	if err != nil {
		return err
	}
	if cli.JSON(cmd) {
		return cli.PrintJSON(cmd, demoEvent{Event: "inspect", Report: r})
	}
	return r.Summary(text)
}

func demoRun(cmd *cobra.Command, container string) (err error) {
	cpu := runtime.NewCPU(0)
	m, err := runtime.Load(container, cpu)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	ids := m.Tokenizer.EncodeSpecial(demoPrompt)
	sess, err := m.NewSession(len(ids)+demoTokens, 0)
	if err != nil {
		return err
	}
	sampler, err := runtime.NewSampler(runtime.SamplerOptions{TopP: 1, RepeatPenalty: 1})
	if err != nil {
		return err
	}
	var g generateFlags
	g.max, g.placed = demoTokens, []*placement{{cpu: cpu, name: cpu.Name()}}
	return g.stream(cmd, m, sess, sampler, ids, &summary{})
}
