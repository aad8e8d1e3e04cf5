package runtime

import (
	"slices"
	"testing"
)

// llama3Pattern is the pre-tokenizer of Llama 3, GLM and many others.
const llama3Pattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`

// fuzzSeeds are files with every part that is known.
func fuzzSeeds() []string {
	return []string{
		`{"added_tokens":[{"id":9,"content":"<s>","special":true,"lstrip":true,"rstrip":true,"single_word":true},{"id":10,"content":"é","normalized":true}],
		"normalizer":{"type":"NFC"},
		"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},
			{"type":"Split","pattern":{"Regex":"(?i:'s)|[^\\r\\p{L}]?\\p{L}+|\\p{N}{1,3}|\\s+(?!\\S)|\\s+"},"behavior":"MergedWithNext","invert":false},
			{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}]},
		"post_processor":{"type":"ByteLevel"},"decoder":{"type":"ByteLevel"},
		"model":{"type":"BPE","ignore_merges":true,"vocab":{"a":0,"b":1,"Ġ":2,"Ã":3,"©":4,"1":5,"ab":6,"Ġa":7,"Ġab":8},"merges":[["a","b"],["Ġ","a"],["Ġ","ab"]]}}`,
		`{"added_tokens":[{"id":0,"content":"<unk>","special":true}],
		"normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},{"type":"Replace","pattern":{"String":" "},"content":"▁"}]},
		"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<unk>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],"special_tokens":{"<unk>":{"id":"<unk>","ids":[0],"tokens":["<unk>"]}}},
		"decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]},
		"model":{"type":"BPE","unk_token":"<unk>","fuse_unk":true,"byte_fallback":true,"vocab":{"<unk>":0,"▁":1,"a":2,"b":3,"▁a":4,"ab":5,"<0x0A>":6},"merges":["▁ a","a b"]}}`,
	}
}

// checkTokenizer holds for every tokenizer and text.
func checkTokenizer(t *testing.T, tok *Tokenizer, text string) []int32 {
	t.Helper()
	ids := tok.Encode(text)
	for _, id := range ids {
		if id < 0 || int(id) >= tok.VocabSize() {
			t.Fatalf("id %d of %d", id, tok.VocabSize())
		}
	}
	if again := tok.Encode(text); !slices.Equal(ids, again) {
		t.Fatalf("%q: %v, then %v", text, ids, again)
	}
	if got, want := streamed(tok, ids), tok.Decode(ids); got != want {
		t.Fatalf("%v: stream %q, decode %q", ids, got, want)
	}
	return ids
}

func FuzzTokenizerJSON(f *testing.F) {
	for _, s := range fuzzSeeds() {
		f.Add([]byte(s), " a<s> ab\n12é 日\xff")
	}
	f.Fuzz(func(t *testing.T, data []byte, text string) {
		tok, err := LoadTokenizer(data, nil)
		if err != nil {
			return
		}
		checkTokenizer(t, tok, text)
		tok.EncodeSpecial(text)
		for id := range int32(min(tok.VocabSize(), 1000)) {
			tok.TokenBytes(id)
		}
	})
}

func FuzzEncodeDecode(f *testing.F) {
	for _, s := range []string{"", "Hello world", " a  b\n\n c", "I'M 12345", "日本語 😀 e\u0301", "\xff\xf0\x9f", "<s>a<s>", "\u212a'ſ\u2028"} {
		f.Add(s)
	}
	split := `{"type":"Split","pattern":{"Regex":` + quoteJSON(llama3Pattern) + `},"behavior":"Isolated","invert":false},`
	toks := []*Tokenizer{
		byteTokenizer(f, `[["a","b"],["Ġ","Ġ"],["ĠĠ","ĠĠ"],["Ġ","a"]]`, []string{"ab", "ĠĠ", "ĠĠĠĠ", "Ġa"},
			`{"pre_tokenizer":{"type":"Sequence","pretokenizers":[`+split+`{"type":"ByteLevel","use_regex":false}]},
			"added_tokens":[{"id":300,"content":"<s>","special":true}]}`),
		byteTokenizer(f, `[["a","a"],["aa","aa"]]`, []string{"aa", "aaaa"}, `{"pre_tokenizer":{"type":"ByteLevel","use_regex":true}}`),
	}
	f.Fuzz(func(t *testing.T, text string) {
		for i, tok := range toks {
			if got, want := tok.Decode(checkTokenizer(t, tok, text)), toValid(text); got != want {
				t.Fatalf("tokenizer %d: %q comes back as %q", i, want, got)
			}
		}
	})
}

// FuzzPattern: remembering failures changes no match.
func FuzzPattern(f *testing.F) {
	for _, s := range []string{llama3Pattern, gpt2Split, `(a|ab)(c|bcd)*?\b`, `[^\s&&[a-z]]+?|x{2,3}`, `(?<!a)\p{Lu}++$`} {
		f.Add(s, "abcd  x'LL 123\n e\u0301")
	}
	f.Fuzz(func(t *testing.T, src, text string) {
		p, err := compilePattern(src)
		if err != nil || len(text) > 1<<12 {
			return
		}
		text = toValid(text)
		fast, safe := patternMatches(t, p, text, -1), patternMatches(t, p, text, 0)
		if !slices.Equal(fast, safe) {
			t.Fatalf("%q in %q: %q, and %q with failures remembered", src, text, fast, safe)
		}
	})
}
