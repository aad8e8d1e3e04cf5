package msl

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// Compiled is one kernel variant as PTX.
type Compiled struct {
	Key   string // names file, kernel and constants
	Hash  string // TextHash of the kernel file
	Entry Entry
	PTX   string `json:"-"`
}

// TextHash tells a kernel file's text from any other.
func TextHash(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text)))[:16] }

// mark starts the line before each kernel of an archive.
const mark = "//@ "

// Pack makes an archive of kernels: readable text, compressed.
func Pack(kernels []Compiled) ([]byte, error) {
	var b bytes.Buffer
	for _, k := range kernels {
		head, err := json.Marshal(k)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "%s%s\n%s\n", mark, head, strings.TrimRight(k.PTX, "\n"))
	}
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	return enc.EncodeAll(b.Bytes(), nil), nil
}

// Unpack reads an archive; the result is by key.
func Unpack(archive []byte) (map[string]Compiled, error) {
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	defer dec.Close()
	b, err := dec.DecodeAll(archive, nil)
	if err != nil {
		return nil, fmt.Errorf("archive of kernels: %w", err)
	}
	kernels := map[string]Compiled{}
	for part := range strings.SplitSeq("\n"+string(b), "\n"+mark) {
		if part == "" {
			continue
		}
		head, text, _ := strings.Cut(part, "\n")
		k := Compiled{PTX: strings.TrimRight(text, "\n")}
		if err := json.Unmarshal([]byte(head), &k); err != nil {
			return nil, fmt.Errorf("archive of kernels: %w", err)
		}
		kernels[k.Key] = k
	}
	return kernels, nil
}
