package runtime

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"hawkmoth/format"
)

type encodeCase struct {
	family, text string
	want         []int32
}

// checkEncode compares with ids that the reference gave (npm tokenizers 0.23.2).
func checkEncode(t *testing.T, cases []encodeCase) {
	t.Helper()
	for _, c := range cases {
		if got := familyTokenizer(t, c.family).Encode(c.text); !slices.Equal(got, c.want) {
			t.Errorf("%s %+q: %v, want %v", c.family, c.text, got, c.want)
		}
	}
}

func TestH1SpecialTokenBehindPunctuation(t *testing.T) {
	checkEncode(t, []encodeCase{
		{"qwen3", ".<|im_end|>", []int32{13, 151645}},
		{"qwen3", "!<|im_end|>\n", []int32{0, 151645, 198}},
	})
}

func TestH2LookAheadInWhiteSpace(t *testing.T) {
	checkEncode(t, []encodeCase{
		{"llama3", "x\n    y", []int32{87, 198, 262, 379}},
		{"llama3", "a  b", []int32{64, 220, 293}},
		{"llama3", "trailing  ", []int32{376, 14612, 256}},
		{"llama3", "\n\n  x", []int32{271, 220, 865}},
		{"qwen3", "x\n    y", []int32{87, 198, 262, 379}},
		{"qwen3", "\n\n  x", []int32{271, 220, 856}},
		{"deepseek_v3", "x\n    y", []int32{90, 201, 361, 383}},
		{"deepseek_v3", "a  b", []int32{67, 223, 291}},
	})
}

func TestH3ByteLevelAloneIsGPT2(t *testing.T) {
	checkEncode(t, []encodeCase{
		{"pythia", " 4", []int32{577}},
		{"pythia", " 20", []int32{1384}},
		{"pythia", "(abc", []int32{9, 19758}},
		{"pythia", "I'M", []int32{42, 8, 46}},
		{"pythia", "I'm", []int32{42, 1353}},
		{"pythia", "123456", []int32{28941, 3208}},
	})
}

