#!/usr/bin/env bash
# Speed of the tokenizer on one core: the fastest of some rounds of each
# benchmark, since other programs can only slow one down.
#   benchmarks/tokenizer.sh [ROUNDS] > benchmarks/tokenizer.csv
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-5}
echo "# commit $(git rev-parse --short HEAD), $(date -u +%F), $(sed -n 's/^model name\s*: //p' /proc/cpuinfo | head -1), one core"
echo "# command: benchmarks/tokenizer.sh $rounds; Encode*: 1 MiB of English books, EncodeMixed*: 109 KiB of many scripts, code and emoji; *Cold: words not seen before"
echo "benchmark,tokenizer,ms,mb_per_second"
go test ./runtime -run '^$' -cpu 1 -bench '^Benchmark(Encode|EncodeMixed|EncodeCold|EncodeMixedCold|LoadTokenizer)$' -benchtime 0.5s -count "$rounds" |
	awk '/^Benchmark/ {
			split(substr($1, 10), name, "/")
			key = name[1] "," name[2]
			if (!(key in ns)) order[++n] = key
			if (!(key in ns) || $3 < ns[key]) { ns[key] = $3; rate[key] = $5 }
		}
		END { for (i = 1; i <= n; i++) printf "%s,%.1f,%s\n", order[i], ns[order[i]] / 1e6, rate[order[i]] }'
