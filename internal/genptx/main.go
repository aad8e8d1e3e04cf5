// Genptx compiles every kernel variant of package metal to PTX, for machines
// that have an NVIDIA driver and no compiler. It is run by go generate ./metal
// and needs clang.
package main

import (
	"errors"
	"fmt"
	"os"
	goruntime "runtime"

	"golang.org/x/sync/errgroup"

	"hawkmoth/internal/msl"
	"hawkmoth/metal"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: genptx ARCHIVE")
		os.Exit(2)
	}
	if err := generate(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "genptx:", err)
		os.Exit(1)
	}
}

func generate(path string) error {
	variants := metal.Variants(true)
	entries := make([]msl.Compiled, len(variants))
	errs := make([]error, len(variants))
	var g errgroup.Group
	g.SetLimit(goruntime.GOMAXPROCS(0))
	for i, v := range variants {
		g.Go(func() error {
			entries[i], errs[i] = compile(v)
			return nil
		})
	}
	_ = g.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	b, err := msl.Pack(entries)
	if err != nil {
		return err
	}
	fmt.Printf("%d kernels, %d bytes\n", len(entries), len(b))
	return os.WriteFile(path, b, 0o644)
}

func compile(v metal.Variant) (msl.Compiled, error) {
	text, err := metal.Source(v.File)
	if err != nil {
		return msl.Compiled{}, err
	}
	f, err := msl.Parse(v.File, text)
	if err != nil {
		return msl.Compiled{}, err
	}
	var vals []msl.Value
	for _, c := range v.Constants {
		vals = append(vals, msl.Value(c))
	}
	b, e, err := msl.PTX(f, v.Kernel, vals)
	if err != nil {
		return msl.Compiled{}, err
	}
	return msl.Compiled{Key: v.Key(), Hash: msl.TextHash(text), Entry: e, PTX: string(b)}, nil
}
