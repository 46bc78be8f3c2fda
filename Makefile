# `make` lists the targets. Each of them does its own set-up, once.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DEMO_VENV := .venv-demo
DEMO_INSTALLED := $(DEMO_VENV)/.installed
GPU_PACKAGES := .gpu-packages
GPU_PYTHON ?= 3.12
PIP := -m pip --disable-pip-version-check install
LOCKED := $(PIP) --require-hashes --no-deps
LOCK := uv pip compile --quiet --no-python-downloads --universal --generate-hashes --no-annotate \
	--default-index https://pypi.org/simple --custom-compile-command 'make lock' --no-emit-package torch -c constraints.txt
GRAFANA_VENV := .venv-grafana
GRAFANA_INSTALLED := $(GRAFANA_VENV)/.installed
GRAFANA_PACKAGES := .npm-grafana
GRAFANA_PAGE := $(GRAFANA_PACKAGES)/site/index.html
RELEASE_VENV := .venv-release
RELEASE_INSTALLED := $(RELEASE_VENV)/.installed
SITE_VENV := .venv-site
SITE_INSTALLED := $(SITE_VENV)/.installed
PEERS_VENV := .venv-peers
PEERS_INSTALLED := $(PEERS_VENV)/.installed
FRAMEWORKS := tests/frameworks
FRAMEWORKS_VENV := .venv-frameworks
FRAMEWORKS_INSTALLED := $(FRAMEWORKS_VENV)/.installed
FRAMEWORKS_ALL_INSTALLED := $(FRAMEWORKS_VENV)/.installed-all
LOGGERS_INSTALLED := $(FRAMEWORKS_VENV)/.installed-loggers
NOTEBOOK_INSTALLED := $(FRAMEWORKS_VENV)/.installed-notebook
CODE := ampwatch dashboards tests benchmarks examples deploy tools
PROSE := README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md docs examples/README.md

# A test's matrices are small: threads of PyTorch would only be in each other's way.
# What pytest makes of a test to explain its failures is kept, also where Python is told to write nothing.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses=auto --maxprocesses=8 --dist=worksteal
# Bytecode is for the processes that tests start, also where Python is told to write none.
BEFORE_TESTS := .ci/system-packages; $(BIN)/python -m tools.native; $(BIN)/python -m compileall -q ampwatch examples tests tools

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(INSTALLED) ## Make .venv with ampwatch and the tools, at the versions and hashes of constraints-dev.txt

