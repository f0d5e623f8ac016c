# The router's image: no compiler, no pip, no vLLM. `docker build -t pd-router:0.1.0 .`
# Its hot modules are compiled by mypyc; `--build-arg COMPILE=0` leaves them Python.
# Configured by PD_ROUTER_* in the environment; other commands: `docker run pd-router:0.1.0 check`.

# The Python that the tests run on.
ARG PYTHON=3.11

FROM python:${PYTHON}-slim-bookworm AS build
ARG COMPILE=1
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
WORKDIR /src
COPY pyproject.toml setup.py README.md LICENSE ./
COPY router ./router
# Everything becomes a wheel, then an environment is made of the wheels alone: what is not in them
# cannot get in. The lmcache extra is 2 MB, and a setting away from being needed.
RUN PD_ROUTER_COMPILE=${COMPILE} pip wheel --no-cache-dir --wheel-dir /wheels '.[lmcache]' \
 && python -m venv --without-pip /opt/pd-router \
 && pip --python /opt/pd-router/bin/python install --no-cache-dir --no-index --find-links /wheels \
        'pd-router[lmcache]'

FROM python:${PYTHON}-slim-bookworm
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
