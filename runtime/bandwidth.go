package runtime

import (
	"sync"
	"time"

	"hawkmoth/quantize"
	"hawkmoth/runtime/kernel"
)

// ReadBandwidth measures how many bytes a second that many threads read from
// memory larger than the caches: the best of several passes.
func ReadBandwidth(threads int) float64 {
	const size = 512 << 20
	buf := make([]byte, size)
	for i := 0; i < size; i += 4096 {
		buf[i] = 1 // have the pages
	}
	part := size / max(threads, 1) &^ 63
	best := 0.0
	for range 5 {
		start := time.Now()
		var wait sync.WaitGroup
		for t := range threads {
			wait.Go(func() { kernel.ReadAll(buf[t*part:][:part]) })
		}
		wait.Wait()
		best = max(best, float64(part*threads)/time.Since(start).Seconds())
	}
	return best
}

// BytesPerToken is what one decode step at a position has to read: every weight
// of the residents, the chosen experts', and the caches.
func (m *Model) BytesPerToken(position int) int64 {
	c := m.Config
	var n int64
	for i := range m.Census.Found {
		f := &m.Census.Found[i]
		size := f.Spec.Bytes() + f.Spec.ScaleBytes()
		switch {
		case f.Role == quantize.Expert:
			n += size * int64(c.ExpertsPerToken) / int64(c.Experts)
		case f.Role == quantize.Embed && !c.Tied:
			n += int64(f.Spec.RowBytes())
		default:
			n += size
		}
	}
	latents, keys := c.CacheBytes(position, m.indexer)
	return n + latents + keys + c.StateBytes(1)
}
