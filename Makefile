# `make record` and `make test` each work as the only command on a fresh machine with Python >= 3.11:
# they make .venv, install into it with the versions of constraints.txt, and do the job. The stamps make
# them install again when what to install has changed, and only then.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# How long `make record` plays, and further flags for it: make record SECONDS=600 ARGS="--max-steps off"
SECONDS = 30
ARGS =
MINUTES = 30
# Simulated lives of `make simulate`.
LIVES = 1000000
# Formats that `make fuzz` fuzzes, MINUTES each.
FORMATS = a2t1 a2run2 a2pack a2pack-index packdat tape
# Processes that run tests, one more than a small machine has cores, as many tests wait for processes that they
# watch. The tests of a file stay in one, and share what they record.
JOBS = 3
# Further arguments for pytest: make test PYTEST_ARGS="-k session -x"
PYTEST_ARGS =

.DEFAULT_GOAL := help
.PHONY: help record test lint types unit bench peers faults simulate fuzz soak systemd-test docs site words generate \
  screenshots sample notebooks package aarch64 pythons clean

help: ## Show this list.
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

record: $(VENV)/.installed ## Record up to SECONDS=30 of play, at most 0.3 GB, on two cores; before that, compile once (ARGS=).
	@# The player that the shipped critic judges. Its 8 million rows are 400 games, in three sessions.
	$(BIN)/tape2048 record --player ntuple --workers 2 --max-steps 8M --rotate-steps 3M \
	  --max-wall-s $(SECONDS) $(ARGS)

test: $(VENV)/.installed-dev ## Run everything that has to pass: lint, types, the site, tests (PYTEST_ARGS=).
	$(MAKE) --no-print-directory --jobs 2 --output-sync lint types site
	$(MAKE) --no-print-directory unit

lint: $(VENV)/.installed-dev ## Check style and format (ruff).
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev ## Check types (mypy, strict).
	$(BIN)/mypy

