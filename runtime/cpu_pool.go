package runtime

import (
	goruntime "runtime"
	"sync/atomic"
)

// task is work in items that may run in any order on any thread.
type task interface {
	run(s *cpuScratch, item int)
}

// pool hands the items of one task at a time to threads that spin briefly for
// the next task and then sleep. Nobody waits for a thread that has not begun an
// item, so a thread that the system took away costs its share only.
type pool struct {
	work    []cpuScratch // one a thread; the caller's is the first
	task    task         // of the ticket's items; changes only while none is open
	ticket  atomic.Uint64
	left    atomic.Int64 // items that are not finished
	asleep  []atomic.Bool
	wake    []chan struct{}
	closing atomic.Bool
}

// A ticket is the number of a task, how many items it has and which is next.
// Whoever takes an item learns all three in one step, so that no late thread
// can take an item of a task that is over.
const (
	ticketBits = 22
	ticketMask = 1<<ticketBits - 1
	maxItems   = ticketMask - 4096 // room for every thread's last, empty look
)

// spins is how often a thread looks for work before it sleeps, some 50 µs.
const spins = 20000

func newPool(threads int) *pool {
	p := &pool{work: make([]cpuScratch, threads), asleep: make([]atomic.Bool, threads), wake: make([]chan struct{}, threads)}
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
	for first := 0; first < n; first += maxItems {
		if n > maxItems {
			p.share(min(maxItems, n-first), offset{t, first})
		} else {
			p.share(n, t)
		}
	}
}

// offset is a part of a task with more items than a ticket counts.
type offset struct {
	task
	first int
}

func (o offset) run(s *cpuScratch, item int) { o.task.run(s, o.first+item) }

func (p *pool) share(n int, t task) {
	p.task = t
	p.left.Store(int64(n))
	number := p.ticket.Load()>>(2*ticketBits) + 1
	p.ticket.Store(number<<(2*ticketBits) | uint64(n)<<ticketBits)
	for w := 1; w < min(len(p.work), n); w++ {
		if p.asleep[w].Swap(false) {
			p.wake[w] <- struct{}{}
		}
	}
	p.help(&p.work[0])
	for i := 0; p.left.Load() > 0; i++ {
		if i > spins {
			goruntime.Gosched()
		}
	}
}

// help takes items until there are none left.
func (p *pool) help(s *cpuScratch) (did bool) {
	for {
		t := p.ticket.Load()
		if t&ticketMask >= t>>ticketBits&ticketMask {
			return did
		}
		t = p.ticket.Add(1) - 1
		if t&ticketMask >= t>>ticketBits&ticketMask {
			return did
		}
		p.task.run(s, int(t&ticketMask))
		p.left.Add(-1)
		did = true
	}
}

func (p *pool) loop(thread int) {
	s := &p.work[thread]
	for {
		for i := 0; i < spins; i++ {
			if p.help(s) {
				i = 0
			}
		}
		p.asleep[thread].Store(true)
		if p.help(s) { // a task came in between
			if p.asleep[thread].Swap(false) {
				continue
			}
		}
		if _, open := <-p.wake[thread]; !open {
			return
		}
	}
}
