# One command each. The first one makes .venv and installs into it; the next ones find it there and start at once.
PYTHON ?= python3
ARGS ?=
TORCH_INDEX ?=

VENV := .venv
VENV_PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/.installed
PIP_INSTALL := $(VENV_PYTHON) -m pip --disable-pip-version-check install --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help install train test check format benchmark soak clean

help:
	@echo "make train      train: plays against itself and learns; ARGS=\"--help\" lists the settings"
	@echo "make test       run the tests                          ARGS=\"-k ragged\" runs some of them"
	@echo "make check      look for faults without running: ruff format, ruff check, mypy"
	@echo "make format     put the code in ruff's format and mend what ruff can"
	@echo "make benchmark  run benchmarks/end_to_end.py"
	@echo "make soak       break trainings in every way we know, for an hour; ARGS=\"--kills 20 --minutes 2\" is shorter"
	@echo "make install    only make .venv; the others do it by themselves"
	@echo "make clean      delete .venv, caches and build outputs; runs/ stays"
	@echo
	@echo "PYTHON=python3.12   the Python that .venv is made from, 3.11 or newer"
	@echo "TORCH_INDEX=URL     where to take PyTorch from. Without an NVIDIA card, the CPU index spares gigabytes of CUDA:"
	@echo "                    choose CPU on https://pytorch.org/get-started/locally/ and copy the URL it shows;"
	@echo "                    an installed PyTorch is exchanged after 'make clean'"

install: $(STAMP)

train: $(STAMP)
	@$(VENV_PYTHON) train.py $(ARGS)

test: $(STAMP)
	@$(VENV_PYTHON) -m pytest $(ARGS)

check: $(STAMP)
	$(VENV_PYTHON) -m ruff format --check .
	$(VENV_PYTHON) -m ruff check .
	$(VENV_PYTHON) -m mypy

format: $(STAMP)
	$(VENV_PYTHON) -m ruff check --fix .
	$(VENV_PYTHON) -m ruff format .

benchmark: $(STAMP)
	@$(VENV_PYTHON) benchmarks/end_to_end.py $(ARGS)

soak: $(STAMP)
	@$(VENV_PYTHON) scripts/soak.py $(ARGS)

clean:
	rm -rf $(VENV) build dist .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find . -type d -name __pycache__ -exec rm -rf {} +

# The stamp is written last, so that an interrupted install is taken up again. A .venv that cannot be used (half made,
# without pip, or of an old Python) is made anew.
$(STAMP): pyproject.toml constraints.txt
	@rm -f $@
	@$(VENV_PYTHON) -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { $(MAKE_VENV); }
	@$(VENV_PYTHON) -c 'import torch' 2>/dev/null || { $(SAY_WHAT_COMES); }
	$(PIP_INSTALL) --upgrade pip
	$(if $(TORCH_INDEX),$(PIP_INSTALL) --upgrade --no-deps --index-url "$(TORCH_INDEX)" torch)
	$(PIP_INSTALL) --build-constraint constraints.txt --editable ".[games,onnx]" --group dev
	@touch $@

define MAKE_VENV
"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
|| { echo "movelist needs Python 3.11 or newer; $(PYTHON) says: $$("$(PYTHON)" -V 2>&1). Say 'make $(MAKECMDGOALS) PYTHON=/path/to/python'." >&2; exit 1; }; \
"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null \
|| { echo "$(PYTHON) cannot make virtual environments; on Debian and Ubuntu, 'apt install python3-venv' brings what is missing." >&2; exit 1; }; \
"$(PYTHON)" -m venv --clear $(VENV)
endef

define SAY_WHAT_COMES
echo "Installing into $(VENV); with PyTorch that takes minutes the first time, later it is skipped."; \
if [ -z "$(TORCH_INDEX)" ] && [ "$$(uname -s)" = Linux ] && ! command -v nvidia-smi >/dev/null; then \
echo "No NVIDIA driver here: 'make help' says how TORCH_INDEX spares gigabytes of CUDA."; fi
endef