unit: $(VENV)/.installed-dev ## Run the tests alone, three at a time (JOBS=3, PYTEST_ARGS=).
	@# PyTorch's threads spin while they wait for each other: with several processes on few cores, most of its time.
	@# A test that waits for other processes can fail on a busy machine: those that failed run again, alone.
	export OMP_NUM_THREADS=1; \
	$(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS) || { \
	  failed=$$?; [ $$failed = 1 ] && [ "$$(grep -c '": true' .pytest_cache/v/cache/lastfailed)" -le 5 ] || exit $$failed; \
	  echo "running the tests that failed again, one at a time"; \
	  $(BIN)/pytest --last-failed --last-failed-no-failures none $(PYTEST_ARGS); }

bench: $(VENV)/.installed-dev ## Run the benchmarks, or some of them: ARGS="batches tapes"; tables go to bench-results/.
	$(BIN)/python -m tests.bench $(ARGS)

peers: .peers/venv/.installed ## Measure beside what one would take instead, ten minutes; writes docs/explanation/speed.md (ARGS=).
	.peers/venv/bin/python -m tests.bench.peers $(ARGS)

faults: $(VENV)/.installed-dev ## Kill, fail and cut the power at every point (the suite takes a sample), an hour.
	FULL_SWEEP=1 $(BIN)/pytest tests/recorder/test_crash_sweep.py \
	  tests/recorder/recording/test_power_loss.py tests/tools/sessions/test_jobs.py \
	  tests/sdk/ntuple/test_shipped_network.py tests/sdk/session/test_column_draft.py \
	  tests/sdk/runs/test_convert.py $(PYTEST_ARGS)

simulate: $(VENV)/.installed-dev ## Live LIVES=1000000 simulated lives of a recorder; a fault is told with its seed (JOBS=3).
	$(BIN)/python -m tests.recorder.simulation --lives $(LIVES) --jobs $(JOBS)

fuzz: $(VENV)/.installed-dev ## Fuzz each format, coverage-guided, for MINUTES=30 (FORMATS=).
	$(PIP_INSTALL) --editable . --group test --group fuzz
	FUZZ_CASES=1000000 $(BIN)/pytest tests/fuzz $(PYTEST_ARGS)
	for format in $(FORMATS); do $(BIN)/python -m tests.fuzz $$format --minutes $(MINUTES) || exit 1; done

soak: $(VENV)/.installed-dev ## Record for MINUTES=30 and watch memory; and as long again, killing processes.
	$(BIN)/python -m tests.bench.memory --minutes $(MINUTES)
	$(BIN)/python -m tests.bench.soak --minutes $(MINUTES)

systemd-test: $(VENV)/.installed-dev ## Run the service under a real systemd, in a container (root, debootstrap).
	$(BIN)/python -m tests.systemd

aarch64: $(VENV)/.installed-dev ## Run a sample of the tests on an emulated aarch64 (root, debootstrap, qemu-user-static).
	$(BIN)/python -m tests.platforms aarch64

pythons: $(VENV)/.installed-dev ## Run the same sample on newer Pythons and on the lowest dependencies (root; ARGS="3.13 lowest").
	$(BIN)/python -m tests.platforms pythons $(ARGS)

docs: generate site ## Write what is made from the sources anew, and build the site: docs/_build/html.

generate: $(VENV)/.installed-dev ## Write anew: tables and commands in docs/, sample files, systemd/, the list of the packages.
	$(BIN)/python -m tape2048_tools.options.critic_options
	$(BIN)/python -m tape2048_tools.machine.units
	$(BIN)/python -m tests.pages
	$(BIN)/python -m tests.layers

site: $(VENV)/.installed-dev ## Build the site as it is; a warning is an error.
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs docs/_build/html

screenshots: $(VENV)/.installed-dev ## Take pictures of every page of the viewer; the docs' go to docs/screenshots (chromium).
	$(BIN)/python -m tests.screenshots

.peers/venv/.installed: pyproject.toml constraints.txt tests/bench/peers/requirements.txt
	$(PYTHON) -m venv .peers/venv
	.peers/venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
	  --editable . --requirement tests/bench/peers/requirements.txt
	rm -rf .peers/venv/lib/python*/site-packages/tests  # pgx installs its tests under this name, before ours
	@touch $@

SAMPLE := sdk/tape2048/sample_games
sample: $(VENV)/.installed ## Record the small corpus of `tape2048.sample()` again: 100 games of two players, below 1 MB.
	rm -rf $(SAMPLE)
	for played in "72 --player ntuple:weights=fast,look=0" "28 --player ntuple"; do \
	  $(BIN)/tape2048 record --seed 2048 --workers 1 --storage tape --out $(SAMPLE) --max-games $$played || exit 1; done
	rm -rf $(SAMPLE)/.recorder

notebooks: $(VENV)/.installed-dev ## Execute the notebooks with their full settings, and store their outputs, two minutes.
	$(BIN)/python -m tests.notebooks

words: $(BIN)/python ## Count the words of the README and of each page.
	@wc -w README.md $$(find docs -name '*.md' -not -path '*/_build/*' | sort)

package: $(VENV)/.installed-dev ## Build dist/, install the wheel in an empty environment, run the documentation there (ARGS=).
	$(BIN)/python -m tests.package $(ARGS)

clean: ## Remove the virtual environment and all caches; recordings stay.
	rm -rf $(VENV) .peers .platforms build dist docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find recorder sdk tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

# The tests start a thousand processes: not each is to compile all sources.
unexport PYTHONDONTWRITEBYTECODE

# Lint, types, site, tests stay in this order under -j too: the last line of `make test` is pytest's.
.NOTPARALLEL:

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "tape2048 needs Python 3.11 or newer, found: $$($(PYTHON) --version 2>&1)"; \
	    echo "name another one: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "no venv module; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }

$(VENV)/.installed: $(BIN)/python pyproject.toml constraints.txt
	$(PIP_INSTALL) --editable .
	@touch $@

$(VENV)/.installed-dev: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'pip>=25.1'  # it knows groups
	$(PIP_INSTALL) --editable . --group test --group lint --group docs
	@touch $@ $(VENV)/.installed
