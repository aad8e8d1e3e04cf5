package runtime

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"hawkmoth/internal/fixtures"
)

// tokenizerFamilies are the real tokenizers with reference results.
var tokenizerFamilies = []string{"llama3", "qwen3", "deepseek_v3", "pythia", "llama2_from_llama2c"}

func familyFiles(t testing.TB, family string) (tokenizer, config []byte) {
	t.Helper()
	dir := fixtures.Shared(t, "tokenizers/"+family)
	z, err := os.Open(filepath.Join(dir, "tokenizer.json.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = z.Close() }()
	r, err := gzip.NewReader(z)
	if err != nil {
		t.Fatal(err)
	}
	if tokenizer, err = io.ReadAll(r); err != nil {
		t.Fatal(err)
	}
	if config, err = os.ReadFile(filepath.Join(dir, "tokenizer_config.json")); err != nil {
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
