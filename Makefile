# Ratchet's commands. Each does all the set-up that it needs on a fresh machine with Python 3.11+, git and make.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
.DEFAULT_GOAL := help

.PHONY: help setup setup-dev run test test-quick smoke lint types bench verify-claims docs clean constraints

help: ## what can be typed here
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# A stamp is newer than what it was installed from, so a second `make` installs nothing.
$(VENV)/base.stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	@echo "ratchet: installing the base set from constraints.txt"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/dev.stamp: $(VENV)/base.stamp
	@echo "ratchet: installing the extra 'dev' (linter, types, tests)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

setup: $(VENV)/base.stamp ## create .venv from pyproject.toml and constraints.txt
setup-dev: $(VENV)/dev.stamp ## the same with the tools that tests need
