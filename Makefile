# Everything a checkout needs, set-up included: see `make help`.
# Needs python3 (3.11 or newer), python3-venv and make.

PYTHON ?= python3
# Tests run on so many processes, each with a database server of its own. One more than the machine
# has cores, because many tests wait for a process, a lease or a due time.
JOBS ?= $(shell expr $$(nproc) + 1)
VENV := .venv
BIN := $(VENV)/bin
# Another, of `make test-lowest`: it is made anew each time.
LOWEST := .venv-lowest
# Touched when the virtual environment matches pyproject.toml.
INSTALLED := $(VENV)/.installed
# Touched when it also has what the documentation site needs.
DOCS_INSTALLED := $(VENV)/.installed-docs
# Touched when it also has the fuzzer.
FUZZ_INSTALLED := $(VENV)/.installed-fuzz

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-lowest check format acceptance-long stress soak upgrade simulate fuzz bench screenshots docs install package programs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(INSTALLED) ## schedule, kill the broker, recover, deliver on time: the main job
	$(BIN)/escapement demo

test: $(INSTALLED) programs ## all tests but the long ones, on SQLite and a private MariaDB or MySQL
	$(BIN)/pytest -m "not long" -n $(JOBS) $(ARGS)

test-lowest: programs ## the same tests on the oldest versions that pyproject.toml allows
	$(PYTHON) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check uv
	VIRTUAL_ENV=$(CURDIR)/$(LOWEST) $(LOWEST)/bin/uv pip install --quiet \
	  --resolution lowest-direct --editable '.[test]'
	$(LOWEST)/bin/pytest -m "not long" -n $(JOBS) $(ARGS)

check: $(INSTALLED) ## format, lint, types and layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -q tests/unit/tests/test_layers.py

format: $(INSTALLED) ## put the code into its format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

acceptance-long: $(INSTALLED) programs ## the tests too long for `make test`, saying how far they are
	$(BIN)/pytest -m long -o faulthandler_timeout=7200 -v -s --durations=0 --durations-min=1 $(ARGS)
	ESCAPEMENT_RANDOM=1 $(BIN)/pytest -m "hypothesis and not long" -n $(JOBS)

stress: $(INSTALLED) programs ## kills, damage and outages under load: MINUTES=5 ENGINE=both SEED=1
	PYTHONPATH=tests $(BIN)/python -m stress --minutes $(or $(MINUTES),5) \
	  --engine $(or $(ENGINE),both) $(if $(SEED),--seed $(SEED))

simulate: $(INSTALLED) ## brokers, clients, faults, a virtual clock: WORKLOAD=exact SEEDS=100 FIRST=1 DAYS=30
	PYTHONPATH=tests $(BIN)/python -m simulation --seeds $(or $(SEEDS),100) \
	  --first $(or $(FIRST),1) --days $(or $(DAYS),30) --workload $(or $(WORKLOAD),cluster)

soak: $(INSTALLED) programs ## memory, descriptors, disk and lateness under load: HOURS=1 BROKERS=2
	PYTHONPATH=tests $(BIN)/python -m stress.soak --hours $(or $(HOURS),1) \
	  --brokers $(or $(BROKERS),2) $(if $(SEED),--seed $(SEED))

upgrade: $(INSTALLED) programs ## brokers of COMMIT and of the working tree in turn, under load: ARGS=--kill
	PYTHONPATH=tests $(BIN)/python -m stress.upgrade $(COMMIT) $(ARGS)

fuzz: $(FUZZ_INSTALLED) ## any bytes as frames, blocks, segments and manifests: COUNT=100000 TARGET=all
	PYTHONPATH=tests $(BIN)/python -m fuzz --count $(or $(COUNT),100000) \
	  --target $(or $(TARGET),all) $(if $(CORPUS),--corpus $(CORPUS))

bench: $(INSTALLED) programs ## the figures of docs/benchmarks.md, on this machine
	$(BIN)/python benchmarks/figures.py $(ARGS)

screenshots: $(INSTALLED) programs ## the pictures of the console in docs/images/console
	PYTHONPATH=tests $(BIN)/python -m support.console.screenshots docs/images/console

docs: $(DOCS_INSTALLED) ## the documentation site in site/; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

install: $(INSTALLED) ## the virtual environment with the package and its tools

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "escapement needs Python 3.11 or newer, and $(PYTHON) is not:" \
	       "try 'make PYTHON=python3.12 $(MAKECMDGOALS)'" >&2; exit 1; }
	@echo "installing escapement and its tools into $(VENV): one to three minutes"
	@$(PYTHON) -m venv $(VENV) || { echo "try 'apt-get install python3-venv'" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

$(FUZZ_INSTALLED): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	@touch $@

$(DOCS_INSTALLED): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

package: $(INSTALLED) ## the wheel and the source archive in dist/, checked
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check --strict dist/*

programs:
	@.ci/programs

clean: ## remove the virtual environment and everything built
	rm -rf $(VENV) $(LOWEST) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
