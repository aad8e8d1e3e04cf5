package runtime

import (
	"strings"
	"unicode/utf8"
)

// tokenDecoder is what the file's decoder does with token texts.
type tokenDecoder struct {
	byteLevel bool   // texts are bytes of one UTF-8 string
	fallback  bool   // <0x..> tokens are bytes, valid or not run by run
	separator string // between texts, where there is no decoder
	strip     string // the character to take from the start of the whole text
	stripMax  int    // how often
}

// Decode is the text of ids as Hugging Face's tokenizers decode it with
// skip_special_tokens=false; ids that no token has are left out. Invalid UTF-8
// becomes U+FFFD once per maximal subpart (Unicode Standard, 3.9), but once per
// byte where byte-fallback tokens spell it.
func (t *Tokenizer) Decode(ids []int32) string {
	s := t.Stream()
	for _, id := range ids {
		s.push(id)
	}
	s.flush()
	return string(s.out)
}

// Stream turns tokens into text as they come. What it returns together is what
// Decode returns for all of them; a character that later tokens could complete
// is held back. It is for one goroutine.
type Stream struct {
	t       *Tokenizer
	pending []byte // of a character or of a run of byte-fallback tokens
	out     []byte
	started bool
	strips  int // characters still to be stripped
}

// Stream starts a text.
func (t *Tokenizer) Stream() *Stream { return &Stream{t: t, strips: t.decoder.stripMax} }

// Next is the text that id completes; empty if it completes none.
func (s *Stream) Next(id int32) string {
	s.out = s.out[:0]
	s.push(id)
	return string(s.out)
}

// Flush ends the text: it returns what Next held back. The stream may then
// start another text.
func (s *Stream) Flush() string {
	s.out = s.out[:0]
	s.flush()
	s.started, s.strips = false, s.t.decoder.stripMax
	return string(s.out)
}

func (s *Stream) push(id int32) {
	t := s.t
	if id < 0 || int(id) >= len(t.tokens) || !t.tokens[id].known {
		return
	}
	tok := &t.tokens[id]
	if s.started {
		s.emit(t.decoder.separator)
	}
	s.started = true
	switch {
	case t.decoder.byteLevel:
		s.pending = append(s.pending, tok.text...)
		var n int
		s.out, n = appendValid(s.out, s.pending, false)
		s.pending = s.pending[:copy(s.pending, s.pending[n:])]
	case t.decoder.fallback && tok.isByte:
		s.pending = append(s.pending, tok.value)
	default:
		s.flush()
		s.emit(tok.text)
	}
}

func (s *Stream) flush() {
	switch {
	case s.t.decoder.byteLevel:
		s.out, _ = appendValid(s.out, s.pending, true)
	case utf8.Valid(s.pending):
		s.emit(string(s.pending))
	default:
		s.emit(strings.Repeat("\ufffd", len(s.pending)))
	}
	s.pending = s.pending[:0]
}

func (s *Stream) emit(text string) {
	for s.strips > 0 && text != "" {
		rest, ok := strings.CutPrefix(text, s.t.decoder.strip)
		if !ok {
			s.strips = 0
			break
		}
		text = rest
		s.strips--
	}
	s.out = append(s.out, text...)
}

// appendValid appends b with U+FFFD for every maximal part that is not UTF-8
// and returns how much of b it took: unless whole, an unfinished character at
// the end is left.
func appendValid(dst, b []byte, whole bool) ([]byte, int) {
	done := 0
	for done < len(b) {
		rest := b[done:]
		r, n := utf8.DecodeRune(rest)
		if r != utf8.RuneError || n > 1 {
			dst = append(dst, rest[:n]...)
			done += n
			continue
		}
		if !whole && !utf8.FullRune(rest) {
			break
		}
		for n < len(rest) && !utf8.FullRune(rest[:n+1]) {
			n++
		}
		dst = append(dst, "\ufffd"...)
		done += n
	}
	return dst, done
}

// toValid is s with U+FFFD for what is not UTF-8, as Rust's from_utf8_lossy
// gives it.
func toValid(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	out, _ := appendValid(nil, []byte(s), true)
	return string(out)
}
