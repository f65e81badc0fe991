# make demo       train three small models and see looping work (minutes on a laptop)
# make test       linters, types, the docs site and the test suite
# make test-fast  linters, types and the tests that do not take long
# make docs       the docs site, in build/site
# make screens    write anew what every command prints for --help
# make acceptance what the documents show of the first hour, in a fresh clone, within its minutes
# make release-check  builds the package and tries it in a clean environment
# Each sets up all it needs in .venv; a second run starts at once.

PYTHON      ?= python3
CONSTRAINTS ?= constraints.txt
VENV        := .venv
BIN         := $(VENV)/bin
WORKERS     := --numprocesses 2 --dist loadfile --no-loadscope-reorder
PIP_INSTALL := -m pip --disable-pip-version-check install $(addprefix --constraint ,$(CONSTRAINTS))
PIP         := $(BIN)/python $(PIP_INSTALL)
RELEASE     := build/release
REPOSITORY  := $(or $(LOOPT_REPOSITORY),https://example.org/loopt)

.PHONY: demo test test-fast screens check docs acceptance release-check clean

demo: $(VENV)/.demo
	$(BIN)/loopt reproduce quick

test: check docs
	$(BIN)/python -m pytest $(WORKERS)

test-fast: check
	$(BIN)/python -m pytest $(WORKERS) -m "not slow"

screens: $(VENV)/.dev
	$(BIN)/python -m loopt.commands.first_screens

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.dev
	$(BIN)/python docs/build.py
	$(BIN)/zensical build --strict --clean
	@echo "open build/site/index.html"

acceptance:
	$(PYTHON) acceptance/journeys.py

release-check:
	rm -rf $(RELEASE)
	$(PYTHON) -m venv $(RELEASE)/tools
	$(RELEASE)/tools/bin/python -m pip --disable-pip-version-check install --quiet build twine
	LOOPT_REPOSITORY=$(REPOSITORY) $(RELEASE)/tools/bin/python -m build --outdir $(RELEASE)/dist .
	$(RELEASE)/tools/bin/twine check --strict $(RELEASE)/dist/*
	$(PYTHON) -m venv $(RELEASE)/clean
	$(RELEASE)/clean/bin/python $(PIP_INSTALL) torch
	$(RELEASE)/clean/bin/python $(PIP_INSTALL) "$$(echo $(RELEASE)/dist/*.whl)[plots]"
	$(RELEASE)/clean/bin/python -c 'import importlib.metadata as m, re, sys; found = re.findall(r"\]\((?!https:|#)[^)]*\)", m.metadata("loopt").get_payload()); sys.exit(f"links that PyPI does not resolve: {found}" if found else 0)'
	cd $(RELEASE) && clean/bin/loopt train phop-cpu --steps 20 --optim.warmup-steps 5 --test-examples 64 --run runs/phop
	cd $(RELEASE) && clean/bin/loopt eval runs/phop --loops 1 4 8 --examples 64
	cd $(RELEASE) && clean/bin/loopt analyze loops runs/phop --loops 1 4 8 --examples 64 --out figures
	cd $(RELEASE) && clean/bin/loopt eval --show-prompt svamp

clean:
	rm -rf $(VENV) build

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("loopt needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.torch: $(CONSTRAINTS) | $(BIN)/python
	@echo "installing torch into $(VENV) (once; the largest part)"
	$(PIP) torch
	@touch $@

$(VENV)/.demo: pyproject.toml $(VENV)/.torch
	@echo "installing loopt into $(VENV)"
	$(PIP) --editable '.[plots]'
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.torch
	@echo "installing loopt and the development tools into $(VENV)"
	$(PIP) --quiet --editable '.[plots,hf,eval,sweep,data,docs,dev]'
	@touch $@
