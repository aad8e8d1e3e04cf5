package cli

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"hawkmoth/format"
)

// Bytes writes a number of bytes in decimal units: "999 B", "1.5 GB".
func Bytes(n int64) string { return format.Bytes(n) }

// Amount writes a number of weights in decimal units: "743.9 B" are billions.
func Amount(n int64) string {
	v := float64(n)
	if v < 1000 {
		return fmt.Sprint(n)
	}
	units := "kMBT"
	for i := range units {
		if v /= 1000; v < 999.95 || i == len(units)-1 {
			return fmt.Sprintf("%.1f %c", v, units[i])
		}
	}
	return ""
}

// RelativeError writes a relative error with three digits, as a percentage:
// "0.684 %", "11.3 %".
func RelativeError(e float64) string {
	if e == 0 {
		return "0"
	}
	digits := 0
	for x := 100 * math.Abs(e); x < 99.95 && digits < 9; x *= 10 {
		digits++
	}
	return strconv.FormatFloat(100*e, 'f', digits, 64) + " %"
}

// Share writes a part of a whole as a percentage: "99.8 %".
func Share(part float64) string { return fmt.Sprintf("%.1f %%", 100*part) }

// Rate writes something a second with three digits: "9.31", "310.2".
func Rate(x float64) string {
	if x < 9.995 {
		return fmt.Sprintf("%.2f", x)
	}
	return fmt.Sprintf("%.1f", x)
}

// Duration writes a time span for people: "850 ms", "12.3 s", "3m07s", "2h05m".
func Duration(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + Duration(-d)
	case d.Round(time.Millisecond) < time.Second:
		return fmt.Sprintf("%d ms", d.Round(time.Millisecond).Milliseconds())
	case d.Round(100*time.Millisecond) < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d.Round(time.Second) < time.Hour:
		s := int(d.Round(time.Second).Seconds())
		return fmt.Sprintf("%dm%02ds", s/60, s%60)
	default:
		m := int(d.Round(time.Minute).Minutes())
		return fmt.Sprintf("%dh%02dm", m/60, m%60)
	}
}

// ParseBytes reads a number of bytes as people write it, in decimal units:
// "96G", "1.5GB", "500M"; false for anything else and for less than a byte.
func ParseBytes(text string) (int64, bool) {
	number, unit := strings.TrimSuffix(strings.ToUpper(text), "B"), 1.0
	for i, u := range []string{"K", "M", "G", "T"} {
		if n, ok := strings.CutSuffix(number, u); ok {
			number, unit = n, math.Pow(1000, float64(i+1))
			break
		}
	}
	n, err := strconv.ParseFloat(number, 64)
	if err != nil || !(n*unit >= 1 && n*unit <= 1<<60) {
		return 0, false
	}
	return int64(n * unit), true
}

// Table is text in aligned columns. A column whose cells are numbers, with or
// without a unit, is aligned to the right.
type Table struct {
	rows [][]string
	left map[int]bool
}

// NewTable is a table with a head.
func NewTable(head ...string) *Table { return &Table{rows: [][]string{head}} }

// Left aligns columns, counted from 0, to the left whatever is in them: labels
// such as "1,3,5" look like numbers.
func (t *Table) Left(columns ...int) *Table {
	if t.left == nil {
		t.left = map[int]bool{}
	}
	for _, c := range columns {
		t.left[c] = true
	}
	return t
}

// Add appends a row; cells are written as fmt.Sprint writes them.
func (t *Table) Add(cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		row[i] = fmt.Sprint(c)
	}
	t.rows = append(t.rows, row)
}

// String is the table as lines, each ended by a newline and without trailing spaces.
func (t *Table) String() string {
	var width []int
	var right []bool
	for i, row := range t.rows {
		for j, cell := range row {
			if j == len(width) {
				width, right = append(width, 0), append(right, !t.left[j])
			}
			width[j] = max(width[j], cellWidth(cell))
			right[j] = right[j] && (i == 0 || numeric(cell))
		}
	}
	var b strings.Builder
	for _, row := range t.rows {
		var line strings.Builder
		for j, cell := range row {
			pad := strings.Repeat(" ", width[j]-cellWidth(cell))
			if j > 0 {
				line.WriteString("  ")
			}
			if right[j] {
				line.WriteString(pad + cell)
			} else {
				line.WriteString(cell + pad)
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return b.String()
}

// WriteTo writes the table's lines to w.
func (t *Table) WriteTo(w io.Writer) (int64, error) {
	n, err := io.WriteString(w, t.String())
	return int64(n), err
}

// numeric accepts a number or a duration with at most one unit after it, and
// the marks for "none".
func numeric(cell string) bool {
	f := strings.Fields(plain(cell))
	if len(f) == 0 {
		return true
	}
	if len(f) == 1 && (f[0] == "-" || f[0] == "–") {
		return true
	}
	word := strings.ReplaceAll(strings.TrimSuffix(f[0], "%"), ",", "")
	_, err := strconv.ParseFloat(word, 64)
	if err != nil {
		_, err = time.ParseDuration(word)
	}
	return err == nil && len(f) <= 2
}

func cellWidth(cell string) int { return utf8.RuneCountInString(plain(cell)) }

// plain is a cell without the sequences of Paint.
func plain(cell string) string {
	for {
		before, rest, found := strings.Cut(cell, "\x1b[")
		if !found {
			return cell
		}
		_, after, _ := strings.Cut(rest, "m")
		cell = before + after
	}
}
