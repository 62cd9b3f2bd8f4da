.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
RUN := $(BIN)/python -P -m
CONFIG ?= configs/demo.yaml
UNTIL ?= release
STAMP := .venv/.installed
export BLOOMERY_HOME ?= $(CURDIR)/.bloomery

help:  ## this list
	@grep -hE '^[a-z0-9%-]+( [a-z0-9-]+)*:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | awk -F'\t' '{printf "  make %-16s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv -c constraints.txt
	@echo "installing the environment (6 GB, a minute or more)"
	@$(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt -e '.[orchestrator,spark,training,dev]'
	@touch $@

setup: $(STAMP)  ## install everything: packages, a Java runtime where there is none, Delta's jars
	@$(RUN) spark_jobs.setup

run: setup  ## start the services, take the demo from corpus to release, print the result (CONFIG=, UNTIL=)
	@$(BIN)/bloomery up
	@$(BIN)/bloomery run $(CONFIG) --until $(UNTIL)

stop:  ## stop what `make run` started, and nothing else
	@test ! -x $(BIN)/bloomery || $(BIN)/bloomery stop

test: setup lint  ## the tests (under 25 minutes on 2 cores)
	@$(RUN) pytest -m "not slow and not e2e"

test-slow: setup  ## crash tests, S3, PostgreSQL, two configs side by side: hours
	@$(RUN) pytest -m "slow" --timeout=3600

test-parity: setup  ## every legal mesh against one process (6 minutes on 2 cores)
	@$(RUN) pytest tests/training/test_parity.py

test-e2e: setup  ## the product in a real browser (needs Chromium)
	@$(RUN) pytest -m "e2e" --timeout=3600 tests/e2e

lint: $(STAMP)  ## format, lint, types, direction of imports, YAML
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/yamllint --strict configs docker-compose.yml
	@$(BIN)/hadolint docker/Dockerfile

format:  ## format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: setup  ## draw docs/architecture.svg again
	@$(BIN)/python docs/draw.py

constraints: $(STAMP)  ## pin what is installed now: names and versions only
	@$(BIN)/uv pip freeze --python $(BIN)/python --exclude-editable | grep -E '^[A-Za-z0-9._-]+==' > constraints.txt

bench-%: setup  ## a benchmark: prints ours, the peer's figure and the ratio (bench-end_to_end, ...)
	@$(BIN)/python benchmarks/$*.py

DATA := filters dedup tokenizing extraction gates incremental "incremental 1000" "scale 20 100"
bench-data: setup  ## every benchmark of the data plane, to the end: fails where a claim is short (48 minutes)
	@short=; for run in $(DATA); do set -- $$run; echo "== $$run"; \
	  $(BIN)/python benchmarks/$$1.py "$${@:2}" || short="$$short $$1"; done; \
	  test -z "$$short" || { echo "short or broken:$$short"; exit 1; }

.PHONY: help setup run stop test test-slow test-parity test-e2e lint format docs constraints bench-data
