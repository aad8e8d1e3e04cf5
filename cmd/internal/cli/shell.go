package cli

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// ShellWord is a word as a shell reads it.
func ShellWord(s string) string {
	plain := func(c rune) bool {
		return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || strings.ContainsRune("_-./+:=@%,", c)
	}
	if s != "" && !strings.ContainsFunc(s, func(c rune) bool { return !plain(c) }) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// CommandLine is the command that the user gave, with more words at its end, as
// a shell reads it.
func CommandLine(cmd *cobra.Command, args []string, more ...string) string {
	words := strings.Fields(cmd.CommandPath())
	words = append(words, args...)
	cmd.Flags().Visit(func(f *pflag.Flag) {
		switch list, several := f.Value.(pflag.SliceValue); {
		case several:
			for _, v := range list.GetSlice() {
				words = append(words, "--"+f.Name, v)
			}
		case f.NoOptDefVal == f.Value.String():
			words = append(words, "--"+f.Name)
		case f.NoOptDefVal != "":
			words = append(words, "--"+f.Name+"="+f.Value.String())
		default:
			words = append(words, "--"+f.Name, f.Value.String())
		}
	})
	words = append(words, more...)
	for i := range words {
		words[i] = ShellWord(words[i])
	}
	return strings.Join(words, " ")
}