$(INSTALLED): pyproject.toml constraints.txt constraints-dev.txt
	@$(PYTHON) -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' || { \
		echo "expected Python 3.10 or newer with venv (Debian: python3-venv), got $$($(PYTHON) --version 2>&1); use make PYTHON=python3.11"; exit 1; }
	@echo "==> Making $(VENV) with $$($(PYTHON) --version); the first time takes a few minutes"
	[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	$(BIN)/python $(LOCKED) -r constraints-dev.txt
	@# PyTorch alone, and without hashes. Its version is that of constraints.txt; which build of it, for
	@# the CPU or for CUDA, is up to pip and the package index it asks. What all builds need is there.
	$(BIN)/python $(PIP) -c constraints.txt torch
	$(BIN)/python $(PIP) --no-deps --no-build-isolation -e .
	@touch $@

# What the demo needs: ampwatch, PyTorch (with NumPy, without which it warns) and Rich, and none of the tools.
$(DEMO_INSTALLED): export PIP_QUIET := 1
$(DEMO_INSTALLED): pyproject.toml constraints.txt constraints-demo.txt
	@echo "==> Making $(DEMO_VENV) with ampwatch, PyTorch and Rich; the first time takes a minute"
	[ -x $(DEMO_VENV)/bin/python ] || $(PYTHON) -m venv $(DEMO_VENV)
	$(DEMO_VENV)/bin/python $(LOCKED) -r constraints-demo.txt
	$(DEMO_VENV)/bin/python $(PIP) -c constraints.txt torch
	$(DEMO_VENV)/bin/python $(PIP) --no-deps --no-build-isolation -e .
	@touch $@

# The client of Grafana brings a package that takes the place of urllib3, which selenium needs.
$(GRAFANA_INSTALLED): pyproject.toml constraints-grafana.txt
	@echo "==> Making $(GRAFANA_VENV), for what talks to Grafana"
	[ -x $(GRAFANA_VENV)/bin/python ] || $(PYTHON) -m venv $(GRAFANA_VENV)
	$(GRAFANA_VENV)/bin/python $(LOCKED) -r constraints-grafana.txt
	$(GRAFANA_VENV)/bin/python $(PIP) --no-deps --no-build-isolation -e .
	@touch $@

# The packages of Grafana's frontend, 400 MB, for the page in which tools/grafana draws dashboards. One of them names
# another React than the others do, which matters to its query editor alone.
$(GRAFANA_PACKAGES)/.installed: tools/grafana/package.json tools/grafana/package-lock.json
	@echo "==> Installing the packages of Grafana's frontend in $(GRAFANA_PACKAGES)"
	mkdir -p $(GRAFANA_PACKAGES)
	cp $^ $(GRAFANA_PACKAGES)
	cd $(GRAFANA_PACKAGES) && npm ci --ignore-scripts --legacy-peer-deps --no-audit --no-fund --loglevel=error
	@touch $@

$(GRAFANA_PAGE): tools/grafana/panels.jsx tools/grafana/index.html $(GRAFANA_PACKAGES)/.installed
	cp $(wordlist 1,2,$^) $(GRAFANA_PACKAGES)
	cd $(GRAFANA_PACKAGES) && npm run --silent site
	@touch $@

.PHONY: grafana-page
grafana-page: $(GRAFANA_PAGE) ## Install the packages of Grafana's frontend from npm, for what draws the dashboards; 400 MB

# The frameworks bring packages that nothing else here needs, at versions that suit one another.
$(FRAMEWORKS_INSTALLED): $(FRAMEWORKS)/constraints.txt constraints.txt
	@echo "==> Making $(FRAMEWORKS_VENV), for the programs of frameworks"
	[ -x $(FRAMEWORKS_VENV)/bin/python ] || $(PYTHON) -m venv $(FRAMEWORKS_VENV)
	@# Exactly the pins, so that nothing brings another one; then PyTorch as in .venv.
	$(FRAMEWORKS_VENV)/bin/python $(LOCKED) -r $<
	$(FRAMEWORKS_VENV)/bin/python $(PIP) -c constraints.txt torch
	$(FRAMEWORKS_VENV)/bin/python $(FRAMEWORKS)/mend_torchvision.py
	@touch $@

$(FRAMEWORKS_ALL_INSTALLED): $(FRAMEWORKS)/requirements-all.txt $(FRAMEWORKS_INSTALLED)
	DS_BUILD_OPS=0 $(FRAMEWORKS_VENV)/bin/python -m pip install --disable-pip-version-check --no-deps -r $<
	@touch $@

$(LOGGERS_INSTALLED): $(FRAMEWORKS)/requirements-loggers.txt $(FRAMEWORKS_INSTALLED)
	$(FRAMEWORKS_VENV)/bin/python $(LOCKED) -r $<
	@touch $@

$(NOTEBOOK_INSTALLED): $(FRAMEWORKS)/requirements-notebook.txt $(LOGGERS_INSTALLED)
	$(FRAMEWORKS_VENV)/bin/python $(LOCKED) -r $<
	@touch $@

# What releases and audits are made with, and nothing else.
$(RELEASE_INSTALLED): constraints-release.txt
	@echo "==> Making $(RELEASE_VENV), with the tools of releases and audits"
	[ -x $(RELEASE_VENV)/bin/python ] || $(PYTHON) -m venv $(RELEASE_VENV)
	$(RELEASE_VENV)/bin/python $(LOCKED) -r $<
	@touch $@

# What makes a site of the pages, and nothing else: no ampwatch, no PyTorch.
$(SITE_INSTALLED): constraints-site.txt
	@echo "==> Making $(SITE_VENV), for the site"
	[ -x $(SITE_VENV)/bin/python ] || $(PYTHON) -m venv $(SITE_VENV)
	$(SITE_VENV)/bin/python $(LOCKED) -r $<
	@touch $@

# The tools that ampwatch is measured beside. PyTorch as in .venv, what else there is at the pins of constraints.txt.
$(PEERS_INSTALLED): benchmarks/peers.txt constraints.txt pyproject.toml
	@echo "==> Making $(PEERS_VENV), for the tools that ampwatch is measured beside"
	[ -x $(PEERS_VENV)/bin/python ] || $(PYTHON) -m venv $(PEERS_VENV)
	$(PEERS_VENV)/bin/python $(PIP) -c constraints.txt torch numpy h11 msgspec prometheus-client nvidia-ml-py hatchling editables -r $<
	$(PEERS_VENV)/bin/python $(PIP) --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: test-frameworks
test-frameworks: $(INSTALLED) $(FRAMEWORKS_INSTALLED) $(NOTEBOOK_INSTALLED) $(if $(findstring --all,$(ARGS)),$(FRAMEWORKS_ALL_INSTALLED)) ## Try ampwatch in frameworks (ARGS="--all --write" for docs/support.md)
	@echo "==> Running the programs of frameworks, bare and watched"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses=auto --maxprocesses=2 --dist=worksteal $(FRAMEWORKS) \
		--frameworks-python $(CURDIR)/$(FRAMEWORKS_VENV)/bin/python $(ARGS)

.PHONY: demo
demo: $(if $(wildcard $(INSTALLED)),$(INSTALLED),$(DEMO_INSTALLED)) ## Train a small model, break it, and show the page that says so; without .venv in .venv-demo
	@echo "==> Training a small model, which will break; the address of its page follows"
	$(if $(wildcard $(INSTALLED)),$(VENV),$(DEMO_VENV))/bin/ampwatch demo $(ARGS)

.PHONY: test
test: $(INSTALLED) $(GRAFANA_INSTALLED) ## Run the tests of a commit, some five minutes; installs Prometheus and Chromium if it may (ARGS="-k ring")
	@$(BEFORE_TESTS)
	@echo "==> Running the tests of a commit; make test-all runs those of the night as well"
	$(PYTEST) -m "not nightly" $(ARGS)

.PHONY: test-all
test-all: $(INSTALLED) $(GRAFANA_INSTALLED) ## Run every test, those of frameworks included; much longer (ARGS="--times=benchmarks/results/tests.jsonl")
	@$(BEFORE_TESTS)
	@$(MAKE) grafana-page || echo "==> Without the packages of Grafana's frontend; what draws the dashboards is skipped"
	@echo "==> Running every test"
	$(PYTEST) $(ARGS)
	$(MAKE) test-frameworks ARGS=

.PHONY: test-near
test-near: $(INSTALLED) $(GRAFANA_INSTALLED) ## Run the tests that reach what has changed, nearest first (BASE=HEAD~3 HOPS=5 ARGS="-x")
	@files=$$($(BIN)/python -m tools.near $(if $(BASE),--base $(BASE)) $(if $(HOPS),--hops $(HOPS))); \
	if [ -z "$$files" ]; then echo "==> Nothing that a test reaches has changed"; else set -x; $(PYTEST) $(ARGS) $$files; fi

.PHONY: check
check: $(INSTALLED) ## Check format, lint, types, layers, spelling, and that generated pages are current
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy
	@# What builds the dashboards wants Python 3.11, as its SDK does; everything else runs on 3.10.
	@if $(BIN)/python -c 'import grafana_foundation_sdk' 2>/dev/null; then set -x; \
		$(BIN)/mypy --python-version 3.11 dashboards/source; \
		$(BIN)/python -m dashboards.source --check; \
	else echo "==> Leaving the dashboards unchecked: they are built with Python 3.11 or newer"; fi
	$(BIN)/lint-imports --no-logo
	$(BIN)/codespell $(CODE) $(PROSE)
	@for page in host.metrics.catalog:metrics settings:settings; do \
		$(BIN)/python -m ampwatch.$${page%:*} | diff -u docs/$${page#*:}.md - || { \
			echo "expected docs/$${page#*:}.md as generated, got the above; run: make docs"; exit 1; }; \
	done
	@for page in api:api patched:what-is-patched; do \
		$(BIN)/python -m tools.site.$${page%:*} | diff -u docs/$${page#*:}.md - || { \
			echo "expected docs/$${page#*:}.md as generated, got the above; run: make docs"; exit 1; }; \
	done
	$(BIN)/python -m ampwatch.diagnosis.kinds --check
	@$(BIN)/python -m tests.frameworks.matrix | diff -u docs/support.md - || { \
		echo "expected docs/support.md as generated, got the above; run: make docs"; exit 1; }
	$(BIN)/python -m tools.manifests --check
	$(BIN)/python -m tools.cost --check
	$(BIN)/python -m tools.pictures --check

.PHONY: format
format: $(INSTALLED) ## Format the code and mend what can be mended
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

.PHONY: docs
docs: $(INSTALLED) ## Write what is generated again: tables, pages, pictures (ARGS=--train trains for them first)
	$(BIN)/python -m ampwatch.host.metrics.catalog > docs/metrics.md
	sed -i '/^<!-- From here on generated/,$$d' docs/loggers.md
	$(BIN)/python -m ampwatch.state.facts >> docs/loggers.md
	$(BIN)/python -m ampwatch.settings > docs/settings.md
	$(BIN)/python -m tools.site.patched > docs/what-is-patched.md
	$(BIN)/python -m ampwatch.diagnosis.kinds
	$(BIN)/python -m tools.site.api > docs/api.md
	$(BIN)/python -m tests.frameworks.matrix --write
	$(BIN)/python -m tools.manifests
	$(BIN)/python -m tests.cli.terminal_examples
	$(BIN)/python -m tools.cost
	$(BIN)/python -m tools.pictures $(ARGS)

.PHONY: pictures
pictures: $(INSTALLED) ## Draw the page again: its pictures in tests/golden/pages and docs/images; three minutes (ARGS=storm)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.states.pictures $(ARGS)

.PHONY: tutorial
tutorial: $(INSTALLED) ## Run the programs of the tutorial, and write down what they print; a minute
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.site.tutorial

.PHONY: kinds
kinds: $(INSTALLED) ## Run the programs of docs/diagnoses, write down what they print; two minutes (ARGS=forward_overflow)
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.site.kinds $(ARGS)

.PHONY: kind-pictures
kind-pictures: $(INSTALLED) ## Take the pictures of the page on docs/diagnoses; two minutes (ARGS=forward_overflow)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.diagnoses.pictures $(ARGS)

.PHONY: site
site: $(SITE_INSTALLED) ## Make a site of docs/ in build/site; a link that leads nowhere fails (ARGS=serve watches)
	@# The theme's makers ask for attention on stderr otherwise.
	NO_MKDOCS_2_WARNING=1 $(SITE_VENV)/bin/python -m mkdocs $(or $(ARGS),build --clean)

.PHONY: dashboards
dashboards: $(INSTALLED) ## Write the dashboards again, from dashboards/source; wants Python 3.11
	$(BIN)/python -m dashboards.source

.PHONY: bench
bench: $(INSTALLED) ## Measure what watching costs, write the tables; ten minutes on a quiet machine (ARGS="micro --json FILE")
	$(BIN)/python benchmarks/overhead.py --json benchmarks/results/cost.json $(ARGS)
	$(BIN)/python -m tools.cost

.PHONY: bench-peers
bench-peers: $(INSTALLED) $(PEERS_INSTALLED) ## The same beside other tools, and what each tells of one overflow; ten minutes
	$(PEERS_VENV)/bin/python benchmarks/peers.py --json benchmarks/results/cost-of-peers.json $(ARGS)
	$(BIN)/python -m tools.cost

.PHONY: fuzz
fuzz: $(INSTALLED) ## Feed hostile input to all that reads from outside (ARGS="--seconds 60 --target http")
	nice $(BIN)/python -m tests.fuzz $(ARGS)

.PHONY: soak
soak: $(INSTALLED) ## Train a million watched steps, and a day of a daemon, and hold them flat (ARGS="--steps 20000")
	OMP_NUM_THREADS=1 nice $(BIN)/python -m benchmarks.soak $(ARGS)

.PHONY: wheel
wheel: $(INSTALLED) ## Build the wheel for this machine's kind of processor, with the C part, in dist/
	$(BIN)/python -m hatchling build -t wheel

.PHONY: lock
lock: $(RELEASE_INSTALLED) ## Write the files of versions with hashes again, from constraints.txt
	@# PyPI is named, so that the index of a machine gets into no file. An older pin stays unless constraints.txt has another.
	$(RELEASE_VENV)/bin/$(LOCK) --python-version 3.10 pyproject.toml --extra dev --extra torch -o constraints-dev.txt
	echo hatchling editables numpy | tr ' ' '\n' | $(RELEASE_VENV)/bin/$(LOCK) --python-version 3.10 pyproject.toml --extra ui --extra torch - -o constraints-demo.txt
	echo hatchling editables | tr ' ' '\n' | $(RELEASE_VENV)/bin/$(LOCK) --python-version 3.10 pyproject.toml --extra grafana - -o constraints-grafana.txt
	$(RELEASE_VENV)/bin/$(LOCK) --python-version 3.10 pyproject.toml --extra release -o constraints-release.txt
	echo mkdocs-material | $(RELEASE_VENV)/bin/$(LOCK) --python-version 3.10 - -o constraints-site.txt
	echo torch setuptools | tr ' ' '\n' | $(RELEASE_VENV)/bin/$(LOCK) --python-version 3.11 $(FRAMEWORKS)/requirements.txt - -o $(FRAMEWORKS)/constraints.txt
	echo triton | $(RELEASE_VENV)/bin/$(LOCK) --python-version 3.10 - -o .ci/constraints.txt

.PHONY: release
release: $(INSTALLED) $(RELEASE_INSTALLED) ## Build, check and sum up a release, publishing nothing (ARGS="--sign ~/.ssh/id_ed25519")
	$(BIN)/python -m tools.release --tools $(RELEASE_VENV)/bin $(ARGS)

.PHONY: audit
audit: $(RELEASE_INSTALLED) ## Ask whether a vulnerability is known of what CI installs; needs the network
	$(RELEASE_VENV)/bin/python tools/audit.py constraints.txt constraints-*.txt $(FRAMEWORKS)/constraints.txt .ci/constraints.txt

# With the Python that is there, for a machine with a GPU may have no network to make .venv from.
.PHONY: gpu
gpu: ## Check and measure on this machine's GPU, without a .venv; ten minutes (ARGS="--only syncs")
	@# What `make gpu-packages` has fetched is taken only where something of it is missing.
	@$(PYTHON) -c 'import h11, hypothesis, msgspec, prometheus_client, pynvml, pytest' 2>/dev/null || export PYTHONPATH="$(CURDIR)/$(GPU_PACKAGES)$${PYTHONPATH:+:$$PYTHONPATH}"; \
		set -x; $(PYTHON) -m benchmarks.gpu $(ARGS)

.PHONY: gpu-packages
gpu-packages: $(INSTALLED) ## Fetch what the Python of a GPU machine without network may lack (GPU_PYTHON=3.12)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --upgrade --target $(GPU_PACKAGES) \
		--only-binary=:all: --python-version $(GPU_PYTHON) -c constraints.txt \
		h11 msgspec prometheus-client nvidia-ml-py pytest hypothesis

.PHONY: clean
clean: ## Remove .venv and everything the tools have left
	rm -rf $(VENV) $(DEMO_VENV) $(GRAFANA_VENV) $(GRAFANA_PACKAGES) $(RELEASE_VENV) $(FRAMEWORKS_VENV) $(PEERS_VENV) $(SITE_VENV) $(GPU_PACKAGES) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	rm -f ampwatch/training/native/*.so
	find $(CODE) -name __pycache__ -prune -exec rm -rf {} +
