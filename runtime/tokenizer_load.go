package runtime

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"hawkmoth/format"
)

// Limits on what a tokenizer.json can make an encoding cost.
const (
	addedMaxBytes   = 512  // of one added token
	pipelineMax     = 32   // normalizers, pre-tokenizers or decoders
	normalizeGrowth = 64   // how many times longer normalizers may make a text
	prependMaxBytes = 64   // of one prefix
	templateMax     = 1024 // tokens around a text
)

// endTokens are special tokens that end a text or a turn in the models that have them.
var endTokens = []string{"<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|im_end|>", "<end_of_turn>",
	"<eos>", "</s>", "<｜end▁of▁sentence｜>"}

// OpenTokenizer reads the tokenizer of a snapshot for an embedding of so many
// rows. The error wraps fs.ErrNotExist where there is none and
// format.ErrUnsupported for a kind that is not served: such a model takes token
// ids only. Tokens that have no row are format.ErrCorrupt.
func OpenTokenizer(snap *format.Snapshot, rows int) (*Tokenizer, error) {
	data, err := snap.ReadJSONFile("tokenizer.json")
	if err != nil {
		return nil, err
	}
	settings, err := snap.ReadJSONFile("tokenizer_config.json")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	t, err := LoadTokenizer(data, settings)
	if err != nil {
		return nil, format.In(snap.Dir, err)
	}
	if n := t.VocabSize(); n > rows {
		return nil, &format.Error{Kind: format.ErrCorrupt, Path: filepath.Join(snap.Dir, "tokenizer.json"), What: "tokens that the embedding has no row for",
			Found: fmt.Sprintf("ids up to %d", n-1), Wanted: fmt.Sprintf("at most %d, by vocab_size", rows-1)}
	}
	return t, nil
}

type tokenizerJSON struct {
	AddedTokens   []addedToken   `json:"added_tokens"`
	Normalizer    jsontext.Value `json:"normalizer"`
	PreTokenizer  jsontext.Value `json:"pre_tokenizer"`
	PostProcessor jsontext.Value `json:"post_processor"`
	Decoder       jsontext.Value `json:"decoder"`
	Model         jsontext.Value `json:"model"`
}

type modelJSON struct {
	Type                    string           `json:"type"`
	Vocab                   map[string]int32 `json:"vocab"`
	Merges                  mergeList        `json:"merges"`
	Dropout                 *float64         `json:"dropout"`
	UnkToken                *string          `json:"unk_token"`
	ContinuingSubwordPrefix string           `json:"continuing_subword_prefix"`
	EndOfWordSuffix         string           `json:"end_of_word_suffix"`
	FuseUnk                 bool             `json:"fuse_unk"`
	ByteFallback            bool             `json:"byte_fallback"`
	IgnoreMerges            bool             `json:"ignore_merges"`
}

// mergeList is pairs of tokens, each written "a b" or ["a","b"].
type mergeList [][2]string

// UnmarshalJSONFrom reads either form.
func (l *mergeList) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	if dec.PeekKind() == 'n' {
		return dec.SkipValue()
	}
	open, err := dec.ReadToken()
	if err != nil {
		return err
	}
	if open.Kind() != '[' {
		return errors.New("merges are not an array")
	}
	for dec.PeekKind() != ']' {
		var pair [2]string
		switch dec.PeekKind() {
		case '[':
			if err := json.UnmarshalDecode(dec, &pair); err != nil {
				return err
			}
		default:
			tok, err := dec.ReadToken()
			if err != nil {
				return err
			}
			if tok.Kind() != '"' {
				return errors.New("a merge is neither a string nor a pair")
			}
			s := tok.String()
			if strings.HasPrefix(s, "#version") {
				continue
			}
			var ok bool
			if pair[0], pair[1], ok = strings.Cut(s, " "); !ok || strings.Contains(pair[1], " ") {
				return fmt.Errorf("merge %q is not two tokens", s)
			}
		}
		*l = append(*l, pair)
	}
	_, err = dec.ReadToken()
	return err
}

type tokenizerLoader struct {
	t        *Tokenizer
	problems format.Problems
	vocab    map[string]int32
}

