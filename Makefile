# `make demo` shows it working, `make test` proves it.  Both need only Python ≥ 3.11, a C++ compiler and a network.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
NATIVE := $(wildcard src/penstock/native/*.cpp src/penstock/native/*.h src/penstock/native/*/*.h) src/penstock/native/CMakeLists.txt

.PHONY: demo docs screenshots test lint test-slow test-clients test-arm fuzz bench-oracles clean

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

demo: $(VENV)/.installed  ## three questions to the pocket model
	$(BIN)/penstock inspect
	$(BIN)/penstock run "What is 17 + 25?"
	$(BIN)/penstock run "What is a penstock?"
	$(BIN)/penstock run "What is 486 + 377?" --think

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint  ## everything that runs on each change
	$(BIN)/pytest -n 2

test-gpu: $(VENV)/.installed-dev  ## the CUDA backend against the CPU and transformers; one line and nothing else without a card
	$(BIN)/pytest tests/gpu -q

test-slow: $(VENV)/.installed-dev  ## longer oracle runs and full-width models (needs 4 GB of disk)
	$(BIN)/pytest -m slow

CLIENTS := build/clients
$(CLIENTS)/.installed: tests/clients/node/package.json
	mkdir -p $(CLIENTS)
	cp $< $(CLIENTS)/package.json
	npm install --prefix $(CLIENTS) --no-audit --no-fund
	touch $@

test-clients: $(VENV)/.installed-dev $(CLIENTS)/.installed  ## agents and the AI SDK from npm (needs Node ≥ 20; 1.4 GB of disk)
	$(BIN)/pytest -m clients tests/clients

ARM := build/arm
test-arm:  ## the ARM kernels against the plain ones, under emulation (needs g++-aarch64-linux-gnu, qemu-user and cmake)
	cmake -S src/penstock/native -B $(ARM) -DCMAKE_BUILD_TYPE=Release -DCMAKE_SYSTEM_NAME=Linux \
	  -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DCMAKE_EXE_LINKER_FLAGS=-static
	cmake --build $(ARM) --target native_selfcheck
	qemu-aarch64 -cpu max $(ARM)/native_selfcheck

docs: $(VENV)/.installed  ## the pages that are made from the code: options, models, Python interface, man pages
	$(BIN)/python -m docs.generate

screenshots: $(VENV)/.installed-dev  ## the pictures of the page (needs Chromium)
	$(BIN)/python -m docs.generate.screenshots

fuzz: $(VENV)/.installed-dev  ## a million mutated headers through every reader
	$(BIN)/python -m tests.fuzz --count 1000000

clean:
	rm -rf build $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
