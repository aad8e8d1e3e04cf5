package runtime

import (
	"os"
	"strings"
	"testing"

	"hawkmoth/internal/fixtures"
)

// BenchmarkEncode reads English books; BenchmarkEncodeMixed many scripts, code
// and emoji, whose words repeat less. Cold forgets the words of the round before,
// as a program that reads its first text.
func BenchmarkEncode(b *testing.B)          { benchmarkEncode(b, "corpus/valid_books.txt", false) }
func BenchmarkEncodeMixed(b *testing.B)     { benchmarkEncode(b, "tokenizers/long/text.txt", false) }
func BenchmarkEncodeCold(b *testing.B)      { benchmarkEncode(b, "corpus/valid_books.txt", true) }
func BenchmarkEncodeMixedCold(b *testing.B) { benchmarkEncode(b, "tokenizers/long/text.txt", true) }

func benchmarkEncode(b *testing.B, file string, cold bool) {
	text, err := os.ReadFile(fixtures.Shared(b, file))
	if err != nil {
		b.Fatal(err)
	}
	s := string(text[:min(len(text), 1<<20)])
	for _, family := range tokenizerFamilies {
		b.Run(family, func(b *testing.B) {
			tok := familyTokenizer(b, family)
			b.SetBytes(int64(len(s)))
			b.ReportAllocs()
			for b.Loop() {
				if cold {
					tok.model.cache = newWordCache()
				}
				tok.Encode(s)
			}
		})
	}
}

// BenchmarkEncodeLongWord is the worst case of merging: nothing repeats or cuts.
func BenchmarkEncodeLongWord(b *testing.B) {
	tok := familyTokenizer(b, "qwen3")
	s := strings.Repeat("abcdefghijklmnopqrstuvwxyz", 4000)
	b.SetBytes(int64(len(s)))
	for b.Loop() {
		tok.Encode(s)
	}
}

func BenchmarkDecode(b *testing.B) {
	text, err := os.ReadFile(fixtures.Shared(b, "tokenizers/long/text.txt"))
	if err != nil {
		b.Fatal(err)
	}
	tok := familyTokenizer(b, "qwen3")
	ids := tok.Encode(string(text))
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		tok.Decode(ids)
	}
}

func BenchmarkLoadTokenizer(b *testing.B) {
	for _, family := range tokenizerFamilies {
		b.Run(family, func(b *testing.B) {
			data, config := familyFiles(b, family)
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := LoadTokenizer(data, config); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
