# Every target sets itself up: a virtual environment in .venv with the package and its development tools.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SEED ?= 1
MINORS ?= 1.34 1.35 1.36 1.37
SOAK_MINUTES ?= 30
SOAK_OUTPUT ?= build/soak
PERF ?= --labels short
LOCAL_REGISTRY ?= localhost:5000/scheduler-plugins
LOCAL_IMAGE ?= kube-scheduler:latest
READY := $(VENV)/.ready
LOCK = $(VENV)/lock/bin/uv pip compile --universal --python-version 3.11 --generate-hashes --quiet \
	--custom-compile-command 'make lock' $(if $(UPGRADE),--upgrade)

# Container images often turn bytecode files off; each process of a test run would compile pytest's plugins.
unexport PYTHONDONTWRITEBYTECODE

# Python 3.11 can measure coverage only by tracing every line, which doubles the time of the tests.
export COVERAGE := import sys; print("--cov" if sys.version_info >= (3, 12) else "")

.PHONY: demo docs e2e lint test test-cluster test-minors test-groups test-page check golden bench bench-cluster bench-perf bench-gate soak image local-image lock audit clean test-scheduler-plugins chart test-package test-image

$(READY): pyproject.toml requirements/dev.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --no-compile --require-hashes -r requirements/dev.txt
	$(BIN)/pip install --quiet --no-deps --editable .
	touch $(READY)

demo: $(READY) ## a cluster in one process: what was placed, and why; SEED=2 draws other ties
	$(BIN)/python examples/embedded/demo.py $(SEED)

test: $(READY) ## all tests that need Python alone
	$(BIN)/pytest -n auto --dist worksteal tests

test-cluster: $(READY) ## tests on a real control plane, which Go builds once (minutes) unless KUBEBUILDER_ASSETS has it
	$(BIN)/python tests/controlplane/binaries.py
	$(BIN)/pytest -n 2 --dist worksteal tests/cluster_suite

# What depends on the version of the API server or of the kube-scheduler beside it. The rest of the suite is about
# our own API server, packaging and plugins, or compares with what 1.36 answered.
MINOR_TESTS := $(addprefix tests/cluster_suite/test_,beside_kube_scheduler.py client.py in_a_pod.py \
	manifests_cluster.py scheduler_cluster.py whatif_cluster.py)

test-minors: $(READY) ## scheduling on API servers of other versions, MINORS='1.34 1.35 1.36 1.37'; minutes to build each, then minutes
	for minor in $(MINORS); do \
		echo "Kubernetes $$minor"; export STOWPLAN_KUBERNETES=$$minor; \
		$(BIN)/python tests/controlplane/binaries.py && $(BIN)/pytest -n 2 --dist worksteal $(MINOR_TESTS) || exit 1; \
	done

test-groups: $(READY) ## pod groups with kube-scheduler, then ours, on a real control plane; 10 minutes
	$(BIN)/python tests/controlplane/binaries.py
	$(BIN)/pytest tests/groups_cluster

test-scheduler-plugins: $(READY) ## the real scheduler of scheduler-plugins beside ours; 10 minutes of processor time, and minutes to build
	$(BIN)/python tests/controlplane/binaries.py
	$(BIN)/pytest tests/scheduler_plugins_cluster

e2e: $(READY) ## Kubernetes' own end-to-end tests, with results in docs/conformance.md; an hour, and minutes to build
	$(BIN)/python tests/e2e/run_e2e.py --jobs 3
	$(BIN)/python tests/e2e/run_e2e.py scheduling --real --write

test-page: $(READY) ## the page in a real Chromium, which must be installed
	$(BIN)/pytest tests/page

test-package: $(READY) ## wheel and sdist, installed for every Python of this machine, and as root for that of Debian unstable; minutes
	$(BIN)/pytest tests/package_suite/test_wheel.py

test-image: $(READY) ## the image, built by buildah on a base of debootstrap's, schedules a pod; needs both, and root
	$(BIN)/python tests/controlplane/binaries.py
	$(BIN)/pytest tests/package_suite/test_built_image.py

lint: $(READY) ## formatting, lint, types, and imports between packages
	$(BIN)/ruff format --check src tests docs deploy
	$(BIN)/ruff check src tests docs deploy
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini
	$(BIN)/lint-imports

