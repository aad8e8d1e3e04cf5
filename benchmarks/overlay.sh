#!/usr/bin/env bash
# Speed of an overlay of GLM-5.2's kv_b, 78 matrices [28672,512], from BF16 in
# the page cache to int4-grouped/64 beside an int8-row base that holds them alone.
#   benchmarks/overlay.sh [RUNS] [DIR] > benchmarks/overlay.csv
# DIR is on a file system with 6 GB to spare.
set -euo pipefail
cd "$(dirname "$0")/.."
runs=${1:-5}
work=$(mktemp -d -p "${2:-${TMPDIR:-/tmp}}")
trap 'rm -rf "$work"' EXIT
go build -o "$work/" ./cmd/convert ./benchmarks/mkrandom
for f in bf16 int8-row; do
	"$work/mkrandom" -preset glm52 -only 'kv_b_proj' -format "$f" "$work/$f"
done
echo "# commit $(git rev-parse --short HEAD), $(date -u +%F), $(sed -n 's/^model name\s*: //p' /proc/cpuinfo | head -1), $(nproc) processors, load $(cut -d' ' -f1 /proc/loadavg)"
echo "# command: benchmarks/overlay.sh $runs; written to $(stat -f -c %T "$work")"
echo "run,source_bytes,seconds,gb_per_second,cpu_seconds"
TIMEFORMAT='%U %S'
for run in $(seq "$runs"); do
	cat "$work"/bf16/*.safetensors >/dev/null
	{ time "$work/convert" overlay "$work/int8-row" --from "$work/bf16" --tensors kv_b_proj --format int4-grouped --group-size 64 --verify=false --json 2>/dev/null >"$work/out.json"; } 2>"$work/time"
	value() { grep -o "\"$1\":[0-9.e+]*" "$work/out.json" | head -1 | cut -d: -f2; }
	awk -v run="$run" -v bytes="$(value source_bytes)" -v s="$(value seconds)" -v rate="$(value source_bytes_per_second)" \
		'{ printf "%d,%.0f,%.3f,%.2f,%.2f\n", run, bytes, s, rate / 1e9, $1 + $2 }' "$work/time"
	"$work/convert" overlay --remove kvb "$work/int8-row" -q >/dev/null
done