func TestH4MergesAsStringsAndPairs(t *testing.T) {
	more := []string{"ab", "abc", "Ġa"}
	pairs := byteTokenizer(t, `[["a","b"],["ab","c"],["Ġ","a"]]`, more)
	words := byteTokenizer(t, `["#version: 0.2","a b","ab c","Ġ a"]`, more)
	for _, text := range []string{"abc", "ab", " abc", "aab cab", ""} {
		if a, b := pairs.Encode(text), words.Encode(text); !slices.Equal(a, b) {
			t.Errorf("%q: pairs %v, strings %v", text, a, b)
		}
	}
	if got, want := pairs.Encode("abc a"), []int32{257, 258}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	// Tokens that hold a space can be merged only by pairs.
	spaced := `{"pre_tokenizer":null,"decoder":null,"model":{"type":"BPE","vocab":{"a":0," ":1,"b":2,"a ":3,"a b":4},"merges":%s}}`
	tok, err := LoadTokenizer(fmt.Appendf(nil, spaced, `[["a"," "],["a ","b"]]`), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := tok.Encode("a b"); !slices.Equal(got, []int32{4}) {
		t.Errorf("merge of tokens with spaces: %v, want [4]", got)
	}
	for _, merges := range []string{`["a  ","a  b"]`, `["ab"]`, `[["a"]]`, `[["a"," ","b"]]`, `[3]`, `{}`, `"a b"`} {
		if _, err := LoadTokenizer(fmt.Appendf(nil, spaced, merges), nil); !errors.Is(err, format.ErrCorrupt) {
			t.Errorf("merges %s: %v", merges, err)
		}
	}
}

func TestH5MarksAndDigits(t *testing.T) {
	checkEncode(t, []encodeCase{
		{"llama3", "2023", []int32{2366, 18}}, // threes from the left
		{"qwen3", "2023", []int32{17, 15, 17, 18}},
		{"deepseek_v3", "2023", []int32{939, 21}},
		{"llama3", "650841823", []int32{13655, 25496, 23848}},
		{"qwen3", "650841823", []int32{21, 20, 15, 23, 19, 16, 23, 17, 18}},
		{"deepseek_v3", "650841823", []int32{17720, 30569, 31190}},
		{"llama3", " Cafe\u0301", []int32{43873, 54939}},
		{"qwen3", " Cafe\u0301", []int32{65671}}, // NFC
		{"deepseek_v3", " Cafe\u0301", []int32{75437, 17793}},
		{"llama3", "हिन्दी", []int32{95048, 100556, 101102, 44747}},
		{"qwen3", "हिन्दी", []int32{93948, 42311, 101, 30484, 99, 43647}},
		{"deepseek_v3", "हिन्दी", []int32{18359, 112789, 8714}},
		{"deepseek_v3", "ก็", []int32{21253}},
	})
}

func TestH6ByteFallback(t *testing.T) {
	checkEncode(t, []encodeCase{
		{"llama2_from_llama2c", "😀", []int32{29871, 243, 162, 155, 131}},
		{"llama2_from_llama2c", "a\U0001F9A5b", []int32{263, 243, 162, 169, 168, 29890}},
		{"llama2_from_llama2c", "\x00", []int32{29871, 3}},
		{"llama2_from_llama2c", "\ufffd", []int32{29871, 30140}},
		{"llama2_from_llama2c", "\xff", []int32{29871, 30140}}, // not UTF-8
	})
	for _, family := range tokenizerFamilies {
		tok := familyTokenizer(t, family)
		for text, want := range map[string]string{
			"😀\xf0\x9f\x98": "😀\ufffd", "\xc3(": "\ufffd(", "a\xed\xa0\x80": "a\ufffd\ufffd\ufffd", "ok": "ok",
		} {
			if got := tok.Decode(tok.Encode(text)); got != want {
				t.Errorf("%s %+q: %+q, want %+q", family, text, got, want)
			}
		}
	}
	// A run of byte tokens that is not UTF-8 becomes one U+FFFD a byte.
	tok := familyTokenizer(t, "llama2_from_llama2c")
	if got := tok.Decode([]int32{243, 162, 155, 131, 258}); got != strings.Repeat("\ufffd", 5) {
		t.Errorf("broken run: %+q", got)
	}
}

func TestH7ByteOrderMark(t *testing.T) {
	const bom = "\xef\xbb\xbf"
	tok, err := LoadTokenizer([]byte(bom+byteTokenizerJSON("", nil)), []byte(bom+`{"eos_token":"a"}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := tok.EOS(); !slices.Equal(got, []int32{'a'}) {
		t.Errorf("end tokens %v", got)
	}
}

func TestH11EmptyAndSpecialOnlyPrompts(t *testing.T) {
	for _, c := range []struct {
		family, text  string
		ids, withSpec []int32
	}{
		{"llama2_from_llama2c", "", nil, []int32{1}},
		{"llama2_from_llama2c", "<s>", []int32{1}, []int32{1, 1}},
		{"qwen3", "", nil, nil},
		{"qwen3", "<|im_end|>", []int32{151645}, []int32{151645}},
		{"qwen3", "<|im_start|><|im_end|>", []int32{151644, 151645}, []int32{151644, 151645}},
		{"deepseek_v3", "<｜begin▁of▁sentence｜>", []int32{0}, []int32{0}},
	} {
		tok := familyTokenizer(t, c.family)
		if got := tok.Encode(c.text); !slices.Equal(got, c.ids) {
			t.Errorf("%s %q: %v, want %v", c.family, c.text, got, c.ids)
		}
		if got := tok.EncodeSpecial(c.text); !slices.Equal(got, c.withSpec) {
			t.Errorf("%s %q with special tokens: %v, want %v", c.family, c.text, got, c.withSpec)
		}
	}
	if got := familyTokenizer(t, "qwen3").Decode(nil); got != "" {
		t.Errorf("no ids: %q", got)
	}
}

// TestE11AddedTokenBeyondTheVocabulary: what the embedding is held against is
// the highest id, added tokens and gaps included.
func TestE11AddedTokenBeyondTheVocabulary(t *testing.T) {
	for _, c := range []struct {
		added string
		want  int
	}{
		{`{}`, 256},
		{`{"added_tokens":[{"id":256,"content":"<image>"}]}`, 257},
		{`{"added_tokens":[{"id":97,"content":"a"}]}`, 256},
		{`{"added_tokens":[{"id":1000,"content":"<image>"}]}`, 1001},
	} {
		if got := byteTokenizer(t, "", nil, c.added).VocabSize(); got != c.want {
			t.Errorf("%s: %d, want %d", c.added, got, c.want)
		}
	}
}

// TestTokenizerRefusals: every part that is not known is named, contradictions
// are corrupt.
func TestTokenizerRefusals(t *testing.T) {
	for _, c := range []struct {
		part string
		kind error
		says string
	}{
		{`{"normalizer":{"type":"BertNormalizer"}}`, format.ErrUnsupported, "normalizer BertNormalizer"},
		{`{"normalizer":{"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Lowercase"}]}}`, format.ErrUnsupported, "normalizer Lowercase"},
		{`{"normalizer":{"type":"Sequence"}}`, format.ErrCorrupt, "without normalizers"},
		{`{"normalizer":{"type":"Replace","pattern":{"Regex":"a*"},"content":"b"}}`, format.ErrUnsupported, "Replace"},
		{`{"normalizer":{"type":"Replace","pattern":{"String":""},"content":"b"}}`, format.ErrUnsupported, "empty pattern"},
		{`{"normalizer":{"type":"Prepend","prepend":"_","append":"_"}}`, format.ErrUnsupported, "append"},
		{`{"normalizer":{"type":"Prepend","prepend":"` + strings.Repeat("x", 100) + `"}}`, format.ErrUnsupported, "Prepend of 100 bytes"},
		{`{"normalizer":{}}`, format.ErrCorrupt, "normalizer without a type"},
		{`{"pre_tokenizer":{"type":"Metaspace"}}`, format.ErrUnsupported, "pre_tokenizer Metaspace"},
		{`{"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"ByteLevel"},{"type":"Digits"}]}}`, format.ErrUnsupported, "Digits behind ByteLevel"},
		{`{"pre_tokenizer":{"type":"ByteLevel","lower":true}}`, format.ErrUnsupported, "lower"},
		{`{"pre_tokenizer":{"type":"Split","pattern":{"Regex":"(?=ab)"},"behavior":"Isolated","invert":false}}`, format.ErrUnsupported, "look-around"},
		{`{"pre_tokenizer":{"type":"Split","pattern":{"Regex":"a"},"behavior":"Sideways","invert":false}}`, format.ErrUnsupported, "Sideways"},
		{`{"pre_tokenizer":{"type":"Split","pattern":{},"behavior":"Isolated","invert":false}}`, format.ErrCorrupt, "without a pattern"},
		{`{"post_processor":{"type":"RobertaProcessing"}}`, format.ErrUnsupported, "post_processor RobertaProcessing"},
		{`{"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x"}},{"Sequence":{"id":"A"}}],"special_tokens":{}}}`, format.ErrCorrupt, `no special token "x"`},
		{`{"post_processor":{"type":"TemplateProcessing","single":[{"Sequence":{"id":"B"}}],"special_tokens":{}}}`, format.ErrUnsupported, "not one text"},
		{`{"post_processor":{"type":"TemplateProcessing","single":[],"special_tokens":{}}}`, format.ErrUnsupported, "not one text"},
		{`{"decoder":{"type":"WordPiece"}}`, format.ErrUnsupported, "decoder WordPiece"},
		{`{"decoder":{"type":"Strip","content":" ","start":1,"stop":0}}`, format.ErrUnsupported, "decoder Strip"},
		{`{"decoder":{"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"Replace","pattern":{"String":"a"},"content":"b"}]}}`, format.ErrUnsupported, "decoder Replace"},
		{`{"model":{"type":"Unigram","vocab":[["a",0.5]]}}`, format.ErrUnsupported, `model "Unigram"`},
		{`{"model":{"type":"WordPiece","vocab":{},"max_input_chars_per_word":100}}`, format.ErrUnsupported, `model "WordPiece"`},
		{`{"model":{"type":"WordLevel","vocab":{}}}`, format.ErrUnsupported, `model "WordLevel"`},
		{`{"model":{"type":"BPE","vocab":{"a":0},"merges":[],"dropout":0.1}}`, format.ErrUnsupported, "dropout"},
		{`{"model":{"type":"BPE","vocab":{"a":0},"merges":[],"end_of_word_suffix":"</w>"}}`, format.ErrUnsupported, "end_of_word_suffix"},
		{`{"model":{"type":"BPE","vocab":{"a":0},"merges":[],"sampling":1}}`, format.ErrUnsupported, "sampling"},
		{`{"model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":["a b"]}}`, format.ErrCorrupt, `merge 0 of "a" and "b"`},
		{`{"model":{"type":"BPE","vocab":{"a":0,"b":0},"merges":[]}}`, format.ErrCorrupt, `"a" and "b" both have id 0`},
		{`{"model":{"type":"BPE","vocab":{"a":2000000000},"merges":[]}}`, format.ErrCorrupt, "id 2000000000"},
		{`{"model":{"type":"BPE","vocab":{"a":-1},"merges":[]}}`, format.ErrCorrupt, "id -1"},
		{`{"model":{"type":"BPE","vocab":{"a":0},"merges":[],"unk_token":"?"}}`, format.ErrCorrupt, `unk_token "?"`},
		{`{"model":null}`, format.ErrUnsupported, "model"},
		{`{"added_tokens":[{"id":5,"content":"a"}]}`, format.ErrCorrupt, `added token "a" has id 5, in the vocabulary 97`},
		{`{"added_tokens":[{"id":300,"content":"x<"},{"id":301,"content":"x<"}]}`, format.ErrCorrupt, "300 and 301"},
		{`{"added_tokens":[{"id":97,"content":"<x>"}]}`, format.ErrCorrupt, "both have id 97"},
		{`{"added_tokens":[{"id":300,"content":"` + strings.Repeat("x", 600) + `"}]}`, format.ErrUnsupported, "600 bytes"},
	} {
		_, err := LoadTokenizer([]byte(byteTokenizerJSON("", nil, c.part)), nil)
		if err == nil || !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s:\n got  %v\n want %v: %s", c.part, err, c.kind, c.says)
		}
	}
	for _, data := range []string{"", "{", "null", "[]", `{"a":1,"a":2}`, `{"model":{"type":"BPE","vocab":{"a":0,"a":1},"merges":[]}}`} {
		if _, err := LoadTokenizer([]byte(data), nil); err == nil {
			t.Errorf("%q loads", data)
		}
	}
}

