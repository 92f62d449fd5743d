# Two commands do everything: `make run` and `make test`. Each makes the environment it needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet
FAST   := .venv-compiled

.PHONY: run test nightly check lint types contracts bench compiled compiled-tests conform notebooks gallery clean

run: $(VENV)/.installed           ## run the quickstart scenario
	$(BIN)/dryserve run quickstart

test: $(VENV)/.installed-dev      ## run the tests
	$(BIN)/python -m pytest -n 2 --dist loadfile --mpl

nightly: $(VENV)/.installed-dev compiled-tests ## the tests that take many minutes
	$(BIN)/python -m pytest -n 2 --dist load -m nightly

check: lint types contracts test  ## everything that must hold before a change lands

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

contracts: $(VENV)/.installed-dev
	$(BIN)/lint-imports

bench: $(FAST)/.installed         ## speed on the standard work, in requests and steps a second
	$(FAST)/bin/dryserve bench

compiled: $(FAST)/.installed      ## an installation with the step loop compiled (needs a C compiler)

# One test puts a method in another's place, which compiled classes do not allow.
compiled-tests: $(FAST)/.installed ## decisions, times and laws again, on the compiled step loop
	$(FAST)/bin/python -m pip --disable-pip-version-check --quiet install -c requirements-ci.txt pytest pytest-mpl hypothesis
	rm -rf build/tests && mkdir -p build/tests && cp -r tests pyproject.toml build/tests
	cd build/tests && DRYSERVE_SHARED=$${DRYSERVE_SHARED:-$(abspath ../shared)} ../../$(FAST)/bin/python -m pytest -q \
		--ignore tests/conformance/test_hash_sweeps.py tests/conformance tests/fast tests/scheduler tests/policies tests/features tests/cluster tests/laws tests/run

conform: $(VENV)/.installed       ## replay the recorded engine runs
	$(BIN)/dryserve conform tests/golden

notebooks: $(VENV)/.installed-dev ## run the notebooks and keep their outputs
	$(BIN)/python notebooks/execute.py

gallery: $(VENV)/.installed       ## draw every figure from short runs into notebooks/figures/gallery
	$(BIN)/python notebooks/gallery.py

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dryserve needs Python 3.11 or newer; try: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml requirements-ci.txt | $(VENV)/bin/python
	$(PIP) install -c requirements-ci.txt -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) install -c requirements-ci.txt -e '.[dev]'
	touch $@

# Built from a copy, for compiled modules beside their sources would hide every later change to these.
COPIED := pyproject.toml README.md LICENSE sim scheduler cost_models scenarios
SOURCES := $(shell find sim scheduler cost_models scenarios -name '*.py' -o -name '*.toml' -o -name '*.json' -o -name '*.yaml')

$(FAST)/.installed: pyproject.toml requirements-ci.txt $(SOURCES)
	@command -v $${CC:-cc} >/dev/null || { echo "make compiled needs a C compiler; CC names another than cc"; exit 1; }
	@echo "compiling the step loop: some minutes"
	$(PYTHON) -m venv $(FAST)
	rm -rf build/compiled && mkdir -p build/compiled && cp -r $(COPIED) build/compiled
	HATCH_BUILD_HOOKS_ENABLE=1 $(FAST)/bin/python -m pip --disable-pip-version-check --quiet \
		install -c requirements-ci.txt ./build/compiled
	rm -rf build/compiled
	touch $@

clean:
	rm -rf build $(VENV) $(FAST) runs sweeps sizes comparisons .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
