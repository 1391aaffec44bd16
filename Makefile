# Everything runs in .venv, created on demand; `make` alone lists the targets.
#
#   PYTHON=python3.12                    the interpreter of the environment
#   PADDLE_EXT_CUDA=AUTO|ON|OFF          the CUDA backend
#   PADDLE_EXT_CUDA_ARCHITECTURES=80;90  its architectures; default: the GPU of this machine
#   WERROR=ON                            compiler warnings are errors
#   WORKERS=2                            processes of make test and make fuzz
#   MINUTES=30                           duration of make fuzz
#   TEST_ARGS="-k fork"                  more arguments for pytest; DEMO_ARGS, BENCH_ARGS likewise

PYTHON ?= python3
PADDLE_EXT_CUDA ?= AUTO
# 90-real: one architecture, so that the CUDA code is compiled even without a GPU.
PADDLE_EXT_CUDA_ARCHITECTURES ?= $(shell nvidia-smi -L >/dev/null 2>&1 && echo native || echo 90-real)
WERROR ?= OFF
WORKERS ?= 2
MINUTES ?= 30
BENCHMARKS ?= paddle pgd sinkhorn tim adapt methods tasks_sampling evaluate

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
BUILD_DIR := build/dev
DEPS := $(VENV)/.deps
BUILD := $(VENV)/.build
SETTINGS := $(VENV)/.settings

NATIVE := $(shell find csrc -type f 2>/dev/null)
CODE := paddle_ext tests tools benchmarks docs examples

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-slow test-install test-engines fuzz lint format docs wheel bench build deps clean distclean FORCE

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: $(BUILD) ## build, then run the demo
	$(BIN)/paddle-ext demo $(DEMO_ARGS)

test: $(BUILD) ## build, then run the tests (with GPU tests if there is a GPU)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) -m "not slow" $(TEST_ARGS)

test-slow: $(BUILD) ## run the slow tests, which extend the others
	$(BIN)/python -m pytest -m slow $(TEST_ARGS)

test-install: | $(BIN)/python ## run the commands of every page, each with only the packages the page names
	$(BIN)/python tools/install/pages.py $(TEST_ARGS)

test-engines: ## run the tests of Ray, Spark and encoders, each in an environment of its own
	PYTHON='$(PYTHON)' PADDLE_EXT_CUDA=OFF TEST_ARGS='$(TEST_ARGS)' tools/install/engines.sh

fuzz: $(DEPS) ## build with sanitizers, then make random calls for MINUTES
	$(BIN)/python tests/fuzz/run.py --minutes $(MINUTES) --jobs $(WORKERS)

lint: $(DEPS) ## check style and types, without a build
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(NATIVE)
	$(BIN)/codespell
	$(BIN)/python docs/check_words.py
	.github/actionlint.sh
	$(BIN)/zizmor --offline --quiet .github

format: $(DEPS) ## rewrite the sources in the house style
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(NATIVE)

docs: $(BUILD) ## build the site in build/site and look at it in Chromium; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	$(BIN)/python docs/check_pages.py
	@echo "== built: build/site; $(BIN)/mkdocs serve shows it"

wheel: ## build and audit a wheel in dist/, use it and the sdist in empty environments
	PYTHON='$(PYTHON)' PADDLE_EXT_CUDA='$(PADDLE_EXT_CUDA)' \
	PADDLE_EXT_CUDA_ARCHITECTURES='$(if $(filter file,$(origin PADDLE_EXT_CUDA_ARCHITECTURES)),,$(PADDLE_EXT_CUDA_ARCHITECTURES))' \
	    tools/install/wheel.sh

bench: $(BUILD) ## build, then run the benchmarks named in BENCHMARKS
	@set -e; for name in $(BENCHMARKS); do \
	    echo "== benchmarks/$$name.py"; $(BIN)/python benchmarks/$$name.py $(BENCH_ARGS); done

build: $(BUILD) ## compile and install the package for development
deps: $(DEPS) ## make .venv with the pinned dependencies

clean: ## remove build files, keep .venv
	rm -rf build dist $(BUILD) .pytest_cache .mypy_cache .ruff_cache
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean ## remove .venv too
	rm -rf $(VENV)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	    { echo "paddle_ext needs Python 3.10 or newer; set PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# constraints.txt is complete, so it is also the list of packages to install.
$(DEPS): pyproject.toml constraints.txt | $(BIN)/python
	@echo "== installing the pinned dependencies in $(VENV) (torch is large)"
	$(PIP) install --quiet -r constraints.txt
	@touch $@

# Rewritten only when a setting changes, which triggers a rebuild.
$(SETTINGS): FORCE | $(BIN)/python
	@echo '$(PADDLE_EXT_CUDA) $(PADDLE_EXT_CUDA_ARCHITECTURES) $(WERROR)' | cmp -s - $@ || \
	    echo '$(PADDLE_EXT_CUDA) $(PADDLE_EXT_CUDA_ARCHITECTURES) $(WERROR)' > $@

# Editable: changes of Python code need no rebuild. Without isolation and with a persistent build
# directory, only changed files are compiled again.
$(BUILD): $(NATIVE) CMakeLists.txt pyproject.toml $(DEPS) $(SETTINGS)
	@echo "== building paddle_ext"
	PADDLE_EXT_CUDA='$(PADDLE_EXT_CUDA)' \
	PADDLE_EXT_CUDA_ARCHITECTURES='$(PADDLE_EXT_CUDA_ARCHITECTURES)' \
	    $(PIP) install --quiet -c constraints.txt --no-build-isolation \
	    --config-settings=build-dir=$(BUILD_DIR) \
	    --config-settings=cmake.define.CMAKE_EXPORT_COMPILE_COMMANDS=ON \
	    --config-settings=cmake.define.CMAKE_COMPILE_WARNING_AS_ERROR=$(WERROR) \
	    -e '.[bench,test,dev,docs]'
	@$(BIN)/python -c 'import paddle_ext; print("== built:", paddle_ext.build_info())'
	@touch $@
