#!/usr/bin/env bash
# From the start of the program to its first token, and the memory of its own
# beside what it has touched of the mapped file.
#   benchmarks/start.sh RUNS CONTAINER > benchmarks/start.csv
set -euo pipefail
runs=$1 model=$2
here=$(cd "$(dirname "$0")/.." && pwd)
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
(cd "$here" && go build -o "$bin/" ./cmd/run)
cat "$model"/*.safetensors >/dev/null
echo "# commit $(git -C "$here" rev-parse --short HEAD), $(date -u +%F), $(sed -n 's/^model name\s*: //p' /proc/cpuinfo | head -1), $(nproc) processors; $(cat "$model"/*.safetensors | wc -c) bytes mapped"
echo "run,seconds_to_the_end_of_one_token,anonymous_mb,file_mb"
for run in $(seq "$runs"); do
	begin=$(date +%s.%N)
	"$bin/run" "$model" --backend cpu -p The -n 1 -q >/dev/null
	end=$(date +%s.%N)
	"$bin/run" "$model" --backend cpu -p The -n 64 -q >/dev/null &
	pid=$!
	anon=0 file=0
	while [ -r /proc/$pid/status ]; do
		read -r a f < <(awk '/^RssAnon/ {a = $2} /^RssFile/ {f = $2} END {print a + 0, f + 0}' /proc/$pid/status 2>/dev/null) || break
		((a > anon)) && anon=$a
		((f > file)) && file=$f
		sleep 0.01
		kill -0 $pid 2>/dev/null || break
	done
	wait $pid || true
	awk -v r="$run" -v b="$begin" -v e="$end" -v a="$anon" -v f="$file" 'BEGIN {printf "%s,%.3f,%.0f,%.0f\n", r, e - b, a/1024, f/1024}'
done
