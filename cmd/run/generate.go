package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/runtime"
)

type generateFlags struct {
	modelFlags
	prompt, file      string
	max, draft        int
	seed              int64
	sampler           runtime.SamplerOptions
	prof, fingerprint bool
	chatFlags
}

func (g *generateFlags) registerAll(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVarP(&g.prompt, "prompt", "p", "", "`TEXT` to answer or to continue; - reads standard input")
	f.StringVarP(&g.file, "file", "f", "", "`FILE` with the text to continue; - reads standard input")
	f.IntVarP(&g.max, "max-tokens", "n", 128, fmt.Sprintf("generate at most `N` tokens (%d of an answer that ends by itself)", chatMax))
	f.IntVar(&g.max, "predict", 128, "the same as --max-tokens")
	_ = f.MarkHidden("predict")
	g.registerContext(cmd)
	f.Float64Var(&g.sampler.Temp, "temp", 0, "temperature `T`; 0 always takes the most likely token")
	f.IntVar(&g.sampler.TopK, "top-k", 0, "sample among the `K` most likely tokens; 0 = all")
	f.Float64Var(&g.sampler.TopP, "top-p", 1, "sample among the most likely tokens that hold the share `P` of the probability")
	f.Float64Var(&g.sampler.MinP, "min-p", 0, "drop tokens less likely than the share `P` of the most likely one")
	f.Float64Var(&g.sampler.RepeatPenalty, "repeat-penalty", 1, "divide the logits of tokens that were seen by `X`; 1 = off")
	f.Int64VarP(&g.seed, "seed", "s", -1, "`SEED` of the sampler; -1 draws one and prints it")
	f.IntVar(&g.draft, "draft", 0, fmt.Sprintf("draft up to `N` tokens (at most %d) with the model's MTP block and verify them in one pass; changes speed, never the text; pauses while it does not pay", runtime.MaxDraft))
	f.BoolVar(&g.prof, "prof", false, "report where the time went")
	f.BoolVar(&g.fingerprint, "fingerprint", false, "print a hash of the logits of every token")
	cmd.MarkFlagsMutuallyExclusive("prompt", "file")
	g.registerChat(cmd)
	g.register(cmd)
}

// text is the prompt from wherever it comes. The line break at the end of a
// file or of standard input belongs to the file, not to the text.
func (g *generateFlags) text(cmd *cobra.Command) (string, error) {
	var data []byte
	var err error
	given, typed := cmd.Flags().Changed("prompt"), cli.Terminal(cmd.InOrStdin())
	switch {
	case g.file != "" && g.file != "-":
		data, err = os.ReadFile(g.file)
	case given && g.prompt != "-":
		return g.prompt, nil
	case given, g.file == "-", !typed:
		if typed {
			cli.Note(cmd, "type the prompt; Ctrl-D on a line of its own ends it")
		}
		data, err = readAll(cmd.Context(), cmd.InOrStdin())
	}
	text := strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r")
	if text == "" && err == nil {
		err = cli.Usagef("the prompt is empty: give -p TEXT, -f FILE or text on standard input")
	}
	return text, err
}

