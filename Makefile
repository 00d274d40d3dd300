# Targets for people and for CI. Everything made here lies in .venv, build and the user's cache.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BENCH := build/bench-venv
GALLERY := build/gallery-venv
WHEELS := build/wheels-venv
DOCS := build/docs-venv
# A test that fails once in some runs shows itself in a few; more would make a soak take a day.
SOAK_ROUNDS ?= 3
WORKERS ?= 6
RECIPE := $(wildcard guest/*.py)
SOURCES := $(shell find wasm_kernel runtimes labextension -type f ! -name '*.pyc')
TESTS := $(shell find tests -name '*.py')

# Processes that tests and benchmarks start would otherwise compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test pytest lint bench soak frameworks wheels docs clean

# The environment holds one of two installs, as its stamp says: the plain one, which is a user's, until
# the tests first need theirs. From then on the demo runs from that, too: nothing is installed in turns.
PLAIN := $(VENV)/.plain
EDITABLE := $(VENV)/.editable
INSTALLED := $(or $(wildcard $(EDITABLE)),$(PLAIN))

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(PLAIN): pyproject.toml hatch_build.py $(RECIPE) $(SOURCES) | $(BIN)/python
	$(BIN)/python -m pip install --quiet .
	touch $@

$(EDITABLE): pyproject.toml hatch_build.py $(RECIPE) $(wildcard wasm_kernel/frontends/jupyter/kernelspec/*/* labextension/*/*) | $(BIN)/python
	rm -f $(PLAIN)
	$(BIN)/python -m pip install --quiet --editable '.[dev,browser]'
	touch $@

demo: $(INSTALLED)
	$(BIN)/wasm-kernel warm
	mkdir -p build
	$(BIN)/jupyter execute --kernel_name=wasm-python --output=$(CURDIR)/build/1-tour notebooks/1-tour.ipynb
	@echo "The executed notebook is build/1-tour.ipynb; open it with any Jupyter."

# More workers than processors, because tests wait for processes; mypy runs beside them. A temporary
# folder of its own, so that runs never meet. It lies in memory if there is room: thousands of files
# come and go. `make soak` works on the disk. A worker that dies ends the run: after another has taken
# its place, pytest-xdist may wait for ever.
test: $(EDITABLE)
	@free=$$(df --output=avail /dev/shm 2>/dev/null | tail -n 1); \
	[ "$${free:-0}" -gt 4000000 ] && place=/dev/shm || place=$${TMPDIR:-/tmp}; \
	folder=$$(mktemp -d -p $$place) && export PYTEST_DEBUG_TEMPROOT=$$folder && \
	$(MAKE) --no-print-directory --jobs=2 lint pytest; status=$$?; rm -rf $$folder; exit $$status

# pytest compiles tests in its own way: once here, or all of them in each worker that begins.
build/.tests: $(TESTS) | $(EDITABLE)
	@mkdir -p build
	-@$(BIN)/python -m pytest --collect-only -qq >build/collected 2>&1
	@touch $@

# The guests are compiled first, so that no test waits for that: once a machine, some minutes.
pytest: $(EDITABLE) build/.tests
	$(BIN)/python -m tests.prepare
	$(BIN)/python -m pytest --numprocesses=$(WORKERS) --max-worker-restart=0

lint: $(EDITABLE)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell $$(git ls-files '*.md' '*.py' '*.js')
	$(BIN)/python -m tests.prose $$(git ls-files '*.md' '*.py' '*.js')
	$(BIN)/mypy

# All that is published. The wheels with compiled code are made where nothing but the ordinary one is
# installed: the base image holds the packages of that place.
wheels: $(EDITABLE)
	rm -rf dist $(WHEELS)
	$(BIN)/python -m build --wheel --outdir dist .
	$(PYTHON) -m venv $(WHEELS)
	$(WHEELS)/bin/python -m pip install --quiet dist/wasm_kernel-*.whl
	$(WHEELS)/bin/python -P compiled_wheels.py dist

$(BENCH)/.installed: tests/benchmarks/requirements.txt
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet -r $<
	touch $@

bench: $(EDITABLE) $(BENCH)/.installed
	$(BIN)/wasm-kernel warm
	$(BIN)/python -m tests.benchmarks --native $(BENCH)

# The site, in build/site. The pages of the reference that the code writes are in docs/ already: the
# tests hold them, so this needs no install of ours.
$(DOCS)/.installed: docs/requirements.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet -r $<
	touch $@

docs: $(DOCS)/.installed
	PATH=$(CURDIR)/$(DOCS)/bin:$$PATH $(DOCS)/bin/mkdocs --quiet build --strict
	@echo "The site is in build/site. To read it: python3 -m http.server -d build/site"

$(GALLERY)/.installed: tests/browser/requirements.txt
	$(PYTHON) -m venv $(GALLERY)
	$(GALLERY)/bin/python -m pip install --quiet -r $<
	touch $@

soak: $(EDITABLE) $(GALLERY)/.installed docs
	$(BIN)/python -m tests.prepare
	$(BIN)/python -m pytest -m soak --numprocesses=$(WORKERS)
	for round in $$(seq $(SOAK_ROUNDS)); do $(BIN)/python -m pytest -q -x --hypothesis-profile=soak --numprocesses=$(WORKERS) || exit 1; done

# The newest packages of all frameworks of agents, and the page that says which they were.
frameworks: $(EDITABLE)
	$(BIN)/wasm-kernel warm
	FRAMEWORKS_TABLE=docs/frameworks-tried.md $(BIN)/python -m pytest -m soak tests/soak/test_frameworks.py

clean:
	rm -rf $(VENV) build dist .hypothesis .ruff_cache
