# Writes the arm64 assembly anew; needs clang-19 and llvm-19.
set -e
cd "$(dirname "$0")"
object=$(mktemp)
trap 'rm -f "$object"' EXIT
words() { # C file, package, assembly, stubs
	clang-19 --target=aarch64-linux-gnu -O2 -march=armv8.2-a+dotprod -ffp-contract=off -fno-vectorize -fno-slp-vectorize \
		-ffixed-x18 -ffixed-x28 -fomit-frame-pointer -ffreestanding -fno-asynchronous-unwind-tables -c "neon/$1.c" -o "$object"
	go run ./wordgen "$object" "$1" "$2" "$3" "$4"
}
words neon kernel ../neon_arm64.s ../neon_arm64.go
words encode quantize ../../../quantize/encode_arm64.s ../../../quantize/encode_arm64.go
