# Shardwise. `make quickstart` and `make test` set up all they need. Variables:
#   PYTHON=path    use this Python and its own venv (.venv-3.12, ...) instead of python3 and .venv
#   PRESET=name    release (default), dev, asan, tsan
#   JOBS=n         parallel compile jobs (default: Ninja's)
#   EXTRA_PYTHON=path   build the Python module for this Python too, from the same build
#   WORKERS=n      test files side by side (default 2); each takes up to five processes
#   QUICKSTART_ARGS, PYTEST_ARGS   passed on, for example QUICKSTART_ARGS="--set training.seed=1"
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build

PRESET ?= release
JOBS ?=
QUICKSTART_ARGS ?=
QUICKSTART := examples/quickstart
QUICKSTART_OUTPUT := $(QUICKSTART)/output
PYTEST_ARGS ?=
WORKERS ?= 2

ifdef PYTHON
VENV := .venv-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' || echo unusable)
else
VENV := .venv
endif
PY := $(VENV)/bin/python
# Expanded in recipes, when the venv exists.
BUILD = build/$(PRESET)-py$$($(PY) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
# Two builds of one folder at a time would spoil its log.
NINJA = flock $(BUILD)/.lock $(VENV)/bin/ninja -C $(BUILD) $(if $(JOBS),-j$(JOBS))

.PHONY: venv configure build products quickstart quickstart-short test test-cpp test-full test-gpu sanitize \
        lint format wheel clean

venv:
	@tools/bootstrap.sh $(VENV) $(PYTHON)

configure: venv
	@if ! [ -e $(BUILD)/build.ninja ] || [ -n "$(EXTRA_PYTHON)" ]; then \
	  $(VENV)/bin/cmake --preset $(PRESET) -B $(BUILD) -DSW_PYTHON="$(CURDIR)/$(PY)" \
	    -DCMAKE_MAKE_PROGRAM="$(CURDIR)/$(VENV)/bin/ninja" \
	    $(if $(EXTRA_PYTHON),-DSW_EXTRA_PYTHON="$(EXTRA_PYTHON)"); \
	fi

build: configure
	@$(NINJA) all stage

# The library, the Python module and the programs without the tests.
products: configure
	@$(NINJA) stage

quickstart quickstart-short: products
	@$(PY) $(QUICKSTART)/corpus.py $(QUICKSTART)/output
	$(VENV)/bin/shardwise train $(QUICKSTART)/job.json --ranks 2 $(QUICKSTART_ARGS)
	@$(PY) $(QUICKSTART)/judge.py $(QUICKSTART_OUTPUT)

# In a folder of its own: it leaves alone what a full run made.
quickstart-short: QUICKSTART_OUTPUT := $(QUICKSTART)/output/short
quickstart-short: QUICKSTART_ARGS += --set training.steps=20 --set training.sample_tokens=60 \
  --set training.output=output/short

# Tests run several ranks side by side: one thread each, or they stand in each other's way.
test test-cpp test-full test-gpu sanitize: export OMP_NUM_THREADS ?= 1

test-cpp: build
	$(VENV)/bin/ctest --test-dir $(BUILD) --output-on-failure --timeout 300

test: export GTEST_FILTER := -Exhaustive.*
test: test-cpp
	$(PY) -m pytest -n $(WORKERS) --dist loadfile -m "not full and not gpu" $(PYTEST_ARGS)
	@$(MAKE) --no-print-directory quickstart-short

test-full: test-cpp
	$(PY) -m pytest -n $(WORKERS) --dist loadfile -m "not gpu" $(PYTEST_ARGS)
	@$(MAKE) --no-print-directory sanitize PRESET=asan
	@$(MAKE) --no-print-directory sanitize PRESET=tsan

# Never builds: it runs where the artefacts were carried to, with any Python that has torch.
test-gpu:
	PYTHONPATH=$(CURDIR)/python $(or $(PYTHON),python3) -m pytest -m gpu $(PYTEST_ARGS)

# PRESET=asan (addresses and undefined behaviour) or tsan (threads): the C++ tests under sanitizers.
sanitize: configure
	@$(NINJA) $(if $(filter tsan,$(PRESET)),torch_free_tests comm_tests,all)
	tools/sanitizers/run.sh $(BUILD)

# The reference page of the configuration is made from the field list in the program.
lint: configure
	@$(PY) tools/lint.py
	@$(NINJA) --quiet stage_program
	@$(VENV)/bin/shardwise config reference --check docs/config.md

format: venv
	@$(PY) tools/lint.py --fix

wheel: venv
	@$(VENV)/bin/python -m pip wheel . --no-deps --no-build-isolation -w dist

clean:
	rm -rf build dist python/shardwise/*.so
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +
