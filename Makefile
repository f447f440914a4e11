# Everything runs in .venv, which the first target that needs it creates.
PYTHON ?= python3
BIN := .venv/bin
SHARED ?= ../shared
CONSTRAINTS ?= constraints.txt
# One worker more than cores, at most 4: tests often wait for the processes that they start.
WORKERS ?= $(shell $(PYTHON) -c "import os; print(min(4, 1 + (os.cpu_count() or 1)))")
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

.PHONY: demo test coverage test-lowest browser lint types docs leaderboard wheel bench open-benchmark open-scores clean

demo: .venv/example  ## search a dictionary by meaning and compare strategies, offline
	HF_HUB_OFFLINE=1 $(BIN)/crossknn demo

test: .venv/installed browser
	$(PYTEST)

coverage: .venv/installed browser  ## the tests with line and branch coverage, in coverage.xml
	$(PYTEST) --cov=crossknn --cov-branch --cov-report=xml --cov-report=term:skip-covered

test-lowest:  ## the tests of the library with the lowest versions that pyproject.toml allows, in .venv-lowest
	$(PYTHON) -m venv .venv-lowest
	$(PYTHON) tools/lowest_versions.py > .venv-lowest/lowest.txt
	.venv-lowest/bin/python -m pip install --quiet --disable-pip-version-check -c .venv-lowest/lowest.txt -e ".[lowest]"
	OMP_NUM_THREADS=1 .venv-lowest/bin/python -m pytest -n $(WORKERS) --dist loadfile \
		tests/items tests/storage tests/models tests/scorers tests/encoders tests/retrievers tests/vectors/test_exact.py \
		tests/strategies tests/indexing tests/search tests/evaluate tests/serve tests/cli

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/installed
	$(BIN)/mypy

docs: .venv/installed  ## the site, in site/; every warning is an error, which --quiet would hide
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

leaderboard: .venv/installed  ## site/leaderboard/index.html: all recalls of benchmarks/results; also says which are older than the code
	$(BIN)/python -m benchmarks.pages --check
	$(BIN)/python -m benchmarks.leaderboard

wheel: .venv/installed  ## builds dist/*.whl and searches with it from an empty environment
	$(BIN)/python -m pip wheel --quiet --no-deps -w dist .
	$(PYTHON) -m venv .venv-wheel && .venv-wheel/bin/python -m pip install --quiet -c $(CONSTRAINTS) dist/crossknn-*.whl
	cd /tmp && $(CURDIR)/.venv-wheel/bin/crossknn --version
	rm -rf .venv-wheel

bench: .venv/installed  ## the CPU part and the tables of benchmarks/pages; needs the data folder, see there
	mkdir -p .bench && tar -xf $(SHARED)/data/scifact.tar.xz -C .bench
	$(BIN)/python -m benchmarks.paper_search $(SHARED)/scores/scifact $(SHARED)/scores/acl25k --queries 25 --out .bench/paper_search.json
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.posterior $(SHARED)/scores/scifact $(SHARED)/scores/acl25k --queries 25 --without-ablations --out .bench/posterior.json
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.round_time --items 25000 --out .bench/round_time.json
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.index_memory --items 20000 --out .bench/index_memory.json
	$(BIN)/python -m benchmarks.startup
	$(BIN)/python -m benchmarks.scoring_speed --model $(SHARED)/models/ce-ir --texts .bench/scifact --device cpu --out benchmarks/results/scoring_speed_cpu.json
	$(BIN)/python -m benchmarks.pages

open-benchmark: .venv/installed  ## strategies on a set that is made of docstrings here: no data of ours
	$(BIN)/python -m benchmarks.open_set .bench/open-set
	HF_HUB_OFFLINE=1 $(BIN)/python -m crossknn bench set .bench/open-set --scorer embedded --encoder embedded --dtype int8 \
		--budgets 10,25,50,100,200 --index-calls-per-item 8 --yes --json benchmarks/results/open_set.json \
		--strategies rerank:retriever=dense,rerank:retriever=bm25,rerank:retriever=fused,axn,gar,posterior

open-scores: .venv/installed  ## the same set as a folder of exact scores, .bench/scores/open-set, for the scripts in benchmarks/
	$(BIN)/python -m benchmarks.open_set .bench/open-set
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.score_folder .bench/open-set --scorer embedded --encoder embedded --dtype int8 \
		--device cpu --train 100 --test 300 --work .bench/open-set.work/exact --out .bench/scores/open-set

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/example: pyproject.toml constraints.txt | .venv/bin/python  ## what the demo needs
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) -e ".[example]"
	touch $@

.venv/installed: pyproject.toml constraints.txt | .venv/bin/python  ## what all else needs
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) -e ".[dev]"
	touch $@ .venv/example

browser: .venv/browser  ## a Chromium for the tests of pages: one that is there, or a new one

.venv/browser: .venv/installed
	@command -v chromium || command -v chromium-browser || command -v google-chrome \
	|| { sudo=$$(test "$$(id -u)" = 0 || echo "sudo -n"); $$sudo apt-get update -qq && $$sudo apt-get install -qq -y chromium; } \
	|| $(BIN)/python -m playwright install chromium \
	|| echo "warning: no browser could be found or installed; the browser tests will be skipped"
	@touch $@

clean:
	rm -rf .venv .venv-lowest .venv-wheel dist coverage.xml .coverage .bench site crossknn-demo .mypy_cache .pytest_cache .ruff_cache .hypothesis
