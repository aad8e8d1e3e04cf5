#!/usr/bin/env bash
# Conversion (without the verification, which llama-quantize has not) of a BF16 checkpoint to int4-grouped/64 beside llama-quantize to
# Q4_0 of the same tensors in F16, in turn, all files in memory (a tmpfs).
#   benchmarks/convert.sh RUNS LLAMA_QUANTIZE CHECKPOINT GGUF > benchmarks/convert.csv
set -euo pipefail
runs=$1 llama=$2 checkpoint=$3 gguf=$4
here=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d -p /dev/shm)
trap 'rm -rf "$work"' EXIT
(cd "$here" && go build -o "$work/" ./cmd/convert)
cat "$checkpoint"/*.safetensors "$gguf" >/dev/null # into the page cache
bytes=$(cat "$checkpoint"/*.safetensors | wc -c)
echo "# commit $(git -C "$here" rev-parse --short HEAD), $(date -u +%F), $(sed -n 's/^model name\s*: //p' /proc/cpuinfo | head -1), $(nproc) processors; $(wc -c <"$gguf") bytes of GGUF, $bytes of safetensors"
echo "run,program,seconds,source_gb_per_second,peak_mb"
timed() { # program, bytes of its source, command...
	local name=$1 source=$2
	shift 2
	/usr/bin/time -o "$work/time" -f '%e %M' "$@" >/dev/null 2>&1
	awk -v r="$run" -v n="$name" -v b="$source" '{printf "%s,%s,%s,%.3f,%.0f\n", r, n, $1, b/1e9/$1, $2/1024}' "$work/time"
}
for run in $(seq "$runs"); do
	rm -rf "$work/ours"
	timed hawkmoth "$bytes" "$work/convert" "$checkpoint" "$work/ours" --format int4-grouped --group-size 64 --allow-bigger --allow-ambiguous --verify=false
	timed llama-quantize "$(wc -c <"$gguf")" "$llama" --pure "$gguf" "$work/theirs.gguf" Q4_0 2
done
