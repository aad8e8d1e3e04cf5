package msl

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// shimFiles are the headers and sources that stand in for Metal's.
//
//go:embed shim/*
var shimFiles embed.FS

// ErrNoClang says that the compiler is missing.
var ErrNoClang = errors.New("needs clang 18 or newer")

// Clang finds the compiler.
var Clang = sync.OnceValues(func() (string, error) {
	for _, name := range []string{"clang++-19", "clang++-20", "clang++-21", "clang++-18", "clang++"} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		out, err := exec.Command(path, "--version").Output()
		if m := regexp.MustCompile(`(?m)^(?:\w+ )?clang version (\d+)`).FindSubmatch(out); err == nil && m != nil && !bytes.HasPrefix(out, []byte("Apple")) { // which lacks targets
			if major, _ := strconv.Atoi(string(m[1])); major >= 18 {
				return path, nil
			}
		}
	}
	return "", ErrNoClang
})

// cacheDir holds compiled files under names made from their content, with the
// shim's files beside them.
var cacheDir = sync.OnceValues(func() (string, error) {
	h := sha256.New()
	entries, err := shimFiles.ReadDir("shim")
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		b, err := shimFiles.ReadFile("shim/" + e.Name())
		if err != nil {
			return "", err
		}
		fmt.Fprintln(h, e.Name(), len(b))
		h.Write(b)
	}
	// code is loaded from here, so nobody else may write to it
	base, err := os.UserCacheDir()
	dir := filepath.Join(base, "hawkmoth", "msl", fmt.Sprintf("%x", h.Sum(nil)[:8]))
	if err != nil || os.MkdirAll(dir, 0o700) != nil {
		if dir, err = os.MkdirTemp("", "hawkmoth-msl"); err != nil {
			return "", err
		}
	}
	for _, e := range entries {
		b, _ := shimFiles.ReadFile("shim/" + e.Name())
		if have, err := os.ReadFile(filepath.Join(dir, e.Name())); err == nil && string(have) == string(b) {
			continue
		}
		if err := install(filepath.Join(dir, e.Name()), func(tmp string) error { return os.WriteFile(tmp, b, 0o644) }); err != nil {
			return "", err
		}
	}
	return dir, nil
})

// install makes a file under a name of its own and renames it, so that several
// processes may make the same one.
func install(path string, write func(tmp string) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), "tmp*-"+filepath.Base(path))
	if err != nil {
		return err
	}
	tmp := f.Name()
	err = errors.Join(f.Close(), write(tmp))
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = os.Remove(tmp)
	}
	return err
}

// clang compiles text (or the shim's file of that name if it has no newline)
// unless the cache has the result, and returns its path.
func clang(text, ext string, args ...string) (string, error) {
	cc, err := Clang()
	if err != nil {
		return "", err
	}
	dir, err := cacheDir()
	if err != nil {
		return "", err
	}
	h := sha256.Sum256([]byte(text + "\x00" + cc + "\x00" + strings.Join(args, "\x00")))
	base := filepath.Join(dir, fmt.Sprintf("%x", h[:10]))
	out := base + ext
	if _, err := os.Stat(out); err == nil {
		return out, nil
	}
	src := filepath.Join(dir, text)
	if strings.Contains(text, "\n") {
		src = base + ".cpp"
		if err := install(src, func(tmp string) error { return os.WriteFile(tmp, []byte(text), 0o644) }); err != nil {
			return "", err
		}
	}
	err = install(out, func(tmp string) error {
		a := slices.Concat([]string{"-I", dir}, args, []string{"-o", tmp, src})
		if b, err := exec.Command(cc, a...).CombinedOutput(); err != nil {
			return fmt.Errorf("clang: %w\n%s", err, b)
		}
		return nil
	})
	return out, err
}

// common are the flags of every mode.
var common = []string{"-std=c++14", "-fms-extensions", "-fno-exceptions", "-ffp-contract=off",
	"-Wno-unknown-attributes", "-Wno-unknown-pragmas", "-Wno-unused-function"}

// PTX compiles one specialised kernel for NVIDIA devices of compute capability
// 7.5 on.
func PTX(f *File, kernel string, vals []Value) ([]byte, Entry, error) {
	k := f.Kernel(kernel)
	if k == nil {
		return nil, Entry{}, fmt.Errorf("%s: no kernel %s", f.Name, kernel)
	}
	text, e, err := f.cuda(k, vals)
	if err != nil {
		return nil, e, err
	}
	path, err := clang(text, ".ptx", slices.Concat(common, []string{"-x", "cuda", "--cuda-device-only", "--cuda-gpu-arch=sm_75", "--cuda-feature=+ptx78",
		"-nocudainc", "-nocudalib", "-O3", "-S"})...)
	if err != nil {
		return nil, e, fmt.Errorf("%s: kernel %s: %w", f.Name, kernel, err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, e, err
	}
	if !bytes.Contains(b, []byte(early+"griddepcontrol.wait")) {
		return nil, e, fmt.Errorf("%s: kernel %s does not wait for its inputs", f.Name, kernel)
	}
	return b, e, errors.Join(e.measure(string(b)), checkPTX(f.Name+": kernel "+kernel, string(b)))
}

// loose are instructions whose result the assembler or the device may round or
// reorder as it likes.
var loose = regexp.MustCompile(`\b(?:(?:add|sub|mul)\.(?:sat\.)?(?:f16|f16x2|f32|f64)|\w+(?:\.\w+)*\.(?:ftz|approx|full)(?:\.\w+)*|mad\.f32)\b`)

func checkPTX(what, ptx string) error {
	if found := loose.FindAllString(ptx, -1); found != nil {
		slices.Sort(found)
		return fmt.Errorf("%s: PTX instructions without a fixed rounding: %s", what, strings.Join(slices.Compact(found), ", "))
	}
	return nil
}

// CheckTypes compiles a file as C++ for OpenCL, which refuses what only
// Apple's compiler would refuse: pointers of the wrong address space.
func CheckTypes(f *File) error {
	_, err := clang(f.strict(), ".strict", "-x", "clcpp", "-cl-std=CLC++2021", "-cl-no-stdinc", "-cl-single-precision-constant",
		"-Wno-unknown-attributes", "-Wno-unknown-pragmas", "-fsyntax-only")
	if err != nil {
		return fmt.Errorf("%s: %w", f.Name, err)
	}
	return nil
}
