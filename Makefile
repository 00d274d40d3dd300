# Targets for people and for CI. Everything made here lies in .venv, build and the user's cache.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BENCH := build/bench-venv
GALLERY := build/gallery-venv
# A test that fails once in some runs shows itself in a few; more would make a soak take a day.
SOAK_ROUNDS ?= 3
WORKERS ?= 2
SOURCES := $(shell find wasm_kernel runtimes kernelspec -type f ! -name '*.pyc')

# Processes that tests and benchmarks start would otherwise compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test pytest lint bench soak clean

# The environment holds one of two installs; each stamp says which, and making one removes the other.
PLAIN := $(VENV)/.plain
EDITABLE := $(VENV)/.editable

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(PLAIN): pyproject.toml hatch_build.py $(SOURCES) | $(BIN)/python
	rm -f $(EDITABLE)
	$(BIN)/python -m pip install --quiet .
	touch $@

$(EDITABLE): pyproject.toml hatch_build.py $(wildcard kernelspec/python/*) | $(BIN)/python
	rm -f $(PLAIN)
	$(BIN)/python -m pip install --quiet --editable '.[dev,browser]'
	touch $@

demo: $(PLAIN)
	$(BIN)/wasm-kernel warm
	mkdir -p build
	$(BIN)/jupyter execute --kernel_name=wasm-python --output=$(CURDIR)/build/1-tour notebooks/1-tour.ipynb
	@echo "The executed notebook is build/1-tour.ipynb; open it with any Jupyter."

# The workers and mypy share the processors; a temporary folder of its own, so that runs never meet.
test: $(EDITABLE)
	@folder=$$(mktemp -d) && export PYTEST_DEBUG_TEMPROOT=$$folder && \
	$(MAKE) --no-print-directory --jobs=2 lint pytest; status=$$?; rm -rf $$folder; exit $$status

pytest: $(EDITABLE)
	$(BIN)/python -m pytest --numprocesses=$(WORKERS)

lint: $(EDITABLE)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(BENCH)/.installed: tests/benchmarks/requirements.txt
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet -r $<
	-$(BENCH)/bin/python -m pip install --quiet kishu
	touch $@

bench: $(EDITABLE) $(BENCH)/.installed
	$(BIN)/wasm-kernel warm
	$(BIN)/python -m tests.benchmarks --native $(BENCH)

$(GALLERY)/.installed: tests/browser/requirements.txt
	$(PYTHON) -m venv $(GALLERY)
	$(GALLERY)/bin/python -m pip install --quiet -r $<
	touch $@

soak: $(EDITABLE) $(GALLERY)/.installed
	$(BIN)/python -m pytest -m soak
	for round in $$(seq $(SOAK_ROUNDS)); do $(BIN)/python -m pytest -q -x --numprocesses=$(WORKERS) || exit 1; done

clean:
	rm -rf $(VENV) build dist .hypothesis .ruff_cache
