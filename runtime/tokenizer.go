package runtime

import "sync"

// Tokenizer turns text into token ids and back as the tokenizer.json of a
// checkpoint says. It is safe for concurrent use.
type Tokenizer struct {
	tokens     []tokenInfo // by id
	added      map[string]*addedToken
	plain      addedTrie // added tokens looked for in the text as it is
	normalized addedTrie // and in normalized text
	normalize  []normalizeStep
	steps      []splitStep
	model      *bpeModel
	prefix     []int32 // what the post-processor puts before a text
	suffix     []int32 // and after it
	decoder    tokenDecoder
	eos        []int32

	pool sync.Pool // *splitWork
}

// tokenInfo is a token as decoding sees it.
type tokenInfo struct {
	text    string
	known   bool // ids may have gaps
	special bool
	isByte  bool // <0x..>
	value   byte
}

// Encode is the token ids of s, with added tokens recognised in it and none put
// around it. Invalid UTF-8 is read as U+FFFD.
func (t *Tokenizer) Encode(s string) []int32 { return t.encode(nil, s) }

// EncodeSpecial is Encode with what the file's post-processor puts around a
// text, such as a begin-of-text token.
func (t *Tokenizer) EncodeSpecial(s string) []int32 {
	ids := t.encode(append([]int32{}, t.prefix...), s)
	return append(ids, t.suffix...)
}

func (t *Tokenizer) encode(ids []int32, s string) []int32 {
	work, _ := t.pool.Get().(*splitWork)
	if work == nil {
		work = &splitWork{}
	}
	token := func(a *addedToken) { ids = append(ids, a.ID) }
	words := func(s string) {
		for _, w := range work.split(s, t.steps) {
			ids = t.model.encode(ids, w)
		}
	}
	t.plain.cut(toValid(s), func(s string) {
		for _, step := range t.normalize {
			s = step(s, work)
		}
		t.normalized.cut(s, words, token)
	}, token)
	work.reset()
	t.pool.Put(work)
	return ids
}

// VocabSize is the highest id plus one.
func (t *Tokenizer) VocabSize() int { return len(t.tokens) }

// TokenID is the id of the token that the file spells s.
func (t *Tokenizer) TokenID(s string) (int32, bool) {
	if a, ok := t.added[s]; ok {
		return a.ID, true
	}
	if t.model.byteLevel {
		raw, ok := fromByteAlphabet(s)
		if !ok {
			return 0, false
		}
		s = raw
	}
	id, ok := t.model.ids[s]
	return id, ok
}

// Special tells whether id is an added token that the file marks as special.
func (t *Tokenizer) Special(id int32) bool {
	return id >= 0 && int(id) < len(t.tokens) && t.tokens[id].special
}

// EOS is the ids that end a text: the eos_token of tokenizer_config.json and
// the special tokens that are known to end a text or a turn, in increasing order.
func (t *Tokenizer) EOS() []int32 { return append([]int32(nil), t.eos...) }

// TokenBytes is what id adds to a text, before invalid UTF-8 is replaced; empty
// for an id that no token has.
func (t *Tokenizer) TokenBytes(id int32) []byte {
	if id < 0 || int(id) >= len(t.tokens) {
		return nil
	}
	if tok := &t.tokens[id]; !t.decoder.fallback || !tok.isByte {
		return []byte(tok.text)
	}
	return []byte{t.tokens[id].value}
}
