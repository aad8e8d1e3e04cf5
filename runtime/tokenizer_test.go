package runtime

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"hawkmoth/format"
	"hawkmoth/internal/fixtures"
)

// tokenizerFamilies are the real tokenizers with reference results.
var tokenizerFamilies = []string{"llama3", "qwen3", "deepseek_v3", "pythia", "llama2_from_llama2c"}

func familyFiles(t testing.TB, family string) (tokenizer, config []byte) {
	t.Helper()
	dir := fixtures.Shared(t, "tokenizers/"+family)
	tokenizer = fixtures.Gunzip(t, filepath.Join(dir, "tokenizer.json.gz"))
	config, err := os.ReadFile(filepath.Join(dir, "tokenizer_config.json"))
	if err != nil {
		t.Fatal(err)
	}
	return tokenizer, config
}

var loadedFamilies sync.Map // name → *Tokenizer

func familyTokenizer(t testing.TB, family string) *Tokenizer {
	t.Helper()
	if tok, ok := loadedFamilies.Load(family); ok {
		return tok.(*Tokenizer)
	}
	tok, err := LoadTokenizer(familyFiles(t, family))
	if err != nil {
		t.Fatal(err)
	}
	loadedFamilies.Store(family, tok)
	return tok
}

func readTestJSON(t testing.TB, path string, dst any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, dst); err != nil {
		t.Fatal(err)
	}
}

func TestTokenizerEqualsHuggingFace(t *testing.T) {
	for _, family := range tokenizerFamilies {
		t.Run(family, func(t *testing.T) {
			var oracle struct {
				Rows []struct {
					Text    string
					IDs     []int32
					Special []int32 `json:"ids_with_special"`
					Decoded string
				}
			}
			readTestJSON(t, filepath.Join(fixtures.Shared(t, "tokenizers/"+family), "oracle.json"), &oracle)
			if len(oracle.Rows) < 200 {
				t.Fatalf("only %d rows", len(oracle.Rows))
			}
			tok := familyTokenizer(t, family)
			for _, row := range oracle.Rows {
				if got := tok.Encode(row.Text); !slices.Equal(got, row.IDs) {
					t.Errorf("%q:\n got  %v\n want %v", row.Text, got, row.IDs)
				}
				if got := tok.EncodeSpecial(row.Text); !slices.Equal(got, row.Special) {
					t.Errorf("%q with special tokens:\n got  %v\n want %v", row.Text, got, row.Special)
				}
				if got := tok.Decode(row.IDs); got != row.Decoded {
					t.Errorf("decode %v: %q, want %q", row.IDs, got, row.Decoded)
				}
			}
		})
	}
}

