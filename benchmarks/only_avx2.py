"""Peers that keep to AVX2 on a machine with AVX-512; most have no setting for it.

```
import onnxruntime    ->  a copy of the package whose libraries have UD0 where CPUID was
                          (benchmarks/cpuid.c, preloaded, answers it without AVX-512)
memcpy and the like   ->  GLIBC_TUNABLES
NumPy                 ->  NPY_DISABLE_CPU_FEATURES
```
A thousandth of a library's code at most is that instruction, but bytes like it are everywhere: a
disassembler finds the true ones. Whether it worked is asked of the registers: while an engine
runs, samples of its threads must not find one in use that only AVX-512 has (`share_of_avx512`).
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import re
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.engines import BOTH, ENGINES, OURS, python_of
from benchmarks.models import cache_dir

MIN_SAMPLES = 5
CPUID, UD0 = b"\x0f\xa2", b"\x0f\xff"
_SOURCE = Path(__file__).with_name("cpuid.c")
_GLIBC = ("AVX512F", "AVX512VL", "AVX512BW", "AVX512DQ", "AVX512CD")
_NUMPY = (
    *("X86_V4", "AVX512F", "AVX512CD", "AVX512_KNL", "AVX512_KNM", "AVX512_SKX"),
    *("AVX512_CLX", "AVX512_CNL", "AVX512_ICL", "AVX512_SPR"),
)
_LIST = """
import importlib.metadata, json, sys
package = importlib.metadata.distribution(sys.argv[1])
print(json.dumps([package.version, str(package.locate_file("")), [str(f) for f in package.files]]))
"""


def environment(engine: str) -> dict[str, str]:
    """Variables that make an interpreter import a copy of a peer without AVX-512."""
    if engine in (OURS, BOTH):
        return variables()
    return variables() | {"PYTHONPATH": str(_copied(python_of(engine), ENGINES[engine].package))}


def variables() -> dict[str, str]:
    """Variables for libraries other than the engine."""
    return {
        "LD_PRELOAD": str(_preloaded()),
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=" + ",".join(f"-{name}" for name in _GLIBC),
        "NPY_DISABLE_CPU_FEATURES": " ".join(_NUMPY),
    }


def share_of_avx512(work: Callable[[], object], seconds: float = 0.5) -> float:
    """How many samples of a process of that `environment` have registers of AVX-512 in use."""
    everything = ctypes.CDLL(None)  # preloaded libraries, too
    samples, wide = ctypes.c_long(0), ctypes.c_long(0)
    everything.watch_registers()
    begin = time.process_time()
    while time.process_time() < begin + seconds:
        work()
    everything.registers_seen(ctypes.byref(samples), ctypes.byref(wide))
    if samples.value < MIN_SAMPLES:
        raise RuntimeError(f"expected {MIN_SAMPLES} samples of registers, got {samples.value}")
    return wide.value / samples.value


def _copied(python: str, package: str) -> Path:
    """A folder with the package: links, but for libraries that ask the processor."""
    version, root, files = json.loads(_output([python, "-I", "-c", _LIST, package]))
    place = hashlib.sha256(root.encode()).hexdigest()[:8]
    folder = cache_dir() / f"{package}-{version}-avx2-{place}"
    if folder.exists():
        return folder
    with tempfile.TemporaryDirectory(dir=cache_dir()) as scratch:
        copy = Path(scratch, "copy")
        copy_masked(Path(root), files, copy)
        copy.rename(folder)
    return folder


def copy_masked(root: Path, files: list[str], copy: Path) -> None:
    """Files below `root` as links below `copy`, but for libraries that ask the processor."""
    for name in files:
        source, target = root / name, copy / name
        if ".." in target.parts or not source.exists():
            continue  # commands, and deleted files
        target.parent.mkdir(parents=True, exist_ok=True)
        if ".so" not in source.name or not mask(source, target):
            target.symlink_to(source)


def mask(source: Path, target: Path) -> int:
    """Write a library with other instructions for its CPUIDs; returns how many there were."""
    data = bytearray(source.read_bytes())
    if CPUID not in data:  # spares the disassembler most files
        return 0
    found = 0
    with subprocess.Popen(
        ["objdump", "--disassemble", "--no-show-raw-insn", str(source)],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        for line in process.stdout or ():
            if "cpuid" in line and (match := re.match(r"\s*([0-9a-f]+):\s+cpuid\b", line)):
                offset = _offset(data, int(match[1], 16))
                assert data[offset : offset + 2] == CPUID, f"{source}: {line}"
                data[offset : offset + 2] = UD0
                found += 1
    if process.returncode:
        raise RuntimeError(f"objdump could not read {source}; see above")
    if found:
        target.write_bytes(data)
    return found


def _offset(elf: bytes | bytearray, address: int) -> int:
    """Where in the file an address lies, by the program headers."""
    (table,) = struct.unpack_from("<Q", elf, 32)
    size, count = struct.unpack_from("<HH", elf, 54)
    for i in range(count):
        kind, _, offset, start, _, length = struct.unpack_from("<IIQQQQ", elf, table + i * size)
        if kind == 1 and start <= address < start + length:
            return offset + address - start
    raise RuntimeError(f"expected address {address:x} in a part that is loaded, found none")


def _preloaded() -> Path:
    """The library that answers; compiled once."""
    digest = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]
    library = cache_dir() / f"cpuid-{digest}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=cache_dir()) as folder:
            built = Path(folder, "cpuid.so")
            _output(["cc", "-O2", "-shared", "-fPIC", "-o", str(built), str(_SOURCE)])
            built.rename(library)
    return library


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stderr[-800:]}")
    return done.stdout
