//go:build amd64 && !noasm

package kernel

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// The tile instructions, which Go's assembler does not know, are what the
// comments beside their bytes say: a disassembler reads the same.
func TestTileInstructionsAreWhatTheySay(t *testing.T) {
	mc, err := exec.LookPath("llvm-mc-19")
	if err != nil {
		t.Skip("SKIPPED: llvm-19 is missing")
	}
	text, err := os.ReadFile("amx_amd64.s")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	var code strings.Builder
	for line := range strings.Lines(string(text)) {
		comment, isComment := strings.CutPrefix(strings.TrimSpace(line), "// ")
		f := strings.Fields(line)
		switch {
		case isComment && strings.HasPrefix(line, "\t"):
			want = append(want, comment)
		case len(f) == 2 && (f[0] == "LONG" || f[0] == "BYTE"):
			n, err := strconv.ParseUint(strings.TrimPrefix(f[1], "$0x"), 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			b := binary.LittleEndian.AppendUint32(nil, uint32(n))
			if f[0] == "BYTE" {
				b = b[:1]
			}
			for _, x := range b {
				fmt.Fprintf(&code, "%#x ", x)
			}
		}
	}
	cmd := exec.Command(mc, "--disassemble", "--output-asm-variant=1", "-triple=x86_64", "-mattr=+amx-int8,+amx-tile")
	cmd.Stdin = strings.NewReader(code.String())
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var got []string
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimSpace(line); line != "" && line != ".text" {
			got = append(got, strings.Join(strings.Fields(line), " "))
		}
	}
	if len(want) < 50 || len(got) != len(want) {
		t.Fatalf("%d instructions, %d comments", len(got), len(want))
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%d: the bytes say %q, the comment %q", i, got[i], want[i])
		}
	}
}
