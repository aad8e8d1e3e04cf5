package format

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"unicode"
)

// The kinds of failure that callers tell apart with errors.Is; cmd/internal/cli
// turns them into exit codes.
var (
	ErrUsage       = errors.New("usage")           // what was asked cannot be meant
	ErrUnsupported = errors.New("not supported")   // legal, but not served here
	ErrCorrupt     = errors.New("corrupt input")   // the bytes contradict themselves
	ErrIncomplete  = errors.New("incomplete")      // a file, shard or tensor is missing; corrupt for exit codes
	ErrConflict    = errors.New("conflicting job") // the output belongs to another job
)

// Error is one thing that is wrong with one tensor of one file. Empty fields
// are left out of the text, which reads "path: tensor: what (found F, wanted W)".
type Error struct {
	Kind          error // one of the sentinels above; errors.Is finds it
	Path, Tensor  string
	What          string
	Found, Wanted string
	Err           error // the cause, such as an *fs.PathError; errors.Is finds it too
}

func (e *Error) Error() string {
	var b strings.Builder
	for _, s := range []string{e.Path, e.Tensor} {
		if s != "" {
			b.WriteString(clean(s))
			b.WriteString(": ")
		}
	}
	b.WriteString(e.Said())
	switch found, wanted := clean(e.Found), clean(e.Wanted); {
	case found != "" && wanted != "":
		b.WriteString(" (found " + found + ", wanted " + wanted + ")")
	case found != "":
		b.WriteString(" (found " + found + ")")
	case wanted != "":
		b.WriteString(" (wanted " + wanted + ")")
	}
	return b.String()
}

// Said is what is wrong, without where and how much.
func (e *Error) Said() string {
	if e.Err != nil {
		cause := Plain(e.Err)
		if e.Path != "" {
			cause = strings.TrimPrefix(cause, e.Path+": ") // which stands before it
		}
		return clean(e.What) + ": " + cause
	}
	return clean(e.What)
}

// maxText bounds each part of a message, since a hostile file chooses its names.
const maxText = 2000

// clean makes text from a file safe for a terminal: no control characters, not endless.
func clean(s string) string {
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText], "") + "…"
	}
	if strings.ContainsFunc(s, unicode.IsControl) {
		q := strconv.Quote(s)
		return q[1 : len(q)-1]
	}
	return s
}

// Unwrap lets errors.Is find the kind and the cause.
func (e *Error) Unwrap() []error {
	var errs []error
	for _, err := range []error{e.Kind, e.Err} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// Problems is everything wrong with a job, found in one pass, in a fixed order.
type Problems []error

func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, err := range p {
		lines[i] = err.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap lets errors.Is look into every problem.
func (p Problems) Unwrap() []error { return p }

// Err is nil for no problems, so that a list can be returned as an error.
func (p Problems) Err() error {
	if len(p) == 0 {
		return nil
	}
	return p
}

// In gives an error, or each of a list, whose paths are those of files in a
// directory that directory; the error that it returns is the same one.
func In(dir string, err error) error {
	switch e := err.(type) {
	case *Error:
		e.Path = filepath.Join(dir, e.Path)
	case Problems:
		for _, p := range e {
			_ = In(dir, p)
		}
	}
	return err
}

// causes are the operating system's usual refusals in words; the words of
// ENOENT and ENOTDIR speak of the directory, since the file is ours to make.
var causes = []struct {
	err  error
	what string
}{
	{syscall.ENOSPC, "disk is full"},
	{syscall.EFBIG, "file is larger than the file system allows"},
	{syscall.EROFS, "read-only file system"},
	{fs.ErrPermission, "not permitted"},
	{syscall.ENOTDIR, "a part of the path is a file, not a directory"},
	{fs.ErrNotExist, "no such file or directory"},
}

// fileError names a failed file operation. The path is said once, so the
// wrapping of os is taken off; errors.Is still finds the cause.
func fileError(path, what string, err error) error {
	var pe *fs.PathError
	var le *os.LinkError
	switch {
	case errors.As(err, &pe):
		err = pe.Err
	case errors.As(err, &le):
		err = le.Err
	}
	for _, c := range causes {
		if errors.Is(err, c.err) {
			if c.what != err.Error() {
				what += ": " + c.what
			}
			break
		}
	}
	return &Error{Path: path, What: what, Err: err}
}
