# demo, test, lint and format set everything up by themselves, in .venv and nowhere else.
# Targets named gpu- use the environment's own Python, with whatever CUDA packages it has.

SHELL := bash
.SHELLFLAGS := -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo dev test lint style types changed-types typed-layout check quick-test oldest-nvrtc docs wheel sbom format fuzz fuzz-graphs gpu-test gpu-bench gpu-studies gpu-sanitize clean

PYTHONS := $(or $(PYTHON),python3.13 python3.12 python3.11 python3.14 python3)
SUITABLE := import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))
ENV_PYTHON := PYTHONPATH=. $(or $(PYTHON),python3)
VENV_PYTHON := .venv/bin/python
QUICK_TESTS := tests/test_api.py tests/test_layers.py tests/passes tests/plan/test_plan.py \
  tests/control/test_program.py tests/numpy/test_fusion.py tests/kernels/test_plans_of_each_kind.py
DOC_TESTS := tests/test_docs.py tests/test_contributing.py tests/test_device_arrays_doc.py \
  tests/cli/test_docs.py tests/plan/test_toy_backend.py
PIP_INSTALL := $(VENV_PYTHON) -m pip install --quiet --disable-pip-version-check

help:  ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: .venv/core.stamp  ## recognise handwritten digits on every backend this machine has
	@$(VENV_PYTHON) -m tercet demo

dev: .venv/dev.stamp  ## set up .venv, with the development tools

# What tests compile stays in .venv, whatever the shell says: the modules of some hundred
# interpreters, kernels and ONNX's cases. Each worker has neighbouring tests, and takes from others
# when it is done.
test: .venv/dev.stamp  ## run the tests (no GPU needed)
	PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX=$(CURDIR)/.venv/compiled TERCET_TEST_CACHE=$(CURDIR)/.venv/kernels \
	  $(VENV_PYTHON) -m pytest --numprocesses auto --maxprocesses 8 --max-worker-restart 0 --dist worksteal

lint: .venv/dev.stamp style types  ## check style, format and types

style: .venv/dev.stamp
	$(VENV_PYTHON) -m ruff check
	$(VENV_PYTHON) -m ruff format --check

# Types are checked on a copy laid out as users install it, because only there every import resolves.
# With room for what it makes and drops (MB), pyright collects less garbage.
CHECK_TYPES := NODE_OPTIONS=--max-semi-space-size=64 $(VENV_PYTHON) tools/workshop/changed_types.py
AS_SOURCES := sed -E 's!build/typed/(tercet/(runtime|importers|backends|tools)/)?!\2/!; s!//+!/!'

types: typed-layout  ## check the types of the whole project
	@$(CHECK_TYPES) --all | $(AS_SOURCES)

changed-types: typed-layout  ## check the types of what has changed since they were right
	@$(CHECK_TYPES) | $(AS_SOURCES)

typed-layout: .venv/dev.stamp
	@rm -rf build/typed && mkdir -p build/typed && cp -R tercet build/typed
	@cp -R runtime importers backends tools build/typed/tercet

# The first time, and where there is no record as in CI, all types are checked: a minute of one core
# and more; the tests have the other one meanwhile.
check: .venv/dev.stamp  ## check style and types, and run the tests that say most in a minute
	@$(MAKE) --no-print-directory --jobs 3 --output-sync style changed-types quick-test

quick-test: .venv/dev.stamp
	$(VENV_PYTHON) -m pytest -q -m "not gpu and not slow" $(QUICK_TESTS)

# Newer ones take what this one refuses, such as calls of generic lambdas. Kernels are not run.
oldest-nvrtc: .venv/dev.stamp  ## compile the kernels with the oldest NVRTC of CUDA 13, in an environment of its own
	$(VENV_PYTHON) -m venv --clear build/nvrtc
	build/nvrtc/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' \
	  'nvidia-cuda-nvrtc==13.0.*' 'nvidia-cuda-runtime==13.0.*'
	build/nvrtc/bin/python -m pytest --numprocesses auto --dist worksteal -k 'compile or spills' \
	  tests/kernels tests/literature

docs: .venv/dev.stamp  ## run the examples of the documentation and check its links
	$(VENV_PYTHON) -m pytest -q $(DOC_TESTS)

