# `make demo` and `make test` need only Python 3.11+, PyPI and, on Linux, torch's index: each first
# creates the virtual environment .venv with pinned versions.
PYTHON ?= python3
BIN := .venv/bin
# A source distribution has no models/*/pyproject.toml and runs its tests without the models.
PACKAGES := $(wildcard models/*/pyproject.toml)
MODELS := $(PACKAGES:%/pyproject.toml=--editable %)
# Modules are compiled on first import; compiling all of them would double the installation time.
INSTALL := -m pip install --quiet --no-compile
PINNED := --no-deps --require-hashes
CPU_TORCH := https://download.pytorch.org/whl/cpu/torch/
PYTEST := -m pytest --numprocesses auto --dist loadfile
export PYTHONDONTWRITEBYTECODE :=
export NO_MKDOCS_2_WARNING := 1

# Dependency ranges: what check-oldest and check-newest install and run.
RANGE_TOOLS := httpx hypothesis psutil pytest pytest-xdist seqeval
RANGE_TESTS := tests/test_cli.py tests/test_model.py tests/test_packaging.py tests/test_pipeline.py \
  tests/test_registry.py tests/test_resume.py tests/test_service.py tests/test_spacy_component.py \
  tests/test_training.py tests/test_formats*.py

.PHONY: demo test check docs pins check-oldest check-newest clean

demo: .venv/ready
	$(BIN)/diffusionner predict \
	  "Ada Lovelace wrote to Charles Babbage from London on 10 July 1843." \
	  "yo just saw taylor swift at the O2 in london" \
	  "The University of Maryland is in College Park, not far from Washington."
	$(BIN)/diffusionner predict --model bio \
	  "Mutation of the NF-kappa B binding site abolished induction of the IL-2 gene by CD28."
	$(BIN)/diffusionner predict --model open --labels "court case, judge, year" \
	  "In Marbury v. Madison, decided in 1803, Chief Justice Marshall struck down a statute."

test: .venv/ready
	$(BIN)/python $(PYTEST)

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/ready
	$(BIN)/mkdocs build --strict --quiet

# Nothing is resolved, and no file is installed whose hash is not listed. On Linux this is the CPU
# build of torch.
.venv/ready: requirements.txt requirements-torch.txt pyproject.toml $(PACKAGES)
	$(PYTHON) -m venv .venv
	$(BIN)/python $(INSTALL) $(PINNED) --find-links $(CPU_TORCH) -r requirements-torch.txt
	$(BIN)/python $(INSTALL) $(PINNED) -r requirements.txt
	$(BIN)/python $(INSTALL) --no-deps --no-build-isolation --editable . $(MODELS)
	touch $@

# After a version was changed in requirements.txt: its hashes, and the pins of the Dockerfile, which
# are a subset. Needs uv. requirements-torch.txt is maintained by hand.
COMPILE := uv pip compile --quiet --generate-hashes --no-annotate --custom-compile-command "make pins"
SERVE := fastapi numpy onnxruntime prometheus-client PyYAML regex rich safetensors setuptools tokenizers typer uvicorn
OF_TORCH := filelock fsspec jinja2 networkx sympy typing-extensions
FOR_IMAGE := --constraint requirements.txt --python-version 3.12 --python-platform linux
pins:
	grep --only-matching '^[^ #]*==[^ ]*' requirements.txt > requirements.in
	$(COMPILE) --no-deps --python-version 3.11.5 requirements.in --output-file requirements.txt
	printf '%s\n' $(SERVE) > requirements.in
	$(COMPILE) $(FOR_IMAGE) requirements.in --output-file requirements-serve-onnx.txt
	printf '%s\n' $(SERVE) transformers $(OF_TORCH) > requirements.in
	$(COMPILE) $(FOR_IMAGE) requirements.in --output-file requirements-serve.txt
	rm requirements.in

# Lower bounds of pyproject.toml in an environment of their own; the extra `export` needs a newer
# torch than the rest. On Linux, PyPI's torch brings gigabytes of CUDA; set PIP_EXTRA_INDEX_URL to
# an index with CPU builds to avoid that.
OLDEST := .venv-oldest/bin/python
check-oldest:
	$(PYTHON) -m venv --clear .venv-oldest
	$(OLDEST) $(INSTALL) --constraint requirements-oldest.txt torch==2.11.0 \
	  --editable '.[train,serve,formats]' $(MODELS) $(RANGE_TOOLS)
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
