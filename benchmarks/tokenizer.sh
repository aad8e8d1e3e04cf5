#!/usr/bin/env bash
# Speed of the tokenizer on one core, into tokenizer.csv: the fastest of five
# rounds of each benchmark, since other programs can only slow one down.
set -euo pipefail
cd "$(dirname "$0")/.."
go test ./runtime -run '^$' -cpu 1 -bench '^Benchmark(Encode|EncodeMixed|EncodeCold|EncodeMixedCold|LoadTokenizer)$' -benchtime 0.5s -count "${1:-5}" |
	awk -v commit="$(git rev-parse --short HEAD)" '
		/^cpu:/ { sub(/^cpu: */, ""); cpu = $0 }
		/^Benchmark/ {
			split(substr($1, 10), name, "/")
			key = name[1] "," name[2]
			if (!(key in ns)) { order[++n] = key; ns[key] = $3; rate[key] = $5 }
			if ($3 < ns[key]) { ns[key] = $3; rate[key] = $5 }
		}
		END {
			print "benchmark,tokenizer,ms,mb_per_second,cpu,commit"
			for (i = 1; i <= n; i++) printf "%s,%.1f,%s,%s,%s\n", order[i], ns[order[i]] / 1e6, rate[order[i]], cpu, commit
		}' >benchmarks/tokenizer.csv
