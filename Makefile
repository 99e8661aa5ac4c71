# Everything runs from .venv, which `make setup` makes from requirements.lock.
# Python 3.11 or newer is looked for; `make PYTHON=/path/to/python3.12 ...` names one.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
N ?= 20

# Bytecode is worth seconds at each start of an Airflow process.
export PYTHONDONTWRITEBYTECODE :=
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help setup demo ui test test-airflow chaos lint format bench lock clean

help:
	@echo "make demo          retrain models on a real Airflow, end to end, in about a minute"
	@echo "make ui            the same, left running to look at"
	@echo "make test          unit, contract and everyday Airflow tests"
	@echo "make test-airflow  the long matrix on real Airflow processes"
	@echo "make chaos N=200   that many tasks while processes are killed, then count the jobs"
	@echo "make lint          ruff, mypy, import contracts"
	@echo "make bench         figures, one JSON object a line"
	@echo "make lock          requirements.lock and generated files anew"

setup: $(VENV)/installed

# The stamp is younger than what it was made from, so a second call starts at once.
$(VENV)/installed: requirements.lock pyproject.toml airflow_aiptraining/__init__.py
	@found=""; \
	for candidate in "$(PYTHON)" python3.12 python3.13 python3.11 python3.14 python3 python; do \
	  [ -n "$$candidate" ] || continue; \
	  if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' \
	    >/dev/null 2>&1; then found="$$candidate"; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "No Python from 3.11 to 3.14 with the venv module was found." >&2; \
	  echo "Install one (Debian: python3-venv), or name it: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; \
	  exit 1; \
	fi; \
	echo "setup: $$("$$found" --version) in $(VENV)"; \
	rm -rf $(VENV) && "$$found" -m venv $(VENV)
	@awk '/^[^ ]/ { take = /^uv==/ } take' requirements.lock > $(VENV)/uv.txt
	@$(PY) -m pip install --quiet --require-hashes -r $(VENV)/uv.txt
	@$(BIN)/uv pip sync --quiet --python $(PY) --require-hashes requirements.lock
	@$(BIN)/uv pip install --quiet --python $(PY) --no-deps --no-build-isolation --editable .
	@touch $@

demo: setup
	@$(PY) dags_examples/demo/demo.py

ui: setup
	@$(PY) dags_examples/demo/demo.py --keep

test: setup
	@# Most of these wait for other processes; the Airflow tests share one cluster.
	@$(PY) -m pytest --numprocesses 6 --dist loadscope tests/unit tests/contract
	@$(PY) -m pytest tests/airflow -m "not long"
	@$(PY) -m pytest tests/chaos

test-airflow: setup
	@$(PY) -m pytest tests/airflow --timeout 3600

chaos: setup
	@$(PY) tests/chaos/chaos.py --tasks $(N) $(if $(SEED),--seed $(SEED)) $(if $(PEOPLE),--people $(PEOPLE))

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: setup
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: setup
	@$(PY) tests/bench/bench.py

# No index addresses: the lock holds names, versions and hashes only.
lock:
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --upgrade --generate-hashes \
	  --no-emit-index-url --no-header --no-annotate --extra dev pyproject.toml --output-file requirements.lock
	@$(PY) -m airflow_aiptraining.core.params_schema

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
