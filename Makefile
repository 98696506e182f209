# kvreuse: everything a developer needs. The first run makes .venv and compiles; later runs are quick.

PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
PIP     := $(BIN)/python -m pip --disable-pip-version-check -qq
STAMPS  := $(VENV)/.stamps
SOURCES := pyproject.toml CMakeLists.txt $(shell find native -type f)
MODEL   ?= smollm2-135m
PROMPT  ?= Give me three tips for a good night's sleep.
export PROMPT
PYTEST_ARGS ?=
ALL_TESTS := --all-isas --numprocesses auto --maxprocesses 8 --dist loadfile
BENCH_ARGS  ?=
PEERS_ARGS  ?=
FUZZ_ARGS   ?=
SOAK_ARGS   ?=

say = @if [ -t 1 ]; then printf '\033[1m== %s\033[0m\n' "$(1)"; else printf '== %s\n' "$(1)"; fi

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help build demo test lint format wheel bench bench-peers figures soak fuzz fuzz-sanitized clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 24

build: $(STAMPS)/build ## .venv with kvreuse in it, editable; compiles what changed in native/

demo: $(STAMPS)/build ## get the default model and answer a question with it
	$(call say,model: kvreuse pull $(MODEL))
	@$(BIN)/kvreuse pull $(MODEL)
	$(call say,answer: kvreuse run $(MODEL) \"$$PROMPT\")
	@$(BIN)/kvreuse run $(MODEL) "$$PROMPT"

test: $(STAMPS)/build $(STAMPS)/test ## run the whole suite, on every instruction set this CPU has
	$(call say,tests: pytest $(or $(PYTEST_ARGS),$(ALL_TESTS)))
	@$(BIN)/python -m pytest $(or $(PYTEST_ARGS),$(ALL_TESTS))

lint: $(STAMPS)/build $(STAMPS)/test $(STAMPS)/dev ## ruff, ruff format and mypy --strict
	$(call say,lint: ruff check; ruff format --check; mypy)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(STAMPS)/dev ## let ruff format the tree and fix what it can
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

wheel: $(STAMPS)/tools ## build dist/kvreuse-*.whl, which needs no compiler to install
	$(call say,wheel: pip wheel . (the compiler's output is kept in build/))
	@rm -rf dist
	@$(PIP) wheel --no-build-isolation --no-deps --wheel-dir dist .
	@ls -sh dist

bench: $(STAMPS)/build ## measure this machine's limits and the engine against them
	$(call say,bench: bench/limits.py; bench/engine.py $(BENCH_ARGS))
	@$(BIN)/python bench/limits.py
	@$(BIN)/python bench/engine.py $(BENCH_ARGS)

soak: $(STAMPS)/build $(STAMPS)/test ## clients that come and go for minutes, and 2,000 requests that a schema thinks of
	$(call say,soak: bench/soak.py $(SOAK_ARGS))
	@$(BIN)/python bench/soak.py $(SOAK_ARGS)
	$(call say,soak: schemathesis, 2,000 cases)
	@KVREUSE_SCHEMA_CASES=2000 $(BIN)/python -m pytest tests/server/test_schema.py

FIGURES := growth memory prefix pool quality
PAGES   := docs/kv-cache.md docs/kv-cache.zh.md
figures: $(STAMPS)/build $(STAMPS)/figures ## measure the figures of docs/kv-cache.md on this machine and draw them
	@for name in $(FIGURES); do \
	  if [ -t 1 ]; then printf '\033[1m== figure: %s\033[0m\n' $$name; else printf '== figure: %s\n' $$name; fi; \
	  $(BIN)/kvreuse figure $$name $(MODEL) --output docs/figures || exit; \
	done
	@$(BIN)/python bench/captions.py $(PAGES)

PEERS := .bench/peers
bench-peers: $(STAMPS)/build $(PEERS)/llama_cpp/.stamp $(PEERS)/openvino_genai/.stamp ## measure other engines beside it (installs them the first time)
	$(call say,bench: python -m peers $(PEERS_ARGS))
	@PYTHONPATH=bench $(BIN)/python -m peers $(PEERS_ARGS)

# Without -DGGML_NATIVE=ON it would be compiled for any CPU, and be slower.
$(PEERS)/%/.stamp: bench/peers/requirements/%.txt
	$(call say,peer: the packages of $< in $(PEERS)/$* (llama_cpp is compiled: some minutes))
	@rm -rf $(PEERS)/$* && $(PYTHON) -m venv $(PEERS)/$*
	@CMAKE_ARGS="-DGGML_NATIVE=ON -DMTMD_BUILD=OFF -DLLAVA_BUILD=OFF" \
	  $(PEERS)/$*/bin/python -m pip --disable-pip-version-check -qq install --requirement $<
	@touch $@

fuzz: $(STAMPS)/build $(STAMPS)/test ## feed thousands of damaged model files to the engine
	$(call say,fuzz: bench/fuzz.py $(FUZZ_ARGS))
	@$(BIN)/python bench/fuzz.py $(FUZZ_ARGS)

SANITIZED := build/sanitized
# Python itself has no sanitizers: their library, and the one whose exceptions it watches, come first.
fuzz-sanitized: $(STAMPS)/build $(STAMPS)/test ## the same, with AddressSanitizer and UBSan in the kernels
	$(call say,build: the kernels with sanitizers in $(SANITIZED) (some minutes the first time))
	@$(BIN)/cmake -S . -B $(SANITIZED) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) \
	  -DPython_EXECUTABLE=$(abspath $(BIN)/python) -DKVREUSE_SANITIZE=ON >/dev/null
	@$(BIN)/cmake --build $(SANITIZED) >/dev/null
	$(call say,fuzz: bench/fuzz.py --native $(SANITIZED)/_native*.so $(FUZZ_ARGS))
	@CXX="$${CXX:-c++}"; ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 PYTHONMALLOC=malloc \
	  LD_PRELOAD="$$($$CXX -print-file-name=libasan.so) $$($$CXX -print-file-name=libstdc++.so)" \
	  $(BIN)/python bench/fuzz.py --native $(SANITIZED)/_native*.so $(FUZZ_ARGS)

clean: ## remove what this file made: .venv, build, dist and caches (not the models)
	rm -rf $(VENV) $(PEERS) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMPS)/venv:
	$(call say,environment: $(PYTHON) -m venv $(VENV))
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo "kvreuse needs Python 3.10 or newer: make PYTHON=..."; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "no venv module (on Debian: apt install python3-venv)"; exit 1; }
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/tools: $(STAMPS)/venv
	$(call say,build tools: scikit-build-core nanobind cmake ninja)
	@$(PIP) install "scikit-build-core>=0.11" "nanobind>=2.5" "cmake>=3.26" ninja
	@touch $@

$(STAMPS)/build: $(STAMPS)/tools $(SOURCES)
	$(call say,build: compiling the kernels into $(VENV) (a minute or two the first time))
	@command -v $${CXX:-c++} >/dev/null || { echo "no C++ compiler (on Debian: apt install g++)"; exit 1; }
	@$(PIP) install --no-build-isolation --editable .
	@touch $@

# Already installed, so pip only adds what the extra names.
$(STAMPS)/test $(STAMPS)/dev $(STAMPS)/figures: $(STAMPS)/%: pyproject.toml | $(STAMPS)/build
	$(call say,$* tools: the extra [$*] of pyproject.toml)
	@$(PIP) install "kvreuse[$*]"
	@touch $@
