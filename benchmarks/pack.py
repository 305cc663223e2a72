"""Packs all files that a machine without package registries needs to compile and compare networks.

    python -m benchmarks.pack F --python 3.12                                # here
    python F/unpack.py /tmp/stretch && . /tmp/stretch/env.sh                 # there
    python -m benchmarks.peers resnet18 --peers ort,ours --threads 1

Two archives, TVM's compiler library in one and all else in the other, each in parts of at most
`--limit-mib`.  The other machine has Python, NumPy, SciPy, ONNX and the peers; what it lacks of
them is named with `--also`.  Parts may arrive one after the other, each with `unpack.py` and
`parts.json`: what `unpack.py` finds beside it is kept, and unpacked when it is complete.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import lzma
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.commands import options

RUNTIME = ("apache-tvm", "apache-tvm-ffi", "ml_dtypes", "typing_extensions")
_COMPILER = ("xgboost-cpu",)
_LIBRARY = Path("tvm", "lib", "libtvm_compiler.so")
_UNUSED = ("tvm/3rdparty", "tvm/include", "tvm_ffi/3rdparty", "bin")
_REPOSITORY = Path(__file__).resolve().parents[1]
_UNPACK = Path(__file__).with_name("unpack.py")
# jumps of x86 made absolute: a tenth less
_FILTERS = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": 6}]


def install(folder: Path, packages: Sequence[str], python: str) -> None:
    """Packages as they are here and our own, for another version of Python."""
    base = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]
    binary = ["--python-version", python, "--only-binary", ":all:", "--target", str(folder)]
    subprocess.run([*base, *binary, *map(_pinned, packages)], check=True)
    ours = ["--no-build-isolation", "--target", str(folder), str(_REPOSITORY)]
    subprocess.run([*base, *ours], check=True)


def _pinned(package: str) -> str:
    try:
        return f"{package}=={importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return package


def pack(folder: Path, python: str, also: Sequence[str], limit: int) -> None:
    """Write the parts, `parts.json` and `unpack.py`."""
    folder.mkdir(parents=True, exist_ok=True)
    version = importlib.metadata.version("apache-tvm")
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        site = Path(scratch) / "site"
        install(site, (*RUNTIME, *_COMPILER, *also), python)
        compiler = Path(scratch) / _LIBRARY.name
        (site / _LIBRARY).replace(compiler)
        for name in _UNUSED:
            shutil.rmtree(site / name, ignore_errors=True)
        source = shutil.ignore_patterns("__pycache__", "tests")
        shutil.copytree(_REPOSITORY / "benchmarks", site / "benchmarks", ignore=source)
        shutil.copytree(_REPOSITORY / "tutorials", site / "tutorials", ignore=source)
        parts = {
            **_archive(folder, f"compiler-{version}.tar.xz", {_LIBRARY: compiler}, limit),
            **_archive(folder, "packages.tar.xz", {Path(): site}, limit),
        }
    (folder / "parts.json").write_text(json.dumps(parts, indent=1))
    shutil.copy(_UNPACK, folder / _UNPACK.name)


def _archive(
    folder: Path, name: str, content: dict[Path, Path], limit: int
) -> dict[str, list[str]]:
    """One archive in parts of at most ``limit`` bytes, and what each part must hash to.

    The library takes minutes to compress and is that of TVM's version: it is not made again.
    """
    told = folder / "parts.json"
    known = json.loads(told.read_text()).get(name, []) if told.exists() else []
    kept = [folder / f"{name}.{i}" for i in range(len(known))]
    fits = kept and all(part.exists() and part.stat().st_size <= limit for part in kept)
    if _LIBRARY not in content or not fits or _digests(kept) != known:
        for part in folder.glob(f"{name}.*"):
            part.unlink()
        kept = _compress(folder, name, content, limit)
    return {name: _digests(kept)}


def _digests(parts: list[Path]) -> list[str]:
    return [hashlib.sha256(part.read_bytes()).hexdigest() for part in parts]


def _compress(folder: Path, name: str, content: dict[Path, Path], limit: int) -> list[Path]:
    whole = folder / name
    with (
        lzma.open(whole, "wb", filters=_FILTERS) as stream,
        tarfile.open(fileobj=stream, mode="w") as tar,
    ):
        for place, source in content.items():
            tar.add(source, place, filter=_of_nobody)
    data = whole.read_bytes()
    whole.unlink()
    parts = []
    for i, begin in enumerate(range(0, len(data), limit)):
        parts.append(folder / f"{name}.{i}")
        parts[-1].write_bytes(data[begin : begin + limit])
    return parts


def _of_nobody(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def main(arguments: Sequence[str] | None = None) -> None:
    """Pack, and say how large it became."""
    args = options(
        __doc__,
        arguments,
        ("folder", Path),
        ("--python", f"{sys.version_info.major}.{sys.version_info.minor}"),
        ("--also", [], "more packages, such as openvino"),
        ("--limit-mib", 60, "of one part"),
    )
    pack(args.folder, args.python, args.also, args.limit_mib << 20)
    for part in sorted(args.folder.glob("*.tar.xz.*")):
        print(f"{part}: {part.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
