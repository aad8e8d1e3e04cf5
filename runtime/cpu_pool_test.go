package runtime

import (
	"sync/atomic"
	"testing"
)

type countTask struct{ seen []atomic.Int32 }

func (t *countTask) run(_ *cpuScratch, item int) { t.seen[item].Add(1) }

// TestPoolRunsEveryItemOnce: many short tasks in a row, of sizes around the
// number of threads, and a long one.
func TestPoolRunsEveryItemOnce(t *testing.T) {
	p := newPool(5)
	defer p.close()
	sizes := []int{0, 1, 2, 4, 5, 6, 1000, 5_000_000}
	for round := range 2000 {
		n := sizes[round%(len(sizes)-1)]
		if round == 0 {
			n = sizes[len(sizes)-1]
		}
		task := &countTask{make([]atomic.Int32, n)}
		p.do(n, task)
		for i := range task.seen {
			if got := task.seen[i].Load(); got != 1 {
				t.Fatalf("round %d: item %d of %d ran %d times", round, i, n, got)
			}
		}
	}
}
