"""Kernels are generated once; what comes out does not depend on whether the cache helped."""

from __future__ import annotations

import importlib.metadata
import multiprocessing
import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import tvm
from helpers import fresh_process
from helpers.relax_helpers import module
from helpers.rooms import imported, modules
from tvm import relax, te, tirx

import tvm_stretch as ts
from tvm_stretch.base.files import cache_folder, held
from tvm_stretch.make.code import generate as generation
from tvm_stretch.make.code import kernel_cache as caching
from tvm_stretch.make.code.generate import generate, named_kernel, source_files
from tvm_stretch.make.code.kernel_cache import KernelCache, digest
from tvm_stretch.passes.schedule_kernels import ScheduleKernels
from tvm_stretch.targets.cpu.cpu import cpu_processor
from tvm_stretch.targets.registry import TargetLike

TARGET = tvm.target.Target({"kind": "llvm", "opt-level": 1})
HOST = cpu_processor(TARGET, 1)
KEY, OTHER = digest(b"one"), digest(b"other")


@pytest.fixture(autouse=True)
def no_folder_of_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other tests have one (`conftest.py`)."""
    monkeypatch.setattr(caching, "cache_folder", cache_folder)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new cache folder, and a cache without memories of other tests."""
    monkeypatch.setenv("TVM_STRETCH_CACHE_DIR", str(tmp_path))
    return tmp_path / "kernels"


def forget() -> None:
    """What a new process knows."""
    caching._cache_of.cache_clear()


def kernel(factor: float = 2.0, name: str = "data") -> tirx.PrimFunc:
    data = te.placeholder((64,), name=name)
    twice = te.compute((64,), lambda i: data[i] * factor, name=f"{name}\u2024twice")
    return te.create_prim_func([data, te.compute((64,), lambda i: twice[i] + 1.0, name="out")])