func TestTokenizerLongText(t *testing.T) {
	text, err := os.ReadFile(fixtures.Shared(t, "tokenizers/long/text.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range tokenizerFamilies {
		raw, err := os.ReadFile(fixtures.Shared(t, "tokenizers/long/"+family+".ids.u32le"))
		if err != nil {
			t.Fatal(err)
		}
		want := make([]int32, len(raw)/4)
		if err := binary.Read(bytes.NewReader(raw), binary.LittleEndian, want); err != nil {
			t.Fatal(err)
		}
		tok := familyTokenizer(t, family)
		got := tok.Encode(string(text))
		if !slices.Equal(got, want) {
			i := 0
			for i < min(len(got), len(want)) && got[i] == want[i] {
				i++
			}
			t.Errorf("%s: %d ids, want %d, first difference at %d", family, len(got), len(want), i)
		}
	}
}

// TestTokenizerFeatures holds 200 small tokenizers, each with one feature or one
// pattern, against what the reference makes of 50 texts.
func TestTokenizerFeatures(t *testing.T) {
	var f struct {
		Texts  []string
		Models []json.RawMessage
		Cases  []struct {
			Name      string
			Model     int
			Tokenizer map[string]json.RawMessage
			IDs       [][]int32
			Decode    [][2]json.RawMessage
		}
	}
	data := fixtures.Gunzip(t, fixtures.Path(t, "tokenizer_features.json.gz"))
	if err := json.Unmarshal(data, &f); err != nil {
		t.Fatal(err)
	}
	if len(f.Cases) < 200 || len(f.Texts) < 50 {
		t.Fatalf("%d cases of %d texts", len(f.Cases), len(f.Texts))
	}
	for _, c := range f.Cases {
		t.Run(c.Name, func(t *testing.T) {
			c.Tokenizer["model"] = f.Models[c.Model]
			file, err := json.Marshal(c.Tokenizer)
			if err != nil {
				t.Fatal(err)
			}
			tok, err := LoadTokenizer(file, nil)
			if err != nil {
				t.Fatal(err)
			}
			for i, text := range f.Texts {
				if got := tok.Encode(text); !slices.Equal(got, c.IDs[i]) {
					t.Errorf("%+q:\n got  %v\n want %v", text, got, c.IDs[i])
				}
			}
			for _, d := range c.Decode {
				var ids []int32
				var want string
				if err := errors.Join(json.Unmarshal(d[0], &ids), json.Unmarshal(d[1], &want)); err != nil {
					t.Fatal(err)
				}
				if got := tok.Decode(ids); got != want {
					t.Errorf("decode %v: %q, want %q", ids, got, want)
				}
				if got := streamed(tok, ids); got != want {
					t.Errorf("stream %v: %q, want %q", ids, got, want)
				}
			}
		})
	}
}

// streamed is ids decoded one by one; what is not whole characters shows as the
// text it breaks.
func streamed(tok *Tokenizer, ids []int32) string {
	var b strings.Builder
	s := tok.Stream()
	for _, id := range ids {
		piece := s.Next(id)
		if !utf8.ValidString(piece) {
			return "not UTF-8: " + piece
		}
		b.WriteString(piece)
	}
	b.WriteString(s.Flush())
	return b.String()
}

// TestStreamEqualsDecode: random ids break characters in every way.
func TestStreamEqualsDecode(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, family := range tokenizerFamilies {
		tok := familyTokenizer(t, family)
		pieces := 0
		for range 500 {
			ids := make([]int32, 1+random.IntN(20))
			for i := range ids {
				ids[i] = int32(random.IntN(tok.VocabSize() + 2))
				if random.IntN(2) == 0 {
					ids[i] = int32(random.IntN(260)) // single bytes
				}
			}
			want := tok.Decode(ids)
			if got := streamed(tok, ids); got != want {
				t.Errorf("%s %v: stream %q, decode %q", family, ids, got, want)
			}
			pieces += strings.Count(want, "\ufffd")
		}
		if pieces == 0 {
			t.Errorf("%s: no broken character was seen", family)
		}
	}
}

func TestStreamEmitsWhenWhole(t *testing.T) {
	tok := byteTokenizer(t, "", nil)
	s := tok.Stream()
	for i, step := range []struct {
		b    byte
		want string
	}{
		{'a', "a"}, {0xe2, ""}, {0x82, ""}, {0xac, "€"},
		{0xf0, ""}, {0x9f, ""}, {'x', "\ufffdx"}, // the broken character is one maximal subpart
		{0xff, "\ufffd"}, {0xc0, "\ufffd"}, {0x80, "\ufffd"},
		{0xed, ""}, {0xa0, "\ufffd\ufffd"}, // a surrogate is invalid at its second byte
	} {
		if got := s.Next(int32(step.b)); got != step.want {
			t.Errorf("step %d, byte %#x: %q, want %q", i, step.b, got, step.want)
		}
	}
	s.Next(0xe2)
	if got := s.Flush(); got != "\ufffd" {
		t.Errorf("flush: %q", got)
	}
	if got := s.Next('b') + s.Flush(); got != "b" {
		t.Errorf("after the flush: %q", got)
	}
}

// TestTokenizerConcurrent is for the race detector too.
func TestTokenizerConcurrent(t *testing.T) {
	text, err := os.ReadFile(fixtures.Shared(t, "tokenizers/long/text.txt"))
	if err != nil {
		t.Fatal(err)
	}
	s := string(text[:20000])
	tok, err := LoadTokenizer(familyFiles(t, "pythia"))
	if err != nil {
		t.Fatal(err)
	}
	want := tok.Encode(s)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 3 {
				if !slices.Equal(tok.Encode(s), want) || tok.Decode(want) == "" {
					t.Error("other ids beside other goroutines")
				}
			}
		})
	}
	wg.Wait()
}

// TestLongWordIsNotQuadratic would not end if merging were.
func TestLongWordIsNotQuadratic(t *testing.T) {
	tok := byteTokenizer(t, `["a a","aa aa","aaaa aaaa","a b"]`, []string{"aa", "aaaa", "aaaaaaaa", "ab"})
	n := 1 << 20
	ids := tok.Encode(strings.Repeat("a", n) + "b")
	if len(ids) != n/8+1 {
		t.Errorf("%d ids, want %d", len(ids), n/8+1)
	}
	if got := tok.Decode(ids); len(got) != n+1 {
		t.Errorf("%d bytes back, want %d", len(got), n+1)
	}
}

