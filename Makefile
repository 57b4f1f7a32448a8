# Everything a developer does. `make demo` and `make test` also install what they need (Debian, as root).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# What is set here is for this Makefile alone: libbpf is built by make too, and would install itself into
# DESTDIR.
MAKEOVERRIDES =

RESULTS ?= docs/results
RUNS ?= 10
FUZZ_SECONDS ?= 3
# What install takes: release, built first, or dev, which `make test` has built.
PROFILE ?= release
TORTURE ?= --json $(RESULTS)/torture.json
MINUTES ?= 10
VM_KERNEL ?= debian
KERNEL_FLAVOUR ?= base
# Which Linux, for all of kernel/: see kernel/common.
KERNEL ?= 6.12
export KERNEL
# What results of another kernel than that have in their names.
OF_KERNEL = $(patsubst %,-%,$(filter-out 6.12,$(KERNEL)))
VM_REQUIRE_debian = damon-vaddr,ptwalk,ptwalk-huge-pages,ptwalk-freezer,ptwalk-root,ptwalk-namespace
VM_REQUIRE_idle = $(VM_REQUIRE_debian),page-idle,ptwalk-flush

.PHONY: help build release built built-by-test demo test test-example test-memcached torture recolor vm-test kernel kernel-test kernel-port kernel-superhue kernel-files kernel-boots kernel-native lint fuzz bench results lab lab-trace lab-witness ci man install uninstall test-install packages test-packages test-services crates wheels sbom image test-cluster test-metrics clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | column -t -s "$$(printf '\t')"

build: ## Build everything for development
	@scripts/setup build
	cargo build --workspace

# Goes into results; not into the environment of tests.
release: export SUPERHUE_COMMIT = $(shell git rev-parse --short HEAD 2>/dev/null)
release: ## Build the command with the plugin of its lab, the library and the workloads for use
	@scripts/setup build
	cargo build --release -p superhue-cli -p superhue-workloads -p superhue-capi
	witness/trace

demo: release ## Decide for real programs whether huge pages are worth it (5 minutes)
	@scripts/setup demo
	demo/decide.py

# The build includes the tests, so that dependencies have the same features, and are not compiled a second time for them. Most tests wait for
# programs that they watch.
test: export RUST_TEST_THREADS ?= $(shell expr 2 '*' $$(nproc))
test: ## Run the tests that need no other kernel, package or cluster
	@scripts/setup build test
	cargo build --workspace --lib --bins --tests --examples
	cargo test --workspace --no-fail-fast
	python/test
	$(MAKE) test-example

test-example: ## Test the example cache, also under the sanitizers; build the others
	@scripts/setup test
	$(MAKE) -C examples/hotcache test
	$(MAKE) -C examples/colors

test-memcached: release ## Build Debian's memcached with our patches, and run its tests in every way (15 minutes)
	@scripts/setup memcached
	integrations/memcached/test --json $(RESULTS)/memcached-suite.json

torture: release ## Run hostile programs and others' tests in every mode, and compare (TORTURE="--quick")
	@scripts/setup torture
	scripts/torture $(TORTURE)

recolor: release ## Recolor programs that check themselves for MINUTES (10), as root; adds to what is kept in RESULTS
	@scripts/setup torture
	scripts/recolor soak --minutes $(MINUTES) --out $(RESULTS)

# Where a test takes DAMON or page_idle, or nobody else may clear accessed bits, only a machine of
# its own will do.
vm-test: ## Run the tests that need another kernel in an emulated machine (VM_KERNEL=debian|idle)
	@scripts/setup build vm
	scripts/vm run --kernel $(VM_KERNEL) --require $(VM_REQUIRE_$(VM_KERNEL)) superhue-heat/heat_live \
		superhue-heat/ptwalk check

kernel: ## Build Linux with page coloring (KERNEL=6.12|7.3 KERNEL_FLAVOUR=base|debug|kcsan|rt|irqsoff|unpatched|unconfigured)
	@scripts/setup kernel
	kernel/build --flavour $(KERNEL_FLAVOUR)

kernel-test: ## Boot it in an emulated machine and run its tests, those of superhue on it too
	@scripts/setup kernel-test
	arguments=$$(kernel/superhue/build) && kernel/test --flavour $(KERNEL_FLAVOUR) --numa 2 $$arguments

# What is read and changed is the series for 6.12.
kernel-port: export KERNEL = 7.3
kernel-port: ## Make the patches for the newer kernel of those for 6.12
	@scripts/setup kernel-port
	kernel/port

# Where MADV_COLLAPSE works on files.
kernel-files: export KERNEL = 7.3
kernel-files: ## Test huge pages of mapped files on the newest kernel, unpatched, in an emulated machine
	@scripts/setup kernel-test
	arguments=$$(kernel/superhue/build files) && kernel/test --flavour unpatched-user --only files \
		--json $(RESULTS)/kernel-files-7.3.json $$arguments

kernel-superhue: ## Run superhue on it alone, and keep the reports in RESULTS
	@scripts/setup kernel-test
	kernel/superhue/run $(RESULTS)/kernel-superhue$(OF_KERNEL).json

