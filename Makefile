SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build

GO       ?= go
FUZZTIME ?= 1m
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null)
LDFLAGS  := -s -w -X hawkmoth/cmd/internal/cli.Version=$(VERSION)
# -v so that skipped tests are seen; what passes is left out.
TEST     := $(GO) test -v -timeout 20m
QUIET    := grep -Ev '^ *(=== |--- PASS|PASS$$)'
LINTER   := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
PLATFORMS := darwin/arm64 darwin/amd64 linux/arm64 windows/amd64

.PHONY: build test test-noasm test-arm64 lint fuzz bench demo cross clean

build: ## the commands, in ./bin
	@mkdir -p bin
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...

test: ## every test of this machine, and the kernels as arm64
	$(TEST) ./... 2>&1 | $(QUIET)
	@$(MAKE) --no-print-directory test-arm64
	@command -v clang++-19 clang++-20 clang++-21 clang++-18 clang++ >/dev/null || echo "SKIPPED: GPU kernels on the CPU emulator: clang 18 or newer is missing"

test-noasm: ## the same tests without assembly
	$(TEST) -tags noasm ./... 2>&1 | $(QUIET)

# Where arm64 has a calling convention of its own: the drivers' host code.
ARM64_METAL := MetalHostCode|MetalSystems|CUDAHostCode|EmulatorDriver|CheckerPasses

test-arm64: ## the kernels' and the GPU drivers' tests under an arm64 emulator
	@if command -v qemu-aarch64-static >/dev/null; then \
		GOARCH=arm64 CGO_ENABLED=0 $(TEST) -exec qemu-aarch64-static ./runtime/kernel 2>&1 | $(QUIET); \
		GOARCH=arm64 CGO_ENABLED=0 $(TEST) -exec qemu-aarch64-static -run Vector ./quantize 2>&1 | $(QUIET); \
		GOARCH=arm64 CGO_ENABLED=0 $(TEST) -exec qemu-aarch64-static -run 'SameBitsOnEveryISA/(int8|int4-grouped/64|int3|fp8)' ./runtime 2>&1 | $(QUIET); \
	else \
		echo "SKIPPED: runtime, runtime/kernel and quantize as arm64: qemu-aarch64-static is missing"; \
	fi
	@if command -v qemu-aarch64-static >/dev/null && [ -d /usr/aarch64-linux-gnu/lib ]; then \
		GOARCH=arm64 CGO_ENABLED=0 $(TEST) -exec 'qemu-aarch64-static -L /usr/aarch64-linux-gnu' -run '$(ARM64_METAL)' ./metal 2>&1 | $(QUIET); \
	else \
		echo "SKIPPED: metal as arm64: qemu-aarch64-static or g++-aarch64-linux-gnu is missing"; \
	fi

lint: build/bin/golangci-lint ## gofmt, vet, linters, import arrows
	build/bin/golangci-lint run ./...

# The version is part of the pin: a linter of another version is replaced.
build/bin/golangci-lint: Makefile
	@mkdir -p build/bin
	GOBIN=$(CURDIR)/build/bin $(GO) install $(LINTER)
	@touch $@

fuzz: ## every fuzz target for FUZZTIME
	.ci/fuzz $(FUZZTIME)

bench: ## every benchmark
	$(GO) test -run '^$$' -bench . -benchmem ./...

demo: ## convert, inspect and run the embedded model
	$(GO) run ./cmd/run demo

cross: ## build and vet for the other platforms
	@for p in $(PLATFORMS); do \
		echo "$$p"; \
		GOOS=$${p%/*} GOARCH=$${p#*/} CGO_ENABLED=0 $(GO) build ./...; \
		GOOS=$${p%/*} GOARCH=$${p#*/} CGO_ENABLED=0 $(GO) vet ./...; \
	done

clean:
	rm -rf bin build
