package cli

import (
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// A Color is the escape sequence that switches it on.
type Color string

// The colors that the commands use.
const (
	Bold   Color = "\x1b[1m"
	Red    Color = "\x1b[31m"
	Green  Color = "\x1b[32m"
	Yellow Color = "\x1b[33m"
	Dim    Color = "\x1b[2m"

	reset = "\x1b[0m"
)

// Terminal says whether a stream, such as a command's input or output, is a terminal.
func Terminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Paint colors text that is written to w: only on a terminal, and not with
// --no-color, --json, NO_COLOR or TERM=dumb.
func Paint(cmd *cobra.Command, w io.Writer, c Color, text string) string {
	if !colored(cmd, Terminal(w)) {
		return text
	}
	return string(c) + text + reset
}

func colored(cmd *cobra.Command, terminal bool) bool {
	return terminal && !boolFlag(cmd, "no-color") && !JSON(cmd) &&
		os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}
