package quantize

import "math"

// Difference is how far the values of one tensor are from those of another.
type Difference struct {
	Values   int64   // compared
	Differ   int64   // that are not equal
	Relative float64 // sqrt(Σ(a−b)²/Σa²)
	Largest  float64 // |a−b|

	sum errorSum
}

// Add counts another part of the same tensors.
func (d *Difference) Add(part Difference) {
	d.Values += part.Values
	d.Differ += part.Differ
	d.Largest = max(d.Largest, part.Largest)
	d.sum.add(part.sum)
	d.Relative = d.sum.relative()
}

// Comparer compares the decoded values of tensors with bounded memory. Each
// goroutine has its own; the zero value is ready.
type Comparer struct {
	a, b SourceBuffer
	x, y []float32
}

// compareValues is how many values are decoded at a time.
const compareValues = 1 << 19

// Compare reads two tensors of equal shape, whatever they are held as.
// Progress, which may be nil, is told of the bytes of b. Values that are not
// finite are format.ErrCorrupt, as in Source.ReadRows.
func (c *Comparer) Compare(a, b *Source, progress func(bytes int64)) (Difference, error) {
	var d Difference
	// Whole blocks of FP8 scales are read once.
	step := max(compareValues/max(a.Cols, 1)/fp8Block, 1) * fp8Block
	if a.Cols*fp8Block > 1<<24 {
		step = 1
	}
	for row := 0; row < a.Rows; row += step {
		n := min(step, a.Rows-row)
		x, y := grow(&c.x, n*a.Cols), grow(&c.y, n*a.Cols)
		if err := a.ReadRows(&c.a, row, n, x); err != nil {
			return d, err
		}
		if err := b.ReadRows(&c.b, row, n, y); err != nil {
			return d, err
		}
		part := Difference{Values: int64(len(x)), sum: squares(x, y)}
		for i, v := range x {
			if v != y[i] {
				part.Differ++
				part.Largest = max(part.Largest, math.Abs(float64(v)-float64(y[i])))
			}
		}
		d.Add(part)
		if progress != nil {
			progress(int64(n) * b.rowBytes())
		}
	}
	return d, nil
}
