package main

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// The words of the Go assembly are what an assembler makes of the text beside
// them.
func TestWordsAreTheirDisassembly(t *testing.T) {
	if _, err := exec.LookPath("llvm-mc-19"); err != nil {
		t.Skip("llvm-mc-19 is missing")
	}
	src, err := os.ReadFile("../../neon_arm64.s")
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	var words []string
	for _, m := range regexp.MustCompile(`WORD \$0x([0-9a-f]{8}) // (.*)`).FindAllStringSubmatch(string(src), -1) {
		words = append(words, m[1])
		text.WriteString(m[2] + "\n")
	}
	cmd := exec.Command("llvm-mc-19", "-triple=aarch64", "-mattr=+dotprod,+fullfp16", "-show-encoding")
	cmd.Stdin = &text
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	encodings := regexp.MustCompile(`encoding: \[(.*)\]`).FindAllStringSubmatch(string(out), -1)
	if len(words) < 1000 || len(encodings) != len(words) {
		t.Fatalf("%d encodings of %d words", len(encodings), len(words))
	}
	for i, m := range encodings {
		b := strings.Split(strings.ReplaceAll(m[1], "0x", ""), ",")
		if got := b[3] + b[2] + b[1] + b[0]; got != words[i] {
			t.Errorf("word %d is %s, its text assembles to %s", i, words[i], got)
		}
	}
}
