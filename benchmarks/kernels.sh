#!/usr/bin/env bash
# Rates of the matrix products on matrices far larger than the caches, beside a
# plain read of the same memory in the same run; medians.
#   benchmarks/kernels.sh [ROUNDS] > benchmarks/kernels.csv
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-15}
csv=$(mktemp)
trap 'rm -f "$csv"' EXIT
echo "# commit $(git rev-parse --short HEAD), $(date +%F), $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1), $(nproc) processors, load $(cut -d' ' -f1 /proc/loadavg)"
echo "# command: benchmarks/kernels.sh $rounds; rows of 6,144 columns, one vector"
echo "isa,format,threads,mb,gb_per_second,read_gb_per_second,gmac_per_second,rounds"
go test -run '^$' -bench Memory -benchtime "${rounds}x" ./runtime/kernel -kernels.csv "$csv" >&2
cat "$csv"
