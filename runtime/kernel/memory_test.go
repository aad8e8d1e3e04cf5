package kernel

import (
	"encoding/csv"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"hawkmoth/format"
	"hawkmoth/quantize"
)

var csvPath = flag.String("kernels.csv", "", "BenchmarkMemory appends its medians to this file")

// BenchmarkMemory multiplies matrices far larger than any cache. Every product
// is followed by a plain read of the same memory by as many goroutines; both
// rates are medians.
func BenchmarkMemory(b *testing.B) {
	const bytes, cols = 320 << 20, 6144
	memory := make([]byte, bytes)
	r := rand.New(rand.NewPCG(50, 0))
	for _, i := range isas {
		for _, s := range specs(1, cols) {
			if s.Format == format.Int4Grouped && s.Group != 64 && s.Group != 128 {
				continue
			}
			s.Rows = bytes / (s.RowBytes() + 4*s.ScaleCols()) / 128 * 128
			m := quantize.Matrix{Spec: s, W: memory[:s.Bytes()]}
			sample := s // what patterns of bytes have and weights have not is slow: denormals
			sample.Rows = 128
			for at, w := 0, encoded(r, sample, "normal").W; at < len(m.W); at += len(w) {
				copy(m.W[at:], w)
			}
			if s.Format.Info().Packed {
				m.S = make([]float32, s.Scales())
				for i := range m.S {
					m.S[i] = float32(1+r.IntN(1000)) / 3000
				}
			}
			for _, threads := range []int{1, 2} {
				b.Run(fmt.Sprintf("%s/%s/threads=%d", i, s.Name(), threads), func(b *testing.B) {
					with(i, func() { memoryRates(b, m, threads, r) })
				})
			}
		}
	}
}

func memoryRates(b *testing.B, m quantize.Matrix, threads int, r *rand.Rand) {
	x, y := [][]float32{sample(r, m.Cols, "normal")}, [][]float32{make([]float32, m.Rows)}
	act := make([]Activation, 1)
	act[0].Quantize(x[0], max(8, ActivationBits(m.Format)))
	tmp := make([]Scratch, threads)
	const step = 64
	split := func(f func(t, lo, hi int)) time.Duration {
		var next atomic.Int64
		var wait sync.WaitGroup
		start := time.Now()
		for t := range threads {
			wait.Go(func() {
				for {
					lo := int(next.Add(step)) - step
					if lo >= m.Rows {
						return
					}
					f(t, lo, min(lo+step, m.Rows))
				}
			})
		}
		wait.Wait()
		return time.Since(start)
	}
	var product, read []float64
	size := float64(len(m.W) + 4*len(m.S))
	row := m.RowBytes()
	for b.Loop() {
		if active == plain && len(product) == 3 {
			continue // seconds each
		}
		product = append(product, size/1e9/split(func(t, lo, hi int) { MatVec(m, lo, hi, x, act, y, &tmp[t]) }).Seconds())
		read = append(read, float64(len(m.W))/1e9/split(func(_, lo, hi int) { ReadAll(m.W[lo*row : hi*row]) }).Seconds())
	}
	p, q := median(product), median(read)
	b.ReportMetric(p, "GB/s")
	b.ReportMetric(q, "read-GB/s")
	b.ReportMetric(100*p/q, "%")
	b.ReportMetric(slices.Max(product), "best-GB/s")
	b.ReportMetric(slices.Max(read), "best-read-GB/s")
	if *csvPath == "" {
		return
	}
	f, err := os.OpenFile(*csvPath, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		b.Fatal(err)
	}
	number := func(x float64) string { return strconv.FormatFloat(x, 'f', 2, 64) }
	w := csv.NewWriter(f)
	if err := w.Write([]string{active.String(), m.Name(), strconv.Itoa(threads), number(size / 1e6), number(p), number(q),
		number(p / size * float64(m.Rows) * float64(m.Cols)), strconv.Itoa(len(product))}); err != nil {
		b.Fatal(err)
	}
	w.Flush()
	if err := errors.Join(w.Error(), f.Close()); err != nil {
		b.Fatal(err)
	}
}

func median(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	return x[len(x)/2]
}
