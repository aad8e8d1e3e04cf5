#!/usr/bin/env bash
# The GPU tests on a machine with an NVIDIA driver and neither Go nor a compiler.
#   benchmarks/h200.sh build      here: test binaries, with the PTX in them, into build/h200
#   benchmarks/h200.sh test OUT   there: every test, log into OUT
#   benchmarks/h200.sh speed OUT  there: kernels and whole models of random weights, CSV into OUT
#   benchmarks/h200.sh sanitize OUT [REGEXP]   there: compute-sanitizer's four tools over the tests that REGEXP names
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$PWD/build/h200
case ${1-} in
build)
	mkdir -p "$bin"
	go generate ./metal
	CGO_ENABLED=0 go test -c -trimpath -ldflags "-s -w" -o "$bin/metal.test" ./metal
	CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$bin/" ./cmd/run ./benchmarks/mkrandom
	git rev-parse HEAD >"$bin/commit"
	ls -l "$bin"
	;;
test)
	out=$2
	{
		echo "commit $(cat "$bin/commit"), $(date -u +%F)"
		nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,memory.total --format=csv,noheader
	} | tee "$out/machine.txt"
	cd metal
	"$bin/metal.test" -test.v -test.timeout 8m 2>&1 | tee "$out/test.log" | grep -E '^(---|    ---|ok|FAIL|PASS|panic)|GB/s|SKIPPED' || true
	grep -qx PASS "$out/test.log" && grep -q '^--- PASS' "$out/test.log"
	;;
speed)
	out=$2
	(cd metal && "$bin/metal.test" -test.run '^$' -test.bench 'MatMul|Attention|Launch' -test.benchtime 1x -test.timeout 5m) | tee "$out/kernels.txt"
	work=$(mktemp -d)
	for m in "bench int4-grouped/64" "bench int8-row" "glm52x2 int4-grouped/64"; do
		read -r preset format <<<"$m"
		dir=$work/$preset-${format%%/*}
		"$bin/mkrandom" -preset "$preset" -format "$format" "$dir"
		"$bin/run" bench "$dir" --backend cuda --require-gpu -p 512 -n 64 -d 0,4096 -r 3 --chunk 512 -o csv -q | sed "s#$work/##" | tee "$out/$preset-${format%%/*}.csv"
	done
	;;
sanitize)
	out=$2 only=${3-TestCUDADevice}
	cd metal
	status=0
	for tool in memcheck racecheck synccheck initcheck; do
		# leaks are the tests' own to find; the exit code says what the tool found
		if timeout 280 compute-sanitizer --tool "$tool" --error-exitcode 99 --print-limit 20 \
			"$bin/metal.test" -test.v -test.run "$only" >"$out/$tool.log" 2>&1; then
			echo "$tool: clean, $(grep -c '^ *--- PASS' "$out/$tool.log") tests passed"
		else
			echo "$tool: failed ($?)"
			status=1
		fi
		tail -n 3 "$out/$tool.log"
	done
	exit $status
	;;
*)
	sed -n 's/^#   //p' "$0" >&2
	exit 2
	;;
esac
