# Everything runs in .venv, which the first target that needs it creates.
PYTHON ?= python3
BIN := .venv/bin
SHARED ?= ../shared

.PHONY: demo test browser lint types bench clean

demo: .venv/installed  ## search a dictionary by meaning and compare strategies, offline
	HF_HUB_OFFLINE=1 $(BIN)/crossknn demo

test: .venv/installed browser
	$(BIN)/python -m pytest

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/installed
	$(BIN)/mypy

bench: .venv/installed  ## the CPU part; needs the data folder, see benchmarks/README.md
	$(BIN)/python -m benchmarks.paper_search $(SHARED)/scores/scifact $(SHARED)/scores/acl25k
	mkdir -p .bench && tar -xf $(SHARED)/data/scifact.tar.xz -C .bench
	$(BIN)/python -m benchmarks.scoring_speed --model $(SHARED)/models/ce-ir --texts .bench/scifact --device cpu --out benchmarks/results/scoring_speed_cpu.json

.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

browser: .venv/browser  ## a Chromium for the tests of the report: one that is there, or a new one

.venv/browser: .venv/installed
	@command -v chromium || command -v chromium-browser || command -v google-chrome \
	|| { sudo=$$(test "$$(id -u)" = 0 || echo "sudo -n"); $$sudo apt-get update -qq && $$sudo apt-get install -qq -y chromium; } \
	|| $(BIN)/python -m playwright install chromium \
	|| echo "warning: no browser could be found or installed; the browser tests will be skipped"
	@touch $@

clean:
	rm -rf .venv .bench crossknn-demo .mypy_cache .pytest_cache .ruff_cache .hypothesis
