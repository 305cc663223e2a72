"""Settings that must stand before TVM is imported, and how hard Hypothesis tries."""

from __future__ import annotations

import gc
import os
import signal
import zlib
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

# TVM reads these once, when its thread pool starts. Two workers let tests of several threads run;
# no spinning and no pinning, because pytest-xdist runs test processes side by side.
os.environ.setdefault("TVM_NUM_THREADS", "2")
os.environ["TVM_BIND_THREADS"] = "0"
os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Whether there is CUDA is asked before processes are forked, which then could not use it.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
# A user's cache may hold measurements of a real GPU, which compiles for the tests' pretended
# devices would refuse. PoCL has a cache of its own, and `_keep_code` one for machine code of CPUs.
os.environ["TVM_STRETCH_CACHE_DIR"] = ""

import planted
import pytest
from another_machine import pretend
from helpers import fake_cdsp
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    import tvm

_ROOT = Path(__file__).parents[1]

# A shell that starts us in the background has Ctrl-C ignored, by our children too.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Modules of TVM are many Python objects that live long: looking for garbage among them at the usual
# pace takes a fifteenth of all the time.
gc.set_threshold(50_000, 20, 50)

_FULL_SECONDS = 3600
"""Limit of a test that only `make test-full` runs."""


def pytest_configure(config: pytest.Config) -> None:
    """Change the compiler where tests run, before their files are imported.

    The process that hands tests to pytest-xdist's workers need not import TVM: five seconds.
    """
    is_worker = hasattr(config, "workerinput")
    if is_worker or not config.getoption("numprocesses", None) or config.option.collectonly:
        _use_newest_emulator()
        if os.environ.get("TVM_STRETCH_TEST_FASTRPC"):
            fake_cdsp.install()
        has_defect = planted.install()  # before the first import of the package
        pretend()
        _measure_briefly()
        if not has_defect:
            _keep_code()


def _use_newest_emulator() -> None:
    """Let tests find the emulator that `make hexagon-emulator` unpacked before the system's."""
    folder = _ROOT / "build" / "qemu"
    if (folder / "qemu-hexagon").exists():
        os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"


def _measure_briefly() -> None:
    """Let plans be measured a few times only, and no surprise be worth a second search.

    A busy machine surprises often, and few tests ask how fast a plan is: test_contest.py and
    test_decide.py, which set what users have.
    """
    from tvm_stretch.plan.search import choose, contest

    contest._PATIENCE, contest._TRACED, choose._SURPRISING = 1, 2, 1e9


def _keep_code() -> None:
    """Keep in the checkout what LLVM makes of a scheduled kernel: half of all the time.

    What reads, plans and schedules runs each time. The key has the scheduled kernel and all code
    between it and LLVM, so a change of a kernel compiles the kernels that differ, and no others.
    """
    from tvm_stretch.make.code import generate
    from tvm_stretch.make.code.kernel_cache import KernelCache, digest
    from tvm_stretch.targets.cpu.code import object_code

    compiled, cache = object_code._object_code, KernelCache(_ROOT / ".cache" / "kernels")
    with mock.patch.object(generate, "_generators", lambda: [object_code.__name__]):
        makers = (repr(generate.source_files()) + version("apache-tvm")).encode()

    def kept(mod: tvm.IRModule, target: tvm.target.Target) -> bytes:
        kernels = (generate._text(mod[name]) for name in mod.get_global_vars())
        key = digest(makers, f"{target} {generate._settings()}".encode(), *kernels)
        code = cache.find(key)
        if code is None:
            code = compiled(mod, target)
            cache.store(key, code)
        return code

    object_code._object_code = kept


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests have a time limit too, only a larger one; so have campaigns of properties."""
    campaign = settings().max_examples >= settings.get_profile("full").max_examples
    for item in items:
        if _left_to_full(item):
            item.add_marker(pytest.mark.full)
        is_long = campaign or item.get_closest_marker("full")
        if is_long and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_FULL_SECONDS))


def _left_to_full(item: pytest.Item) -> bool:
    """Whether the item is one of many variants that `variants(n)` leaves to `make test-full`.

    A checksum of its name says so: each nth of a table would keep whole columns and no others.
    """
    mark = item.get_closest_marker("variants")
    return bool(mark and zlib.crc32(item.name.encode()) % mark.args[0])


# A compile takes longer than Hypothesis expects of an example.
_slow = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("quick", max_examples=6, derandomize=True, **_slow)
settings.register_profile("full", max_examples=300, **_slow)
settings.load_profile("quick")
