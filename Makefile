# Everything below sets itself up: it needs Python >= 3.11, a C++20 compiler and the package registry.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
OUTPUT ?= demo_output
SECONDS ?= 60
SEED ?= 0
REQUESTS ?= 10000
TRIES ?= 20
# `make test TORCH=no` leaves PyTorch, and the tests of `crfield.nn`, out.
TORCH ?= yes
# One process a core: a whole file of tests goes to one of them, so that its data is made once.
PYTEST := $(BIN)/python -m pytest -n auto --dist loadfile

.PHONY: demo test test-gpu lint docs bench sanitize fuzz faults hostile thread-check wheels install clean

demo: install
	$(BIN)/crfield demo -o $(OUTPUT)

test: install
	$(BIN)/python -m pip install -q -c constraints.txt --group test
	-$(BIN)/python -m pip install -q -c constraints.txt --group peer
	[ "$(TORCH)" = no ] || $(BIN)/python -m pip install -q -c constraints.txt --group torch
	$(PYTEST)

# What needs a GPU, and the Triton kernels on it instead of in their interpreter.
test-gpu: install
	$(BIN)/python -m pip install -q -c constraints.txt --group test
	$(BIN)/python -c "import torch" || $(BIN)/python -m pip install -q -c constraints.txt --group torch
	$(BIN)/python -m pytest tests/nn/test_nn_gpu.py tests/nn/test_nn_fused.py tests/nn/test_nn_lattice.py \
	    tests/nn/test_nn_pairs.py tests/nn/test_nn_trees.py tests/nn/test_nn_grids.py \
	    tests/nn/test_nn_propagation.py

lint: install
	$(BIN)/python -m pip install -q -c constraints.txt --group lint
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The pages under docs/, to build/site; a warning is an error.
docs: $(BIN)/python
	$(BIN)/python -m pip install -q -c constraints.txt --group docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: install
	$(BIN)/python -m pip install -q -c constraints.txt --group test
	-$(BIN)/python -m pip install -q -c constraints.txt --group peer
	$(BIN)/python benchmarks/run.py
	$(BIN)/python benchmarks/graphcut.py
	$(BIN)/python benchmarks/patterns.py
	$(BIN)/python benchmarks/chains.py
	$(BIN)/python benchmarks/graphs.py
	$(BIN)/python benchmarks/rays.py

# The compiled core under AddressSanitizer and UndefinedBehaviorSanitizer, driven by the Python tests.
sanitize: install
	$(BIN)/python -m pip install -q -c constraints.txt --group test
	$(BIN)/python -m pip install -q --no-deps --no-build-isolation --upgrade --target build/sanitized . \
	    -C build-dir=build/sanitize -C cmake.define.CRFIELD_SANITIZE=ON -C install.strip=false
	PYTHONPATH=build/sanitized ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
	CRFIELD_RANDOM_MODELS=25 CRFIELD_EXAMPLES=5 $(PYTEST) -p no:cacheprovider \
	    tests/dense/test_filters.py tests/dense/test_meanfield.py tests/core/test_native.py tests/dense/test_plan.py \
	    tests/test_graphcut*.py tests/patterns/test_patterns_sampling.py tests/test_bad_input*.py \
	    tests/graphs/test_chains.py tests/graphs/test_chains_input.py tests/graphs/test_factor_graphs.py \
	    tests/graphs/test_graph_input.py tests/graphs/test_distance_transform.py tests/graphs/test_rays.py

# Random and hostile input to the public entry points; other seeds are other cases.
fuzz: install
	$(BIN)/python -m pip install -q -c constraints.txt --group test
	$(BIN)/python tools/fuzz.py --seconds $(SECONDS) --seed $(SEED)

# Kills, full disks, damaged files and the like, each so many times; `tools/faults.py` makes the table.
faults: install
	$(BIN)/python -m pip install -q -c constraints.txt --group test
	$(BIN)/python tools/faults.py --tries $(TRIES) --seed $(SEED) --no-table

# Requests to the playground that no page would send.
hostile: install
	$(BIN)/python -m pip install -q -c constraints.txt --group browser
	$(BIN)/python tools/hostile_requests.py --requests $(REQUESTS) --seed $(SEED)

# The thread pool and the lattice under ThreadSanitizer, used by many threads at once and after a fork.
thread-check: $(BIN)/python
	$(BIN)/python -m pip install -q --group build
	$(BIN)/cmake -S . -B build/thread -DCRFIELD_THREAD_CHECK=ON -DCMAKE_BUILD_TYPE=Release
	$(BIN)/cmake --build build/thread --parallel 2
	build/thread/crfield_thread_check

# A wheel for every Python >= 3.11 that is found and an sdist, each tried in an empty environment.
wheels: install
	$(PYTHON) tools/try_wheels.py --environment $(BIN)/python

# What builds the package comes from the same environment every time: with a fresh one for each build
# nothing that is compiled could be used again.
install: $(BIN)/python
	$(BIN)/python -m pip install -q --group build
	$(BIN)/python -m pip install -q -c constraints.txt --no-build-isolation .

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip

clean:
	rm -rf build dist $(VENV) $(OUTPUT)
