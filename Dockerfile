# Two images, without compiler and without vLLM:
#   docker build -t pd-router:0.3.0 .                           the router
#   docker build -t pd-router-gate:0.3.0 --target gate .        the gate, with AIPerf (1.5 GB)
# The router's hot modules are compiled by mypyc; `--build-arg COMPILE=0` leaves them Python.
# Configured by PD_ROUTER_* in the environment; other commands: `docker run pd-router:0.3.0 check`.

# The Python that the tests run on; deploy/versions.yaml.
ARG PYTHON=3.11

FROM python:${PYTHON}-slim-bookworm AS build
ARG COMPILE=1
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
WORKDIR /src
# The versions and hashes that CI ran with, the extras lmcache, kv, tracing, kubernetes, dns and epp
# among them: each is a setting or a command away from being needed. Before the sources, so that a
# change there does not fetch them again.
COPY requirements ./requirements
RUN python -m venv --without-pip /opt/pd-router \
 && pip install --no-cache-dir --require-hashes --requirement requirements/build.txt \
        --requirement requirements/image.txt \
 && pip --python /opt/pd-router/bin/python install --no-cache-dir --require-hashes \
        --requirement requirements/image.txt
COPY pyproject.toml setup.py README.md LICENSE ./
COPY router ./router
# pd-bench is for machines that have its parts, the image has not.
RUN PD_ROUTER_COMPILE=${COMPILE} pip wheel --no-cache-dir --no-deps --no-build-isolation \
        --wheel-dir /wheels . \
 && pip --python /opt/pd-router/bin/python install --no-cache-dir --no-deps --no-index /wheels/*.whl \
 && rm /opt/pd-router/bin/pd-bench

FROM python:${PYTHON}-slim-bookworm AS gate-build
WORKDIR /src
COPY requirements ./requirements
# AIPerf has an environment of its own, as `pd-bench aiperf install` makes it.
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
# /tmp is all that is written, besides --out: caches of matplotlib and AIPerf.
ENV PATH=/opt/pd-router-gate/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PD_ROUTER_AIPERF=/opt/aiperf \
    HOME=/tmp
USER 10001:10001
ENTRYPOINT ["pd-bench"]
CMD ["validate", "--help"]

# The last one is what is built without --target.
FROM python:${PYTHON}-slim-bookworm AS router
LABEL org.opencontainers.image.title="pd-router" \
      org.opencontainers.image.description="Routes LLM requests to pools of prefill and decode vLLM engines." \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/pd-router /opt/pd-router
# pip has compiled the bytecode; at run time the file system may be read-only.
ENV PATH=/opt/pd-router/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1
# By number: Kubernetes cannot verify runAsNonRoot of a name. Nothing is written, so it owns nothing.
USER 10001:10001
EXPOSE 8000
# No HEALTHCHECK: Kubernetes ignores it and has probes; elsewhere GET /health and /ready are there.
# No shell in between: SIGTERM reaches the router, which lets streams finish.
ENTRYPOINT ["pd-router"]
CMD ["serve"]
