# The HTTP service with a model inside.
#   docker build -t diffusionner .                                  # model `en`, without torch
#   docker build --build-arg MODEL=runs/mine -t diffusionner .      # not exported: with torch
#   docker run --rm -p 127.0.0.1:8000:8000 diffusionner
# An index of images for amd64 and arm64. To update it, take the digest that this prints:
#   docker buildx imagetools inspect python:3.12-slim
ARG PYTHON=python:3.12.14-slim-trixie@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea

FROM ${PYTHON} AS build
ARG MODEL=models/en/diffusionner_en
WORKDIR /build
COPY ${MODEL} /model
COPY requirements-serve.txt requirements-serve-onnx.txt requirements-torch.txt ./
# Nothing is resolved, and no file is installed whose hash is not listed.
RUN python -m venv /venv && install="/venv/bin/pip install --no-cache-dir --no-deps --require-hashes" && \
    if [ -f /model/encoder.onnx ]; then \
      $install -r requirements-serve-onnx.txt; \
    else \
      $install --find-links https://download.pytorch.org/whl/cpu/torch/ -r requirements-torch.txt && \
      $install -r requirements-serve.txt; \
    fi
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN /venv/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

FROM ${PYTHON}
RUN useradd --system --uid 10001 --no-create-home ner
COPY --from=build /venv /venv
COPY --from=build /model /model
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
USER 10001
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s CMD \
  ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/readyz', timeout=2)"]
ENTRYPOINT ["diffusionner", "serve", "--host", "0.0.0.0", "--model", "/model"]
