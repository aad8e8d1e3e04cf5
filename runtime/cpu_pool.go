package runtime

import "sync/atomic"

// task is work in items that may run in any order on any thread.
type task interface {
	run(s *cpuScratch, item int)
}

// pool hands the items of one task at a time to threads that spin briefly for
// the next task and then sleep. Every thread has a range of the items, which it
// takes in order, so that what follows an item in memory, and is asked for
// ahead, is its own next one. Who has none left takes the last of another's:
// nobody waits for a thread that has not begun an item, so a thread that the
// system took away costs its share only.
type pool struct {
	work    []cpuScratch // one a thread; the caller's is the first
	task    task         // changes only while no item is open
	ranges  []itemRange  // by thread
	epoch   atomic.Uint64
	left    atomic.Int64 // items that are not finished
	asleep  []atomic.Bool
	wake    []chan struct{}
	waiting atomic.Bool   // the caller sleeps until left is 0
	done    chan struct{} // wakes it
	closing atomic.Bool
}

// itemRange is the items that a thread has left, next in the upper half, end in
// the lower; a cache line of its own.
type itemRange struct {
	word atomic.Uint64
	_    [56]byte
}

// take removes the first item, or the last.
func (r *itemRange) take(last bool) (item int, ok bool) {
	for {
		w := r.word.Load()
		next, end := uint32(w>>32), uint32(w)
		if next >= end {
			return 0, false
		}
		taken, rest := next, w+1<<32
		if last {
			taken, rest = end-1, w-1
		}
		if r.word.CompareAndSwap(w, rest) {
			return int(taken), true
		}
	}
}

// spins is how often a thread looks for work before it sleeps, some 50 µs.
const spins = 100000

// waits is how often the caller looks whether others have finished.
const waits = 30000

func newPool(threads int) *pool {
	p := &pool{work: make([]cpuScratch, threads), ranges: make([]itemRange, threads), asleep: make([]atomic.Bool, threads), wake: make([]chan struct{}, threads), done: make(chan struct{}, 1)}
	for t := 1; t < threads; t++ {
		p.wake[t] = make(chan struct{}, 1)
		go p.loop(t)
	}
	return p
}

func (p *pool) close() {
	if p.closing.Swap(true) {
		return
	}
	for t := 1; t < len(p.work); t++ {
		close(p.wake[t])
	}
}

// do runs n items of t and returns when all are finished.
func (p *pool) do(n int, t task) {
	if n <= 1 || len(p.work) == 1 {
		for i := range n {
			t.run(&p.work[0], i)
		}
		return
	}
	p.task = t
	p.left.Store(int64(n))
	threads := len(p.work)
	for w := range p.ranges {
		p.ranges[w].word.Store(uint64(w*n/threads)<<32 | uint64((w+1)*n/threads))
	}
	p.epoch.Add(1)
	for w := 1; w < threads; w++ {
		if p.asleep[w].Load() && p.asleep[w].Swap(false) {
			p.wake[w] <- struct{}{}
		}
	}
	p.help(0)
	p.wait()
}

// wait returns when all items are finished. It sleeps if that takes long: the
// system may have put a thread that holds an item behind another program, and
// has then a free processor for it.
func (p *pool) wait() {
	for i := 0; p.left.Load() > 0; i++ {
		if i < waits {
			continue
		}
		p.waiting.Store(true)
		if p.left.Load() > 0 || !p.waiting.Swap(false) {
			<-p.done
		}
	}
}

// help runs a thread's own items, then others', until there are none left.
func (p *pool) help(thread int) {
	s, done := &p.work[thread], 0
	for i := range p.ranges {
		r := &p.ranges[(thread+i)%len(p.ranges)]
		for {
			item, ok := r.take(i > 0)
			if !ok {
				break
			}
			p.task.run(s, item)
			done++
		}
	}
	if done > 0 && p.left.Add(-int64(done)) == 0 && p.waiting.Swap(false) {
		p.done <- struct{}{}
	}
}

func (p *pool) loop(thread int) {
	var seen uint64
	for {
		for i := 0; i < spins; i++ {
			if epoch := p.epoch.Load(); epoch != seen {
				seen = epoch
				p.help(thread)
				i = 0
			}
		}
		p.asleep[thread].Store(true)
		if p.epoch.Load() != seen && p.asleep[thread].Swap(false) {
			continue // a task came in between
		}
		if _, open := <-p.wake[thread]; !open {
			return
		}
	}
}
