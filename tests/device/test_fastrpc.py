"""The DSP of a phone, called by FastRPC: a fake of Qualcomm's library, and emulated DSPs.

The library that runs there is the one that a phone would load: tests/fastrpc/shell.c refuses what
the loader of a chip would refuse.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from device.test_hexagon import network

import tvm_stretch as ts
from tvm_stretch.targets.hexagon.code import dsp_code
from tvm_stretch.targets.hexagon.code.dsp_code import ENTRY, SOURCES, has_zig
from tvm_stretch.targets.hexagon.hexagon import VERSIONS

pytestmark = [
    pytest.mark.skipif(shutil.which("qemu-hexagon") is None, reason="needs qemu-hexagon"),
    pytest.mark.skipif(not has_zig(), reason="needs ziglang"),
]
_HERE = Path(__file__).parent


def run_tests(*chosen: str, more: tuple[str, ...] = ()) -> None:
    """Run tests of this folder in a process whose Hexagon is called by FastRPC."""
    environment = {**os.environ, "TVM_STRETCH_TEST_FASTRPC": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", *more]
    done = subprocess.run(
        [*command, *(str(_HERE / test) for test in chosen)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_networks_and_failures() -> None:
    """Each call fails with each code, and 40 calls fail at random.

    Networks are a sample; `make test-full` runs all tests of the emulated DSP.
    """
    names = ("a_whole_network", "beside_the_cpu_and_opencl", "packets_of_kernels")
    names += ("floats_are_rounded_to_even",)
    run_tests("fastrpc_cases.py", *(f"test_hexagon.py::test_{name}" for name in names))


@pytest.mark.full
def test_a_thousand_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_STRETCH_TEST_INJECTED", "1000")
    run_tests("fastrpc_cases.py::test_injected_errors")


@pytest.mark.full
def test_all_that_the_emulated_dsp_is_tested_by() -> None:
    run_tests("test_hexagon.py", "test_hexagon_tables.py", "test_three_processors.py")


EXPORTED = {"malloc", "calloc", "free"}
"""What a library needs of the C library of the chip, beside the functions of qurt.h."""


def library_of(version: str) -> bytes:
    """Link a library for a phone's DSP of this version."""
    made: list[bytes] = []
    link = dsp_code.link_program
    with mock.patch.object(dsp_code, "link_program", lambda *a: made.append(link(*a)) or made[-1]):
        target = {"kind": "hexagon", "mcpu": version, "device": "phone"}
        ts.compile(network(), [target], cpu_threads=1)
    return made[-1]


def dynamic_of(elf: bytes) -> Iterator[tuple[int, int]]:
    """Tags and values of the dynamic section of a 32-bit file, whose addresses are offsets."""
    offset, count = struct.unpack_from("<I12xH", elf, 28)[0], struct.unpack_from("<H", elf, 44)[0]
    for kind, start, _, _, size, *_ in struct.iter_unpack("<8I", elf[offset : offset + 32 * count]):
        if kind == 2:
            yield from struct.iter_unpack("<2I", elf[start : start + size])


def symbols_of(elf: bytes) -> dict[str, tuple[int, bool]]:
    """Dynamic symbols: how they bind, and whether the library has them."""
    tags = dict(dynamic_of(elf))
    table, names, hashes = tags[6], tags[5], tags[4]
    (count,) = struct.unpack_from("<I", elf, hashes + 4)
    found = {}
    for name, _, _, info, _, section in struct.iter_unpack(
        "<3IBBH", elf[table + 16 : table + 16 * count]
    ):
        end = elf.index(b"\0", names + name)
        found[elf[names + name : end].decode()] = (info >> 4, section != 0)
    return found


@pytest.mark.parametrize(
    "version",
    [v if v in ("hexagonv66", "hexagonv75") else pytest.param(v, marks=pytest.mark.full)
     for v in VERSIONS],
)  # fmt: skip
def test_what_the_loader_of_a_chip_reads(version: str) -> None:
    """No needed library, no thread-local storage, no symbol that nobody declares; pages of 4 KB."""
    elf = library_of(version)
    needed, initialisers, text_relocations = 1, 25, 22
    assert not {needed, initialisers, text_relocations} & dict(dynamic_of(elf)).keys()
    (flags,) = struct.unpack_from("<I", elf, 36)
    assert f"hexagonv{flags & 0xFFF:x}" == version
    offset, count = struct.unpack_from("<I", elf, 28)[0], struct.unpack_from("<H", elf, 44)[0]
    segments = [*struct.iter_unpack("<8I", elf[offset : offset + 32 * count])]
    loaded, of_threads = 1, 7
    assert {row[7] for row in segments if row[0] == loaded} == {4096}
    assert of_threads not in {row[0] for row in segments}
    symbols = symbols_of(elf)
    assert {name for name, (_, is_here) in symbols.items() if is_here} == {ENTRY}
    declared = (SOURCES / "fastrpc" / "qurt.h").read_text()
    for name, (binding, is_here) in symbols.items():
        is_optional = (
            f"{name}(" in declared and "OPTIONAL" in declared.split(f"{name}(")[1].split(";")[0]
        )
        assert is_here or name in EXPORTED or f"{name}(" in declared, name
        assert is_here or (binding == 2) == is_optional, f"{name}: weak if firmware may lack it"
