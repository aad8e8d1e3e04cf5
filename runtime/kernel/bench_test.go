package kernel

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

func BenchmarkMatVec(b *testing.B) {
	const rows, cols = 64, 4096
	r := rand.New(rand.NewPCG(30, 0))
	for _, s := range specs(rows, cols) {
		if s.Group != 0 && s.Group != 32 && s.Group != 64 && s.Group != 128 {
			continue
		}
		m := encoded(r, s, "normal")
		for _, n := range []int{1, 4, 6, 8, 12, 16, 128} {
			var tmp Scratch
			xs, ys, act := make([][]float32, n), make([][]float32, n), make([]Activation, n)
			for i := range xs {
				xs[i], ys[i] = sample(r, cols, "normal"), make([]float32, rows)
			}
			for _, i := range isas {
				b.Run(fmt.Sprintf("%s/S=%d/%s", s.Name(), n, i), func(b *testing.B) {
					with(i, func() {
						for s := range xs {
							act[s].Quantize(xs[s], max(8, ActivationBits(m.Format)))
						}
						best := time.Hour // of the runs that nobody disturbed
						for b.Loop() {
							start := time.Now()
							MatVec(m, 0, rows, xs, act, ys, &tmp)
							best = min(best, time.Since(start))
						}
						b.ReportMetric(float64(b.N)*rows*cols*float64(n)/1e9/b.Elapsed().Seconds(), "GMAC/s")
						b.ReportMetric(rows*cols*float64(n)/1e9/best.Seconds(), "best-GMAC/s")
					})
				})
			}
		}
	}
}

// BenchmarkAttention is one head of one query over 4,096 positions of GLM-5.2.
func BenchmarkAttention(b *testing.B) {
	const kvl, rope, n = 512, 64, 4096
	var tmp Scratch
	r := rand.New(rand.NewPCG(31, 0))
	cache := sample(r, n*(kvl+rope), "normal")
	q, p, latent := sample(r, kvl+rope, "normal"), make([]float32, n), make([]float32, kvl)
	report := func(b *testing.B, macs int) {
		b.ReportMetric(float64(b.N)*float64(macs)/1e9/b.Elapsed().Seconds(), "GMAC/s")
	}
	b.Run("score", func(b *testing.B) {
		for b.Loop() {
			Score(p, q[:kvl], q[kvl:], cache, kvl+rope, nil, 0.0625)
		}
		report(b, n*(kvl+rope))
	})
	b.Run("softmax", func(b *testing.B) {
		for b.Loop() {
			copy(p, cache)
			Softmax(p)
		}
		report(b, n)
	})
	b.Run("latent", func(b *testing.B) {
		for b.Loop() {
			Latent(latent, p, cache, kvl+rope, nil, &tmp)
		}
		report(b, n*kvl)
	})
	b.Run("index32", func(b *testing.B) {
		for b.Loop() {
			IndexScore(p[:512], sampleQ, sampleQ[:32], cache, 0.1)
		}
		report(b, 512*32*128)
	})
	b.Run("topk2048", func(b *testing.B) {
		ids := make([]int32, 0, 2048)
		for b.Loop() {
			TopK(ids, cache[:65536], 2048)
		}
		report(b, 65536)
	})
}

var sampleQ = sample(rand.New(rand.NewPCG(32, 0)), 32*128, "normal")

func BenchmarkQuantize(b *testing.B) {
	var a Activation
	x := sample(rand.New(rand.NewPCG(33, 0)), 6144, "normal")
	b.SetBytes(4 * 6144)
	for b.Loop() {
		a.Quantize(x, 12)
	}
}
