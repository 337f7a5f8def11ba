# The verbs people type. `make help` lists them.
.DEFAULT_GOAL := help
.PHONY: help setup build agent demo test test-fabric e2e-vf budget lint bench bench-quick bench-disk bench-vf fuzz docs clean

CARGO ?= cargo
BUILD_DIR ?= $(CURDIR)/build
export BUILD_DIR

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install what demo and tests need (Debian packages; QEMU and a guest kernel into build/)
	@testing/e2e/setup.sh

build: agent ## daemon, command, agent and CNI plugin: target/release/hayate, hayate-agent, hayate-cni
	$(CARGO) build --release -p hayate
	@ln -f $(GUEST)/hayate-agent $(GUEST)/hayate-cni $(TARGET)/release/
	@mkdir -p $(TARGET)/lib && ln -sfn $(BUILD_DIR)/libfabric/lib $(TARGET)/lib/hayate

AGENT_TARGET ?= $(shell rustc -vV | sed -n 's/^host: //p')
TARGET = $(or $(CARGO_TARGET_DIR),target)
GUEST = $(TARGET)/$(AGENT_TARGET)/guest

agent: ## agent and CNI plugin for guests, which need nothing of theirs: target/AGENT_TARGET/guest/
	RUSTFLAGS='-C target-feature=+crt-static' $(CARGO) build --profile guest -p hayate-agent -p hayate-cni --target $(AGENT_TARGET)

demo: setup build ## two real guests talk through hayate; KEEP=1 leaves them running
	$(CARGO) run --release -q -p e2e --bin demo

test: setup build ## everything: unit, property, interop with dpdk-testpmd, TAP, QEMU guests
	$(CARGO) test --workspace --no-fail-fast
	$(MAKE) test-fabric

# Of a workspace's tests, so that nothing is built anew for other features.
FABRIC = $(BUILD_DIR)/libfabric
FABRIC_ENV = LD_LIBRARY_PATH=$(FABRIC)/lib FABRIC_TEST_VERSION=$$(cut -d. -f1,2 $(FABRIC)/version)

test-fabric: setup ## what uses libfabric, once more with libfabric 2, which setup built
	@if [ ! -e $(FABRIC)/version ]; then echo "libfabric 2 is not there, as setup says: left out"; exit; fi; \
	echo "with libfabric $$(cat $(FABRIC)/version):"; set -ex; export $(FABRIC_ENV); \
	$(CARGO) test --workspace --test ends --test fabric; \
	$(CARGO) test --workspace --test stores --test store --test images -- fabrics:: a_fabric

e2e-vf: setup build ## virtual functions that a real guest makes, in full: 200 writes to sriov_numvfs, 20 reboots
	E2E_VF_FULL=1 $(CARGO) test -p e2e --test vf

budget: setup build ## makes what is executed now the budget: testing/budget/instructions.toml
	UPDATE_BUDGET=1 $(CARGO) test -q -p budget --test instructions

bench: build ## all tables beside dpdk-testpmd, OVS-DPDK and qemu-storage-daemon, into docs/performance/ (root, two quiet CPUs, 40 minutes)
	target/release/hayate bench $(BENCH)

bench-quick: build ## the headline table in three minutes, into build/bench/; BENCH="--rounds 8" adds options
	target/release/hayate bench --quick --out $(BUILD_DIR)/bench $(BENCH)

bench-vf: setup build ## pods of a QEMU guest, with virtual VFs and behind a bridge of the guest, in ten minutes, into build/bench-vf/
	$(CARGO) build --release -p e2e --bins
	target/release/hayate bench --cells vf --rounds 5 --out $(BUILD_DIR)/bench-vf $(BENCH)

bench-disk: build ## disks in memory beside qemu-storage-daemon and fio, the headline in two minutes, into build/bench-disk/
	target/release/hayate bench --cells disk,disk-idle --quick --out $(BUILD_DIR)/bench-disk $(BENCH)

lint: ## formatting and clippy, warnings are errors
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

fuzz: ## each fuzz target for a minute (needs a nightly toolchain and cargo-fuzz)
	@for target in $$(cd fuzz && $(CARGO) +nightly fuzz list); do \
		(cd fuzz && $(CARGO) +nightly fuzz run $$target -- -max_total_time=60) || exit 1; \
	done

docs: ## documentation of the code, and docs/config.md from the types
	$(CARGO) run -q -p hayate -- config doc > docs/config.md
	$(CARGO) doc --workspace --no-deps

clean: ## remove everything built and fetched
	$(CARGO) clean
	rm -rf $(BUILD_DIR)
