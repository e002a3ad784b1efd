# Two commands do all the set-up: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
export RAY_AUTH_MODE ?= disabled
export RAY_USAGE_STATS_ENABLED ?= 0

.PHONY: help .venv demo test test-all check format bench clean
help:
	@echo "make demo    create .venv when missing, run the demo on real images, show the result"
	@echo "make test    create .venv when missing, run the tests"
	@echo "make test-all  also those that start clusters or kill processes (several minutes)"
	@echo "make check   format, lint and type checks"
	@echo "make bench   benchmarks, short mode (BENCH=--long for the long one)"
	@echo "make .venv   the environment alone"

.venv: .venv/.installed
.venv/.installed: pyproject.toml constraints.txt
	@echo "installing into .venv: PyTorch, Ray and the rest, a few minutes"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: .venv
	$(BIN)/luca run demo

test: .venv
	$(BIN)/python -m pytest -m "not cluster and not chaos"

test-all: .venv
	$(BIN)/python -m pytest

check: .venv
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv
	$(BIN)/python -m infra.benchmarks $(BENCH)

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
