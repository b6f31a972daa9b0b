# Two commands for a fresh machine with Python 3.11+, gcc and make:
#   make run    set up, scan this machine, predict for Kimi-K2.5, write an env file
#   make test   set up, run the checks and the tests
PYTHON ?= python3
VENV   ?= .venv
OUT    ?= out
BIN     = $(VENV)/bin

# A torch that is already there is the one that serves: it brings the libnccl to measure, so it is used, not replaced.
HAS_TORCH := $(shell $(PYTHON) -c "import importlib.util as u; print(1 if u.find_spec('torch') else '')" 2>/dev/null)
HAS_GPU   := $(shell command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep -q GPU && echo 1)
SITE       = $(if $(HAS_TORCH),--system-site-packages)
CONSTRAIN  = $(if $(HAS_GPU),,-c constraints-cpu.txt)
PIP        = $(BIN)/python -m pip --disable-pip-version-check install -q

.PHONY: run test check fmt bench clean

run: $(VENV)/.run
	$(BIN)/nccltune scan --model kimi-k2.5 --tokens 1-4,8,16 -o $(OUT)/run-$$(date -u +%Y%m%d-%H%M%S) && ls -dt $(OUT)/run-* | head -1 > $(OUT)/latest
	@echo
ifdef HAS_GPU
	$(BIN)/nccltune predict --model kimi-k2.5 --draft-tokens 1-8 --run $$(cat $(OUT)/latest)
else
	$(BIN)/nccltune predict --model kimi-k2.5 --draft-tokens 1-8
endif
	@echo
	$(BIN)/nccltune emit --run $$(cat $(OUT)/latest) --format shell -o $(OUT)/nccl.env
	cat $(OUT)/nccl.env

test: $(VENV)/.test check
	$(BIN)/python -m pytest -q

check: $(VENV)/.test
	$(BIN)/ruff format --check -q nccltune tests benchmarks
	$(BIN)/ruff check -q nccltune tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: $(VENV)/.test
	$(BIN)/ruff format -q nccltune tests benchmarks
	$(BIN)/ruff check -q --fix nccltune tests benchmarks

bench: $(VENV)/.test
	$(BIN)/python benchmarks/model_accuracy.py
	$(BIN)/python benchmarks/allreduce_accuracy.py

$(VENV)/bin/python:
	$(PYTHON) -m venv $(SITE) $(VENV)

$(VENV)/.run: $(VENV)/bin/python pyproject.toml
	$(PIP) $(CONSTRAIN) -e '.[torch]'
	touch $@

$(VENV)/.test: $(VENV)/bin/python pyproject.toml
	$(PIP) $(CONSTRAIN) -e '.[torch,report,serve,dev]'
	touch $@ $(VENV)/.run

clean:
	rm -rf $(VENV) $(OUT) .mypy_cache .ruff_cache .pytest_cache dist