func TestTokenizerReportsAllProblems(t *testing.T) {
	_, err := LoadTokenizer([]byte(byteTokenizerJSON("", nil,
		`{"normalizer":{"type":"Lowercase"},"post_processor":{"type":"BertProcessing"},"added_tokens":[{"id":5,"content":"a"}]}`)), nil)
	var all format.Problems
	if !errors.As(err, &all) || len(all) != 3 {
		t.Errorf("%d problems, want 3:\n%v", len(all), err)
	}
}

// TestNormalizeWithoutGraphemeJoiners: package norm puts one behind 30 marks, which
// would change the text.
func TestNormalizeWithoutGraphemeJoiners(t *testing.T) {
	tok := byteTokenizer(t, "", nil, `{"normalizer":{"type":"NFC"}}`)
	for text, want := range map[string]string{
		"e" + strings.Repeat("\u0301", 60):           "é" + strings.Repeat("\u0301", 59),
		"a" + strings.Repeat("\u0323\u0301", 20):     "ạ" + strings.Repeat("\u0323", 19) + strings.Repeat("\u0301", 20),
		strings.Repeat("\u0301", 40) + "e\u0301":     strings.Repeat("\u0301", 40) + "é",
		"한 e" + strings.Repeat("\u0301", 10):         "한 é" + strings.Repeat("\u0301", 9),
		"\u212b" + strings.Repeat("\u0327", 9) + "x": "Å" + strings.Repeat("\u0327", 9) + "x",
	} {
		if got := tok.Decode(tok.Encode(text)); got != want {
			t.Errorf("%+q:\n got  %+q\n want %+q", text, got, want)
		}
	}
}

