#!/usr/bin/env bash
# Decode while another process keeps a processor busy, against decode alone, in turn.
#   benchmarks/busy.sh RUNS CONTAINER > benchmarks/busy.csv
set -euo pipefail
runs=$1 model=$2
here=$(cd "$(dirname "$0")/.." && pwd)
bin=$(mktemp -d)
trap 'rm -rf "$bin"; kill $(jobs -p) 2>/dev/null || true' EXIT
(cd "$here" && go build -o "$bin/" ./cmd/run)
echo "# commit $(git -C "$here" rev-parse --short HEAD), $(date -u +%F), $(sed -n 's/^model name\s*: //p' /proc/cpuinfo | head -1), $(nproc) processors; $(nproc) threads"
echo "run,busy_processors,tokens_per_second"
rate() { "$bin/run" bench "$model" --backend cpu -t "$(nproc)" -r 1 -p 0 -n 64 -q -o csv 2>/dev/null | tail -1 | cut -d, -f5; }
for run in $(seq "$runs"); do
	echo "$run,0,$(rate)"
	taskset -c 0 bash -c 'while :; do :; done' &
	echo "$run,1,$(rate)"
	kill $! && wait $! 2>/dev/null || true
done
