// Package clitest runs commands for tests as a user types them.
package clitest

import (
	"bytes"
	"context"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"hawkmoth/cmd/internal/cli"
)

// TB is the part of testing.TB that this package needs.
type TB interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Run executes a command and gives its exit code and streams; a nil stdin is
// an empty one.
func Run(ctx context.Context, root *cobra.Command, stdin io.Reader, args ...string) (code int, stdout, stderr string) {
	if stdin == nil {
		stdin = strings.NewReader("")
	}
	var o, e bytes.Buffer
	root.SetIn(stdin)
	root.SetOut(&o)
	root.SetErr(&e)
	code = cli.Execute(ctx, root, args)
	return code, o.String(), e.String()
}

// Must is Run of a command that has to succeed.
func Must(t TB, root *cobra.Command, args ...string) (stdout, stderr string) {
	t.Helper()
	code, stdout, stderr := Run(context.Background(), root, nil, args...)
	if code != cli.OK {
		t.Fatalf("%s %s: exit %d\n%s", root.Name(), strings.Join(args, " "), code, stderr)
	}
	return stdout, stderr
}

// Holds checks that some text has every part.
func Holds(t TB, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("no %q in:\n%s", p, text)
		}
	}
}