// readAll is io.ReadAll until the context ends: a read that waits for a person
// cannot be stopped, so it is left behind.
func readAll(ctx context.Context, r io.Reader) ([]byte, error) {
	var data []byte
	read := make(chan error, 1)
	go func() {
		var err error
		data, err = io.ReadAll(r)
		read <- err
	}()
	select {
	case err := <-read:
		return data, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// event is one line of --json output.
type event struct {
	Event       string    `json:"event"` // "token" or "end"
	ID          *int32    `json:"id,omitempty"`
	Text        string    `json:"text,omitempty"`
	Fingerprint string    `json:"fingerprint,omitempty"`
	Summary     *summary  `json:"summary,omitempty"`
	Profile     *profiled `json:"profile,omitempty"`
}

// summary is the footer of a generation.
type summary struct {
	PromptTokens    int           `json:"prompt_tokens"`
	KeptTokens      int           `json:"kept_tokens,omitempty"` // of the prompt: still in the cache, not run again
	PromptSeconds   float64       `json:"prompt_seconds"`
	GeneratedTokens int           `json:"generated_tokens"`
	GenerateSeconds float64       `json:"generate_seconds"`
	PromptRate      float64       `json:"prompt_tokens_per_second,omitempty"`
	GenerateRate    float64       `json:"generated_tokens_per_second,omitempty"` // of the steps that ran: the first token comes from the prompt's logits
	Ended           runtime.Ended `json:"ended"`
	Seed            *uint64       `json:"seed,omitempty"`
	PeakBytes       int64         `json:"peak_bytes"`
	CacheBytes      int64         `json:"cache_bytes"`
	Backend         string        `json:"backend"`
	Device          string        `json:"device,omitempty"` // of a GPU
	Layers          string        `json:"placement"`        // "78/78 layers" on a GPU, "2 threads" on the CPU
	Draft           *drafted      `json:"draft,omitempty"`  // with --draft
}

// perSecond is how fast tokens were run; 0 where none were.
func perSecond(run int, seconds float64) float64 {
	if run == 0 || seconds <= 0 {
		return 0
	}
	return float64(run) / seconds
}

// rate is a number of tokens, and how fast those that ran were run.
func rate(n int, perSecond float64) string {
	if perSecond == 0 {
		return count(n, "token")
	}
	return fmt.Sprintf("%s, %s tok/s", count(n, "token"), cli.Rate(perSecond))
}

// kept tells how much of the prompt was still in the cache.
func (s *summary) kept() string {
	if s.KeptTokens == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d of them kept)", s.KeptTokens)
}

func (s *summary) String() string {
	text := fmt.Sprintf("prompt: %s · generation: %s · %s · peak %s · backend %s (%s)", rate(s.PromptTokens, s.PromptRate)+s.kept(),
		rate(s.GeneratedTokens, s.GenerateRate), s.Ended, cli.Bytes(s.PeakBytes), s.Backend, s.Layers)
	if s.Draft != nil {
		text += " · " + s.Draft.String()
	}
	if s.Seed != nil {
		text += fmt.Sprintf(" · seed %d", *s.Seed)
	}
	return text
}

// prepare checks the flags, before anything is opened, and makes the sampler.
func (g *generateFlags) prepare(cmd *cobra.Command, s *summary) (*runtime.Sampler, error) {
	if g.max < 1 {
		return nil, cli.Usagef("--max-tokens must be at least 1")
	}
	if g.prompt == "" && cmd.Flags().Changed("prompt") {
		return nil, cli.Usagef("the prompt is empty")
	}
	if g.seed < -1 {
		return nil, cli.Usagef("--seed must be at least 0, or -1 to draw one")
	}
	if err := errors.Join(g.check(), g.checkDraft(), g.checkChat(cmd)); err != nil {
		return nil, err
	}
	g.sampler.Seed = uint64(g.seed)
	if g.seed < 0 {
		g.sampler.Seed = rand.Uint64() >> 1
	}
	if g.sampler.Temp > 0 {
		s.Seed = &g.sampler.Seed
	}
	return runtime.NewSampler(g.sampler)
}

func generate(cmd *cobra.Command, dir string, g *generateFlags) (err error) {
	s := &summary{}
	sampler, err := g.prepare(cmd, s)
	if err != nil {
		return err
	}
	if _, err := os.Stat(dir); err != nil { // before a prompt is awaited
		return err
	}
	text, err := g.text(cmd)
	if err != nil {
		return err
	}
	m, err := g.load(cmd, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	if err := needTokenizer(m); err != nil {
		return err
	}
	g.loadDraft(cmd, m)
	ids, err := g.promptIDs(cmd, m, text)
	if err != nil {
		return err
	}
	if len(ids) == 0 {
		return cli.Usagef("the prompt is empty")
	}
	sess, err := g.session(m, "the prompt", len(ids), len(ids)+g.max)
	if err != nil {
		return err
	}
	if room := sess.CtxSize() - len(ids) + 1; g.max > room {
		cli.Note(cmd, "the context holds %s, the prompt has %d: generation ends after %d", count(sess.CtxSize(), "token"), len(ids), room)
	}
	return g.stream(cmd, m, sess, sampler, ids, s)
}

// stream generates and prints token by token.
func (g *generateFlags) stream(cmd *cobra.Command, m *runtime.Model, sess *runtime.Session, sampler *runtime.Sampler, ids []int32, s *summary) error {
	out, asJSON := cmd.OutOrStdout(), cli.JSON(cmd)
	start, ran, drafts := time.Now(), sess.Ran(), sess.Drafts()
	if _, err := sess.Sync(cmd.Context(), ids); err != nil {
		return err
	}
	s.KeptTokens = len(ids) - (sess.Ran() - ran)
	first := time.Now()
	stream := m.Tokenizer.Stream()
	ended, err := sess.Generate(cmd.Context(), ids, runtime.Generation{Max: g.max, Sampler: sampler, Stops: m.Stops, Each: func(id int32, logits []float32) error {
		s.GeneratedTokens++
		e := event{Event: "token", ID: &id, Text: stream.Next(id)}
		if g.fingerprint {
			e.Fingerprint = runtime.Fingerprint(logits)
		}
		if asJSON {
			g.hear(e.Text)
			return cli.PrintJSON(cmd, e)
		}
		if g.fingerprint {
			g.hear(e.Text)
			_, err := fmt.Fprintf(out, "%s %6d %q\n", e.Fingerprint, id, e.Text)
			return err
		}
		return g.say(cmd, e.Text)
	}})
	rest := stream.Flush()
	var werr error
	switch {
	case asJSON:
		g.hear(rest)
	case s.GeneratedTokens == 0:
	case g.fingerprint:
		g.hear(rest)
		_, werr = fmt.Fprintln(out, rest)
	default:
		werr = g.finish(cmd, rest)
	}
	if werr != nil {
		return werr
	}
	s.PromptTokens, s.PromptSeconds, s.GenerateSeconds = len(ids), first.Sub(start).Seconds(), time.Since(first).Seconds()
	s.PromptRate = perSecond(s.PromptTokens-s.KeptTokens, s.PromptSeconds)
	s.GenerateRate = perSecond(len(sess.Tokens())-len(ids), s.GenerateSeconds)
	s.Ended, s.PeakBytes, s.CacheBytes = ended, cli.PeakMemory(), sess.CacheBytes()
	if g.draft > 0 {
		s.Draft = since(sess.Drafts(), drafts)
	}
	at := g.placed[len(g.placed)-1]
	s.Backend, s.Layers = at.name, at.layers()
	if at.gpu != nil {
		s.Device = at.gpu.Name()
	}
	if err != nil {
		s.Ended = "stopped"
		if s.GeneratedTokens > 0 {
			cli.Note(cmd, "\n%s", s)
		}
		return err
	}
	var p *profiled
	if g.prof {
		p = profileOf(at, sess)
	}
	if asJSON {
		return cli.PrintJSON(cmd, event{Event: "end", Text: rest, Summary: s, Profile: p})
	}
	cli.Note(cmd, "\n%s", s)
	if p != nil {
		return p.print(cmd)
	}
	return nil
}
