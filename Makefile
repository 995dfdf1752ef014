# The same commands for people and CI. On a fresh machine `make demo` and `make test` are enough.
# PIP_ARGS names an index of CPU wheels where pip would take a CUDA build of torch:
#   make install PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"
PYTHON ?= python3
BIN := .venv/bin

.PHONY: install demo test check model boards clean

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"Prony needs Python 3.11 or newer, this is {sys.version.split()[0]}: make PYTHON=python3.12 ...")'
	@echo 'installing the versions of constraints.txt into .venv: about 1.5 GB, once'
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check pip==25.3
	@$(BIN)/pip install --quiet -c constraints.txt $(PIP_ARGS) -e '.[server]' --group dev
	@touch $@

demo: install
	$(BIN)/prony demo $(ARGS)

test: install
	@sh tests/programs.sh
	$(BIN)/pytest $(ARGS)

check: install
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

model: install
	$(BIN)/python -m prony_server.smollm2 models/smollm2-135m

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis dist