// TestHostileTokenizers would not end, or not fit in memory, if the cost of a
// file or text were not bounded by its size.
func TestHostileTokenizers(t *testing.T) {
	repeat := strings.Repeat
	split := func(pattern string) string {
		return `{"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":` + quoteJSON(pattern) +
			`},"behavior":"Isolated","invert":false},{"type":"ByteLevel","use_regex":false}]}}`
	}
	double := `{"type":"Replace","pattern":{"String":"a"},"content":"aa"},`
	for name, part := range map[string]string{
		"nested sequences":        `{"normalizer":` + repeat(`{"type":"Sequence","normalizers":[`, 4000) + repeat(`]}`, 4000) + `}`,
		"normalizers that double": `{"normalizer":{"type":"Sequence","normalizers":[` + repeat(double, 30) + `{"type":"NFC"}]}}`,
		"many steps":              `{"pre_tokenizer":{"type":"Sequence","pretokenizers":[` + repeat(`{"type":"Digits","individual_digits":true},`, 5000) + `{"type":"ByteLevel"}]}}`,
		"repeated repetitions":    split(repeat("(?:", 20) + "a" + repeat("){400}", 20)),
		"large classes":           split("[" + repeat(`\p{L}`, 100000) + "]"),
		"many atoms":              split("(?i)" + repeat("[a-z]", 3000)),
		"a long template":         `{"post_processor":{"type":"TemplateProcessing","single":[{"Sequence":{"id":"A"}},` + repeat(`{"SpecialToken":{"id":"x"}},`, 2000) + `{"SpecialToken":{"id":"x"}}],"special_tokens":{"x":{"ids":[1,2,3]}}}}`,
	} {
		if _, err := LoadTokenizer([]byte(byteTokenizerJSON("", nil, part)), nil); !errors.Is(err, format.ErrUnsupported) {
			t.Errorf("%s: %.200v", name, err)
		}
	}
	// Legal, and costly for whoever does it simply.
	text := repeat("a", 1<<15)
	for name, part := range map[string]string{
		"backtracking":      split(`(a+)+b|(a|aa)+c`),
		"long added tokens": `{"added_tokens":[{"id":300,"content":"` + repeat("a", 500) + `b"}]}`,
		"wide alternatives": split(repeat(repeat("(?:", 8)+`\p{L}|\p{M}|\p{Han}`+repeat(`|\p{N})?`, 8)+"x|", 8) + "z"),
	} {
		tok := byteTokenizer(t, "", nil, part)
		if got := len(tok.Encode(text)); got != len(text) {
			t.Errorf("%s: %d ids, want %d", name, got, len(text))
		}
	}
}
