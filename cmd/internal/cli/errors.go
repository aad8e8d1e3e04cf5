package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"hawkmoth/format"
)

// The exit codes of every command.
const (
	OK          = 0
	Failed      = 1
	Usage       = 2
	Unsupported = 3
	Corrupt     = 4
	Interrupted = 130
)

// Code is the exit code of an error and the kind that --json names. A list
// has the code of its gravest problem.
func Code(err error) (code int, kind string) {
	var stopped interrupted
	switch {
	case err == nil:
		return OK, "ok"
	case errors.As(err, &stopped), errors.Is(err, context.Canceled):
		return Interrupted, "interrupted"
	case errors.Is(err, format.ErrUsage):
		return Usage, "usage"
	case errors.Is(err, format.ErrCorrupt):
		return Corrupt, "corrupt"
	case errors.Is(err, format.ErrIncomplete):
		return Corrupt, "incomplete"
	case errors.Is(err, format.ErrUnsupported):
		return Unsupported, "unsupported"
	case errors.Is(err, format.ErrConflict):
		return Failed, "conflict"
	default:
		return Failed, "failed"
	}
}

// interrupted is what a command returned after its context was cancelled.
type interrupted struct{ error }

func (i interrupted) Unwrap() error { return i.error }

// hinted is an error with a line of advice.
type hinted struct {
	error
	hint string
}

func (h hinted) Unwrap() error { return h.error }

// Hint adds advice to an error, printed after it; nil stays nil.
func Hint(err error, text string, args ...any) error {
	if err == nil {
		return nil
	}
	return hinted{err, fmt.Sprintf(text, args...)}
}

func hintOf(err error) string {
	var h hinted
	if errors.As(err, &h) {
		return h.hint
	}
	return ""
}

// cobraSays are cobra's errors about several flags, the flags' names as the
// group, and our words.
var cobraSays = map[*regexp.Regexp]func(flags []string) string{
	regexp.MustCompile(`^required flag\(s\) (.*) not set$`): func(flags []string) string {
		if len(flags) == 1 {
			return flags[0] + " is required"
		}
		return strings.Join(flags, " and ") + " are required"
	},
	regexp.MustCompile(`^if any flags in the group \[.*\] are set none of the others can be; \[(.*)\] were all set$`): func(flags []string) string {
		return strings.Join(flags, " and ") + " exclude each other"
	},
}

// flagNames reads cobra's lists of flags: "a", "b" and a b.
func flagNames(list string) []string {
	names := strings.FieldsFunc(list, func(r rune) bool { return strings.ContainsRune(` ",`, r) })
	for i := range names {
		names[i] = "--" + names[i]
	}
	return names
}

// usageError gives cobra's own errors the usage kind.
func usageError(cmd *cobra.Command, err error) error {
	if errors.Is(err, format.ErrUsage) {
		return err
	}
	text, advice, _ := strings.Cut(err.Error(), "\n\n") // cobra appends "Did you mean this?"
	text = strings.TrimSpace(text)
	for pattern, ours := range cobraSays {
		if m := pattern.FindStringSubmatch(text); m != nil {
			return Usagef("%s", ours(flagNames(m[1])))
		}
	}
	if fields := strings.Fields(advice); len(fields) > 4 && strings.HasPrefix(advice, "Did you mean") {
		return Hint(Usagef("%s", text), "did you mean %q? %s", fields[4], seeHelp(cmd))
	}
	return Usagef("%s", text)
}

func seeHelp(cmd *cobra.Command) string { return fmt.Sprintf("see %q", cmd.CommandPath()+" --help") }

// flagError turns the errors of the flag parser into our words, with the
// nearest flag as a hint.
func flagError(cmd *cobra.Command, err error) error {
	var (
		unknown *pflag.NotExistError
		absent  *pflag.ValueRequiredError
		invalid *pflag.InvalidValueError
	)
	switch {
	case errors.As(err, &unknown):
		name := unknown.GetSpecifiedName()
		if unknown.GetSpecifiedShortnames() != "" {
			return Usagef("unknown flag -%s", name)
		}
		usage := Usagef("unknown flag --%s", name)
		if near := nearestFlag(cmd, name); near != "" {
			return Hint(usage, "did you mean --%s? %s", near, seeHelp(cmd))
		}
		return usage
	case errors.As(err, &absent):
		return Usagef("--%s needs a value", absent.GetFlag().Name)
	case errors.As(err, &invalid):
		f, e := invalid.GetFlag(), &format.Error{Kind: format.ErrUsage, Found: fmt.Sprintf("%q", invalid.GetValue())}
		e.What = "--" + f.Name + ": invalid value"
		if e.Wanted = valuesOf[f.Value.Type()]; e.Wanted == "" {
			e.Err, e.Wanted = errors.Unwrap(invalid), f.Value.Type()
		}
		return e
	}
	return err
}

// valuesOf says what the parser's types of flags take.
var valuesOf = map[string]string{"bool": "true or false", "int": "a whole number", "int64": "a whole number", "float64": "a number",
	"intSlice": "whole numbers with commas between them"}

// nearestFlag is the flag that a misspelt one most likely meant, or "".
func nearestFlag(cmd *cobra.Command, name string) string {
	best, least := "", 1+max(2, len(name)/3)
	consider := func(f *pflag.Flag) {
		if d := distance(name, f.Name); d < least && !f.Hidden {
			best, least = f.Name, d
		}
	}
	cmd.Flags().VisitAll(consider)
	cmd.InheritedFlags().VisitAll(consider)
	return best
}