class Coder:
    """Pretends to generate code, and counts."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def code_of(self, function: tirx.PrimFunc) -> bytes:
        self.seen.append(str(function.attrs["global_symbol"]))
        return function.script().encode()


def run(function: tirx.PrimFunc, coder: Coder, **changed: object) -> bytes:
    """The code of one kernel."""
    options = {"schedule": HOST.code.schedule, "target": TARGET, **changed}
    named = named_kernel("scale3", function, options["schedule"])
    name = str(named.attrs["global_symbol"])
    return generate({name: named}, code_of=coder.code_of, **options)[name]


# --- the store ------------------------------------------------------------------------------------


def test_entries_survive_the_process(tmp_path: Path) -> None:
    KernelCache(tmp_path / "new").store(KEY, b"code")
    assert KernelCache(tmp_path / "new").find(KEY) == b"code"
    assert KernelCache(tmp_path / "new").find(OTHER) is None


@pytest.mark.parametrize("keep", [0, 3, 27, 28, 31])
def test_truncated_entries_are_no_entries(tmp_path: Path, keep: int) -> None:
    KernelCache(tmp_path).store(KEY, b"code")
    path = tmp_path / KEY.hex()
    path.write_bytes(path.read_bytes()[:keep])
    assert KernelCache(tmp_path).find(KEY) is None
    KernelCache(tmp_path).store(KEY, b"code")
    assert KernelCache(tmp_path).find(KEY) == b"code"


@pytest.mark.parametrize("at", [0, 8, 27, 28, 31])
def test_damaged_entries_are_no_entries(tmp_path: Path, at: int) -> None:
    KernelCache(tmp_path).store(KEY, b"code")
    path = tmp_path / KEY.hex()
    entry = bytearray(path.read_bytes())
    entry[at] ^= 1
    path.write_bytes(entry)
    assert KernelCache(tmp_path).find(KEY) is None


def test_entries_of_other_keys_are_no_entries(tmp_path: Path) -> None:
    KernelCache(tmp_path).store(KEY, b"code")
    (tmp_path / KEY.hex()).rename(tmp_path / OTHER.hex())
    assert KernelCache(tmp_path).find(OTHER) is None


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = KernelCache(tmp_path / "file" / "cache")
    cache.store(KEY, b"code")
    assert cache.find(KEY) == b"code"
    assert KernelCache(cache.folder).find(KEY) is None


@pytest.mark.parametrize("what", ["mode", "link", "pipe", "folder"])
def test_entries_that_others_may_have_written_are_none(tmp_path: Path, what: str) -> None:
    KernelCache(tmp_path).store(KEY, b"code")
    path = tmp_path / KEY.hex()
    if what == "mode":
        path.chmod(0o666)
    else:
        path.rename(tmp_path / "elsewhere")
        if what == "link":
            path.symlink_to(tmp_path / "elsewhere")
        elif what == "pipe":
            os.mkfifo(path)
        else:
            path.mkdir()
    assert KernelCache(tmp_path).find(KEY) is None
    KernelCache(tmp_path).store(KEY, b"code")
    assert KernelCache(tmp_path).find(KEY) == (None if what == "folder" else b"code")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_read_only_folder_is_read(tmp_path: Path) -> None:
    KernelCache(tmp_path).store(KEY, b"code")
    tmp_path.chmod(0o500)
    cache = KernelCache(tmp_path)
    assert cache.find(KEY) == b"code"
    cache.store(OTHER, b"more")
    assert cache.find(OTHER) == b"more"
    tmp_path.chmod(0o700)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching, "_MEMORY_BYTES", 10)
    cache = KernelCache(None)
    for number in range(5):
        cache.store(digest(bytes([number])), b"1234")
    assert [cache.find(digest(bytes([n]))) is not None for n in range(5)] == [False] * 3 + [
        True
    ] * 2
    cache.store(digest(b"\4"), b"12345678")  # replaced, not added
    assert cache.find(digest(b"\4")) == b"12345678"
    assert cache._bytes <= 10


def test_the_folder_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = KernelCache(tmp_path)
    keys = [digest(bytes([number])) for number in range(10)]
    for age, key in enumerate(keys):
        first.store(key, bytes(72))  # with its header 100 bytes
        os.utime(tmp_path / key.hex(), (time.time() - 1000 + age,) * 2)
    (tmp_path / ".old.tmp").write_bytes(b"of a killed process")
    (tmp_path / ".new.tmp").write_bytes(b"of a process that writes right now, with a clock of old")
    os.utime(tmp_path / ".new.tmp", (0, 0))
    monkeypatch.setattr(caching, "_FOLDER_BYTES", 900)
    second = KernelCache(tmp_path)
    assert second.find(keys[0]) is not None  # used just now, so that it stays
    with held(lambda: (tmp_path / ".new.tmp", os.open(tmp_path / ".new.tmp", os.O_RDONLY))):
        second.store(OTHER, b"more")
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {key.hex() for key in (keys[0], *keys[7:], OTHER)} | {".new.tmp"}


def _store_often(folder: Path, seed: int) -> None:
    for number in range(200):
        cache = KernelCache(folder)
        key = digest(bytes([number % 7]))
        found = cache.find(key)
        assert found in (None, bytes([number % 7]) * 1000)
        cache.store(key, bytes([number % 7]) * 1000)


def test_processes_share_a_folder_and_may_be_killed(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_store_often, args=(tmp_path, n)) for n in range(3)]
    for worker in workers:
        worker.start()
    time.sleep(0.05)
    workers[0].kill()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers[1:]] == [0, 0]
    for number in range(7):
        found = KernelCache(tmp_path).find(digest(bytes([number])))
        assert found == bytes([number]) * 1000


TWO_COMPILERS = """
import sys
from pathlib import Path
sys.path[:0] = {paths}
import test_kernel_cache as tests

children = []
for number in range(2):
    if child := os.fork():
        children.append(child)
        continue
    tests.exported(Path({folder!r}, f"model{{number}}.so"), [tests.TARGET])
    os._exit(0)
assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
"""


@pytest.mark.full
def test_two_processes_compile_at_once(tmp_path: Path) -> None:
    """On one cache: the same artifact, and nothing half written is left."""
    tests = Path(__file__).parent
    code = TWO_COMPILERS.format(paths=[str(tests), str(tests.parent)], folder=str(tmp_path))
    fresh_process.run(code, TVM_STRETCH_CACHE_DIR=str(tmp_path / "cache"))
    first, second = (tmp_path / f"model{number}.so" for number in range(2))
    assert first.read_bytes() == second.read_bytes()
    entries = list((tmp_path / "cache" / "kernels").iterdir())
    assert entries and all(KernelCache(e.parent).find(bytes.fromhex(e.name)) for e in entries)


# --- the key --------------------------------------------------------------------------------------


def test_a_kernel_is_generated_once(folder: Path) -> None:
    coder = Coder()
    code = run(kernel(), coder)
    assert run(kernel(), coder) == code  # of this process
    forget()
    assert run(kernel(), coder) == code  # of the folder
    assert len(coder.seen) == 1
    assert len(list(folder.iterdir())) == 1


def test_names_do_not_matter(folder: Path) -> None:
    coder = Coder()
    assert run(kernel(name="lv7"), coder) == run(kernel(name="lv8"), coder)
    (seen,) = coder.seen
    assert seen.startswith("scale_")


def test_kernels_with_plain_names_compute_the_same() -> None:
    function = kernel(name="dotted\u2024name")
    plain = named_kernel("scale", function, None)
    tvm.ir.assert_structural_equal(*(f.without_attr("global_symbol") for f in (plain, function)))
    assert plain.script().isascii()


def test_names_of_many_operators_are_short_enough_for_files() -> None:
    """PoCL makes folders of them, and ended the process at one of 400 letters."""
    names = {
        str(named_kernel("multiply_" * 99, kernel(factor), None).attrs["global_symbol"])
        for factor in (2.0, 3.0)
    }
    assert len(names) == 2
    assert all(len(name) < 150 for name in names)


@pytest.mark.parametrize("what", ["kernel", "target", "schedule", "options", "settings", "sources"])
def test_what_the_key_depends_on(folder: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    coder = Coder()
    run(kernel(), coder)
    if what == "kernel":
        run(kernel(2.0000002), coder)
    elif what == "target":
        run(kernel(), coder, target=tvm.target.Target({"kind": "llvm", "opt-level": 2}))
    elif what == "schedule":
        wider = ScheduleKernels(cpu_processor(TARGET, 2).machine)
        run(kernel(), coder, schedule=wider)
    elif what == "options":
        run(kernel(), coder, options="wide")
    elif what == "settings":
        with tvm.transform.PassContext(config={"tirx.disable_vectorize": True}):
            run(kernel(), coder)
    else:
        files = {**source_files(), "tvm_stretch.network.rewriting": b"# another"}
        generation.compiler_versions.cache_clear()
        monkeypatch.setattr(generation, "source_files", lambda: files)
        run(kernel(), coder)
        monkeypatch.undo()
        generation.compiler_versions.cache_clear()
    assert len(coder.seen) == 2


def test_all_sources_of_code_are_in_the_key() -> None:
    root, files = Path(__file__).resolve().parents[2], source_files()
    templates = {path.read_bytes() for path in (root / "targets").glob("**/kernels/[!_]*.py")}
    assert len(templates) > 60 and templates <= {*files.values()}
    named = {"passes.schedule_kernels", "targets.opencl.code.opencl_code", "make.code.generate"}
    named |= {"network.rewriting", "network.expressions"}
    assert {f"tvm_stretch.{name}" for name in named} <= {*files}


def test_all_that_sources_of_code_import_is_in_the_key() -> None:
    files, paths = source_files(), dict(modules())
    for name in files:
        for read, _ in imported(name, paths[name]):
            of = read if read in paths else read.rpartition(".")[0]
            assert of not in paths or of in files or of == "tvm_stretch", f"{name} imports {of}"


def test_the_key_changes_with_each_source_of_code_and_with_our_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files, version = source_files(), importlib.metadata.version
    generation.compiler_versions.cache_clear()
    seen = {generation.compiler_versions()}
    for name in files:
        changed = {**files, name: files[name] + b"\n"}
        monkeypatch.setattr(generation, "source_files", lambda changed=changed: changed)
        generation.compiler_versions.cache_clear()
        seen.add(generation.compiler_versions())
    monkeypatch.undo()
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: version(name) + name.count("stretch") * "1"
    )
    generation.compiler_versions.cache_clear()
    seen.add(generation.compiler_versions())
    monkeypatch.undo()
    generation.compiler_versions.cache_clear()
    assert len(seen) == len(files) + 2


def test_large_entries_are_not_kept_in_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caching, "_MOST_REMEMBERED", 3)
    cache = KernelCache(folder)
    cache.store(b"small", b"abc")
    cache.store(b"large", b"abcd")
    assert [*cache._memory] == [b"small"]
    assert cache.find(b"large") == b"abcd"
    assert [*cache._memory] == [b"small"]


def test_schedules_without_a_key_are_not_remembered(folder: Path) -> None:
    @tvm.transform.module_pass(opt_level=0, name="Unknown")
    def unknown(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return mod

    coder = Coder()
    run(kernel(), coder, schedule=unknown)
    run(kernel(), coder, schedule=unknown)
    assert len(coder.seen) == 2
    assert not folder.exists()


# --- whole networks -------------------------------------------------------------------------------


def small() -> tvm.IRModule:
    """Two convolutions with weights, a pooling."""
    dice = np.random.default_rng(0)

    def body(x: relax.Expr) -> relax.Expr:
        for size in (3, 1):
            weight = dice.standard_normal((8, 8, size, size)).astype("float32")
            x = relax.op.nn.relu(relax.op.nn.conv2d(x, relax.const(weight), padding=size // 2))
        return relax.op.nn.max_pool2d(x, (2, 2), (2, 2))

    return module(body, (1, 8, 8, 8))


def exported(path: Path, targets: Sequence[TargetLike]) -> bytes:
    ts.compile(small(), targets, cpu_threads=1).export(path)
    return path.read_bytes()


def test_artifacts_are_the_same_with_and_without_help(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.so"
    cold = exported(path, ["llvm"])
    assert len(list(folder.iterdir())) >= 4
    generated = []
    monkeypatch.setattr(
        "tvm_stretch.targets.cpu.code.object_code._object_code",
        lambda *args: generated.append(args),
    )
    forget()
    assert exported(path, ["llvm"]) == cold
    assert generated == []
    monkeypatch.undo()
    monkeypatch.setenv("TVM_STRETCH_CACHE_DIR", "")
    forget()
    assert exported(path, ["llvm"]) == cold


def test_damaged_entries_are_built_again(folder: Path) -> None:
    network = small()
    x = np.random.default_rng(0).standard_normal((1, 8, 8, 8)).astype("float32")
    expected = ts.compile(network, cpu_threads=1)(x)
    entries = sorted(folder.iterdir())
    before = [path.read_bytes() for path in entries]
    for number, path in enumerate(entries):
        path.write_bytes(b"garbage" * number)
    forget()
    model = ts.compile(network, cpu_threads=1)
    np.testing.assert_array_equal(model(x), expected)
    assert [path.read_bytes() for path in entries] == before


def test_forged_code_in_a_folder_of_all_is_not_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest of an entry can be computed by who forges it."""
    ts.compile(small(), cpu_threads=1)
    entries = {path: path.read_bytes() for path in folder.iterdir()}
    for path in entries:
        forged = b"not even machine code"
        key = bytes.fromhex(path.name)
        path.write_bytes(caching._MAGIC + digest(key, forged) + forged)
        path.chmod(0o666)
    folder.chmod(0o777)
    forget()
    x = np.random.default_rng(0).standard_normal((1, 8, 8, 8)).astype("float32")
    given = ts.compile(small(), cpu_threads=1)(x)
    monkeypatch.setenv("TVM_STRETCH_CACHE_DIR", "")
    forget()
    np.testing.assert_array_equal(given, ts.compile(small(), cpu_threads=1)(x))
    assert all(path.read_bytes() not in (entries[path], b"") for path in entries), "left alone"


def test_no_folder_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_STRETCH_CACHE_DIR", "")
    monkeypatch.chdir(tmp_path)
    forget()
    coder = Coder()
    run(kernel(), coder)
    assert list(tmp_path.iterdir()) == []
    run(kernel(), coder)
    assert len(coder.seen) == 1  # candidates of one process share


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"TVM_STRETCH_CACHE_DIR": "/own", "HOME": "/home"}, "/own/kernels"),
        ({"XDG_CACHE_HOME": "/xdg", "HOME": "/home"}, "/xdg/tvm_stretch/kernels"),
        ({"HOME": "/home"}, "/home/.cache/tvm_stretch/kernels"),
        ({}, None),
    ],
)
def test_where_the_folder_is(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str | None
) -> None:
    for name in ("TVM_STRETCH_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert caching.kernel_cache().folder == (None if expected is None else Path(expected))