kernel-boots: ## Boot it with many settings of page_color=, nonsense included
	@scripts/setup kernel-test
	kernel/test-boots --json $(RESULTS)/kernel-boots$(OF_KERNEL).json --flavour $(KERNEL_FLAVOUR)

kernel-native: ## Boot Linux 7.3 with the patches as User-Mode Linux on this CPU's own caches, and measure what colors are worth (root)
	@scripts/setup build kernel
	kernel/native --out $(RESULTS)/kernel-native.json
	kernel/native --out $(RESULTS)/kernel-native.json table

lint: ## Check format, lints, documentation and scripts
	@scripts/setup lint
	cargo fmt --check
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet
	scripts/lint-calls
	git grep -lE '^(#!/bin/(ba|)sh|# shellcheck shell=)' | xargs shellcheck
	scripts/recolor tables --check
	scripts/given-back --table --check
	scripts/big table --check
	scripts/programs-table --check
	scripts/mapped-file --table --check
	scripts/hostile table --check
	kernel/native table --check
	scripts/default table --check
	scripts/fill table --check
	scripts/lengths table --check
	scripts/bounds table --check
	scripts/figures --check
	scripts/schemas --check
	scripts/papers table --check
	scripts/round-results --check
	scripts/house --words --check

fuzz: ## Run every fuzz target for FUZZ_SECONDS (3)
	@scripts/setup fuzz
	FUZZ_SECONDS=$(FUZZ_SECONDS) fuzz/run

bench: results ## Measure everything in docs/results again (an hour)

results: release
	@scripts/setup demo
	scripts/measure all
	scripts/round-results

# The guests of the kernels are booted once; their frames are kept below target/lab.
lab: release ## Replay the papers' figures on models of their machines, on frames of real kernels (LAB="--quick")
	@scripts/setup kernel-test lab
	kernel/frames
	target/release/superhue lab $(LAB) --output docs/lab >/dev/null
	scripts/papers table

lab-trace: ## Build the plugin by which superhue lab sees what a command refers to (superhue lab -- COMMAND)
	@scripts/setup lab-trace
	witness/trace

# Some points again, full-system; see witness/README.md.
lab-witness: release ## Run some points of the lab under a plugin of QEMU, compare with the replay, and say so on the lab's page
	@scripts/setup lab-witness
	witness/run
	status=0; target/release/superhue lab --witness target/lab/witness --output docs/lab || status=$$?; \
	target/release/superhue lab --from docs/lab/lab.json --output docs/lab >/dev/null; scripts/papers table; exit $$status

ci: ## What is run for every change
	.ci/run

# What install takes is there.
built: $(PROFILE:dev=built-by-test)
built-by-test:
	@scripts/setup build
	@test -x target/debug/superhue || { echo "target/debug/superhue is not there: run make test, or leave out PROFILE=dev" >&2; exit 1; }
	witness/trace

man: built ## Write the manual pages to target/man
	target/$(PROFILE:dev=debug)/superhue man target/man

PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
unexport DESTDIR PREFIX LIBDIR
install: built man ## Install below PREFIX (/usr/local), within DESTDIR
	SUPERHUE_BUILT=target/$(PROFILE:dev=debug) scripts/install-files install '$(DESTDIR)' '$(PREFIX)' '$(LIBDIR)'

uninstall: ## Remove exactly what install put below PREFIX, within DESTDIR
	scripts/install-files uninstall '$(DESTDIR)' '$(PREFIX)' '$(LIBDIR)'

test-metrics: release ## Have a real Prometheus scrape the daemon, and hold dashboard and alerts against it
	@scripts/setup metrics
	scripts/test-metrics

test-install: export PROFILE := $(PROFILE)
test-install: ## Install into a folder, and use what is there (PROFILE=dev: what make test has built)
	@scripts/setup build test
	scripts/test-install

packages: release man ## Make .deb and .rpm packages in target/packages/out
	@scripts/setup packages
	scripts/packages

test-packages: packages ## Install, use, upgrade and purge them in a fresh Debian below a temporary folder
	@scripts/setup test-packages
	scripts/test-packages

test-services: packages ## The whole path: package, rule, unit, restarts of redis and postgres; keeps the times in RESULTS
	@scripts/setup test-packages test-services
	scripts/test-services --json $(RESULTS)/services.json

crates: ## Prove that the crates are ready for the registry
	@scripts/setup build
	scripts/crates

wheels: release ## Make the Python wheel and source distribution in target/wheels, and test them
	@scripts/setup test wheels
	scripts/wheels

image: release ## Make an OCI image in target/image, without a daemon
	scripts/build-image

test-cluster: image ## Check manifests against Kubernetes' schemas, the image, and the matching of pods on real cgroups
	@scripts/setup test-cluster
	scripts/test-cluster
	scripts/test-pods --json $(RESULTS)/pods.json

sbom: ## Write bills of materials (CycloneDX) to target/sbom
	@scripts/setup sbom
	scripts/sbom

clean: ## Remove what was built
	cargo clean
	$(MAKE) -C examples/hotcache clean
	$(MAKE) -C examples/colors clean
	rm -rf fuzz/target fuzz/corpus
