# `make setup` once; every other target calls it and it costs nothing when nothing changed.
# EXTRAS: what to install beside the package. CI needs no peers, so it leaves `bench` out.
PYTHON ?= python3
EXTRAS ?= test,dev,torch,bench
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/setup-$(subst $(comma),-,$(EXTRAS)).stamp
comma := ,

NATIVE := $(shell find tvm_stretch/runtime/native tvm_stretch/scheduling/native -name "*.cc" -o -name "*.h")
CXX_FILES = $(shell git ls-files '*.cc' '*.h')
SYSTEM_PACKAGES := cmake g++ libgtest-dev pocl-opencl-icd

# One thread pool per process: tests run side by side, and TVM must not re-pin the caller's thread.
export TVM_BIND_THREADS ?= 0

.PHONY: setup demo test test-full lint format bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml CMakeLists.txt $(NATIVE)
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  dpkg -s $(SYSTEM_PACKAGES) >/dev/null 2>&1 || \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $(SYSTEM_PACKAGES); }; \
	else \
	  for tool in cmake g++; do command -v $$tool >/dev/null || echo "missing: $$tool" >&2; done; \
	fi
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[$(EXTRAS)]'
	@touch $@

demo: setup
	$(BIN)/python -m benchmarks.demo

test: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal tests

test-full: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "full or not full" --hypothesis-profile=full tests

# mypy sees the package as the wheel installs it, with passes/ and targets/ inside.
lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@rm -rf build/types && mkdir -p build/types && cp -r tvm_stretch build/types/ \
	  && cp -r passes targets build/types/tvm_stretch/
	MYPYPATH=build/types $(BIN)/mypy -p tvm_stretch
	$(if $(CXX_FILES),$(BIN)/clang-format --dry-run -Werror $(CXX_FILES))

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(if $(CXX_FILES),$(BIN)/clang-format -i $(CXX_FILES))

bench: setup
	$(BIN)/python -m benchmarks.peers --json peers.json

clean:
	rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis
