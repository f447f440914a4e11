# Everything runs in .venv, which the first target that needs it creates.
PYTHON ?= python3
BIN := .venv/bin
SHARED ?= ../shared

.PHONY: demo test browser lint types docs bench clean

demo: .venv/example  ## search a dictionary by meaning and compare strategies, offline
	HF_HUB_OFFLINE=1 $(BIN)/crossknn demo

test: .venv/installed browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/installed
	$(BIN)/mypy

docs: .venv/installed  ## the site, in site/; every warning is an error, which --quiet would hide
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: .venv/installed  ## the CPU part and the tables of benchmarks/pages; needs the data folder, see there
	mkdir -p .bench && tar -xf $(SHARED)/data/scifact.tar.xz -C .bench
	$(BIN)/python -m benchmarks.paper_search $(SHARED)/scores/scifact $(SHARED)/scores/acl25k --queries 25 --out .bench/paper_search.json
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.posterior $(SHARED)/scores/scifact $(SHARED)/scores/acl25k --queries 25 --without-ablations --out .bench/posterior.json
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.round_time --items 25000 --out .bench/round_time.json
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.index_memory --items 20000 --out .bench/index_memory.json
	$(BIN)/python -m benchmarks.startup
	$(BIN)/python -m benchmarks.scoring_speed --model $(SHARED)/models/ce-ir --texts .bench/scifact --device cpu --out benchmarks/results/scoring_speed_cpu.json
	$(BIN)/python -m benchmarks.pages

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/example: pyproject.toml constraints.txt | .venv/bin/python  ## what the demo needs
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[example]"
	touch $@

.venv/installed: pyproject.toml constraints.txt | .venv/bin/python  ## what all else needs
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@ .venv/example

browser: .venv/browser  ## a Chromium for the tests of pages: one that is there, or a new one

.venv/browser: .venv/installed
	@command -v chromium || command -v chromium-browser || command -v google-chrome \
	|| { sudo=$$(test "$$(id -u)" = 0 || echo "sudo -n"); $$sudo apt-get update -qq && $$sudo apt-get install -qq -y chromium; } \
	|| $(BIN)/python -m playwright install chromium \
	|| echo "warning: no browser could be found or installed; the browser tests will be skipped"
	@touch $@

clean:
	rm -rf .venv .bench site crossknn-demo .mypy_cache .pytest_cache .ruff_cache .hypothesis
