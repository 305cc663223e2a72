"""An NDK that is a script: what our build and our linking ask of one, and the build without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tvm_ffi
from helpers.android_elf import assert_android_loads
from helpers.android_networks import NETWORKS

from tvm_stretch.base.errors import TargetError
from tvm_stretch.run.linking import linker_for

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(tvm_ffi.__file__).parents[1]
CMAKE = Path(sys.executable).with_name("cmake")

# It says what it was given, and leaves the compilers of this machine.
TOOLCHAIN = """
file(WRITE "${CMAKE_CURRENT_LIST_DIR}/given" "${ANDROID_ABI} ${ANDROID_PLATFORM} ${ANDROID_STL}")
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
"""
CLANG = """#!/bin/sh
exec {python} -m ziglang cc -target aarch64-linux-musl -nostdlib -Wl,--hash-style=gnu "$@"
"""


@pytest.fixture
def ndk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "ndk"
    (folder / "build/cmake").mkdir(parents=True)
    (folder / "build/cmake/android.toolchain.cmake").write_text(TOOLCHAIN)
    monkeypatch.setenv("ANDROID_NDK_HOME", str(folder))
    return folder


def configured(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    toolchain = f"-DCMAKE_TOOLCHAIN_FILE={ROOT}/cmake/x86_64-linux-android.cmake"
    command = [CMAKE, "-S", ROOT, "-B", folder, toolchain, "-DCMAKE_BUILD_TYPE=MinSizeRel"]
    return subprocess.run([*command, *options], capture_output=True, text=True, check=False)


def test_the_build_by_an_ndk(ndk: Path, tmp_path: Path) -> None:
    """From source, for API 26, with the C++ library inside, for pages of 16 KB."""
    if not CMAKE.exists():
        pytest.skip("there is no cmake in this environment")
    done = configured(tmp_path / "build", f"-DTVM_STRETCH_SITE={SITE}")
    assert done.returncode == 0, done.stderr
    given = (ndk / "build/cmake/given").read_text()
    assert given == "x86_64 android-26 c++_static"
    for name in ("tvm_stretch_runtime", "tvm_stretch_app", "tvm_stretch_rpc"):
        link = (tmp_path / f"build/CMakeFiles/{name}.dir/link.txt").read_text()
        assert "-Wl,-z,max-page-size=16384" in link and " -s " in link
    header = (tmp_path / "build/from_source/tvm/ffi/function.h").read_text()
    assert header == (SITE / "tvm_ffi/include/tvm/ffi/function.h").read_text().replace(
        "this->cpp_call ? reinterpret_cast<FCall>(this->cpp_call) : CppCallDedirectToSafeCall",
        "CppCallDedirectToSafeCall",
    )


def test_the_build_without_an_ndk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not CMAKE.exists():
        pytest.skip("there is no cmake in this environment")
    monkeypatch.delenv("ANDROID_NDK_HOME", raising=False)
    done = configured(tmp_path, f"-DTVM_STRETCH_SITE={SITE}")
    assert done.returncode and "an Android NDK for ANDROID_NDK_HOME, got none" in done.stderr


def test_an_artifact_by_the_clang_of_an_ndk(ndk: Path, tmp_path: Path) -> None:
    pytest.importorskip("ziglang")
    model = NETWORKS["functions"].compile({"kind": "llvm", "mtriple": "aarch64-linux-android"})
    with pytest.raises(TargetError, match=r"got .* without toolchains/llvm/prebuilt"):
        model.export(tmp_path / "net.so")
    folder = ndk / "toolchains/llvm/prebuilt/linux-x86_64/bin"
    folder.mkdir(parents=True)
    clang = folder / "aarch64-linux-android26-clang"
    clang.write_text(CLANG.format(python=sys.executable))
    clang.chmod(0o755)
    model.export(tmp_path / "net.so")
    assert_android_loads(tmp_path / "net.so")
    source = tmp_path / "a.c"
    source.write_text(
        "int getrandom(void*, long, int); int f(void *p) { return getrandom(p, 1, 0); }"
    )
    with pytest.raises(
        TargetError, match="at API 26 for aarch64-linux-android, got getrandom; plan"
    ):
        linker_for("aarch64-linux-android")(str(tmp_path / "a.so"), [str(source)])


@pytest.mark.parametrize("home", ["", "/somewhere"])
def test_what_make_says(home: str) -> None:
    """Without an NDK there is a server for the CPU alone; one line says so, and what to install."""
    environment = {**os.environ, "ANDROID_NDK_HOME": home}
    if not home:
        del environment["ANDROID_NDK_HOME"]
    command = ["make", "-n", "phone-android", "ANDROID_MACHINES=aarch64"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    system = "android" if home else "musl"
    assert f"cp -r build/phone/aarch64-linux-{system} build/phone/android/aarch64" in done.stdout
    assert ("install an Android NDK" in done.stdout) == (not home)
    assert ("src/main/jniLibs/arm64-v8a" in done.stdout) == bool(home)
