package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/format"
	"hawkmoth/runtime"
)

// benchRow is one measured test.
type benchRow struct {
	Model   string  `json:"model"`
	Test    string  `json:"test"` // pp512, tg128, tg128@d4096
	Backend string  `json:"backend"`
	Placed  string  `json:"placement"`
	Rate    float64 `json:"tokens_per_second"`
	SD      float64 `json:"sd"`
	Bytes   int64   `json:"bytes_per_token"` // of weights and cache that a token has to read; 0 for prompts
	GBs     float64 `json:"gb_per_second"`
	Share   float64 `json:"share_of_read_bandwidth"`
}

type benchReport struct {
	ReadGBs float64    `json:"read_gb_per_second"`
	Rows    []benchRow `json:"rows"`
}

type benchFlags struct {
	modelFlags
	prompts, generates, depths []int
	repeat                     int
	output                     string
}

func benchCommand() *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use:   "bench DIR...",
		Short: "Measure speed as llama-bench does",
		Long: `Measure prompt processing (pp) and generation (tg) in tokens per second, mean
and standard deviation of -r runs after one that warms up. -d measures both
after that many tokens of context. For generation it also prints the bytes of
weights and cache that a token has to read, that rate, and its share of the
read bandwidth, which is measured first on memory larger than the caches.
Several models are measured in turn, run by run, so that a change of the
machine's load meets all of them.`,
		Example: "  run bench ./tiny-glm-g64\n  run bench ./a ./b -p 512 -n 128 -d 0,4096 -r 5 -t 2 -o csv",
		Args:    cli.Args("DIR..."),
		RunE:    func(cmd *cobra.Command, args []string) error { return bench(cmd, args, &f) },
	}
	fl := cmd.Flags()
	fl.IntSliceVarP(&f.prompts, "prompt", "p", []int{512}, "`TOKENS` of the prompt; 0 leaves it out")
	fl.IntSliceVarP(&f.generates, "max-tokens", "n", []int{128}, "`TOKENS` to generate; 0 leaves it out")
	fl.IntSliceVarP(&f.depths, "depth", "d", []int{0}, "`TOKENS` of context before the measurement")
	fl.IntVarP(&f.repeat, "repeat", "r", 5, "`RUNS` of each test")
	fl.StringVarP(&f.output, "output", "o", "md", "`FORMAT` of the table: md, json or csv")
	f.register(cmd)
	return cmd
}

// benchTest is what is measured; generation where generate > 0.
type benchTest struct{ prompt, generate, depth int }

func (t benchTest) String() string {
	name := fmt.Sprintf("pp%d", t.prompt)
	if t.generate > 0 {
		name = fmt.Sprintf("tg%d", t.generate)
	}
	if t.depth > 0 {
		name += fmt.Sprintf("@d%d", t.depth)
	}
	return name
}

func (t benchTest) tokens() int { return t.prompt + t.generate }

func (f *benchFlags) tests() []benchTest {
	var all []benchTest
	for _, d := range f.depths {
		for _, p := range f.prompts {
			if p > 0 {
				all = append(all, benchTest{prompt: p, depth: d})
			}
		}
		for _, n := range f.generates {
			if n > 0 {
				all = append(all, benchTest{generate: n, depth: d})
			}
		}
	}
	return all
}