check: lint ## what must be clean on every commit, with the coverage of the unit tests where Python is 3.12 or newer
	$(BIN)/pytest -n auto --dist worksteal tests --ignore tests/golden --ignore tests/properties $$($(BIN)/python -c "$$COVERAGE")

golden: $(READY) ## the recorded decisions, configurations and events of kube-scheduler
	$(BIN)/pytest -n auto tests/golden

docs: $(READY) ## the pages made from the code, and the site in build/site; fails at a dead link
	$(BIN)/python docs/generate_reference.py
	test -x $(VENV)/docs/bin/mkdocs || { $(PYTHON) -m venv $(VENV)/docs && \
		$(VENV)/docs/bin/pip install --quiet --require-hashes -r requirements/docs.txt; }
	NO_MKDOCS_2_WARNING=1 $(VENV)/docs/bin/mkdocs build --quiet --strict

chart: $(READY) ## the Helm chart and the kustomize bases, from what `stowplan manifests` renders
	$(BIN)/python deploy/generate.py

bench: $(READY) ## decisions a second by shape of pod, at 5,000 and 50,000 nodes
	$(BIN)/stowplan bench decisions --nodes 5000 --nodes 50000

bench-cluster: $(READY) ## beside kube-scheduler on a real control plane, at 1,000 and 5,000 nodes: a quarter of an hour
	$(BIN)/python tests/controlplane/binaries.py
	$(BIN)/python benchmarks/cluster.py
	$(BIN)/python benchmarks/extender.py

bench-perf: $(READY) ## Kubernetes' scheduler_perf beside kube-scheduler: PERF='--labels short --rounds 3' and the like; resumable
	$(BIN)/python tests/controlplane/binaries.py
	mkdir -p build
	$(BIN)/python benchmarks/scheduler_perf.py --resume build/scheduler_perf.jsonl $(PERF)

bench-gate: $(READY) ## what got slower than benchmarks/baseline.json: `make bench` and ten rows of scheduler_perf; an hour
	$(BIN)/python tests/controlplane/binaries.py
	$(BIN)/python benchmarks/gate.py

soak: $(READY) ## two replicas under load and faults for SOAK_MINUTES (30), with a checker of its own and a plot
	$(BIN)/python tests/controlplane/binaries.py
	$(BIN)/python benchmarks/soak.py --minutes $(SOAK_MINUTES) --output $(SOAK_OUTPUT)

image: ## the container image, for a cluster: make image IMAGE=registry.example/stowplan:0.1.0
	@test -n "$(IMAGE)" || { echo "make image: say what to call it: make image IMAGE=NAME:TAG" >&2; exit 2; }
	@for tool in docker podman; do \
		if $$tool info >/dev/null 2>&1; then exec $$tool build --tag "$(IMAGE)" .; fi; \
	done; \
	echo "make image: needs docker or podman at work; neither 'docker info' nor 'podman info' succeeds" >&2; exit 1

local-image: ## the image for a registry of your own: LOCAL_REGISTRY=localhost:5000/scheduler-plugins, LOCAL_IMAGE=kube-scheduler:latest
	@$(MAKE) --no-print-directory image IMAGE="$(LOCAL_REGISTRY)/$(LOCAL_IMAGE)"

lock: ## pin what the image and development install, with hashes; UPGRADE=1 takes newer versions
	$(PYTHON) -m venv $(VENV)/lock
	$(VENV)/lock/bin/pip install --quiet uv
	$(LOCK) --extra dev pyproject.toml -o requirements/dev.txt
	$(LOCK) --extra journal pyproject.toml -o requirements/image.txt
	$(LOCK) requirements/build.in -o requirements/build.txt
	$(LOCK) requirements/docs.in -o requirements/docs.txt

audit: ## look up known vulnerabilities of everything the image installs; needs PyPI's advisory service
	$(PYTHON) -m venv $(VENV)/audit
	$(VENV)/audit/bin/pip install --quiet pip-audit
	$(VENV)/audit/bin/pip-audit --strict --disable-pip --require-hashes -r requirements/image.txt

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