// byteTokenizer is a byte-level tokenizer whose first 256 ids are the bytes,
// followed by more, with merges as JSON.
func byteTokenizer(t testing.TB, merges string, more []string, parts ...string) *Tokenizer {
	t.Helper()
	tok, err := LoadTokenizer([]byte(byteTokenizerJSON(merges, more, parts...)), nil)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// byteTokenizerJSON takes further members of the file, the last of which win
// over the defaults.
func byteTokenizerJSON(merges string, more []string, parts ...string) string {
	if merges == "" {
		merges = "[]"
	}
	vocab := map[string]int{}
	for i, r := range byteAlphabet {
		vocab[string(r)] = i
	}
	for i, s := range more {
		vocab[s] = 256 + i
	}
	v, _ := json.Marshal(vocab)
	file := map[string]json.RawMessage{
		"pre_tokenizer": json.RawMessage(`{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}`),
		"decoder":       json.RawMessage(`{"type":"ByteLevel"}`),
		"model":         json.RawMessage(`{"type":"BPE","vocab":` + string(v) + `,"merges":` + merges + `}`),
	}
	for _, p := range parts {
		if err := json.Unmarshal([]byte(p), &file); err != nil {
			panic(err)
		}
	}
	out, _ := json.Marshal(file)
	return string(out)
}

func quoteJSON(s string) string {
	out, _ := json.Marshal(s)
	return string(out)
}

func TestTokenizerAccessors(t *testing.T) {
	tok := byteTokenizer(t, "", nil, `{"added_tokens":[{"id":300,"content":"<|im_end|>","special":true},{"id":301,"content":"<tool>"}]}`)
	if got := tok.VocabSize(); got != 302 {
		t.Errorf("vocabulary of %d, want 302", got)
	}
	for text, want := range map[string]int32{"a": 'a', "Ġ": ' ', "<|im_end|>": 300, "<tool>": 301} {
		if id, ok := tok.TokenID(text); !ok || id != want {
			t.Errorf("%q is %d %v, want %d", text, id, ok, want)
		}
	}
	for _, text := range []string{"", " ", "ab", "日"} {
		if id, ok := tok.TokenID(text); ok {
			t.Errorf("%q is %d, want none", text, id)
		}
	}
	if !tok.Special(300) || tok.Special(301) || tok.Special('a') || tok.Special(-1) || tok.Special(1000) {
		t.Error("the special tokens are not {300}")
	}
	if got := tok.Decode([]int32{'a', 299, -1, 1 << 30, 301}); got != "a<tool>" {
		t.Errorf("ids without a token: %q", got)
	}
	if got := tok.TokenBytes(' '); string(got) != " " {
		t.Errorf("bytes of the space: %q", got)
	}
	for _, id := range []int32{-1, 299, 1 << 30} {
		if got := tok.TokenBytes(id); len(got) != 0 {
			t.Errorf("bytes of %d: %q", id, got)
		}
	}
}

func TestTokenizerEOS(t *testing.T) {
	added := `{"added_tokens":[{"id":300,"content":"<|im_end|>","special":true},{"id":301,"content":"<|user|>","special":true},{"id":302,"content":"</s>"}]}`
	for _, c := range []struct {
		config string
		want   []int32
	}{
		{"", []int32{300}}, // </s> is not special here
		{`{"eos_token":"<|user|>"}`, []int32{300, 301}},
		{`{"eos_token":{"content":"<|user|>","special":true}}`, []int32{300, 301}},
		{`{"eos_token":"<|im_end|>"}`, []int32{300}},
		{`{"eos_token":null}`, []int32{300}},
		{`{"eos_token":"unknown"}`, []int32{300}},
	} {
		tok, err := LoadTokenizer([]byte(byteTokenizerJSON("", nil, added)), []byte(c.config))
		if err != nil {
			t.Errorf("%s: %v", c.config, err)
			continue
		}
		if got := tok.EOS(); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.config, got, c.want)
		}
	}
	if _, err := LoadTokenizer([]byte(byteTokenizerJSON("", nil)), []byte("{")); !errors.Is(err, format.ErrCorrupt) {
		t.Errorf("broken tokenizer_config.json: %v", err)
	}
}
