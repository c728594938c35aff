# kernelcast: `make run` answers a first prediction, `make test` runs what CI runs, `make` adds lint and types.
PYTHON ?= python3
VENV ?= .venv
LIGHT ?= .venv-light
PORT ?= 8000
PARTS := $(wildcard *.py) api collectors commands datasets features models
PIP = pip install --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := check
.PHONY: check lint types test run serve collect train evaluate bench clean

check: lint types test

# The light environment serves and predicts: no torch, no mlflow, no training library.
$(LIGHT)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(LIGHT)
	$(LIGHT)/bin/$(PIP) --editable .
	touch $@

# The full environment collects, trains and tests.
$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/$(PIP) --editable '.[dev]'
	touch $@

run: $(LIGHT)/.ready
	$(LIGHT)/bin/kernelcast serve --port $(PORT) --example

test: $(VENV)/.ready
	$(VENV)/bin/pytest -n 2

lint: $(VENV)/.ready
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(VENV)/.ready
	# The root folder is the package, whatever the clone is called: mypy sees its parts under its name through links.
	mkdir -p build/types/kernelcast && ln -sfn $(addprefix $(CURDIR)/,$(PARTS)) build/types/kernelcast/
	MYPYPATH=build/types $(VENV)/bin/mypy -p kernelcast

collect: $(VENV)/.ready
	$(VENV)/bin/kernelcast collect --minutes 15

train: $(VENV)/.ready
	$(VENV)/bin/python scripts_placeholder

clean:
	rm -rf $(VENV) $(LIGHT) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
