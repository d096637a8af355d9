# Two commands do everything: `make demo` and `make test`. Both install into .venv first: the demo the package alone,
# the tests what they need beside it.
PYTHON ?= python3
BIN := .venv/bin
LEAN := .venv/.lean
STAMP := .venv/.installed
# Exact versions beside torch; `make LOCK=/dev/null install` takes the newest.
LOCK ?= requirements/ci.txt
# The time in archives: that of the last change, so that the same source gives the same bytes.
export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 1580601600)

.PHONY: install demo test lint types unit test-slow test-gpu bench campaign docs wheel smoke lock sbom audit clean

install: $(STAMP)

$(LEAN): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(STAMP): $(LEAN)
	$(BIN)/python -m pip install --quiet --constraint $(LOCK) --editable ".[dev,docs]"
	touch $@

demo: $(LEAN)
	$(BIN)/stablenet demo

test: lint types unit

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

# One worker per core, each with one thread.
unit: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto

test-slow: $(STAMP)
	$(BIN)/pytest -m slow

test-gpu: $(STAMP)
	$(BIN)/pytest -m gpu

bench: $(STAMP)
	$(BIN)/python -m benchmarks.weighting
	$(BIN)/python -m benchmarks.train

# Thousands of generated inputs, in forks of one process; stops and goes on where it was. A short part is in `make test`.
campaign: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m campaign --seed 0 --count 5000 --out results/campaign/seed0.json

# The documentation as a site that needs no network; a warning is an error.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

wheel: $(STAMP)
	$(BIN)/python -m build --outdir dist .

# The wheel and the sdist in fresh environments, on the oldest and the newest torch; downloads gigabytes.
smoke: wheel
	.ci/smoke oldest
	.ci/smoke newest

# Exact versions of what is installed here, for CI and development.
lock: $(STAMP)
	$(BIN)/python .ci/supply.py lock

# What an installation consists of, as CycloneDX: dist/sbom.json.
sbom: $(STAMP)
	$(BIN)/python .ci/supply.py sbom

# Known weaknesses of what is installed; without a network by requirements/advisories.json.
audit: $(STAMP)
	-$(BIN)/python -m pip install --quiet pip-audit
	$(BIN)/python .ci/supply.py audit

clean:
	rm -rf .venv build dist demo site .mypy_cache .pytest_cache .ruff_cache .hypothesis
