"""Artifacts for Android that zig alone links: what its loader asks of a file, who is refused."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.android_elf import assert_android_loads
from helpers.android_networks import NETWORKS, SAMPLE
from helpers.small_models import build_model, kernel_ir
from tvm import relax, te, tirx
from tvm.target import Target

import tvm_stretch as ts
from tvm_stretch.base.errors import TargetError
from tvm_stretch.plan.cost.profile_file import load_profile, profiles
from tvm_stretch.run.linking import symbols_of_android

MACHINES = ("aarch64", "x86_64")
ROOT = Path(__file__).resolve().parents[2]
pytest.importorskip("ziglang")


@pytest.fixture(autouse=True)
def no_ndk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANDROID_NDK_HOME", raising=False)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in SAMPLE else [pytest.mark.full]) for name in NETWORKS],
)
def test_android_loads_what_is_exported(name: str, machine: str, tmp_path: Path) -> None:
    path = tmp_path / "net.so"
    NETWORKS[name].compile({"kind": "llvm", "mtriple": f"{machine}-linux-android"}).export(path)
    assert_android_loads(path)


def calling(function: str, machine: str) -> ts.Model:
    """A model whose only kernel calls a function of C."""

    def emit(builder: relax.BlockBuilder, params: list[relax.Var]) -> list[relax.Expr]:
        def call(x: te.Tensor) -> te.Tensor:
            return te.compute(x.shape, lambda i: tirx.call_extern("float32", function, x[i]))

        return [builder.emit_te(call, params[0], primfunc_name_hint="called")]

    target = Target({"kind": "llvm", "mtriple": f"{machine}-linux-android"})
    return build_model(kernel_ir(emit, {"x": ((8,), "float32")}), target)


@pytest.mark.parametrize("machine", MACHINES)
def test_a_symbol_that_android_lacks_is_named(machine: str, tmp_path: Path) -> None:
    path = tmp_path / "net.so"
    calling("cbrtf", machine).export(path)
    assert assert_android_loads(path)[2:4] == (["libm.so"], ["cbrtf"])
    with pytest.raises(TargetError, match=r"has at API 26 for \w+-linux-android, got exp10f; plan"):
        calling("exp10f", machine).export(tmp_path / "other.so")
    assert [one.name for one in tmp_path.iterdir()] == ["net.so"]


def test_the_table_of_symbols() -> None:
    """Some of each library, and what came with a later API: 28, 28, 29, 33, 36."""
    known = symbols_of_android()
    assert {"memset", "__errno", "__cxa_finalize", "strtod_l"} <= {*known["libc.so"]}
    assert {"expf", "powf", "clogl"} <= {*known["libm.so"]} and "dlopen" in known["libdl.so"]
    late = {"aligned_alloc", "getrandom", "reallocarray", "preadv2", "qsort_r"}
    elsewhere = {"exp10f", "__errno_location", "__printf_chk", "__cxa_throw"}
    everything = [name for names in known.values() for name in names]
    assert not {*everything} & (late | elsewhere)
    assert len(everything) == len({*everything}) > 1500


def test_our_sources_call_nothing_that_android_8_lacks() -> None:
    """The build for musl cannot tell: libc++ itself calls one of these there."""
    late = re.compile(r"\b(aligned_alloc|getrandom|memfd_create|pthread_setaffinity_np|qsort_r)\(")
    files = [path for room in ("tvm_stretch", "targets") for path in (ROOT / room).rglob("*.c*")]
    assert len(files) > 60
    assert [path.name for path in files if late.search(path.read_text(errors="replace"))] == []


def a_library(folder: Path, *options: str) -> Path:
    path = folder / "other.so"
    (folder / "a.c").write_text("extern int there; int *place(void) { return &there; }")
    command = [sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-musl", "-shared"]
    subprocess.run([*command, *options, folder / "a.c", "-nostdlib", "-o", path], check=True)
    return path


@pytest.mark.parametrize(
    "options",
    [
        ["-fPIC", "-Wl,-z,max-page-size=4096"],
        ["-fPIC", "-Wl,--hash-style=sysv", "-Wl,-z,max-page-size=16384"],
        ["-fPIC", "-Wl,-z,max-page-size=16384"],  # `there` is nowhere
    ],
)
def test_the_check_finds_what_android_refuses(options: list[str], tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        assert_android_loads(a_library(tmp_path, *options))


def test_the_check_finds_a_stack_that_may_run(tmp_path: Path) -> None:
    calling("cbrtf", "aarch64").export(tmp_path / "net.so")
    data = bytearray((tmp_path / "net.so").read_bytes())
    kind = struct.pack("<II", 0x6474E551, 6)  # PT_GNU_STACK, which may be read and written
    assert data.count(kind) == 1
    data[data.index(kind) + 4] |= 1
    (tmp_path / "net.so").write_bytes(data)
    with pytest.raises(AssertionError):
        assert_android_loads(tmp_path / "net.so")


def test_phones_of_profiles_have_android() -> None:
    for name in profiles():
        targets = [one.target for one in load_profile(name).processors.values()]
        triples = {target["mtriple"] for target in targets if target and target["kind"] == "llvm"}
        assert triples <= {"aarch64-linux-android"}, name
