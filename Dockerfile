# Two images, without compiler and without vLLM:
#   docker build -t pd-router:0.3.0 .                           the router
#   docker build -t pd-router-gate:0.3.0 --target gate .        the gate, with AIPerf (1.5 GB)
# mypyc compiles the router's hot modules; `--build-arg COMPILE=0` keeps them pure Python.
# Settings: PD_ROUTER_* in the environment. Other commands: `docker run pd-router:0.3.0 check`.

# The Python of the tests, as in deploy/versions.yaml.
ARG PYTHON=3.11

FROM python:${PYTHON}-slim-bookworm AS build
ARG COMPILE=1
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
WORKDIR /src
# The versions and hashes of CI, with the extras lmcache, kv, tracing, kubernetes, dns and epp, because
# a single setting may need one. Before the sources, so that a change of these reuses the layer.
COPY requirements ./requirements
RUN python -m venv --without-pip /opt/pd-router \
 && pip install --no-cache-dir --require-hashes --requirement requirements/build.txt \
        --requirement requirements/image.txt \
 && pip --python /opt/pd-router/bin/python install --no-cache-dir --require-hashes \
        --requirement requirements/image.txt
COPY pyproject.toml setup.py README.md LICENSE ./
COPY router ./router
# Without pd-bench: the image has not its dependencies.
RUN PD_ROUTER_COMPILE=${COMPILE} pip wheel --no-cache-dir --no-deps --no-build-isolation \
        --wheel-dir /wheels . \
 && pip --python /opt/pd-router/bin/python install --no-cache-dir --no-deps --no-index /wheels/*.whl \
 && rm /opt/pd-router/bin/pd-bench

FROM python:${PYTHON}-slim-bookworm AS gate-build
WORKDIR /src
COPY requirements ./requirements
# AIPerf has its own environment, made by `pd-bench aiperf install`.
RUN python -m venv --without-pip /opt/pd-router-gate \
 && pip install --no-cache-dir --require-hashes --requirement requirements/build.txt \
 && pip --python /opt/pd-router-gate/bin/python install --no-cache-dir --require-hashes \
        --requirement requirements/gate.txt
COPY pyproject.toml setup.py README.md LICENSE ./
COPY router ./router
COPY benchmarks ./benchmarks
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels . \
 && pip --python /opt/pd-router-gate/bin/python install --no-cache-dir --no-deps --no-index \
        /wheels/*.whl \
 && rm /opt/pd-router-gate/bin/pd-router
ENV PD_ROUTER_AIPERF=/opt/aiperf
RUN /opt/pd-router-gate/bin/pd-bench aiperf install --requirement requirements/aiperf.txt

FROM python:${PYTHON}-slim-bookworm AS gate
LABEL org.opencontainers.image.title="pd-router-gate" \
      org.opencontainers.image.description="Loads an LLM endpoint and judges it." \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=gate-build /opt/pd-router-gate /opt/pd-router-gate
COPY --from=gate-build /opt/aiperf /opt/aiperf
# Only /tmp (caches of matplotlib and AIPerf) and --out are written.
ENV PATH=/opt/pd-router-gate/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PD_ROUTER_AIPERF=/opt/aiperf \
    HOME=/tmp
USER 10001:10001
ENTRYPOINT ["pd-bench"]
CMD ["validate", "--help"]

# The last stage is the default target.
FROM python:${PYTHON}-slim-bookworm AS router
LABEL org.opencontainers.image.title="pd-router" \
      org.opencontainers.image.description="Routes LLM requests to pools of prefill and decode vLLM engines." \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/pd-router /opt/pd-router
# pip has compiled the bytecode. The file system may be read-only at run time.
ENV PATH=/opt/pd-router/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1
# By number, because Kubernetes cannot verify runAsNonRoot of a name. The user owns and writes no file.
USER 10001:10001
EXPOSE 8000
# No HEALTHCHECK: Kubernetes ignores it and has probes; others can use GET /health and /ready.
# No shell: SIGTERM reaches the router, which lets streams finish.
ENTRYPOINT ["pd-router"]
CMD ["serve"]
