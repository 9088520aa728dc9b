# One command each; every target sets up what it needs. Needs Python 3.11+, Node 20+ with npm, gcc and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Files of tests are spread over two workers for each core, up to eight: half of the time a test waits for a process.
# tests/e2e/heavy is for `make e2e` alone.
WORKERS := $(shell $(PYTHON) -c 'import os; print(min(8, 2 * (os.cpu_count() or 1)))')
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist=loadfile --no-loadscope-reorder
TESTS := tests --ignore=tests/e2e/heavy

# Where it is set, each of the many processes of a test would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

# The only extra that is pinned here: another version may be a build for GPUs, of several gigabytes.
TORCH ?= torch==2.13.0

# verl and verifiers hold back packages that the tests want newer, so they have an environment of their own.
TRAINERS_VENV ?= .venv-trainers
TEST_TOOLS := 'pytest>=9.0' 'pytest-asyncio>=1.0' 'pytest-timeout>=2.3' 'hypothesis>=6.115' 'psycopg[binary]>=3.2'

.PHONY: demo train demo-sft test check trainers lint docs harnesses e2e bench fidelity clean runtimes bubblewrap docker slurm podman apptainer image

demo: $(VENV)/.demo  ## four small tasks, six samples each: a real harness on a real model, no GPU
	$(BIN)/polar demo

train: $(VENV)/.train  ## a small model learns one-step shell tasks on this machine, also without a GPU
	$(BIN)/polar train examples/learning/laptop.toml --config examples/learning/torch.toml

demo-sft: $(VENV)/.train  ## from tasks to data to one step of supervised fine-tuning: `polar generate` and TRL
	$(BIN)/python examples/sft/demo.py polar-sft

test: $(VENV)/.dev  ## what a change must pass: minutes on two cores; a real harness, model, server and nodes
	$(PYTEST) $(TESTS) -m 'not check'

check: $(VENV)/.train  ## the same and what is long or needs containers, PostgreSQL (`make runtimes`), six harnesses, torch
	$(PYTEST) $(TESTS) --cov

trainers: $(TRAINERS_VENV)/.ready  ## the bridges on the real verl and verifiers; the first run installs about 2.5 GB
	$(TRAINERS_VENV)/bin/python -m pytest tests/unit/trainers/bridges

lint: $(VENV)/.train
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

docs: $(VENV)/.dev  ## the documentation as a site in build/site; a link that leads nowhere is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

harnesses: $(VENV)/.dev  ## all six harnesses through the gateway, scripted; the first run downloads about 0.5 GB
	$(PYTEST) tests/e2e/test_six_harnesses.py

e2e: $(VENV)/.dev  ## the longest suites: what `make check` leaves out, and all else with real harnesses
	$(BIN)/python -m pytest tests/e2e

bench: $(VENV)/.dev  ## measurements, each a script of its own
	$(BIN)/python benchmarks/gateway.py
	$(BIN)/python benchmarks/peers.py
	$(BIN)/python benchmarks/node.py
	$(BIN)/python benchmarks/in_flight.py
	$(BIN)/python benchmarks/outage.py
	$(BIN)/python benchmarks/pipeline.py
	$(BIN)/python benchmarks/prewarm.py
	$(BIN)/python benchmarks/default_model.py
	$(BIN)/python benchmarks/runtimes.py --parallel bubblewrap=100 --parallel docker=20

fidelity: $(VENV)/.dev  ## every harness and model: do trainable tokens stand where they were sampled? Rewrites a table
	$(BIN)/python benchmarks/fidelity.py --write

runtimes: bubblewrap docker apptainer image  ## what the runtimes need on this machine, and an image for them

bubblewrap:
	@scripts/need.sh bwrap bubblewrap nsenter util-linux

docker:  ## also starts an engine where none answers; scripts/start-docker.sh stop ends it
	@scripts/need.sh dockerd docker.io
	@scripts/start-docker.sh

slurm:  ## a controller and its daemons, which tests start for themselves
	@scripts/need.sh slurmctld slurmctld slurmd slurmd sbatch slurm-client munged munge

podman:  ## for tests/e2e/heavy/test_podman.py, which starts a service of its own
	@scripts/need.sh podman podman netavark netavark aardvark-dns aardvark-dns catatonit catatonit runc runc \
		newuidmap uidmap slirp4netns slirp4netns

apptainer:
	@scripts/install-apptainer.sh

image: $(VENV)/.dev  ## polar-base, from Debian packages; rebuilt when its recipe changes
	@scripts/need.sh mmdebstrap mmdebstrap newuidmap uidmap
	@$(BIN)/polar image build

clean:
	rm -rf $(VENV) $(TRAINERS_VENV) build polar-runs polar-sft .pytest_cache .ruff_cache .hypothesis .coverage*

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Polar needs Python 3.11 or newer; set PYTHON=python3.11"; exit 1; }
	@command -v npm >/dev/null || { echo "Polar's harnesses come from npm: install Node 20 or newer"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[embedded]'
	@touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[embedded,renderers,swe,dev]'
	@touch $@

$(VENV)/.train: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[embedded,renderers,swe,dev,train,trl,ray]'
	@touch $@

# In one step with torch, so that no requirement brings another build of it.
$(TRAINERS_VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(TRAINERS_VENV)
	$(TRAINERS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
		$(TORCH) -e '.[embedded,verl,verifiers]' $(TEST_TOOLS)
	@touch $@
