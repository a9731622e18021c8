# Everything below sets itself up: it needs Python >= 3.11, a C++20 compiler and the package registry.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
OUTPUT ?= demo_output
SECONDS ?= 60
SEED ?= 0
REQUESTS ?= 10000
# Seconds for an answer in `make hostile`. On a machine that has other work to do it takes longer.
WITHIN ?= 2
TRIES ?= 20
# `make test TORCH=no` leaves PyTorch, and the tests of `crfield.nn`, out.
TORCH ?= yes
# One process per core: a whole file of tests goes to one of them, so that its data is made once.
PYTEST := $(BIN)/python -m pytest -n auto --dist loadfile
LOCK := $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate \
    --custom-compile-command "make lock" -c constraints.txt pyproject.toml
# The tests of the rooms that are built directly on the compiled core; forks and the libraries of
# others do not go with sanitizers.
NATIVE_ROOMS := tests/core tests/dense tests/graphcut tests/graphs tests/patterns \
    --ignore=tests/core/test_processes.py --ignore=tests/core/test_arrays.py

.PHONY: demo check test test-gpu lint docs bench sanitize fuzz native-fuzz faults hostile thread-check wheels lock install clean

demo: install
	$(BIN)/crfield demo --overwrite -o $(OUTPUT)

# What to run while working: lint, types, layers and the tests that take little time.
check: lint
	$(BIN)/python -m pip install -q -c constraints.txt --group test
	CRFIELD_EXAMPLES=15 $(PYTEST) -m "not slow"

test: install
	$(BIN)/python -m pip install -q -c constraints.txt --group test
	-$(BIN)/python -m pip install -q -c constraints.txt --group peer
	[ "$(TORCH)" = no ] || $(BIN)/python -m pip install -q -c constraints.txt --group torch
	$(PYTEST)

# What needs a GPU, and the Triton kernels on it instead of in their interpreter.
test-gpu: install
	$(BIN)/python -m pip install -q -c constraints.txt --group test
	$(BIN)/python -c "import torch" || $(BIN)/python -m pip install -q -c constraints.txt --group torch
	$(BIN)/python -m pytest tests/nn

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
	$(BIN)/python -m benchmarks.run
	$(BIN)/python -m benchmarks.graphcut
	$(BIN)/python -m benchmarks.patterns
	$(BIN)/python -m benchmarks.chains
	$(BIN)/python -m benchmarks.graphs
	$(BIN)/python -m benchmarks.rays

# The compiled core under AddressSanitizer and UndefinedBehaviorSanitizer, driven by the Python tests.
sanitize: install
	$(BIN)/python -m pip install -q -c constraints.txt --group test
	$(BIN)/python -m pip install -q --no-deps --no-build-isolation --upgrade --target build/sanitized . \
	    -C build-dir=build/sanitize -C cmake.define.CRFIELD_SANITIZE=ON -C install.strip=false
	PYTHONPATH=build/sanitized ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
	CRFIELD_RANDOM_MODELS=25 CRFIELD_EXAMPLES=5 $(PYTEST) -p no:cacheprovider \
	    $(NATIVE_ROOMS)

# Random and hostile input to the public entry points: for SECONDS, or so many CASES, which are the same
# on every machine; other seeds are other cases.
fuzz: install
	$(BIN)/python -m pip install -q -c constraints.txt --group test
	$(BIN)/python -m tests.fuzz.run $(if $(CASES),--cases $(CASES),--seconds $(SECONDS)) --seed $(SEED)

# The same for the compiled core, under AddressSanitizer and UndefinedBehaviorSanitizer: SECONDS for each
# group of functions. `CXX=clang++ make native-fuzz` lets libFuzzer choose the input.
native-fuzz: $(BIN)/python
	$(BIN)/python -m pip install -q --group build
	$(BIN)/cmake -S . -B build/fuzz -DCRFIELD_FUZZ=ON -DCMAKE_BUILD_TYPE=Release
	$(BIN)/cmake --build build/fuzz --parallel 2
	@set -e; for name in chains cuts dense graphs rays; do \
	    if grep -q "CMAKE_CXX_COMPILER_ID \"Clang\"" build/fuzz/CMakeFiles/*/CMakeCXXCompiler.cmake; \
	    then build/fuzz/fuzz_$$name -max_total_time=$(SECONDS) -seed=$(SEED); \
	    else build/fuzz/fuzz_$$name $(SECONDS) $(SEED); fi; done

# Kills, full disks, damaged files and the like, each so many times; `tests/faults/run.py` makes the table.
faults: install
	$(BIN)/python -m pip install -q -c constraints.txt --group test
	$(BIN)/python -m tests.faults.run --tries $(TRIES) --seed $(SEED) --no-table

# Requests to the playground that no page would send.
hostile: install
	$(BIN)/python -m pip install -q -c constraints.txt --group browser
	$(BIN)/python -m tests.app.hostile_requests --requests $(REQUESTS) --within $(WITHIN) --seed $(SEED)

# The thread pool and the lattice under ThreadSanitizer, used by many threads at once and after a fork.
thread-check: $(BIN)/python
	$(BIN)/python -m pip install -q --group build
	$(BIN)/cmake -S . -B build/thread -DCRFIELD_THREAD_CHECK=ON -DCMAKE_BUILD_TYPE=Release
	$(BIN)/cmake --build build/thread --parallel 2
	build/thread/crfield_thread_check

# A wheel for every Python >= 3.11 that is found and an sdist, each tried in an empty environment.
wheels: install
	$(PYTHON) tools/try_wheels.py --environment $(BIN)/python

# The hashes of everything that CI installs but PyTorch, for every Python and system, from constraints.txt.
lock: $(BIN)/python
	$(BIN)/python -m pip install -q uv
	$(LOCK) --group build --group test --group lint --group release -o requirements/test.lock
	$(LOCK) --group publish -o requirements/publish.lock

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
