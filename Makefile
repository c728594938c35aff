# kernelcast: `make run` answers a first prediction, `make test` tests in minutes, `make test-slow` the rest, `make` adds lint and types to the first.
PYTHON ?= python3
VENV ?= .venv
MINUTES ?= 9
OUT ?= measurements-gpu
LIGHT ?= .venv-light
PORT ?= 8000
PARTS := $(wildcard *.py) api client collectors commands datasets features models nightly plugins python workloads
PIP = pip install --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := check
.PHONY: check lint types audit test test-slow run collect collect-gpu collect-mlir triton-programs mlir-plugin model docs bench bench-engines bench-serve accuracy soak fuzz clean

check: lint types test

# The light environment serves and predicts: no torch, no mlflow, no training library.
$(LIGHT)/.ready: pyproject.toml constraints.txt setup.py $(wildcard models/engine/native/*)
	$(PYTHON) -m venv $(LIGHT)
	$(LIGHT)/bin/$(PIP) --editable .
	touch $@

# The full environment collects, trains and tests.
$(VENV)/.ready: pyproject.toml constraints.txt setup.py $(wildcard models/engine/native/*)
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/$(PIP) --editable '.[dev]'
	touch $@

run: $(LIGHT)/.ready
	$(LIGHT)/bin/kernelcast serve --port $(PORT) --example

# One BLAS thread a worker: more only wait for each other. Byte code is kept, or every child compiles the package again.
PYTEST = OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(VENV)/bin/pytest -n 2

# A few minutes: all but what needs a browser, a database, a cluster or a real compiler, or waits for many processes.
test: $(VENV)/.ready
	$(PYTEST) -m "not slow" --dist worksteal

# The rest. File by file: what a file's tests share (a cluster, a database) is set up once, not once a worker.
test-slow: $(VENV)/.ready
	$(PYTEST) -m slow --dist loadfile

lint: $(VENV)/.ready
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(VENV)/.ready
	# The root folder is the package, whatever the clone is called: mypy sees its parts under its name through links.
	mkdir -p build/types/kernelcast && ln -sfn $(addprefix $(CURDIR)/,$(PARTS)) build/types/kernelcast/
	MYPYPATH=build/types $(VENV)/bin/mypy -p kernelcast

# Known vulnerabilities of the pinned packages. One that does not matter here is named with --accept, and why in this line.
audit: $(VENV)/.ready
	$(VENV)/bin/python -P deploy/audit.py

collect: $(VENV)/.ready
	$(VENV)/bin/kernelcast measure cpu --minutes 15

# On a machine with a GPU: its own python3 needs torch, triton, cupy, numpy, pyarrow, pyyaml, nvidia-ml-py, typer and rich,
# and nothing is installed. On AMD that is torch for ROCm and amdsmi, on Intel torch for XPU, without cupy and nvidia-ml-py.
# The link gives the tree its package name; -P keeps its folders from shadowing packages.
collect-gpu:
	mkdir -p build/run && ln -sfn $(CURDIR) build/run/kernelcast
	PYTHONPATH=build/run $(PYTHON) -P -m kernelcast measure gpu --minutes $(MINUTES) --out "$(OUT)"

# Whole MLIR modules on this machine's CPU, by IREE and XLA; run again to go on.
collect-mlir: build/mlir-programs.parquet
	$(VENV)/bin/kernelcast measure mlir --texts $< --minutes 60 --out measurements-mlir

# Programs written anew by JAX, torch-mlir and a generator; without --texts, measure mlir takes the shipped ones.
build/mlir-programs.parquet: $(VENV)/.ready $(wildcard benchmarks/programs/*.py benchmarks/programs/*/*.py)
	$(VENV)/bin/python benchmarks/mlir_programs.py --count 2000 --out $@

# Triton programs compiled for GPUs that need not be there; run again to go on.
triton-programs: build/triton-programs.parquet
	$(VENV)/bin/kernelcast measure triton --texts $< --minutes 60 --out measurements-triton

# Triton IR of the programs; without --texts, measure triton takes the shipped texts.
build/triton-programs.parquet: $(VENV)/.ready $(wildcard benchmarks/programs/triton/*.py)
	$(VENV)/bin/python benchmarks/triton_programs.py --out $@

# A pass plug-in for Debian's mlir-opt-19; needs g++ mlir-19-tools libmlir-19-dev llvm-19-dev.
mlir-plugin: build/libkernelcast-mlir.so
build/libkernelcast-mlir.so: $(wildcard plugins/mlir_opt/*.?pp plugins/cpp/*.hpp plugins/mlir_opt/*.sh)
	plugins/mlir_opt/build.sh $@

# The shipped model, from the shipped tables.
model: $(VENV)/.ready
	$(VENV)/bin/kernelcast train --data datasets/data/shipped/*.parquet --out models/pretrained/kernels

$(VENV)/.docs: $(VENV)/.ready
	$(VENV)/bin/$(PIP) --editable '.[docs]'
	touch $@

# Generated pages (families, devices, data cards), then all pages as a site, which the service has at /docs/.
docs: $(VENV)/.docs
	$(VENV)/bin/python docs/tables.py
	$(VENV)/bin/python docs/cards.py
	mkdir -p build/run && ln -sfn $(CURDIR) build/run/kernelcast
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --quiet --strict

# Some minutes each, on an otherwise idle machine.
bench: $(VENV)/.ready
	$(VENV)/bin/python benchmarks/speed.py

# The compiled engine against onnxruntime, on one thread each.
bench-engines: $(VENV)/.ready
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(VENV)/bin/python -P benchmarks/engines.py

# Mixed requests at half capacity, with changes of the model: MINUTES=20 make soak. Needs an otherwise idle machine.
soak: MINUTES := $(if $(filter file,$(origin MINUTES)),20,$(MINUTES))
soak: $(VENV)/.ready
	$(VENV)/bin/python -P benchmarks/soak.py --minutes $(MINUTES)

# Ten thousand generated requests against a real server, every answer checked against the OpenAPI document.
fuzz: $(VENV)/.ready
	$(VENV)/bin/python -P benchmarks/fuzz_service.py

# Beside MLServer and `mlflow models serve`, which it installs into an environment of their own; some minutes.
bench-serve: $(VENV)/.ready
	$(VENV)/bin/python benchmarks/serving.py

# docs/accuracy.md, some minutes. TABLES=folder has the public tables; without it their rows stay as they are.
accuracy: $(VENV)/.ready
	$(VENV)/bin/python benchmarks/accuracy.py $(if $(TABLES),--tables "$(TABLES)")

clean:
	rm -rf $(VENV) $(LIGHT) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
