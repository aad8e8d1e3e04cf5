package runtime

import (
	"unicode"
	"unicode/utf8"
)

// addedToken is a token that is found in the text before anything else.
type addedToken struct {
	ID         int32  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"` // only where no word goes on at either side
	LStrip     bool   `json:"lstrip"`      // takes the white space before it too
	RStrip     bool   `json:"rstrip"`      // and after it
	Normalized bool   `json:"normalized"`  // looked for in normalized text
	Special    bool   `json:"special"`
}

// addedTrie finds added tokens in text.
type addedTrie struct {
	next   map[uint64]int32 // node<<8 | byte → node; the root is 0
	tokens []*addedToken    // by node; nil inside
	first  [256]bool        // what a token can start with
}

func (t *addedTrie) add(content string, a *addedToken) {
	if t.next == nil {
		t.next, t.tokens = map[uint64]int32{}, []*addedToken{nil}
	}
	node := int32(0)
	t.first[content[0]] = true
	for i := range len(content) {
		key := uint64(node)<<8 | uint64(content[i])
		n, ok := t.next[key]
		if !ok {
			n = int32(len(t.tokens))
			t.next[key] = n
			t.tokens = append(t.tokens, nil)
		}
		node = n
	}
	t.tokens[node] = a
}

// longest is the longest token at the start of s and its length.
func (t *addedTrie) longest(s string) (best *addedToken, n int) {
	node := int32(0)
	for i := range len(s) {
		next, ok := t.next[uint64(node)<<8|uint64(s[i])]
		if !ok {
			break
		}
		if node = next; t.tokens[node] != nil {
			best, n = t.tokens[node], i+1
		}
	}
	return best, n
}

// cut calls token for every added token in s and text for what lies between.
func (t *addedTrie) cut(s string, text func(string), token func(*addedToken)) {
	done := 0
	for i := 0; i < len(s) && t.next != nil; {
		if !t.first[s[i]] {
			i++
			continue
		}
		a, n := t.longest(s[i:])
		if a == nil {
			i++
			continue
		}
		start, end := i, i+n
		i = end
		if a.SingleWord && (wordBefore(s[:start]) || wordAfter(s[end:])) {
			continue
		}
		if a.LStrip {
			for start > done {
				r, n := utf8.DecodeLastRuneInString(s[:start])
				if !unicode.Is(unicode.White_Space, r) {
					break
				}
				start -= n
			}
		}
		if a.RStrip {
			for end < len(s) {
				r, n := utf8.DecodeRuneInString(s[end:])
				if !unicode.Is(unicode.White_Space, r) {
					break
				}
				end += n
			}
		}
		if done < start {
			text(s[done:start])
		}
		token(a)
		done = end
	}
	if done < len(s) {
		text(s[done:])
	}
}

func wordBefore(s string) bool {
	r, n := utf8.DecodeLastRuneInString(s)
	return n > 0 && inWord(r)
}

func wordAfter(s string) bool {
	r, n := utf8.DecodeRuneInString(s)
	return n > 0 && inWord(r)
}

// inWord is \w of Rust's regex crate: Oniguruma's and the two joiners.
func inWord(r rune) bool { return wordRunes().has(r) || r == 0x200c || r == 0x200d }
