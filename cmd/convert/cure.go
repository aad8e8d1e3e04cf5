package main

import (
	"errors"

	"github.com/spf13/cobra"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/quantize"
)

// plan is the plan of a command line. One that is refused, but that a few more
// flags would allow, is an error with the whole command as a hint.
func (f *flags) plan(cmd *cobra.Command, args []string, c *checkpoint, recipe *quantize.Recipe, opts quantize.PlanOptions) (*quantize.Plan, error) {
	plan, refusal := c.plan(recipe, opts)
	var cure []string
	var r *quantize.Refused
	for err := refusal; errors.As(err, &r); { // what one flag allows may show what another has to
		for _, override := range r.Tensors {
			cure = append(cure, "--tensor", override)
		}
		if r.Bigger {
			cure, opts.AllowBigger = append(cure, "--allow-bigger"), true
		}
		var werr error
		if recipe, werr = recipe.With(quantize.Flags{Tensors: r.Tensors}); werr != nil {
			break
		}
		if _, err = c.plan(recipe, opts); err == nil {
			return nil, cli.Hint(refusal, "%s", cli.CommandLine(cmd, args, cure...))
		}
		r = nil
	}
	return plan, refusal
}
