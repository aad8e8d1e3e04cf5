package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/format"
	"hawkmoth/quantize"
	"hawkmoth/runtime"
)

// catalogue is what --list prints.
type catalogue struct {
	Formats       []listedFormat `json:"formats"`
	Recipes       []listedRecipe `json:"recipes"`
	Architectures []listedArch   `json:"architectures"`
}

type listedFormat struct {
	Name          string  `json:"name"`
	BitsPerWeight float64 `json:"bits_per_weight"` // of a 6144 × 6144 matrix
	Value         string  `json:"value"`
	Write         bool    `json:"convert"`
	Run           bool    `json:"run"`
}

type listedRecipe struct {
	Name  string                     `json:"name"`
	Doc   string                     `json:"doc"`
	Roles map[string]quantize.Choice `json:"roles"`
	MTP   quantize.Choice            `json:"mtp_block"`
}

type listedArch struct {
	Name       string   `json:"name"`
	ModelTypes []string `json:"model_types"`
}

func printList(cmd *cobra.Command) error {
	var c catalogue
	for _, in := range format.Formats() {
		spec := format.Spec{Format: in.ID, Rows: 6144, Cols: 6144}
		name := in.Name
		if in.ID == format.Int4Grouped {
			spec.Group = quantize.DefaultGroup
			name = fmt.Sprintf("%s/N, N = %s", name, join(format.GroupSizes))
		}
		c.Formats = append(c.Formats, listedFormat{name, spec.BitsPerWeight(), in.Value, in.Write, in.Run})
	}
	for _, r := range quantize.Recipes() {
		roles := map[string]quantize.Choice{}
		for i, choice := range r.Roles {
			roles[quantize.Role(i).String()] = choice
		}
		c.Recipes = append(c.Recipes, listedRecipe{r.Name, r.Doc, roles, r.MTP})
	}
	for _, a := range runtime.Arches() {
		c.Architectures = append(c.Architectures, listedArch{a.Name, a.ModelTypes})
	}
	if cli.JSON(cmd) {
		return cli.PrintJSON(cmd, c)
	}
	_, err := io.WriteString(cmd.OutOrStdout(), c.text())
	return err
}

func (c *catalogue) text() string {
	var b strings.Builder
	table := cli.NewTable("format", "bits/weight", "convert", "run", "value")
	for _, f := range c.Formats {
		table.Add(f.Name, fmt.Sprintf("%.2f", f.BitsPerWeight), yes(f.Write), yes(f.Run), f.Value)
	}
	b.WriteString(table.String() + "\n")

	head := []string{"role"}
	for _, r := range c.Recipes {
		head = append(head, r.Name)
	}
	table = cli.NewTable(head...)
	for _, role := range quantize.Roles() {
		row := []any{role}
		for _, r := range c.Recipes {
			choice := r.Roles[role.String()]
			if role == quantize.MTP {
				choice = r.MTP
			}
			row = append(row, cell(choice))
		}
		table.Add(row...)
	}
	b.WriteString(table.String() + "\n")
	for _, r := range c.Recipes {
		fmt.Fprintf(&b, "%s: %s\n", r.Name, r.Doc)
	}
	b.WriteString("norms, biases and routers are exact in every recipe; mtp is every matrix of the MTP block; – is left out\n\n")
	for _, a := range c.Architectures {
		fmt.Fprintf(&b, "architecture %s: model_type %s\n", a.Name, strings.Join(a.ModelTypes, ", "))
	}
	return b.String()
}

func cell(c quantize.Choice) string {
	if c.Drop {
		return "–"
	}
	return c.String()
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "–"
}

func join(numbers []int) string {
	return strings.Trim(strings.Join(strings.Fields(fmt.Sprint(numbers)), " "), "[]")
}
