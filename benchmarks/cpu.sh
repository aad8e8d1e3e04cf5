#!/usr/bin/env bash
# Ours beside llama.cpp on the same random model, run by run in turn.
#   benchmarks/cpu.sh RUNS LLAMA_BENCH 'OURS=THEIRS' ... > benchmarks/cpu.csv
# OURS is a container, THEIRS a GGUF file of the same weights; the first pair is
# also measured behind 4,096 tokens. LLAMA_BENCH's threads spin, as
# they do unless OMP_WAIT_POLICY says otherwise.
set -euo pipefail
runs=$1 llama=$2
shift 2
here=$(cd "$(dirname "$0")/.." && pwd)
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
(cd "$here" && go build -o "$bin/" ./cmd/run)
echo "# commit $(git -C "$here" rev-parse --short HEAD), $(date -u +%F), $(sed -n 's/^model name\s*: //p' /proc/cpuinfo | head -1), $(nproc) processors; 2 threads; OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-as built}"
echo "run,engine,model,test,tokens_per_second"
ours() { # model, arguments
	"$bin/run" bench "$1" --backend cpu -t 2 -r 1 -q -o csv "${@:2}" 2>/dev/null | tail -n +2 | awk -F, -v r="$run" -v m="$(basename "$1")" '{print r ",hawkmoth," m "," $2 "," $5}'
}
theirs() {
	"$llama" -m "$1" -t 2 -r 1 -o csv "${@:2}" 2>/dev/null | python3 -c '
import csv, sys
for r in csv.DictReader(sys.stdin):
    t = ("tg" + r["n_gen"]) if r["n_gen"] != "0" else "pp" + r["n_prompt"]
    d = "@d" + r["n_depth"] if r["n_depth"] != "0" else ""
    print(",".join([sys.argv[1], "llama.cpp", sys.argv[2], t + d, "%.3f" % float(r["avg_ts"])]))' "$run" "$(basename "$1")"
}
for run in $(seq "$runs"); do
	for pair in "$@"; do
		a=${pair%=*} b=${pair#*=}
		ours "$a" -p 512 -n 64
		theirs "$b" -p 512 -n 64
	done
	a=${1%=*} b=${1#*=}
	ours "$a" -p 0 -n 32 -d 4096
	theirs "$b" -p 0 -n 32 -d 4096
done