func (l *tokenizerLoader) fail(kind error, what string, args ...any) {
	l.problems = append(l.problems, &format.Error{Kind: kind, Path: "tokenizer.json", What: fmt.Sprintf(what, args...)})
}

// part reads one component strictly: a key that is not known here may change
// what it does.
func (l *tokenizerLoader) part(where string, raw jsontext.Value, dst any) bool {
	err := json.Unmarshal(raw, dst, json.RejectUnknownMembers(true))
	if err != nil {
		l.wrong(where, err)
	}
	return err == nil
}

func (l *tokenizerLoader) wrong(where string, err error) {
	kind := format.ErrCorrupt
	if errors.Is(err, json.ErrUnknownName) {
		kind = format.ErrUnsupported
	}
	l.problems = append(l.problems, &format.Error{Kind: kind, Path: "tokenizer.json", What: where, Err: err})
}

// kind is the type of a component; empty for null.
func (l *tokenizerLoader) kind(where string, raw jsontext.Value) string {
	if len(raw) == 0 || raw.Kind() == 'n' {
		return ""
	}
	var c struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(raw, &c); err != nil || c.Type == "" {
		l.problems = append(l.problems, &format.Error{Kind: format.ErrCorrupt, Path: "tokenizer.json", What: where + " without a type", Err: err})
	}
	return c.Type
}

// flat is the components of raw in order, with every Sequence taken apart.
func (l *tokenizerLoader) flat(where, list string, raw jsontext.Value) []jsontext.Value {
	var out []jsontext.Value
	todo, sequences := []jsontext.Value{raw}, 0
	for before := len(l.problems); len(todo) > 0 && len(l.problems) == before; {
		raw, todo = todo[0], todo[1:]
		switch l.kind(where, raw) {
		case "":
		case "Sequence":
			var m map[string]jsontext.Value
			var kids []jsontext.Value
			if json.Unmarshal(raw, &m) != nil || json.Unmarshal(m[list], &kids) != nil {
				l.fail(format.ErrCorrupt, "%s Sequence without %s", where, list)
			}
			todo = append(kids, todo...)
			sequences++
		default:
			out = append(out, raw)
		}
		if len(out)+len(todo)+sequences > pipelineMax {
			l.fail(format.ErrUnsupported, "more than %d parts in %s", pipelineMax, where)
		}
	}
	return out
}

// LoadTokenizer reads a tokenizer.json of the BPE family and, if not nil, the
// tokenizer_config.json beside it. Parts that it does not know are refused by
// name (format.ErrUnsupported), contradictions are format.ErrCorrupt, all at once.
func LoadTokenizer(data, configJSON []byte) (*Tokenizer, error) {
	var f tokenizerJSON
	if err := json.Unmarshal(withoutBOM(data), &f); err != nil {
		return nil, &format.Error{Kind: format.ErrCorrupt, Path: "tokenizer.json", What: "not a tokenizer", Err: err}
	}
	l := &tokenizerLoader{t: &Tokenizer{added: map[string]*addedToken{}, model: &bpeModel{}}}
	l.preTokenizer(f.PreTokenizer) // says whether symbols are bytes
	l.normalizer(f.Normalizer)
	l.loadModel(f.Model)
	l.addTokens(f.AddedTokens)
	l.postProcessor(f.PostProcessor)
	l.loadDecoder(f.Decoder)
	if len(l.problems) == 0 {
		l.texts()
		l.endOfText(withoutBOM(configJSON))
	}
	if err := l.problems.Err(); err != nil {
		return nil, err
	}
	return l.t, nil
}

