# Everything from a bare checkout. Needs Python 3.11 to 3.14 (the newest that works is taken), make and pip.
# Every target sets up what it needs in .venv; a second call finds it there and does nothing.

# Set with `=`, not `?=`: a shell may have an ENV of its own, which has another meaning.
ENV = ALE/Pong-v5
ARGS =
PYTHON =
unexport ENV
# Images of containers often forbid Python to keep what it has compiled: each process of a test would compile all anew.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
INSTALLED := $(VENV)/.installed
EXTENSION := $(VENV)/.onednn
EXTENSION_SOURCE := $(wildcard src/seedbed/nets/cpu/*.cc src/seedbed/nets/cpu/*.h src/seedbed/nets/cpu/build.py)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help install train test thorough check docs clean

help: ## list the targets
	@echo 'make TARGET, where TARGET is one of'
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  \1|\2/p' Makefile | awk -F'|' '{printf "%-14s %s\n", $$1, $$2}'
	@echo 'Another environment: make train ENV=CartPole-v1. Settings: make train ARGS="--seed 2".'
	@echo 'Another Python:      make install PYTHON=python3.12'

install: $(EXTENSION) ## set up .venv; the command is then .venv/bin/seedbed

# `exec`: no shell stands between make and the run, which would die of Ctrl-C (and take make along) while the
# run still writes its checkpoint; make itself waits.
train: $(EXTENSION) ## train ALE/Pong-v5 from pixels, or another ENV; Ctrl-C leaves a checkpoint
	@exec $(BIN)/seedbed train $(ENV) $(ARGS)

# What a test compiles runs for a moment, and to optimize it would take longer than all the rest. Tests of learning and the
# examples are compiled as for everybody.
AS_FOR_EVERYBODY := tests/learn tests/docs
NOT_OPTIMIZED := --xla_backend_optimization_level=0
# A test goes to the process that is free next. Slow tests have new processes, without the memory of thousands of others.
AT_ONCE := -n logical --maxprocesses 4 --dist worksteal

test: $(INSTALLED)-test $(EXTENSION) ## run the fast tests, then the slow ones
	XLA_FLAGS='$(NOT_OPTIMIZED)' $(BIN)/python -m pytest -m 'not slow' $(AT_ONCE)
	XLA_FLAGS='$(NOT_OPTIMIZED)' $(BIN)/python -m pytest -m slow $(AT_ONCE) $(AS_FOR_EVERYBODY:%=--ignore=%)
	$(BIN)/python -m pytest -m slow $(AT_ONCE) $(AS_FOR_EVERYBODY)

thorough: $(INSTALLED)-test $(EXTENSION) ## run the tests that `make test` leaves to others of their kind
	XLA_FLAGS='$(NOT_OPTIMIZED)' $(BIN)/python -m pytest -m thorough $(AT_ONCE) $(AS_FOR_EVERYBODY:%=--ignore=%)
	$(BIN)/python -m pytest -m thorough $(AT_ONCE) $(AS_FOR_EVERYBODY)

check: $(INSTALLED)-test $(INSTALLED)-check $(EXTENSION) ## format, lint, types, and which folder may import which
	$(BIN)/ruff format --no-cache --check .
	$(BIN)/ruff check --no-cache .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/house

docs: $(INSTALLED)-docs ## build docs/_build/html
	$(BIN)/python tools/metrics_page.py
	$(BIN)/python tools/settings_page.py
	$(BIN)/python tools/compatibility_page.py
	$(BIN)/python tools/program_tables.py
	$(BIN)/python tools/scores_page.py
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html
	@echo 'docs/_build/html/index.html'

clean: ## remove .venv and everything that was built; runs stay
	rm -f src/seedbed/nets/cpu/_*.so src/seedbed/nets/cpu/_*.json
	rm -rf $(VENV) build dist docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A .venv that was made by hand is used as it is, if its Python is one that Seedbed runs on.
$(VENV)/.created:
	@if ! $(BIN)/python -c 'import pip, sys; assert (3, 11) <= sys.version_info[:2] <= (3, 14)' 2>/dev/null; then \
	    python='$(PYTHON)'; \
	    if [ -z "$$python" ]; then python=$$(tools/find_python.sh) || exit 1; fi; \
	    echo "Making .venv with $$("$$python" --version) ($$python)"; \
	    "$$python" -m venv --clear $(VENV) || exit 1; \
	fi
	@touch $@

$(INSTALLED): $(VENV)/.created pyproject.toml constraints.txt
	@echo 'Installing Seedbed and what it needs into .venv (a minute or two, once)'
	@$(PIP) --editable .
	@touch $@

# Convolutions on a CPU take less time with it; where there is no wheel or no compiler, one line says so.
$(EXTENSION): $(INSTALLED) $(EXTENSION_SOURCE)
	@$(PIP) --editable '.[onednn]' || echo 'No oneDNN could be installed: Seedbed does without'
	@$(BIN)/python -m seedbed.nets.cpu.build
	@touch $@

$(INSTALLED)-%: $(INSTALLED)
	@echo "Installing what 'make $*' needs (once)"
	@$(PIP) --editable '.[$*]'
	@touch $@