func bench(cmd *cobra.Command, dirs []string, f *benchFlags) (err error) {
	tests := f.tests()
	negative := func(n int) bool { return n < 0 }
	if f.repeat < 1 || len(tests) == 0 || slices.ContainsFunc(slices.Concat(f.prompts, f.generates, f.depths), negative) {
		return cli.Usagef("-r must be at least 1, -p or -n above 0, and nothing negative")
	}
	if cli.JSON(cmd) {
		f.output = "json"
	}
	write, ok := map[string]func(io.Writer, *benchReport) error{"md": benchMarkdown, "csv": benchCSV,
		"json": func(_ io.Writer, r *benchReport) error { return cli.PrintJSON(cmd, r) }}[f.output]
	if !ok {
		return cli.Usagef("-o must be md, json or csv, not %q", f.output)
	}
	var models []*runtime.Model
	for _, dir := range dirs {
		m, err := f.load(cmd, dir)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, m.Close()) }()
		models = append(models, m)
		for _, t := range tests {
			if n, most := t.depth+t.tokens(), m.Config.MaxPositions; n > most {
				return &format.Error{Kind: format.ErrUsage, Path: dir, What: t.String() + " does not fit into the context", Found: count(n, "token"), Wanted: fmt.Sprintf("at most %d, the model's limit", most)}
			}
		}
	}
	r := &benchReport{}
	if r.ReadGBs, err = f.placed[0].bandwidth(); err != nil {
		return err
	}
	progress := cli.NewCount(cmd, "bench", "runs", int64(len(tests)*(f.repeat+1)*len(models)))
	defer progress.Done()
	for _, t := range tests {
		rates := make([][]float64, len(models))
		for run := range f.repeat + 1 {
			for i, m := range models {
				rate, err := benchOnce(cmd, m, f, t)
				if err != nil {
					return err
				}
				progress.Add(1)
				if run > 0 { // the first warms up
					rates[i] = append(rates[i], rate)
				}
			}
		}
		for i, m := range models {
			mean, sd := meanSD(rates[i])
			row := benchRow{Model: dirs[i], Test: t.String(), Backend: f.placed[i].name, Placed: f.placed[i].layers(), Rate: mean, SD: sd}
			if t.generate > 0 {
				row.Bytes = m.BytesPerToken(t.depth + t.generate/2)
				row.GBs = float64(row.Bytes) * mean / 1e9
				row.Share = row.GBs / r.ReadGBs
			}
			r.Rows = append(r.Rows, row)
		}
	}
	progress.Done()
	return write(cmd.OutOrStdout(), r)
}

// benchOnce measures one run, in tokens per second.
func benchOnce(cmd *cobra.Command, m *runtime.Model, f *benchFlags, t benchTest) (float64, error) {
	s, err := m.NewSession(t.depth+t.tokens(), f.chunk)
	if err != nil {
		return 0, err
	}
	defer s.Close()
	token := func(i int) int32 { return int32((i*7919 + 17) % m.Config.VocabSize) }
	ids := func(n int) []int32 {
		list := make([]int32, n)
		for i := range list {
			list[i] = token(i)
		}
		return list
	}
	if t.depth > 0 {
		if err := s.Append(cmd.Context(), ids(t.depth), nil); err != nil {
			return 0, err
		}
	}
	start := time.Now()
	if t.prompt > 0 {
		if err := s.Append(cmd.Context(), ids(t.prompt), nil); err != nil {
			return 0, err
		}
	}
	for i := range t.generate {
		if err := s.Append(cmd.Context(), []int32{token(i)}, nil); err != nil {
			return 0, err
		}
	}
	return float64(t.tokens()) / time.Since(start).Seconds(), nil
}

func meanSD(v []float64) (mean, sd float64) {
	for _, x := range v {
		mean += x / float64(len(v))
	}
	for _, x := range v {
		sd += (x - mean) * (x - mean)
	}
	if len(v) > 1 {
		sd = math.Sqrt(sd / float64(len(v)-1))
	} else {
		sd = 0
	}
	return mean, sd
}

func benchMarkdown(w io.Writer, r *benchReport) error {
	var b strings.Builder
	fmt.Fprintf(&b, "| model | test | backend | placement | tok/s | weights+cache read | of %s GB/s |\n|---|---|---|---|--:|--:|--:|\n", cli.Rate(r.ReadGBs))
	for _, row := range r.Rows {
		gbs, share := "", ""
		if row.Bytes > 0 {
			gbs, share = cli.Rate(row.GBs)+" GB/s", cli.Share(row.Share)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s ± %s | %s | %s |\n", row.Model, row.Test, row.Backend, row.Placed, cli.Rate(row.Rate), cli.Rate(row.SD), gbs, share)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func benchCSV(w io.Writer, r *benchReport) error {
	c := csv.NewWriter(w)
	number := func(x float64) string { return strconv.FormatFloat(x, 'f', 3, 64) }
	rows := [][]string{{"model", "test", "backend", "placement", "tokens_per_second", "sd", "bytes_per_token", "gb_per_second", "read_gb_per_second"}}
	for _, row := range r.Rows {
		rows = append(rows, []string{row.Model, row.Test, row.Backend, row.Placed, number(row.Rate), number(row.SD),
			strconv.FormatInt(row.Bytes, 10), number(row.GBs), number(r.ReadGBs)})
	}
	return c.WriteAll(rows)
}
