# Writes the arm64 assembly anew; needs clang-19 and llvm-19.
set -e
cd "$(dirname "$0")"
object=$(mktemp)
trap 'rm -f "$object"' EXIT
clang-19 --target=aarch64-linux-gnu -O2 -march=armv8.2-a+dotprod -ffp-contract=off -fno-vectorize -fno-slp-vectorize \
	-ffixed-x18 -ffixed-x28 -fomit-frame-pointer -ffreestanding -fno-asynchronous-unwind-tables -c neon/neon.c -o "$object"
go run ./wordgen "$object" ../neon_arm64.s ../neon_arm64.go
