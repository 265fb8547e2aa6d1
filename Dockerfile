# The HTTP service with a model inside.
#   docker build -t diffusionner .                                  # model `en`, with torch
#   docker build --build-arg MODEL=runs/small -t diffusionner .     # an exported model: no torch
#   docker run --rm -p 127.0.0.1:8000:8000 diffusionner
FROM python:3.12-slim AS build
ARG MODEL=models/en/diffusionner_en
WORKDIR /build
COPY ${MODEL} /model
COPY requirements.txt ./
# PyPI's torch brings gigabytes of CUDA; torch's own index has a build for CPUs.
RUN python -m venv /venv && \
    if [ -f /model/encoder.onnx ]; then \
      /venv/bin/pip install --no-cache-dir --constraint requirements.txt onnxruntime; \
    else \
      /venv/bin/pip install --no-cache-dir --constraint requirements.txt \
        --index-url https://download.pytorch.org/whl/cpu torch && \
      /venv/bin/pip install --no-cache-dir --constraint requirements.txt safetensors transformers; \
    fi && \
    /venv/bin/pip install --no-cache-dir --constraint requirements.txt \
      fastapi numpy prometheus-client PyYAML regex rich scipy tokenizers typer uvicorn
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN /venv/bin/pip install --no-cache-dir --no-deps .

FROM python:3.12-slim
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
