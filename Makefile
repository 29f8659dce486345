# The few commands of this repository; `make` alone lists them.
# PYTHON only starts tools/setup_env.py (3.8 or later): that script has uv look for the Python to build .venv with.
PYTHON ?= python3
VENV_PYTHON := .venv/bin/python

.DEFAULT_GOAL := help
.PHONY: help setup test older-torch test-full test-host test-windows fuzz demo lint format clean

help:  ## list the commands
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16

setup:  ## make .venv and fetch a ComfyUI to test against (COMFYUI_PATH=... takes yours)
	@$(PYTHON) tools/setup_env.py

test: setup  ## ruff, mypy and all tests
	@$(VENV_PYTHON) tools/run_tests.py

older-torch: setup  ## another torch, for the tests of graphs that several versions run
	@$(VENV_PYTHON) -m pip install -q --no-deps --require-hashes --upgrade --target build/torch-older -r requirements/older-torch.lock
	@ln -sfn $$(realpath .venv/lib/python3*/site-packages/nvidia) build/torch-older/nvidia  # CUDA's libraries, which torch loads

test-full: older-torch  ## the same with all repetitions and second backends of long tests (SHARE=1/8)
	@$(VENV_PYTHON) tools/run_tests.py --full $(if $(SHARE),-- --share $(SHARE))

test-host: setup  ## the tests that need ComfyUI, against yours (COMFYUI_PATH=/your/ComfyUI)
	@$(VENV_PYTHON) tools/test_host.py

test-windows: setup  ## load graphs by Windows' Python under wine (Debian's wine, mingw and osslsigncode)
	@$(VENV_PYTHON) tools/windows_env.py
	@$(VENV_PYTHON) tools/run_tests.py --no-lint windows

fuzz: setup  ## random workflows with and without the nodes (CASES=300 SEED=1)
	@$(VENV_PYTHON) tools/run_tests.py --no-lint fuzz -- --fuzz-cases $(or $(CASES),300) --fuzz-seed $(or $(SEED),1)

demo: setup  ## compile, reuse and compare (CHECKPOINT=model.safetensors BACKEND=inductor|oneflow|auto VIDEO=1)
	@$(VENV_PYTHON) tools/demo.py

lint: setup  ## ruff and mypy only
	@$(VENV_PYTHON) tools/run_tests.py --lint-only

format: setup  ## let ruff put the sources in order
	@$(VENV_PYTHON) -m ruff check --fix .
	@$(VENV_PYTHON) -m ruff format .

clean:  ## remove what was built, not .venv
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