// nearby adds to the error of an argument that names nothing what it may have
// meant: a subcommand, or something of the same directory.
func nearby(cmd *cobra.Command, err error) error {
	path, typed := describe(err).Path, cmd.Flags().Args()
	if cmd.HasSubCommands() && slices.Contains(typed, path) && !strings.ContainsAny(path, `./\`) {
		if near := cmd.SuggestionsFor(path); len(near) > 0 && errors.Is(err, fs.ErrNotExist) {
			return Hint(err, "did you mean %q? %s", cmd.CommandPath()+" "+near[0], seeHelp(cmd))
		}
	}
	cmd.Flags().Visit(func(f *pflag.Flag) { typed = append(typed, f.Value.String()) })
	if !errors.Is(err, fs.ErrNotExist) || hintOf(err) != "" || !slices.Contains(typed, path) {
		return err
	}
	dir, name := filepath.Split(filepath.Clean(path))
	entries, rerr := os.ReadDir(cmp.Or(dir, "."))
	if rerr != nil {
		return err
	}
	best, least := "", 1+max(2, len(name)/3)
	for _, entry := range entries {
		if d := distance(name, entry.Name()); d < min(least, len(name)) {
			best, least = entry.Name(), d
		}
	}
	if best == "" {
		return err
	}
	return Hint(err, "did you mean %s?", ShellWord(dir+best))
}

// distance is the number of inserted, deleted and replaced bytes between two words.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			step := diagonal
			if a[i] != b[j] {
				step++
			}
			diagonal = row[j+1]
			row[j+1] = min(step, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// problem is an error as --json prints it.
type problem struct {
	Kind     string    `json:"kind"`
	Message  string    `json:"message"`
	Path     string    `json:"path,omitempty"`
	Tensor   string    `json:"tensor,omitempty"`
	Found    string    `json:"found,omitempty"`
	Wanted   string    `json:"wanted,omitempty"`
	Hint     string    `json:"hint,omitempty"`
	Problems []problem `json:"problems,omitempty"`
}

// reported is an error that the user has seen.
type reported struct{ error }

func (r reported) Unwrap() error { return r.error }

// Report prints an error as the end of the command would, for a command that
// goes on. What it returns has the same exit code and is not printed again.
func Report(cmd *cobra.Command, err error) error {
	report(cmd, err, JSON(cmd))
	return reported{err}
}

// report prints an error in the form that was asked for and returns its code.
func report(cmd *cobra.Command, err error, asJSON bool) int {
	code, kind := Code(err)
	if said := (reported{}); errors.As(err, &said) {
		return code
	}
	hint, list := hintOf(err), flatten(err)
	if code == Usage && hint == "" {
		hint = seeHelp(cmd)
	}
	w := cmd.ErrOrStderr()
	if asJSON {
		p := describe(err)
		p.Kind, p.Hint = kind, hint
		if code == Interrupted {
			p = problem{Kind: kind, Message: "interrupted", Hint: hint}
		} else if len(list) > 1 {
			p = problem{Kind: kind, Message: fmt.Sprintf("%d problems", len(list)), Hint: hint}
			for _, e := range list {
				p.Problems = append(p.Problems, describe(e))
			}
		}
		_ = writeJSON(w, struct {
			Error problem `json:"error"`
			Exit  int     `json:"exit"`
		}{p, code})
		return code
	}

	var b strings.Builder
	prefix := Paint(cmd, w, Red, cmd.Root().Name()+":") + " "
	switch {
	case code == Interrupted: // one line, whatever the command was doing
		b.WriteString(prefix + "interrupted")
		if hint != "" {
			b.WriteString("; " + hint)
		}
		b.WriteString("\n")
		hint = ""
	case len(list) > 1:
		fmt.Fprintf(&b, "%s%d problems\n", prefix, len(list))
		lines := make([]string, 0, len(list))
		for _, e := range list {
			lines = append(lines, format.Plain(e))
		}
		if len(list) > fewProblems && !Verbose(cmd) {
			lines = Grouped(list, false)
		}
		for _, line := range lines {
			b.WriteString("  " + line + "\n")
		}
	default:
		b.WriteString(prefix + format.Plain(err) + "\n")
	}
	if hint != "" {
		b.WriteString("hint: " + hint + "\n")
	}
	_, _ = io.WriteString(w, b.String())
	return code
}

var joined = reflect.TypeOf(errors.Join(errors.ErrUnsupported))

// flatten is every problem that an error holds, also several lists that were
// joined, or the error alone.
func flatten(err error) []error {
	var list format.Problems
	if reflect.TypeOf(err) == joined {
		list = err.(interface{ Unwrap() []error }).Unwrap() //nolint:errorlint // the tree itself is walked
	} else if !errors.As(err, &list) {
		return []error{err}
	}
	var all []error
	for _, e := range list {
		all = append(all, flatten(e)...)
	}
	return all
}

func describe(err error) problem {
	_, kind := Code(err)
	p := problem{Kind: kind, Message: format.Plain(err)}
	var e *format.Error
	var file *fs.PathError
	switch {
	case errors.As(err, &e):
		p.Path, p.Tensor, p.Found, p.Wanted = e.Path, e.Tensor, e.Found, e.Wanted
	case errors.As(err, &file):
		p.Path = file.Path
	}
	return p
}

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