func withoutBOM(data []byte) []byte { return bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")) }

func (l *tokenizerLoader) loadModel(raw jsontext.Value) {
	var c modelJSON
	if len(raw) == 0 {
		l.fail(format.ErrCorrupt, "no model")
		return
	}
	// Files older than the key "type" are BPE if they have merges.
	err := json.Unmarshal(raw, &c, json.RejectUnknownMembers(true), jsontext.AllowDuplicateNames(true)) // names were checked with the whole file
	var head struct {
		Type   string         `json:"type"`
		Merges jsontext.Value `json:"merges"`
	}
	if err != nil || c.Type != "BPE" {
		// Other models have other keys: their name says more than the first of them.
		if json.Unmarshal(raw, &head) == nil && (head.Type != "BPE" && head.Type != "" || head.Merges == nil) {
			l.fail(format.ErrUnsupported, "model %q", head.Type)
			return
		}
	}
	if err != nil {
		l.wrong("model", err)
		return
	}
	for _, bad := range []struct {
		is   bool
		what string
	}{
		{c.Dropout != nil && *c.Dropout != 0, "dropout"},
		{c.ContinuingSubwordPrefix != "", "continuing_subword_prefix"},
		{c.EndOfWordSuffix != "", "end_of_word_suffix"},
	} {
		if bad.is {
			l.fail(format.ErrUnsupported, "model with %s", bad.what)
		}
	}
	l.vocab = c.Vocab
	m := l.t.model
	m.fuseUnk, m.byteFallback, m.ignoreMerges, m.unk = c.FuseUnk, c.ByteFallback, c.IgnoreMerges, -1
	m.cache = newWordCache()
	if c.UnkToken != nil && *c.UnkToken != "" {
		id, ok := c.Vocab[*c.UnkToken]
		if !ok {
			l.fail(format.ErrCorrupt, "unk_token %q is not in the vocabulary", *c.UnkToken)
		}
		m.unk = id
	}
	if l.spellings() {
		l.mergeTable(c.Merges)
		l.symbols()
	}
}

// spellings notes the text of every id.
func (l *tokenizerLoader) spellings() bool {
	problems, ok := len(l.problems), true
	for text, id := range l.vocab {
		if ok = l.token(id, text); !ok {
			break
		}
	}
	if ok {
		return true
	}
	// Once more in a fixed order, so that the complaint is always the same.
	l.t.tokens, l.problems = nil, l.problems[:problems]
	for _, text := range slices.Sorted(maps.Keys(l.vocab)) {
		if !l.token(l.vocab[text], text) {
			break
		}
	}
	return false
}

// token notes that id is spelt text.
func (l *tokenizerLoader) token(id int32, text string) bool {
	// Ids index tables, whose size must follow from that of the file.
	if limit := 1<<16 + 8*len(l.vocab); id < 0 || int(id) >= limit {
		l.fail(format.ErrCorrupt, "token %q has id %d (wanted 0 to %d)", text, id, limit-1)
		return false
	}
	if n := int(id) + 1; n > len(l.t.tokens) {
		l.t.tokens = append(l.t.tokens, make([]tokenInfo, n-len(l.t.tokens))...)
	}
	tok := &l.t.tokens[id]
	if tok.known && tok.text != text {
		first, second := min(tok.text, text), max(tok.text, text)
		l.fail(format.ErrCorrupt, "tokens %q and %q both have id %d", first, second, id)
		return false
	}
	tok.text, tok.known = text, true
	return true
}

func (l *tokenizerLoader) mergeTable(merges mergeList) {
	m := l.t.model
	m.merges = make(map[uint64]bpeMerge, len(merges))
	m.joins = map[uint64]struct{}{}
	var both []byte
	for rank, pair := range merges {
		a, okA := l.vocab[pair[0]]
		b, okB := l.vocab[pair[1]]
		both = append(append(both[:0], pair[0]...), pair[1]...)
		id, ok := l.vocab[string(both)]
		if !okA || !okB || !ok {
			l.fail(format.ErrCorrupt, "merge %d of %q and %q is not in the vocabulary", rank, pair[0], pair[1])
			return
		}
		m.merges[bpePair(a, b)] = bpeMerge{int32(rank), id}
		if m.byteLevel {
			continue
		}
		last := rune(-1)
		for _, r := range string(both) {
			if last >= 0 {
				m.joins[bpePair(last, r)] = struct{}{}
			}
			last = r
		}
	}
}

// symbols fills the tables that a text is spelt with.
func (l *tokenizerLoader) symbols() {
	m := l.t.model
	m.ids = l.vocab
	for i := range m.ascii {
		m.ascii[i] = -1
		if id, ok := l.vocab[string(rune(i))]; ok {
			m.ascii[i] = id
		}
	}
	missing := 0
	for i := range m.bytes {
		text := fmt.Sprintf("<0x%02X>", i)
		if m.byteLevel {
			text = string(byteAlphabet[i])
		}
		id, ok := l.vocab[text]
		if !ok {
			id = -1
			missing++
		}
		m.bytes[i] = id
	}
	if !m.byteLevel {
		return
	}
	if m.byteFallback && missing > 0 {
		l.fail(format.ErrUnsupported, "byte_fallback of a byte-level vocabulary that lacks %d bytes", missing)
	}
	m.ids = make(map[string]int32, len(l.vocab))
	for text, id := range l.vocab {
		if raw, ok := fromByteAlphabet(text); ok {
			m.ids[raw] = id
		}
	}
}

func (l *tokenizerLoader) addTokens(added []addedToken) {
	t := l.t
	for i := range added {
		a := &added[i]
		if a.Content == "" {
			continue
		}
		if len(a.Content) > addedMaxBytes {
			l.fail(format.ErrUnsupported, "added token of %d bytes", len(a.Content))
			continue
		}
		if id, ok := l.vocab[a.Content]; ok && id != a.ID {
			l.fail(format.ErrCorrupt, "added token %q has id %d, in the vocabulary %d", a.Content, a.ID, id)
			continue
		}
		if old := t.added[a.Content]; old != nil && old.ID != a.ID {
			l.fail(format.ErrCorrupt, "added token %q has ids %d and %d", a.Content, old.ID, a.ID)
			continue
		}
		if !l.token(a.ID, a.Content) {
			continue
		}
		t.tokens[a.ID].special = a.Special
		t.added[a.Content] = a
	}
	if len(l.problems) > 0 {
		return
	}
	work := &splitWork{}
	for i := range added {
		a := &added[i]
		if t.added[a.Content] != a {
			continue
		}
		if !a.Normalized {
			t.plain.add(a.Content, a)
			continue
		}
		content := a.Content
		for _, step := range t.normalize {
			content = step(content, work)
		}
		if content == "" {
			l.fail(format.ErrUnsupported, "added token %q that normalizes to nothing", a.Content)
			return
		}
		t.normalized.add(content, a)
		t.tokens[a.ID].text = content // so that a decoder can undo what a normalizer did
	}
}

// texts makes of every token's spelling what decoding emits.
func (l *tokenizerLoader) texts() {
	for i := range l.t.tokens {
		tok := &l.t.tokens[i]
		if l.t.decoder.byteLevel {
			if raw, ok := fromByteAlphabet(tok.text); ok {
				tok.text = raw
			}
		}
		if s := tok.text; len(s) == 6 && strings.HasPrefix(s, "<0x") && s[5] == '>' {
			n, err := strconv.ParseUint(s[3:5], 16, 8)
			tok.isByte, tok.value = err == nil, byte(n)
		}
	}
}

func (l *tokenizerLoader) endOfText(config []byte) {
	t := l.t
	add := func(id int32) {
		if !slices.Contains(t.eos, id) {
			t.eos = append(t.eos, id)
		}
	}
	for _, s := range endTokens {
		if a := t.added[s]; a != nil && a.Special {
			add(a.ID)
		}
	}
	if len(config) > 0 {
		var c struct {
			EOS jsontext.Value `json:"eos_token"`
		}
		if err := json.Unmarshal(config, &c); err != nil {
			l.problems = append(l.problems, &format.Error{Kind: format.ErrCorrupt, Path: "tokenizer_config.json", What: "not a JSON object", Err: err})
			return
		}
		var text string
		switch c.EOS.Kind() {
		case '"':
			_ = json.Unmarshal(c.EOS, &text)
		case '{':
			var a struct {
				Content string `json:"content"`
			}
			_ = json.Unmarshal(c.EOS, &a)
			text = a.Content
		}
		if id, ok := t.TokenID(text); ok && text != "" {
			add(id)
		}
	}
	slices.Sort(t.eos)
}
