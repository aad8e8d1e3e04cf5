package main

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/internal/fixtures"
	"hawkmoth/quantize"
)

// TestDraftsChangeNoText: the text with --draft is the text without, to the
// fingerprint of every token, and the footer says what drafts brought.
func TestDraftsChangeNoText(t *testing.T) {
	footer := regexp.MustCompile(`backend cpu \(1 thread\) · drafts: [0-9]+ of [0-9]+ accepted \([0-9.]+ %\), [0-9.]+ tokens a forward`)
	for _, name := range []string{"tiny-glm", "small-glm"} {
		t.Run(name, func(t *testing.T) {
			dir := fixtures.TinyGLMDir(t)
			if name != "tiny-glm" {
				dir = fixtures.Shared(t, "models/"+name)
			}
			for _, sampling := range [][]string{nil, {"--temp", "0.8", "-s", "5"}} {
				args := append([]string{dir, "--raw", "-p", once, "-n", "40", "-t", "1", "--backend", "cpu", "--fingerprint"}, sampling...)
				want, _ := must(t, args...)
				for _, n := range []string{"1", "3"} {
					got, stderr := must(t, append(args, "--draft", n)...)
					if got != want {
						t.Errorf("--draft %s:\n%s\nwant\n%s", n, got, want)
					}
					if !footer.MatchString(stderr) {
						t.Errorf("footer %q", stderr)
					}
				}
			}
		})
	}
	stdout, _ := must(t, fixtures.TinyGLMDir(t), "-p", once, "-n", "40", "--backend", "cpu", "--draft", "2", "--json", "--prof")
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	var end event
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &end); err != nil {
		t.Fatal(err)
	}
	d := end.Summary.Draft
	if d == nil || d.Drafted == 0 || d.Accepted == 0 || d.Passes == 0 || d.TokensPerForward <= 1 || d.Acceptance != float64(d.Accepted)/float64(d.Drafted) {
		t.Errorf("%+v", d)
	}
	stages := ""
	for _, s := range end.Profile.Stages {
		stages += s.Stage + "\n"
	}
	holds(t, stages, "drafts (MTP block)\n", "lm_head\n")
}

// TestChatDrafts: a conversation with drafts is the one without.
func TestChatDrafts(t *testing.T) {
	dir := talker(t, small)
	script := "Hello\nGo on.\n/stats\n/clear\nHello again\n/quit\n"
	code, want, stderr := talk(t, script, dir, "--chat", "-n", "30")
	if code != 0 || strings.Contains(stderr, "drafts: ") {
		t.Fatal(code, stderr)
	}
	code, got, stderr := talk(t, script, dir, "--chat", "-n", "30", "--draft", "2")
	if code != 0 || got != want {
		t.Errorf("exit %d, %q\nwant %q", code, got, want)
	}
	// Three footers and /stats; whether drafts pause is the clock's to say.
	if n := len(regexp.MustCompile("drafts: |no drafts").FindAllString(stderr, -1)); n != 4 {
		t.Errorf("%d times drafts in\n%s", n, stderr)
	}
}

// TestNoDrafts: a model that cannot draft says why and runs without; one that
// can, but badly, says that.
func TestNoDrafts(t *testing.T) {
	tiny := fixtures.TinyGLMDir(t)
	for says, dir := range map[string]string{
		"no drafts: ":                          convert(t, tiny, "colibri", quantize.Flags{}),
		"one scale a row at 4 bits or fewer, ": convert(t, tiny, "balanced", quantize.Flags{Format: "int4-row"}),
	} {
		want, _ := must(t, dir, "-p", once, "-n", "20", "--backend", "cpu")
		got, stderr := must(t, dir, "-p", once, "-n", "20", "--backend", "cpu", "--draft", "1")
		holds(t, stderr, "warning: ", says)
		if got != want {
			t.Errorf("%q, want %q\n%s", got, want, stderr)
		}
	}
	for _, n := range []string{"17", "-1"} {
		if code, _, stderr := run(t, tiny, "-p", "x", "--draft", n); code != cli.Usage || !strings.Contains(stderr, "--draft (found "+n+", wanted 0 to 16)") {
			t.Error(code, stderr)
		}
	}
}
