// Command gen writes the amd64 assembly of package kernel, one family a run:
//
//	go run . -family int -out ../int_amd64.s -stubs ../int_amd64.go -pkg kernel
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

var families = map[string]func(){}

func main() {
	family := flag.String("family", "", "which file to write")
	flag.Parse()
	write, ok := families[*family]
	if !ok {
		fmt.Fprintln(os.Stderr, "no family", *family)
		os.Exit(2)
	}
	build.ConstraintExpr("amd64,!noasm")
	write()
	build.Generate()
}

// mem is base + disp.
func mem(base reg.Register, disp int) operand.Mem { return operand.Mem{Base: base, Disp: disp} }

// memX is base + index·scale + disp.
func memX(base, index reg.Register, scale uint8, disp int) operand.Mem {
	return operand.Mem{Base: base, Index: index, Scale: scale, Disp: disp}
}

// dwords is a constant in read-only memory.
func dwords(name string, v ...uint32) operand.Mem {
	m := build.GLOBL(name, build.RODATA|build.NOPTR)
	for i, x := range v {
		build.DATA(4*i, operand.U32(x))
	}
	return m
}

// qwords and byteTable are the same in other sizes.
func qwords(name string, v ...uint64) operand.Mem {
	m := build.GLOBL(name, build.RODATA|build.NOPTR)
	for i, x := range v {
		build.DATA(8*i, operand.U64(x))
	}
	return m
}

func byteTable(name string, v []byte) operand.Mem {
	m := build.GLOBL(name, build.RODATA|build.NOPTR)
	for i, x := range v {
		build.DATA(i, operand.U8(x))
	}
	return m
}

// lane is what a 512-bit register holds that has f(k) in byte k of every lane.
func lane(f func(k int) int) []byte {
	v := make([]byte, 64)
	for i := range v {
		v[i] = byte(f(i % 16))
	}
	return v
}

func repeated(v uint32, n int) []uint32 {
	s := make([]uint32, n)
	for i := range s {
		s[i] = v
	}
	return s
}

// function begins a function of one pointer argument and returns it in a register.
func function(name, signature, doc string) reg.GPVirtual {
	build.TEXT(name, build.NOSPLIT, signature)
	build.Pragma("noescape")
	build.Doc(doc)
	p := build.GP64()
	build.Load(build.Param("t"), p)
	return p
}
