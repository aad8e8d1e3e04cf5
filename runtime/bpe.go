package runtime

import (
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"
)

// bpeModel is byte-pair encoding as Hugging Face's tokenizers define it: the
// merge of lowest rank first, of equal ones the leftmost.
type bpeModel struct {
	ids          map[string]int32    // token text → id; raw bytes if byteLevel
	merges       map[uint64]bpeMerge // pair of ids, left one in the high half
	bytes        [256]int32          // byteLevel: the byte's token; else its <0x..> token or −1
	ascii        [utf8.RuneSelf]int32
	joins        map[uint64]struct{} // pairs of characters that stand side by side in some merged token
	byteLevel    bool                // symbols are bytes, else characters
	byteFallback bool
	fuseUnk      bool
	ignoreMerges bool
	unk          int32 // −1 for none: what has no token is dropped

	cache wordCache
	pool  sync.Pool // *bpeWork
}

type bpeMerge struct{ rank, id int32 }

func bpePair(a, b int32) uint64 { return uint64(uint32(a))<<32 | uint64(uint32(b)) }

// bpeWork is a word being merged: a linked list of symbols and a heap of merges.
type bpeWork struct {
	symbols []bpeSymbol
	heap    []bpeJob
}

// bpeSymbol has id −1 once it has gone into its left neighbour.
type bpeSymbol struct{ id, prev, next int32 }

// bpeJob merges the symbol at pos with its right neighbour; the key is the rank
// above the position.
type bpeJob struct {
	key uint64
	id  int32
}

// encode appends the tokens of one pre-token. A text of characters is cut first
// wherever no merge can reach across, so that one without pre-tokenizer costs
// no more than its words.
func (m *bpeModel) encode(ids []int32, w string) []int32 {
	if m.ignoreMerges {
		if id, ok := m.ids[w]; ok {
			return append(ids, id)
		}
	}
	if m.byteLevel {
		return m.word(ids, w)
	}
	start, last := 0, rune(-1) // last is −1 after what has no token
	for i, r := range w {
		if m.char(r, w[i:]) < 0 {
			r = -1
		}
		if last >= 0 && r >= 0 {
			if _, ok := m.joins[bpePair(last, r)]; !ok {
				ids = m.word(ids, w[start:i])
				start = i
			}
		}
		last = r
	}
	return m.word(ids, w[start:])
}

// char is the token of the character that s starts with, or −1.
func (m *bpeModel) char(r rune, s string) int32 {
	if r < utf8.RuneSelf {
		return m.ascii[r]
	}
	if id, ok := m.ids[s[:utf8.RuneLen(r)]]; ok {
		return id
	}
	return -1
}

func (m *bpeModel) word(ids []int32, w string) []int32 {
	if known := m.cache.get(w); known != nil {
		return append(ids, known...)
	}
	work, _ := m.pool.Get().(*bpeWork)
	if work == nil {
		work = &bpeWork{}
	}
	from := len(ids)
	ids = m.merge(ids, w, work)
	m.pool.Put(work)
	m.cache.put(w, ids[from:])
	return ids
}

func (m *bpeModel) merge(ids []int32, w string, work *bpeWork) []int32 {
	work.symbols, work.heap = work.symbols[:0], work.heap[:0]
	m.spell(work, w)
	symbols := work.symbols
	for i := range symbols {
		symbols[i].prev, symbols[i].next = int32(i-1), int32(i+1)
		if i > 0 {
			m.propose(work, int32(i-1), symbols[i-1].id, symbols[i].id)
		}
	}
	end := int32(len(symbols))
	for len(work.heap) > 0 {
		job := work.pop()
		pos := int32(uint32(job.key))
		left := &symbols[pos]
		if left.id < 0 || left.next == end {
			continue
		}
		right := &symbols[left.next]
		// An old job stands if the pair that is here now makes the same token.
		if now, ok := m.merges[bpePair(left.id, right.id)]; !ok || now.id != job.id {
			continue
		}
		left.id, right.id = job.id, -1
		left.next = right.next
		if left.next < end {
			symbols[left.next].prev = pos
			m.propose(work, pos, left.id, symbols[left.next].id)
		}
		if left.prev >= 0 {
			m.propose(work, left.prev, symbols[left.prev].id, left.id)
		}
	}
	for _, s := range symbols {
		if s.id >= 0 {
			ids = append(ids, s.id)
		}
	}
	return ids
}

