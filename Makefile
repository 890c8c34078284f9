# Each target does all of its own set-up; the first one on a machine makes the virtual environment.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Bytecode is kept whatever the environment says: many targets start hundreds of short processes.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test test-slow test-fast matrix test-extras test-vllm follow lint reference bench fuzz gpu docs experiments clean

demo: $(VENV)/.installed
	$(BIN)/specsim demo --out results/demo

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 2 -m 'not slow and not extras and not types'

# The other tests, each of which takes many seconds; CI runs them, too.
test-slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 2 -m 'slow and not extras'

# Those that find most in the least time; the matrix runs them, too.
test-fast: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 2 -q -m 'not slow and not extras' @.ci/fast-tests

# The wheel, on every Python of this machine, with the newest and the oldest packages that it admits.
matrix: $(VENV)/.installed
	$(BIN)/python .ci/matrix.py

test-extras: $(VENV)/.installed-extras
	$(BIN)/python -m pytest -m extras

# Real vLLM 0.32.0 (CPU build, 3 GB, in an environment of its own) beside its simulation: 20 minutes.
test-vllm: export SPECSIM_VLLM_PYTHON ?= $(CURDIR)/.venv-vllm/bin/python
test-vllm: $(VENV)/.installed-dev
	test -x "$(SPECSIM_VLLM_PYTHON)" || tests/vllm/install.sh .venv-vllm
	PYTHONPATH=. "$(SPECSIM_VLLM_PYTHON)" tests/vllm/check_recorder.py
	PYTHONPATH=. "$(SPECSIM_VLLM_PYTHON)" tests/vllm/check_ngram_gpu.py
	PYTHONPATH=. "$(SPECSIM_VLLM_PYTHON)" tests/vllm/check_ranks.py
	$(BIN)/python -m pytest -n 0 tests/vllm tests/serve/test_clients.py
	rm -rf results/vllm
	$(BIN)/python tests/vllm/run.py --out results/vllm

# What another version of vLLM schedules differently (CONTRIBUTING.md): make follow VERSION=0.34.0, two minutes
# where vLLM is installed.
follow: export SPECSIM_VLLM_PYTHON ?= $(CURDIR)/.venv-vllm/bin/python
follow: $(VENV)/.installed-dev
	test -x "$(SPECSIM_VLLM_PYTHON)" || tests/vllm/install.sh .venv-vllm
	$(BIN)/python tests/parity/follow.py $(VERSION)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 0 -q -m types tests/policies

bench: $(VENV)/.installed
	$(BIN)/python benchmarks/speed.py

# 3,000 inputs that nobody would write, and 2,000 worlds, in which must hold what always holds: 12 minutes of CPU time on
# two busy cores. INPUTS=20000 makes more of the former.
fuzz: $(VENV)/.installed
	$(BIN)/python benchmarks/fuzz.py --number $(or $(INPUTS),3000)
	$(BIN)/python benchmarks/worlds/worlds.py

# On a machine with a CUDA GPU: profile it, serve with our own engine and with vLLM at k = 0, 1, 3, 5, and
# keep profiles and errors. 36 minutes; a rehearsal without a GPU: experiments/calibration-gpu/run.py --device cpu
gpu: $(VENV)/.installed-gpu
	$(BIN)/python experiments/calibration-gpu/run.py

# The tables of docs/reference/, which are made from the code.
reference: $(VENV)/.installed
	$(BIN)/python docs/reference_tables.py

# The site, in site/: it loads nothing from other hosts and opens without a network.
docs: export NO_MKDOCS_2_WARNING := true
docs: $(VENV)/.installed-docs reference
	$(BIN)/python -m mkdocs build --quiet --strict --clean
	@echo "docs: site/index.html"

# All experiments that fit into 20 minutes on 2 cores, compared with what is committed. RUN=load-ramp: one of
# them, or one that takes longer; RUN='load-ramp --update' keeps what comes out.
experiments: $(VENV)/.installed
	$(BIN)/python experiments/run.py $(RUN)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[plots]'
	touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	touch $@ $(VENV)/.installed

# What takes long to install: PyTorch (a CPU build is enough), Ray, and a browser where we may.
$(VENV)/.installed-extras: $(VENV)/.installed-dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 --editable '.[cluster]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps 'aiconfigurator-core==0.12.0' # its data is all that is read
	command -v chromium >/dev/null || (apt-get update -qq && apt-get install -y -qq chromium chromium-driver) || true
	touch $@

$(VENV)/.installed-gpu: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check vllm --editable '.[plots,calibrate]'
	touch $@

clean:
	rm -rf $(VENV) .venv-vllm results site .pytest_cache .mypy_cache .ruff_cache
