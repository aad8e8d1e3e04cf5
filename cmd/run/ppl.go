package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/spf13/cobra"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/runtime"
)

// pplReport is what run ppl prints.
type pplReport struct {
	runtime.Perplexity
	Window      int     `json:"window"`
	BitsPerByte float64 `json:"bits_per_byte"`
	Bytes       int64   `json:"bytes"` // of the scored tokens
	Seconds     float64 `json:"seconds"`
}

func pplCommand() *cobra.Command {
	var f modelFlags
	var window, tokens int
	cmd := &cobra.Command{
		Use:   "ppl DIR FILE",
		Short: "Measure how well a model predicts a text",
		Long: `Measure the perplexity of a model on a text file. The text is cut into windows
of --window tokens; each starts from an empty context and all its tokens but
the first are scored.`,
		Example: "  run ppl ./tiny-glm-g64 book.txt\n  run ppl ./tiny-glm-g64 book.txt --window 512 --tokens 20000 --json",
		Args:    cli.Args("DIR", "FILE"),
	}
	cmd.Flags().IntVarP(&window, "window", "w", 256, "`TOKENS` in a window")
	cmd.Flags().IntVar(&tokens, "tokens", 0, "use the first `N` tokens of the text only; 0 = all")
	f.register(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if window < 2 || tokens < 0 {
			return cli.Usagef("--window must be at least 2 and --tokens not negative")
		}
		if err := f.check(); err != nil {
			return err
		}
		text, err := os.ReadFile(args[1])
		if err != nil {
			return err
		}
		m, err := f.load(cmd, args[0])
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, m.Close()) }()
		if err := needTokenizer(m); err != nil {
			return err
		}
		ids := m.Tokenizer.Encode(string(text))
		if tokens > 0 && tokens < len(ids) {
			ids = ids[:tokens]
		}
		if len(ids) < 2 {
			return cli.Usagef("%s holds %s: at least 2 are needed", args[1], count(len(ids), "token"))
		}
		window = min(window, len(ids))
		sess, err := f.session(m, "a window", window, window)
		if err != nil {
			return err
		}
		start := time.Now()
		progress := cli.NewCount(cmd, "ppl", "tok", int64(len(ids)))
		defer progress.Done()
		done := 0
		p, err := sess.Score(cmd.Context(), ids, window, func(now runtime.Perplexity) {
			progress.Add(int64(now.Tokens + now.Windows - done))
			done = now.Tokens + now.Windows
		})
		if err != nil {
			return err
		}
		progress.Done()
		r := pplReport{Perplexity: p, Window: window, Seconds: time.Since(start).Seconds()}
		for i, id := range ids {
			if i%window != 0 {
				r.Bytes += int64(len(m.Tokenizer.TokenBytes(id)))
			}
		}
		r.BitsPerByte = p.NLL * float64(p.Tokens) / math.Ln2 / float64(r.Bytes)
		if cli.JSON(cmd) {
			return cli.PrintJSON(cmd, r)
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "perplexity %.4f · NLL %.5f nats/token · %.4f bits/byte · %s in %s of %d · %s (%s tok/s)\n",
			p.Value, p.NLL, r.BitsPerByte, count(p.Tokens, "token"), count(p.Windows, "window"), window, cli.Duration(time.Since(start)), cli.Rate(float64(len(ids))/r.Seconds))
		return err
	}
	return cmd
}
