# The habits. `make demo` needs Python 3.11 or later, git and make; the rest comes from requirements.lock.

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := $(CURDIR)/.venv/bin
PY := $(BIN)/python

export PATH := $(BIN):$(PATH)
export DVC_NO_ANALYTICS := true
export DO_NOT_TRACK := true
export HF_HUB_DISABLE_TELEMETRY := 1
export MLFLOW_DISABLE_TELEMETRY := true
export PREFECT_SERVER_ANALYTICS_ENABLED := false

.PHONY: help setup demo test lint ui bench seeds base-model clean

help:
	@echo "make demo        the whole pipeline on two cores: a policy that learns to search, and a table of results"
	@echo "make test        the whole test suite"
	@echo "make ui          Prefect and MLflow on loopback, and the pipeline as a deployment (PREFECT_PORT, MLFLOW_PORT)"
	@echo "make lint        ruff, mypy, import directions, dependencies of dvc.yaml"
	@echo "make bench       speed, as ratios measured side by side"
	@echo "make seeds       the results table: three seeds (half an hour)"
	@echo "make base-model  train models/tiny-base again and measure how it reads (under an hour)"
	@echo "make clean       remove what the pipeline made, but not the ledger of paid calls"

setup: .venv/installed

.venv/installed: requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "error: Python 3.11 or later is needed; set it with make PYTHON=/path/to/python3" >&2; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv .venv
	@echo "Installing requirements.lock into .venv (minutes) ..."
	@$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: setup
	@$(PY) -m r3flow.params
	@R3FLOW_COMMAND="make demo" $(PY) -m r3flow.tracking run -- dvc repro
	@$(PY) -m r3flow.evaluation.table
	@echo
	@echo "Look further:"
	@echo "  report/index.html               curves, and trajectories to browse"
	@echo "  make ui                         Prefect (runs, schedules) and MLflow (comparison)"
	@echo "  . .venv/bin/activate            then:"
	@echo "  r3flow ask \"...\"                one question, its steps shown live"
	@echo "  dvc repro                       after an edit of params.yaml: runs what depends on it"

test: setup
	@$(PY) -m pytest

lint: setup
	@ruff check .
	@mypy
	@lint-imports --no-cache
	@$(PY) -m r3flow.dev.deps --check
	@$(PY) -m r3flow.dev.profiles --check
	@$(PY) -m r3flow.params

ui: setup
	@$(PY) -m flows.ui

bench: setup
	@$(PY) -m benchmarks

seeds: setup
	@$(PY) -m benchmarks.seeds

base-model: setup
	@$(PY) -m r3flow.training.base_model
	@$(PY) -m benchmarks.reading

# the ledger (.work/ledger.jsonl) holds what was paid for; the caches of DVC hold results: both stay
clean:
	@rm -rf data/prepared data/world.json data/trajectories data/evaluation index models/cold_start models/ppo models/control \
		metrics plots report .pytest_cache .mypy_cache .ruff_cache
	@find .work -mindepth 1 -maxdepth 1 ! -name 'ledger.jsonl' -exec rm -rf {} + 2>/dev/null || true
