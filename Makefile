# `make demo` shows it working, `make test` proves it.  Both need only Python ≥ 3.11, a C++ compiler and a network.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
NATIVE := $(wildcard src/penstock/native/*.cpp src/penstock/native/*.h) src/penstock/native/CMakeLists.txt
DEMO := build/demo.gguf

.PHONY: demo test lint test-slow fuzz bench-oracles clean

$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	touch $@

# Installed in place: Python is read from src/, the native library is built into the environment.
$(VENV)/.installed: $(VENV)/.made pyproject.toml $(NATIVE)
	$(BIN)/pip install --quiet --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install --quiet --editable ".[dev]"
	touch $@

demo: $(VENV)/.installed  ## make a small random DeepSeek-V4 and generate with it
	mkdir -p build
	$(BIN)/penstock synth $(DEMO) --width tiny --mix q2 --force
	$(BIN)/penstock inspect $(DEMO)
	$(BIN)/penstock run -m $(DEMO) "What is a penstock?" --max-tokens 48 --seed 1 --ignore-eos

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint  ## everything that runs on each change
	$(BIN)/pytest -n 2

test-slow: $(VENV)/.installed-dev  ## longer oracle runs and full-width models (needs 4 GB of disk)
	$(BIN)/pytest -m slow

fuzz: $(VENV)/.installed-dev  ## a million mutated headers through every reader
	$(BIN)/python -m tests.fuzz --count 1000000

clean:
	rm -rf build $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
