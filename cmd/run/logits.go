package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/format"
	"hawkmoth/runtime"
)

func logitsCommand() *cobra.Command {
	var f modelFlags
	var from, to string
	var greedy int
	cmd := &cobra.Command{
		Use:   "logits DIR --ids FILE|1,2,3 -o FILE.safetensors",
		Short: "Write the logits of every position, to compare engines",
		Long: `Run token ids and write input_ids [S] I32, logits [S, vocab] F32 and, with -n,
greedy_ids [N] I32 (the greedy continuation) to a safetensors file.
--ids takes a list, a text file of numbers or a safetensors file with input_ids.
The same model and ids give the same file on every machine.`,
		Example: "  run logits ./tiny-glm-g64 --ids 46,1506,578 -o logits.safetensors\n  run logits ./tiny-glm-g64 --ids reference.safetensors -n 24 -o ours.safetensors",
		Args:    cli.Args("DIR"),
	}
	cmd.Flags().StringVar(&from, "ids", "", "`IDS`: 1,2,3 or a file")
	cmd.Flags().StringVarP(&to, "output", "o", "", "safetensors `FILE` to write")
	cmd.Flags().IntVarP(&greedy, "max-tokens", "n", 0, "also continue greedily by `N` tokens")
	f.registerContext(cmd)
	f.register(cmd)
	_ = cmd.MarkFlagRequired("ids")
	_ = cmd.MarkFlagRequired("output")
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if greedy < 0 {
			return cli.Usagef("-n must not be negative")
		}
		if err := f.check(); err != nil {
			return err
		}
		ids, err := readIDs(from)
		if err != nil {
			return err
		}
		if len(ids) == 0 {
			return cli.Usagef("--ids holds no token")
		}
		if err := format.CanWrite(to); err != nil {
			return err
		}
		m, err := f.load(cmd, args[0])
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, m.Close()) }()
		need := len(ids) + max(greedy-1, 0) // nobody needs the logits after the last token
		sess, err := f.session(m, "--ids with -n", need, need)
		if err != nil {
			return err
		}
		if err := writeLogits(cmd, m, sess, ids, greedy, to); err != nil {
			return err
		}
		wrote := fmt.Sprintf("%s: input_ids [%d], logits [%d, %d]", to, len(ids), len(ids), m.Config.VocabSize)
		if greedy > 0 {
			wrote += fmt.Sprintf(", greedy_ids [%d]", greedy)
		}
		cli.Note(cmd, "%s", wrote)
		return nil
	}
	return cmd
}

// writeLogits streams the logits to the file row by row.
func writeLogits(cmd *cobra.Command, m *runtime.Model, sess *runtime.Session, ids []int32, greedy int, path string) (err error) {
	vocab := m.Config.VocabSize
	entries := []format.Entry{{Name: "logits", DType: format.DTypeF32, Shape: []int{len(ids), vocab}}, {Name: "input_ids", DType: format.DTypeI32, Shape: []int{len(ids)}}}
	if greedy > 0 {
		entries = append(entries, format.Entry{Name: "greedy_ids", DType: format.DTypeI32, Shape: []int{greedy}})
	}
	w, err := format.Create(path, entries, map[string]string{"arithmetic": strconv.Itoa(runtime.ArithmeticVersion)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Abort()) }()
	row := make([]byte, 4*vocab)
	err = sess.Append(cmd.Context(), ids, func(i int, logits []float32) error {
		for j, v := range logits {
			binary.LittleEndian.PutUint32(row[4*j:], math.Float32bits(v))
		}
		return w.WriteAt("logits", row, int64(i)*int64(len(row)))
	})
	if err != nil {
		return err
	}
	if err := w.WriteAt("input_ids", idBytes(ids), 0); err != nil {
		return err
	}
	if greedy > 0 {
		sampler, err := runtime.NewSampler(runtime.SamplerOptions{TopP: 1, RepeatPenalty: 1})
		if err != nil {
			return err
		}
		var out []int32
		if _, err := sess.Generate(cmd.Context(), ids, runtime.Generation{Max: greedy, Sampler: sampler, Each: func(id int32, _ []float32) error {
			out = append(out, id)
			return nil
		}}); err != nil {
			return err
		}
		if err := w.WriteAt("greedy_ids", idBytes(out), 0); err != nil {
			return err
		}
	}
	return w.Commit()
}

func idBytes(ids []int32) []byte {
	var b []byte
	for _, id := range ids {
		b = binary.LittleEndian.AppendUint32(b, uint32(id))
	}
	return b
}

// readIDs reads a list of ids, a text file of them, or input_ids of a
// safetensors file.
func readIDs(from string) ([]int32, error) {
	if ids, err := parseIDs(from); err == nil {
		return ids, nil
	}
	if strings.HasSuffix(from, ".safetensors") {
		return shardIDs(from)
	}
	data, err := os.ReadFile(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &format.Error{Kind: format.ErrUsage, What: "--ids", Found: strconv.Quote(from), Wanted: "token ids such as 1,2,3, or a file of them that exists"}
	}
	if err != nil {
		return nil, err
	}
	ids, err := parseIDs(string(data))
	if err != nil {
		return nil, &format.Error{Kind: format.ErrUsage, Path: from, What: "not a list of token ids", Err: err}
	}
	return ids, nil
}

// parseIDs reads numbers separated by commas or white space, also as a JSON list.
func parseIDs(text string) ([]int32, error) {
	var ids []int32
	if err := json.Unmarshal([]byte(text), &ids); err == nil && ids != nil {
		return ids, nil
	}
	for _, field := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' || r == '\t' || r == '\r' }) {
		id, err := strconv.ParseInt(field, 10, 32)
		if err != nil {
			return nil, err
		}
		ids = append(ids, int32(id))
	}
	return ids, nil
}

func shardIDs(path string) (ids []int32, err error) {
	shard, err := format.OpenShard(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, shard.Close()) }()
	i := slices.IndexFunc(shard.Tensors, func(t *format.Tensor) bool { return t.Name == "input_ids" })
	if i < 0 {
		return nil, &format.Error{Kind: format.ErrUsage, Path: path, Tensor: "input_ids", What: "no such tensor"}
	}
	t := shard.Tensors[i]
	if t.DType != format.DTypeI32 || len(t.Shape) != 1 {
		return nil, &format.Error{Kind: format.ErrUsage, Path: path, Tensor: t.Name, What: "type and shape", Found: fmt.Sprintf("%s %v", t.DType, t.Shape), Wanted: "I32 [S]"}
	}
	raw, err := shard.Bytes(t)
	if err != nil {
		return nil, err
	}
	return idsOf(raw), nil
}

func idsOf(raw []byte) (ids []int32) {
	for ; len(raw) > 0; raw = raw[4:] {
		ids = append(ids, int32(binary.LittleEndian.Uint32(raw)))
	}
	return ids
}
