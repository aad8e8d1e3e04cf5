// Package cli is what the commands share: the root command with the global
// flags, the one switch from errors to exit codes, progress, and the text of
// byte counts, durations and tables.
package cli

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"hawkmoth/format"
)

// Version is the release that --version names; the linker sets it. Empty means
// the module version that the Go tool recorded.
var Version string

const exitCodes = "Exit codes: 0 ok · 1 failed · 2 usage · 3 unsupported here · 4 corrupt input · 130 interrupted\n"

// New is a root command with the global flags -h --version -q -v --json
// --no-color and the exit codes in every help.
func New(use, short, long string) *cobra.Command {
	root := &cobra.Command{
		Use: use, Short: short, Long: long,
		Version:       version(),
		SilenceErrors: true, SilenceUsage: true,
		SuggestionsMinimumDistance: 2,
	}
	f := root.PersistentFlags()
	f.BoolP("quiet", "q", false, "print the result and errors only")
	f.BoolP("verbose", "v", false, "print more about what is done")
	f.Bool("json", false, "print JSON instead of text")
	f.Bool("no-color", false, "print without colors (also NO_COLOR)")
	root.MarkFlagsMutuallyExclusive("quiet", "verbose")
	root.SetVersionTemplate("{{.DisplayName}} {{.Version}}\n")
	root.SetHelpTemplate(root.HelpTemplate() + "\n" + exitCodes)
	root.SetFlagErrorFunc(flagError)
	return root
}

func version() string {
	var module, revision string
	if info, ok := debug.ReadBuildInfo(); ok {
		module = info.Main.Version
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				revision = s.Value[:min(12, len(s.Value))]
			}
		}
	}
	return strings.TrimSpace(cmp.Or(Version, module, "(devel)") + " " + revision)
}

// Main runs the command of the process and exits with the code of its error.
// SIGINT and SIGTERM cancel the command's context; a second one kills.
func Main(root *cobra.Command) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(Execute(ctx, root, os.Args[1:]))
}

// Execute runs the command with the arguments, reports its error on the
// command's error stream and returns the exit code.
func Execute(ctx context.Context, root *cobra.Command, args []string) int {
	markRun(root)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return OK
	}
	run, ran := err.(runError)
	switch {
	case ran && ctx.Err() != nil:
		err = interrupted(run)
	case ran:
		err = nearby(cmd, run.error)
	default:
		err = usageError(cmd, err)
	}
	asJSON := JSON(cmd) || !ran && hasArg(args, "--json") // the flags may be what could not be parsed
	return report(cmd, err, asJSON)
}

// runError marks what a command's own code returned: every other error comes
// from cobra and says that the command line could not be meant.
type runError struct{ error }

func markRun(cmd *cobra.Command) {
	for _, hook := range []*func(*cobra.Command, []string) error{&cmd.PersistentPreRunE, &cmd.PreRunE, &cmd.RunE} {
		run := *hook
		if run == nil {
			continue
		}
		*hook = func(cmd *cobra.Command, args []string) error {
			if err := run(cmd, args); err != nil {
				return runError{err}
			}
			return nil
		}
	}
	for _, c := range cmd.Commands() {
		markRun(c)
	}
}

// Args checks positional arguments by name: "DIR" is required, "[DIR]" is
// optional and a last "FILE..." takes any number from one. Too many may be
// those of a misspelt subcommand, which is suggested.
func Args(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		for i, name := range names {
			if i >= len(args) && !strings.HasPrefix(name, "[") {
				return Usagef("missing argument %s", strings.TrimSuffix(name, "..."))
			}
			if strings.HasSuffix(name, "...") {
				return nil
			}
		}
		if len(args) > len(names) {
			err := Usagef("unexpected argument %q", args[len(names)])
			if cmd.HasSubCommands() {
				if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
					return Hint(err, "did you mean %q? %s", near[0], seeHelp(cmd))
				}
			}
			return err
		}
		return nil
	}
}

// Quiet says whether -q was given.
func Quiet(cmd *cobra.Command) bool { return boolFlag(cmd, "quiet") }

// Verbose says whether -v was given.
func Verbose(cmd *cobra.Command) bool { return boolFlag(cmd, "verbose") }

// JSON says whether --json was given.
func JSON(cmd *cobra.Command) bool { return boolFlag(cmd, "json") }

func boolFlag(cmd *cobra.Command, name string) bool {
	v, err := cmd.Flags().GetBool(name)
	return err == nil && v
}

func hasArg(args []string, name string) bool {
	for _, a := range args {
		if a == "--" {
			return false
		}
		if a == name {
			return true
		}
	}
	return false
}

// Note prints a line for people on the error stream, unless -q or --json.
func Note(cmd *cobra.Command, text string, args ...any) {
	if !Quiet(cmd) && !JSON(cmd) {
		_, _ = fmt.Fprintf(cmd.ErrOrStderr(), text+"\n", args...)
	}
}

// Warn prints a line that the user should see on the error stream, unless -q;
// with --json it is an object {"warning": text} on a line of its own.
func Warn(cmd *cobra.Command, text string, args ...any) {
	if Quiet(cmd) {
		return
	}
	text = fmt.Sprintf(text, args...)
	if JSON(cmd) {
		_ = writeJSON(cmd.ErrOrStderr(), map[string]string{"warning": text})
		return
	}
	_, _ = fmt.Fprintln(cmd.ErrOrStderr(), Paint(cmd, cmd.ErrOrStderr(), Yellow, "warning:"), text)
}

// PrintJSON prints a value as one line of JSON on the command's output.
func PrintJSON(cmd *cobra.Command, v any) error { return writeJSON(cmd.OutOrStdout(), v) }

// Usagef is an error of the command line: exit code 2, with a hint.
func Usagef(text string, args ...any) error {
	return &format.Error{Kind: format.ErrUsage, What: fmt.Sprintf(text, args...)}
}
