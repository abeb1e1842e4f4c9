# `make run` and `make test` set up everything they need in .venv, once.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Touched after a successful installation; if it is older than its sources, install again.
STAMP := $(VENV)/.arturo-installed

.PHONY: help run league test lint dist clean
.DEFAULT_GOAL := help

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-6s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(STAMP)  ## the demo: SGD, AdamW, AdaArturo, arTuRO and arTuRO as published, on handwritten digits, 3 seeds, about two minutes
	$(BIN)/arturo compare digits-mlp digits-cnn --optimizers sgd adamw adaarturo arturo arturo-paper --seeds 3 --jobs 2

league: $(STAMP)  ## many optimizers on many tasks, resumed from results/league/runs.jsonl; `arturo league --plan` says how long it takes
	$(BIN)/arturo league

test: $(STAMP)  ## all tests, on two workers with one thread each; a test file stays on one worker
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --durations 25

lint: $(STAMP)  ## ruff (rules and format) and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The PEP 517 hook makes the source distribution, and pip makes the wheel from it, so that a missing file is noticed.
dist: $(STAMP)  ## source distribution and wheel in dist/, the wheel tried in an empty environment
	rm -rf dist build/empty
	$(BIN)/python -c 'from setuptools import build_meta; build_meta.build_sdist("dist")'
	$(BIN)/python -m pip wheel --disable-pip-version-check --no-cache-dir --no-deps -w dist dist/arturo-*.tar.gz
	$(PYTHON) -m venv build/empty
	build/empty/bin/python -m pip install --disable-pip-version-check -c constraints.txt dist/arturo-*.whl
	build/empty/bin/python tests/test_dist.py native

clean:  ## remove caches and build output; keeps .venv and runs/
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt setup.py $(wildcard arturo/kernels/cpp/*)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
