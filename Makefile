# make demo       train three small models and see looping work (minutes on a laptop)
# make test       linters, types and the test suite
# make test-fast  the same without the tests that take long
# make screens    write anew what every command prints for --help
# Each sets up all it needs in .venv; a second run starts at once.

PYTHON      ?= python3
CONSTRAINTS ?= constraints.txt
VENV        := .venv
BIN         := $(VENV)/bin
WORKERS     := --numprocesses 2 --dist loadfile
PIP         := $(BIN)/python -m pip --disable-pip-version-check install $(addprefix --constraint ,$(CONSTRAINTS))

.PHONY: demo test test-fast screens check clean

demo: $(VENV)/.demo
	$(BIN)/loopt reproduce quick

test: check
	$(BIN)/python -m pytest $(WORKERS)

test-fast: check
	$(BIN)/python -m pytest $(WORKERS) -m "not slow"

screens: $(VENV)/.dev
	$(BIN)/python -m loopt.commands.first_screens

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV)

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("loopt needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.torch: $(CONSTRAINTS) | $(BIN)/python
	@echo "installing torch into $(VENV) (once)"
	$(PIP) torch
	@touch $@

$(VENV)/.demo: pyproject.toml $(VENV)/.torch
	@echo "installing loopt into $(VENV)"
	$(PIP) --editable '.[plots]'
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.torch
	@echo "installing loopt and the development tools into $(VENV)"
	$(PIP) --editable '.[plots,hf,eval,sweep,data,dev]'
	@touch $@