# What an earlier build left behind would be packed again.
wheel: .venv/core.stamp  ## build dist/*.whl, install it into an empty environment and import it
	rm -rf build/lib build/bdist.* build/wheel dist
	$(VENV_PYTHON) -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	$(VENV_PYTHON) -m venv --without-pip build/wheel
	$(VENV_PYTHON) -m pip --python build/wheel/bin/python install --quiet --disable-pip-version-check dist/*.whl
	cd build/wheel && bin/python -I -c "import tercet; print(tercet.__version__, tercet.__file__)"
	cd build/wheel && bin/python -I -m tercet doctor

sbom: wheel  ## list what that environment contains in dist/tercet.cdx.json, in CycloneDX's format
	$(VENV_PYTHON) -m venv build/sbom
	build/sbom/bin/python -m pip install --quiet --disable-pip-version-check cyclonedx-bom
	build/sbom/bin/python -m cyclonedx_py environment --pyproject pyproject.toml --mc-type library \
	  --output-reproducible --output-file dist/tercet.cdx.json build/wheel/bin/python

format: .venv/dev.stamp  ## format the code and fix what ruff can fix
	$(VENV_PYTHON) -m ruff check --fix
	$(VENV_PYTHON) -m ruff format

fuzz: .venv/dev.stamp  ## try damaged models for five minutes (SEED=...: others than those of last time)
	$(VENV_PYTHON) -m tercet.tools.workshop.fuzz --mutants 1000000 --seconds 300 --seed $(or $(SEED),0)

fuzz-graphs: .venv/dev.stamp  ## run random graphs in every way for five minutes (SEED=...: others than those of last time)
	$(VENV_PYTHON) -m tercet.tools.workshop.fuzz.differential --graphs 1000000 --seconds 300 --target sm_90a \
	  --seed $(or $(SEED),0)

gpu-test:  ## run the GPU tests with the environment's Python (or PYTHON=...)
	TERCET_REQUIRE_GPU=1 $(ENV_PYTHON) -m pytest -m gpu

# PEERS names figures of other runtimes, measured on the same machine: see tools/workshop/peer_bench.py.
gpu-bench:  ## measure every backend on the GPU with the environment's Python (or PYTHON=...)
	$(ENV_PYTHON) -m tercet.tools.workshop.gpu_bench $(if $(COMMIT),--commit $(COMMIT))
	$(ENV_PYTHON) -m tercet.tools.workshop.peer_bench $(if $(COMMIT),--commit $(COMMIT)) \
	  $(if $(PEERS),--peers $(PEERS))

gpu-studies:  ## measure single kernels, for those who teach or write them, with the environment's Python
	$(ENV_PYTHON) -m tercet.tools.workshop.studies --output docs/results $(if $(COMMIT),--commit $(COMMIT))

gpu-sanitize:  ## run every kernel under compute-sanitizer with the environment's Python (or PYTHON=...)
	$(ENV_PYTHON) -m tercet.tools.workshop.sanitize --output docs/results $(if $(COMMIT),--commit $(COMMIT))

clean:  ## remove .venv and everything that was built
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A link would let `venv --clear` empty the environment of another checkout.
.venv/core.stamp: pyproject.toml
	@if [ -L .venv ]; then \
	  echo ".venv is a link to $$(readlink .venv); remove it, so that make can create one here." >&2; \
	  exit 1; \
	fi
	@for python in $(PYTHONS); do \
	  if "$$python" -c '$(SUITABLE)' 2>/dev/null; then \
	    echo "Setting up .venv with $$("$$python" --version), once ..."; \
	    exec "$$python" -m venv --clear .venv; \
	  fi; \
	done; \
	echo "tercet needs Python 3.11, 3.12, 3.13 or 3.14 with its venv module (Debian: python3-venv)." >&2; \
	echo "None of these is one: $(PYTHONS). Name yours: make PYTHON=/path/to/python3 ..." >&2; \
	exit 1
	@$(PIP_INSTALL) --editable .
	@touch $@

.venv/dev.stamp: .venv/core.stamp
	@echo "Adding the development tools to .venv, once ..."
	@$(PIP_INSTALL) --editable '.[dev]'
	@touch $@
