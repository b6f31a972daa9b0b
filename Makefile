# Two commands for a fresh machine with Python 3.11+, gcc and make:
#   make run    set up, scan this machine, predict for Kimi-K2.5, write an env file
#   make test   set up, run the checks and the tests
# PYTHON=python3.12 takes another interpreter, VENV and OUT other folders.
PYTHON ?= python3
VENV   ?= .venv
OUT    ?= out
BIN     = $(VENV)/bin
CODE    = nccltune tests benchmarks docs

# A torch that is already there is the one that serves: it brings the libnccl to measure, so it is used, not replaced.
HAS_TORCH := $(shell $(PYTHON) -c "import importlib.util as u; print(1 if u.find_spec('torch') else '')" 2>/dev/null)
HAS_GPU   := $(shell command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep -q GPU && echo 1)
SITE       = $(if $(HAS_TORCH),--system-site-packages)
CONSTRAIN  = $(if $(HAS_GPU),,-c constraints-cpu.txt)
PIP        = $(BIN)/python -m pip --disable-pip-version-check install -q

# --system-site-packages of a virtual environment means its base's packages, not its own: those are added by path.
define ADD_PARENT
import glob, sys, sysconfig
if sys.prefix != sys.base_prefix:
    open(glob.glob("$(VENV)/lib/python*/site-packages")[0] + "/parent.pth", "w").write(sysconfig.get_path("purelib"))
endef
export ADD_PARENT

.PHONY: run test check fmt docs bench dist clean

run: $(VENV)/.run
	@mkdir -p $(OUT) && echo $(OUT)/run-$$(date -u +%Y%m%d-%H%M%S) > $(OUT)/latest
	$(BIN)/nccltune scan --model kimi-k2.5 --tokens 1-4,8,16 -o $$(cat $(OUT)/latest)
	@echo
	@# Times of gloo say nothing about NCCL: then the prediction is that of the shipped machine.
	@run="--run $$(cat $(OUT)/latest)"; ! grep -q '"backend": "gloo"' $$(cat $(OUT)/latest)/manifest.json || run=; \
	set -x; $(BIN)/nccltune predict --model kimi-k2.5 --draft-tokens 1-8 $$run
	@echo
	$(BIN)/nccltune emit --run $$(cat $(OUT)/latest) --format shell -o $(OUT)/nccl.env
	cat $(OUT)/nccl.env

test: $(VENV)/.test check
	$(BIN)/python -m pytest -q

check: $(VENV)/.test
	$(BIN)/ruff format --check -q $(CODE)
	$(BIN)/ruff check -q $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: $(VENV)/.test
	$(BIN)/ruff format -q $(CODE)
	$(BIN)/ruff check -q --fix $(CODE)

docs: $(VENV)/.test
	$(BIN)/python docs/generate.py

bench: $(VENV)/.test
	$(BIN)/python benchmarks/model_accuracy.py
	$(BIN)/python benchmarks/allreduce_accuracy.py

dist: $(VENV)/.test
	$(BIN)/python -m build --no-isolation

$(VENV)/bin/python:
	$(PYTHON) -m venv $(SITE) $(VENV)
	$(if $(HAS_TORCH),@$(PYTHON) -c "$$ADD_PARENT")

$(VENV)/.run: $(VENV)/bin/python pyproject.toml
	$(PIP) $(CONSTRAIN) -e '.[torch]'
	touch $@

$(VENV)/.test: $(VENV)/bin/python pyproject.toml
	$(PIP) $(CONSTRAIN) -e '.[torch,report,serve,dev]'
	touch $@ $(VENV)/.run

clean:
	rm -rf $(VENV) $(OUT) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