// spell appends the symbols that w consists of before any merge.
func (m *bpeModel) spell(work *bpeWork, w string) {
	unknown := false // one waits to be written
	add := func(id int32) { work.symbols = append(work.symbols, bpeSymbol{id: id}) }
	miss := func() {
		if unknown && !m.fuseUnk {
			add(m.unk)
		}
		unknown = m.unk >= 0
	}
	hit := func(id int32) {
		if unknown {
			add(m.unk)
			unknown = false
		}
		add(id)
	}
	if m.byteLevel {
		for i := range len(w) {
			if id := m.bytes[w[i]]; id >= 0 {
				hit(id)
			} else {
				miss()
			}
		}
	} else {
		for i, r := range w {
			n := utf8.RuneLen(r)
			if id := m.char(r, w[i:]); id >= 0 {
				hit(id)
			} else if m.byteFallback && m.spellable(w[i:i+n]) {
				for _, b := range []byte(w[i : i+n]) {
					add(m.bytes[b])
				}
			} else {
				miss()
			}
		}
	}
	if unknown {
		add(m.unk)
	}
}

func (m *bpeModel) spellable(s string) bool {
	for i := range len(s) {
		if m.bytes[s[i]] < 0 {
			return false
		}
	}
	return true
}

// propose queues the merge of the symbols a at pos and b behind it, if there is one.
func (m *bpeModel) propose(work *bpeWork, pos, a, b int32) {
	merge, ok := m.merges[bpePair(a, b)]
	if !ok {
		return
	}
	h := append(work.heap, bpeJob{uint64(uint32(merge.rank))<<32 | uint64(uint32(pos)), merge.id})
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if h[up].key <= h[i].key {
			break
		}
		h[up], h[i] = h[i], h[up]
		i = up
	}
	work.heap = h
}

func (work *bpeWork) pop() bpeJob {
	h := work.heap
	top := h[0]
	n := len(h) - 1
	h[0] = h[n]
	h = h[:n]
	for i := 0; ; {
		down := 2*i + 1
		if down >= n {
			break
		}
		if down+1 < n && h[down+1].key < h[down].key {
			down++
		}
		if h[i].key <= h[down].key {
			break
		}
		h[i], h[down] = h[down], h[i]
		i = down
	}
	work.heap = h
	return top
}

// wordCache remembers the tokens of words: a table of fixed size in which the
// last word of a slot wins, without locks. It changes no result.
type wordCache struct {
	seed  maphash.Seed
	slots []atomic.Pointer[cachedWord]
}

type cachedWord struct {
	word string
	ids  []int32
}

const (
	wordCacheSlots = 1 << 15
	wordCacheBytes = 64 // of the longest word kept
)

func newWordCache() wordCache {
	return wordCache{maphash.MakeSeed(), make([]atomic.Pointer[cachedWord], wordCacheSlots)}
}

func (c *wordCache) get(w string) []int32 {
	if len(w) > wordCacheBytes {
		return nil
	}
	e := c.slots[maphash.String(c.seed, w)%wordCacheSlots].Load()
	if e == nil || e.word != w {
		return nil
	}
	return e.ids
}

func (c *wordCache) put(w string, ids []int32) {
	if len(w) > wordCacheBytes || len(ids) == 0 {
		return
	}
	// The word must not keep the whole text in memory.
	e := &cachedWord{strings.Clone(w), append([]int32(nil), ids...)}
	c.slots[maphash.String(c.seed, w)%wordCacheSlots].Store(e)
}

// byteAlphabet is the printable character that byte-level vocabularies write
// for each byte (GPT-2's bytes_to_unicode), byteOfRune its inverse.
var byteAlphabet, byteOfRune = func() (to [256]rune, from map[rune]byte) {
	from = map[rune]byte{}
	next := rune(256)
	for i := range 256 {
		r := rune(i)
		if r < '!' || r > '~' && r < 0xa1 || r == 0xad {
			r = next
			next++
		}
		to[i], from[r] = r, byte(i)
	}
	return to, from
}()

// fromByteAlphabet is the bytes that s spells; false if a character is not of
// the alphabet.
func fromByteAlphabet(s string) (string, bool) {
	out := make([]byte, 0, len(s))
	for _, r := range s {
		b, ok := byteOfRune[r]
		if !ok {
			return "", false
		}
		out = append(out, b)
	}
	return string(out), true
}
