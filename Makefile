# `make demo` and `make test` are all that a fresh machine needs: each makes .venv with the pins of constraints.txt.
PYTHON ?= python3
# One more test process than cores: many tests wait for processes that they have started.
WORKERS ?= $(shell echo $$(( $$(nproc 2>/dev/null || echo 1) + 1 )))
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint format bench docs site fuzz promises hostile clean

demo: .venv/.run
	$(BIN)/calibrant demo

# Bytecode is written even where the environment says not to: the processes that tests start would each compile it anew.
test: export PYTHONDONTWRITEBYTECODE =
test: .venv/.dev lint
	scripts/system-packages.sh chromium postgresql
	$(BIN)/pytest -n $(WORKERS)

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/.dev
	for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

# Pictures and tables in docs/ that are made from code and results, then the site.
docs: .venv/.dev
	for script in docs/make/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done
	$(MAKE) site

# The site as it is: site/index.html. A broken link or a missing page ends it.
site: .venv/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "wrote site/index.html; with search: $(BIN)/python -m http.server --directory site"

# Damaged files for every reader. What breaks the rule of tests/fuzz/outcome.py is kept in fuzz-findings/.
MINUTES ?= 30
fuzz: .venv/.dev
	$(BIN)/python -m tests.fuzz.campaign --minutes $(MINUTES) --table results/benchmarks/fuzz.txt

# Every promise of the package in many worlds, about half an hour on 2 cores. A run that was stopped goes on.
promises: .venv/.dev
	$(BIN)/python scripts/promises.py --counts .promises-counts.json --out results/benchmarks/promises.txt

# Bad requests, damaged logs and kills under load, for the service.
hostile: .venv/.dev
	$(BIN)/python scripts/hostile.py

clean:
	rm -rf .venv dist build site .mypy_cache .ruff_cache .pytest_cache .hypothesis

.venv/bin/python:
	$(PYTHON) -m venv .venv

# What a user runs; the developer's set below adds tests and the peers we compare with.
.venv/.run: pyproject.toml constraints.txt | .venv/bin/python
	$(INSTALL) -e ".[train]"
	touch $@

.venv/.dev: pyproject.toml constraints.txt | .venv/bin/python
	$(INSTALL) -e ".[dev]"
	touch .venv/.run $@
