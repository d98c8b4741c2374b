# `make demo` and `make test` set up everything they need: Python 3.11+ with venv and pip is enough.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
PYTHON ?= python3
UV_VERSION := 0.13.9
UV := UV_NO_PROGRESS=1 .tools/uv-$(UV_VERSION)/bin/uv
BIN := .venv/bin
# Hundreds of processes import the same modules: what Python compiles is kept, even where the environment says no.
export PYTHONDONTWRITEBYTECODE :=
# Idle threads of torch sleep: on busy cores they would spin for three times the work.
export OMP_WAIT_POLICY ?= PASSIVE
LOCKED := pyproject.toml uv.lock $(wildcard packages/*/pyproject.toml)

.PHONY: demo test test-fast test-python test-lowest test-vllm test-jobs test-peers setup lint typecheck quick clusters packaging dist docs bench peers lock clean

demo: setup
	$(BIN)/python examples/grpo.py --steps 60
	$(BIN)/python examples/grpo.py --steps 60 --mode ray --workers 2 --samplers 2 --ahead 10

# Tests with a cluster wait for limits and for processes that start: the rest runs next to them.
test: lint
	$(MAKE) --no-print-directory --jobs 3 clusters quick typecheck packaging

setup: .venv/.ready

.tools/uv-$(UV_VERSION)/bin/uv:
	$(PYTHON) -m venv .tools/uv-$(UV_VERSION) || python3 -m venv --clear .tools/uv-$(UV_VERSION)
	.tools/uv-$(UV_VERSION)/bin/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

# The lock names no address, so its packages come from the configured index first (hashes checked), then the workspace.
.venv/.ready: .tools/uv-$(UV_VERSION)/bin/uv $(LOCKED)
	$(UV) venv --quiet --allow-existing --python $(PYTHON) .venv
	$(UV) export --quiet --locked --all-packages --no-emit-workspace --output-file .venv/requirements.txt
	$(UV) pip install --quiet --python .venv/bin/python --require-hashes -r .venv/requirements.txt
	$(UV) sync --quiet --locked --all-packages
	touch $@
	@echo "setup: .venv has what uv.lock names; from here on uv sync and uv run work too"

lint: setup
	$(BIN)/ruff check && $(BIN)/ruff format --check

typecheck: setup
	$(BIN)/mypy

quick: setup
	$(BIN)/python -m pytest -m "not (packaging or ray or processes)" --durations 20

clusters: setup
	$(BIN)/python -m pytest -m "(ray or processes) and not (packaging or jobs)" \
	  --numprocesses 2 --dist loadfile --no-loadscope-reorder --durations 20

# While one writes: what needs neither a cluster nor a build, without the tests that take seconds each.
test-fast: setup
	$(BIN)/python -m pytest -m "not (packaging or ray or processes or slow)" --numprocesses 3 --dist worksteal

# What needs no cluster, on another interpreter, in an environment of its own: make test-python PYTHON=python3.13
# uv finds the interpreter, or downloads it.
OTHER := .cache/$(notdir $(PYTHON))
test-python: .tools/uv-$(UV_VERSION)/bin/uv
	$(UV) venv --quiet --allow-existing --python $(PYTHON) $(OTHER)
	$(UV) export --quiet --locked --all-packages --no-emit-workspace --output-file $(OTHER)/requirements.txt
	$(UV) pip install --quiet --python $(OTHER)/bin/python --require-hashes -r $(OTHER)/requirements.txt
	$(UV) pip install --quiet --python $(OTHER)/bin/python --no-deps --editable . $(addprefix --editable ,$(wildcard packages/*))
	$(OTHER)/bin/python -m pytest --numprocesses 2 --dist loadfile -m "not (packaging or ray)" tests/mesh tests/remote tests/data

# The lowest versions that the packages declare, on Python 3.11: what needs no cluster, and one loop on Ray.
test-lowest: .tools/uv-$(UV_VERSION)/bin/uv
	tools/lowest.sh .tools/uv-$(UV_VERSION)/bin/uv

# The job scripts of SLURM, on two hosts of this machine, and the manifest of Kubernetes: whole runs, of minutes.
test-jobs: setup
	TWINKLE_UV=$(CURDIR)/.tools/uv-$(UV_VERSION)/bin/uv $(BIN)/python -m pytest -m jobs tests/ray/hosts tests/packaging

# The engine of vLLM itself, built for CPUs, in an environment of its own: it asks for another transformers than the lock
# has, and for a build of torch that indexes may lack.
test-vllm: .cache/vllm/.ready
	.cache/vllm/bin/python -m pytest tests/vllm

.cache/vllm/.ready: .tools/uv-$(UV_VERSION)/bin/uv $(LOCKED) tests/vllm/requirements.txt tests/vllm/overrides.txt
	$(UV) venv --quiet --allow-existing --python $(PYTHON) .cache/vllm
	$(UV) pip install --quiet --python .cache/vllm/bin/python --override tests/vllm/overrides.txt -r tests/vllm/requirements.txt
	$(UV) pip install --quiet --python .cache/vllm/bin/python --no-deps --editable . $(addprefix --editable ,$(wildcard packages/*))
	touch $@

packaging: setup
	$(UV) lock --check --quiet && $(UV) pip check --quiet --python .venv/bin/python
	TWINKLE_UV=$(CURDIR)/.tools/uv-$(UV_VERSION)/bin/uv $(BIN)/python -m pytest -m "packaging and not jobs" tests/packaging

# What a release uploads: wheels and source distributions of the last commit, built twice, checked and installed.
dist: setup
	tools/dist.sh .tools/uv-$(UV_VERSION)/bin/uv

# The site, without a network: out/docs/index.html. A warning is an error.
docs: setup
	$(BIN)/python -m sphinx -E -W --keep-going -q -d .cache/docs docs out/docs

bench: setup
	for file in benchmarks/bench_*.py; do $(BIN)/python "$$file"; done

# Against what a user would take instead, each peer in an environment of its own: out/peers.md. What cannot be installed
# is left out by name. Rows or scripts by name: make peers ROWS="loader weights"
peers: setup
	$(BIN)/python benchmarks/peers/run.py $(ROWS)

# The goldens of losses and advantages, by verl's and TRL's own functions, each in an environment of its own.
test-peers: setup
	$(BIN)/python benchmarks/peers/formulas.py

# Resolve again, then drop the addresses: any index or mirror serves the same hashes.
lock: .tools/uv-$(UV_VERSION)/bin/uv
	$(UV) lock --quiet
	sed -E -i -e 's#registry = "https?://[^"]*"#registry = "wheels"#' -e 's#url = "https?://[^"]*/([^/"]+)"#path = "\1"#' uv.lock
	$(UV) lock --check --quiet

clean:
	rm -rf .venv .tools .cache .mypy_cache .ruff_cache .hypothesis dist build out .coverage*
