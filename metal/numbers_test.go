package metal

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"hawkmoth/format"
)

// TestLiteralsAreTheReference: the kernels' exp has the constants of
// runtime/kernel, which are read from its source, in its order.
func TestLiteralsAreTheReference(t *testing.T) {
	goText, err := os.ReadFile("../runtime/kernel/exp.go")
	if err != nil {
		t.Skip("SKIPPED: ", err)
	}
	table := regexp.MustCompile(`(?s)Log2E: .*?\n\}`).FindString(string(goText))
	var want []float32
	for _, m := range regexp.MustCompile(`-?(?:0x[0-9a-f.]+p[+-]?\d+|\b\d+\b)`).FindAllString(strings.NewReplacer("Log2E", "", "Ln2Hi", "", "Ln2Lo", "", "[7]float32", "").Replace(table), -1) {
		f, err := strconv.ParseFloat(m, 32)
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, float32(f))
	}
	text, err := Source("point.metal")
	if err != nil {
		t.Fatal(err)
	}
	body := text[strings.Index(text, "exp_fixed("):strings.Index(text, "float sigmoid_fixed")]
	var got []float32
	for _, m := range regexp.MustCompile(`-?\d+\.\d+(?:e[+-]?\d+)?f`).FindAllString(body, -1) {
		f, err := strconv.ParseFloat(strings.TrimSuffix(m, "f"), 32)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, float32(f))
	}
	// Log2E, the rounding shift twice, -Ln2Hi, -Ln2Lo, the polynomial, -87 → 0, 88 → the largest.
	if len(want) != 12 {
		t.Fatalf("constants of runtime/kernel: %v", want)
	}
	expect := slices.Concat([]float32{want[0], 3 << 22, 3 << 22, -want[1], -want[2]}, want[5:], []float32{want[3], 0, want[4], 0x1.fffffep127})
	if !slices.Equal(got, expect) {
		t.Errorf("literals of exp_fixed: %v, want %v", got, expect)
	}
}

// TestFormatNumbers: codes.h counts the formats as package format does.
func TestFormatNumbers(t *testing.T) {
	text, err := Source("matmul.metal")
	if err != nil {
		t.Fatal(err)
	}
	names := map[format.ID]string{format.F32: "F32", format.Int8Row: "INT8_ROW", format.Int4Row: "INT4_ROW", format.Int2Row: "INT2_ROW",
		format.Int4Grouped: "INT4_GROUPED", format.Int3G64: "INT3_G64", format.FP8: "FP8", format.BF16: "BF16", format.F16: "F16"}
	if len(names) != len(formats) {
		t.Errorf("%d formats have kernels, %d have names", len(formats), len(names))
	}
	for id, name := range names {
		if line := fmt.Sprintf("#define FORMAT_%s %du\n", name, id); !strings.Contains(text, line) {
			t.Errorf("codes.h lacks %q", line)
		}
	}
}
