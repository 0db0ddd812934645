# Everything a person runs. The first target called sets up .venv and builds the package into it.
PYTHON ?= python3
BIN := .venv/bin
SOURCES := pyproject.toml CMakeLists.txt README.md LICENSE \
           $(shell find cpp src -name '*.cpp' -o -name '*.h' -o -name '*.py' -o -name '*.pyi')
CXX_SOURCES := $(wildcard cpp/*.cpp cpp/*.h tests/neon/*.cpp tests/neon/*.h)
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet

.PHONY: help install demo test lint format sanitize neon bench clean

help:
	@echo "make demo      build, then search the docstrings of this Python in words and compare with exact search"
	@echo "make test      build, then run the tests"
	@echo "make lint      ruff, mypy --strict, clang-format"
	@echo "make format    rewrite the sources in the house style"
	@echo "make sanitize  the kernel tests under the address and undefined-behaviour sanitizers"
	@echo "make neon      the kernels for AArch64, under an emulator, against the portable ones of this machine"
	@echo "make bench     the tables of benchmarks/README.md (needs the data sets)"

# The package is built without isolation so that a second build compiles only what changed.
.venv/tools:
	$(PYTHON) -m venv .venv
	$(PIP) --upgrade pip
	$(PIP) "scikit-build-core>=0.10" "nanobind>=2.4" "cmake>=3.24" ninja
	touch $@

.venv/installed: .venv/tools $(SOURCES)
	$(PIP) --no-build-isolation ".[test,lint]"
	touch $@

install: .venv/installed

demo: install
	mkdir -p out
	$(BIN)/aniso demo --plot out/demo.png

test: install
	$(BIN)/python -m pytest -n auto

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(CXX_SOURCES)

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_SOURCES)


sanitize: install
	$(PIP) --no-build-isolation --no-deps --upgrade --target build/sanitized/site \
	  -C build-dir=build/sanitized/cmake -C cmake.define.ANISO_SANITIZE=ON -C install.strip=false .
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	  ASAN_OPTIONS=detect_leaks=0 PYTHONPATH=build/sanitized/site \
	  $(BIN)/python -m pytest -n auto -p no:cacheprovider tests/test_kernels.py tests/test_kernel_additive.py tests/test_kernel_bounds.py tests/test_search_kernels.py tests/test_route.py tests/test_searcher.py tests/test_where.py tests/test_batches.py tests/test_effort.py tests/test_index.py
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	  ASAN_OPTIONS=detect_leaks=0 PYTHONPATH=build/sanitized/site \
	  $(BIN)/python tests/fuzz_indexes.py --apart --count 2000

# Against the portable kernels of this machine, because those of AArch64 are the same code as neon. The flags of kernels
# are those of CMakeLists.txt; the program that compares them must round alike on both machines.
NEON_CXX ?= aarch64-linux-gnu-g++
NEON_RUN ?= qemu-aarch64
NEON_OUT := build/neon
FLAGS := -std=c++20 -Wall -Wextra -Wno-psabi
KERNEL_FLAGS := $(FLAGS) -O3 -fno-math-errno -fno-trapping-math
COMPARE := $(FLAGS) -O2 -ffp-contract=off $(wildcard tests/neon/*.cpp) cpp/dispatch.cpp
neon:
	@for tool in $(NEON_CXX) $(NEON_RUN); do command -v $$tool >/dev/null || { \
	  echo "make neon needs $$tool (on Debian: apt-get install g++-aarch64-linux-gnu qemu-user)"; exit 1; }; done
	mkdir -p $(NEON_OUT)
	$(CXX) $(KERNEL_FLAGS) -DANISO_ISA=portable -c cpp/kernels.cpp -o $(NEON_OUT)/portable.o
	$(CXX) $(COMPARE) $(NEON_OUT)/portable.o -o $(NEON_OUT)/write
	$(NEON_CXX) $(KERNEL_FLAGS) -DANISO_ISA=portable -c cpp/kernels.cpp -o $(NEON_OUT)/portable-arm.o
	$(NEON_CXX) $(KERNEL_FLAGS) -DANISO_ISA=neon -march=armv8-a -c cpp/kernels.cpp -o $(NEON_OUT)/neon-arm.o
	for file in search router batch; do $(NEON_CXX) $(FLAGS) -fsyntax-only cpp/$$file.cpp || exit 1; done
	$(NEON_CXX) $(COMPARE) -DANISO_ARM -static $(NEON_OUT)/portable-arm.o $(NEON_OUT)/neon-arm.o -o $(NEON_OUT)/check
	$(NEON_OUT)/write write >$(NEON_OUT)/expected
	$(NEON_RUN) $(NEON_OUT)/check check <$(NEON_OUT)/expected

bench: install
	$(BIN)/python benchmarks/quantizers.py

clean:
	rm -rf .venv build dist
