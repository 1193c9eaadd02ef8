# Every target starts from a bare checkout with python3 (3.11 or newer) and make, and sets up what it needs:
#   .venv          Postroom (editable), its command line and, from `venv` on, the development tools
#   .venv-3.12 ... Postroom and the test tools, for the other Pythons `check` finds
# A stamp file in each says when it was last brought up to date with pyproject.toml and constraints.txt.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
EXTRAS := cli,redis,test
PIP_INSTALL := -m pip install -qq -c constraints.txt
OTHER_PYTHONS := 3.12 3.13
FAST := not slow and not faults and not soak
WORKERS ?= 4
# What depends on the Python that runs it. The edges, and the store that brings its own engine, are tested on one of them.
LIBRARY := tests/core tests/flows tests/testing $(filter-out tests/drivers/test_redis%,$(wildcard tests/drivers/test_*.py)) \
	tests/conformance/test_memory.py
PYTEST_OPTIONS ?=
PINS := pyproject.toml constraints.txt

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export NO_MKDOCS_2_WARNING := 1
# Without bytecode on disk each of the many processes that the tests start would compile the library anew.
unexport PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE

# Keep the lines of one step together where make can (4.0 and newer).
GROUPED := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

.PHONY: help demo venv test check lint types pyright fast bench docs soak clean
.DEFAULT_GOAL := help

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 10

demo: $(VENV)/.runtime ## the main job on SQLite: workers, a kill -9, a redelivery, dead letters
	@$(BIN)/postroom demo

test: $(VENV)/.dev pyright ## every test but the soak tests, and a second type checker
	$(PY) -m pytest $(PYTEST_OPTIONS) -m "not soak" -n $(WORKERS) --dist loadgroup

check: $(VENV)/.dev ## lint, types and the fast tests, on every Python found; half a minute
	@$(MAKE) -k -j4 $(GROUPED) --no-print-directory fast types $(OTHER_PYTHONS:%=fast-%) lint
	@echo "check: all good"

bench: $(VENV)/.dev ## speed, as ratios to hand-written code in the same run
	@$(PY) -m bench

docs: $(VENV)/.dev ## the documentation, in site/; a warning fails
	@$(PY) tools/docs_gen.py --check
	@$(PY) -m mkdocs --quiet build --strict
	@echo "docs: site/index.html; with search: $(PY) -m http.server -d site"

soak: $(VENV)/.dev ## the tests that run for minutes
	$(PY) -m pytest $(PYTEST_OPTIONS) -m soak -n $(WORKERS) --dist loadgroup --timeout 1800

clean: ## remove what the targets above made
	rm -rf .venv .venv-* .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The steps of `check`, each callable alone.

lint: $(VENV)/.dev
	@$(PY) -m ruff check --quiet . && $(PY) -m ruff format --check --quiet . \
		|| { echo "lint: see above; 'make fix' repairs most of it"; exit 1; }
	@echo "lint: good"

.PHONY: fix
fix: $(VENV)/.dev ## repair lint and formatting where a tool can
	@$(PY) -m ruff check --fix --quiet . ; $(PY) -m ruff format --quiet .

types: $(VENV)/.dev
	@echo "types: mypy --strict"
	@$(PY) -m mypy $(wildcard src tests/typing)

pyright: $(VENV)/.dev
	@echo "pyright: public modules and tests/typing"
	@$(PY) -m basedpyright

fast: $(VENV)/.dev
	@echo "fast tests on $$($(PY) --version)"
	@$(PY) -m pytest $(PYTEST_OPTIONS) -q -m "$(FAST)" -n 2 --dist loadgroup

# A version that the machine lacks is named. It is no failure: a contributor needs one Python.
fast-%: $(VENV)/.dev .venv-%/.tests
	@if [ -f .venv-$*/.tests ]; then \
		echo "fast tests on $$(.venv-$*/bin/python --version)" && \
		.venv-$*/bin/python -m pytest $(PYTEST_OPTIONS) -q -m "$(FAST)" -p no:xdist \
			-p no:cacheprovider $(LIBRARY); \
	elif tools/python-for $* >/dev/null; then \
		echo "fast tests on Python $*: that is $(VENV) itself"; \
	else \
		echo "fast tests on Python $*: NOT RUN, this machine has no Python $*"; \
	fi

# The environments. Each is made anew if a former attempt broke off; pip learnt --group in 25.1.

venv: $(VENV)/.dev ## .venv with everything for development
	@:

.venv/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Postroom needs Python 3.11 or newer and '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." \
		     "Name a newer one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "making .venv (once; under a minute)" >&2
	@rm -rf .venv && $(PYTHON) -m venv .venv && touch $@

.venv/.runtime: .venv/.made $(PINS)
	@$(PY) $(PIP_INSTALL) -e '.[cli]' && touch $@

.venv/.dev: .venv/.runtime
	@$(PY) $(PIP_INSTALL) 'pip>=25.1' && $(PY) $(PIP_INSTALL) --group dev -e '.[$(EXTRAS)]' && touch $@

# Left undone where the machine lacks that version or .venv is of it.
.venv-%/.tests: $(PINS) | .venv/.made
	@! $(PY) -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] != "$*")' || exit 0; \
	python=$$(tools/python-for $*) || exit 0; \
	[ -f .venv-$*/.made ] || { \
		echo "making .venv-$* (once)" && rm -rf .venv-$* && "$$python" -m venv .venv-$* && touch .venv-$*/.made; \
	} && \
	.venv-$*/bin/python $(PIP_INSTALL) 'pip>=25.1' && \
	.venv-$*/bin/python $(PIP_INSTALL) --group tests -e '.[$(EXTRAS)]' && touch $@

.PRECIOUS: .venv-%/.tests
