#!/usr/bin/env bash
# Perplexity of a checkpoint in every weight format, over a text.
#   benchmarks/perplexity.sh CHECKPOINT TEXT [TOKENS] > benchmarks/perplexity.csv
set -euo pipefail
cd "$(dirname "$0")/.."
checkpoint=$1 text=$2 tokens=${3:-0}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go build -o "$work/" ./cmd/convert ./cmd/run
echo "# commit $(git rev-parse --short HEAD), $(date -u +%F), $(sed -n 's/^model name\s*: //p' /proc/cpuinfo | head -1), $(nproc) processors"
echo "# command: benchmarks/perplexity.sh $(basename "$checkpoint") $(basename "$text") $tokens; windows of 256 tokens"
echo "format,bits_per_weight,tokens,nll,perplexity,bits_per_byte,seconds"
for f in bf16 int8-row int4-grouped/64 int4-grouped/128 int4-row int3-g64 int2-row; do
	rm -rf "$work/out"
	"$work/convert" --json -q --format "$f" --allow-ambiguous --allow-bigger "$checkpoint" "$work/out" >"$work/convert.json" 2>/dev/null
	"$work/run" ppl "$work/out" "$text" --tokens "$tokens" --json 2>/dev/null >"$work/ppl.json"
	bits=$(grep -o '"bits_per_weight":[0-9.]*' "$work/convert.json" | tail -1 | cut -d: -f2)
	value() { grep -o "\"$1\":[0-9.]*" "$work/ppl.json" | head -1 | cut -d: -f2; }
	echo "$f,$bits,$(value tokens),$(value nll),$(value perplexity),$(value bits_per_byte),$(value seconds)"
done
