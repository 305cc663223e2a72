#!/bin/bash -eu
# Builds the fuzzers of C++ into $OUT, as OSS-Fuzz does, or by hand with clang:
#
#   OUT=/tmp/fuzzers tests/fuzz/build.sh
#
# OSS-Fuzz sets CXX, CC, CXXFLAGS, CFLAGS and LIB_FUZZING_ENGINE. PYTHON has the package installed.
# OUT then runs elsewhere, too: libtvm_ffi.so is copied there, all else of ours is static.
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-.venv/bin/python}
CXX=${CXX:-clang++} CC=${CC:-clang}
FLAGS=${CXXFLAGS:--O1 -gline-tables-only -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize=vptr,function -fno-sanitize-recover=all -fprofile-instr-generate -fcoverage-mapping}
ENGINE=${LIB_FUZZING_ENGINE:--fsanitize=fuzzer}
OUT=${OUT:?a folder for the fuzzers}
JOBS=${JOBS:-2}

NATIVE=tvm_stretch/run/native PHONE=tvm_stretch/phone DSP=targets/hexagon/dsp FUZZ=tests/fuzz/native
FFI=$("$PYTHON" -c 'import tvm_ffi, pathlib; print(pathlib.Path(tvm_ffi.__file__).parent)')
TVM=$("$PYTHON" -c 'import importlib.util as u; print(u.find_spec("tvm").submodule_search_locations[0])')
INCLUDES=(-iquote"$NATIVE" -iquote. -I"$DSP" -isystem "$FFI/include" -isystem "$TVM/include")
WORK=${WORK:-build/fuzz}
mkdir -p "$OUT" "$WORK"

# Several files at once: most of the time goes into their headers.
rm -f "$WORK"/unit??
ls "$NATIVE"/*.cc "$PHONE"/app/*.cc targets/{opencl,hexagon}/native/*.cc | split -l 12 - "$WORK/unit"
for unit in "$WORK"/unit??; do
  sed "s|.*|#include \"$PWD/&\"|" "$unit" | cmp -s - "$unit.cc" ||
    sed "s|.*|#include \"$PWD/&\"|" "$unit" > "$unit.cc"
done
compile() { # SOURCE OBJECT, unless nothing that it includes has changed since
  if [ -f "$2" ]; then
    mapfile -t included < <(sed -n 's|^#include "\(/.*\)"|\1|p' "$1")
    local newer
    newer=$(find "$1" "${included[@]}" -newer "$2" -print -quit
      find tvm_stretch targets tests/fuzz tests/native -name '*.h' -newer "$2" -print -quit)
    if [ -z "$newer" ]; then return; fi
  fi
  $CXX -std=c++17 $FLAGS "${INCLUDES[@]}" -fPIC -c "$1" -o "$2"
}
for unit in "$WORK"/unit*.cc; do
  while [ "$(jobs -rp | wc -l)" -ge "$JOBS" ]; do wait -n; done
  compile "$unit" "${unit%.cc}.o" &
done
wait
for part in wire tracker options; do
  compile "$PHONE/server/$part.cc" "$WORK/server_$part.o"
done
$CC $FLAGS "${INCLUDES[@]}" -c "$DSP/dispatch.c" -o "$WORK/dispatch.o"
$CC $FLAGS "${INCLUDES[@]}" -c "$DSP/kernel_support.c" -o "$WORK/kernel_support.o"
$CC $FLAGS "${INCLUDES[@]}" -c "$DSP/linux.c" -o "$WORK/dsp_linux.o"

cp "$FFI/lib/libtvm_ffi.so" "$OUT"
fuzzer() { # NAME OBJECTS..
  local name=$1
  shift
  compile "$FUZZ/$name.cc" "$WORK/$name.o"
  $CXX $FLAGS $ENGINE "$WORK/$name.o" "$@" -o "$OUT/$name" \
    -L"$OUT" -ltvm_ffi -Wl,-rpath,'$ORIGIN' -ldl -lpthread
  if [ -f "tests/fuzz/dictionaries/$name.dict" ]; then
    cp "tests/fuzz/dictionaries/$name.dict" "$OUT"
  fi
}
for name in graph network_data artifact c_interface; do
  fuzzer "$name" "$WORK"/unit*.o
done
fuzzer frames "$WORK"/server_*.o
fuzzer dsp_program "$WORK/dispatch.o" "$WORK/kernel_support.o" "$WORK/dsp_linux.o"

# Seed corpora, and the artifact that c_interface calls.
"$PYTHON" tests/fuzz/seeds.py "$OUT"
