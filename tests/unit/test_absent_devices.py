"""Compiling for OpenCL where there is no driver, and devices that fail while plans are measured."""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np
import pytest
from helpers import fresh_process
from helpers.fake_targets import TARGET, fake_processor
from helpers.relax_helpers import module, random_const
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.targets.processor import Processor

GPU = {"kind": "opencl", "device": "gpu"}

PREAMBLE = """
import numpy as np
import test_absent_devices as tests
import tvm_stretch as ts

def error_of(function, *args, **options):
    try:
        function(*args, **options)
    except ts.StretchError as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("no error")

x = np.ones((1, 8, 6, 6), "float32")
"""


def network() -> object:
    """One convolution and a ReLU."""
    weight = random_const(8, 8, 3, 3)
    return module(
        lambda x: relax.op.nn.relu(relax.op.nn.conv2d(x, weight, padding=1)), (1, 8, 6, 6)
    )


def worth_sharing() -> object:
    """Layers that are large enough for two processors."""

    def build(x: relax.Expr) -> relax.Expr:
        for seed in range(2):
            x = relax.op.nn.conv2d(x, random_const(64, 64, 3, 3, seed=seed), padding=1)
        return x

    return module(build, (1, 64, 28, 28))


def lost(name: str, why: str) -> Processor:
    """A processor that fails whatever it is given."""
    return fake_processor(name, regions={f"r{i}": {"fails": why} for i in range(40)})


def run_without_driver(code: str, folder: Path) -> None:
    """In a process of its own, because a driver is looked for once."""
    unit = str(Path(__file__).resolve().parent)
    begin = f"import os, sys; os.chdir({str(folder)!r}); sys.path.insert(0, {unit!r})\n"
    text = begin + PREAMBLE + textwrap.dedent(code)
    fresh_process.run(text, TVM_STRETCH_OPENCL_LIB="/no/such/driver.so")


def test_without_a_driver(tmp_path: Path) -> None:
    code = """
        model = ts.compile(tests.network(), ["llvm", "opencl"], cpu_threads=1)
        assert model.plan.processors == ("cpu",)
        assert "opencl left out: expected an OpenCL driver" in model.plan.explain()
        expected = model(x)

        for targets in ("opencl", ["opencl"]):
            early = error_of(ts.compile, tests.network(), targets)
            assert early.startswith("TargetError: expected an OpenCL driver"), early
            assert "pocl-opencl-icd" in early and "'device': 'gpu'" in early, early

        pinned = model.plan.to_json().replace('"cpu"', '"opencl"')
        open("plan.json", "w").write(pinned)
        assert "TargetError" in error_of(
            ts.compile, tests.network(), ["llvm", "opencl"], plan="plan.json"
        )

        # For another machine nothing is needed, and nothing is measured.
        there = ts.compile(tests.network(), tests.GPU)
        there.export("there.so")
        lost = error_of(ts.load, "there.so")
        assert lost.startswith("ArtifactError: expected an OpenCL driver"), lost
        assert "expected an OpenCL driver" in error_of(there, x)

        ts.compile(tests.network(), tests.GPU, spare=True).export("spare.so")
        spare = ts.load("spare.so")
        np.testing.assert_allclose(spare(x), expected, rtol=1e-5)
        assert spare.lost.startswith("expected an OpenCL driver"), spare.lost

        both = ts.compile(tests.network(), ["llvm", tests.GPU], cpu_threads=1)
        assert "not measured" in both.plan.reason
        np.testing.assert_allclose(both(x), expected, rtol=1e-5)
    """
    run_without_driver(code, tmp_path)


def test_a_device_that_is_lost_while_plans_are_measured() -> None:
    model = ts.compile(worth_sharing(), [TARGET, lost("fake", "the device is lost")], cpu_threads=1)
    assert model.plan.processors == ("cpu",)
    assert "the device is lost" in model.plan.reason
    assert np.isfinite(model(np.ones((1, 64, 28, 28), "float32"))).all()


def test_a_device_alone_that_is_lost_is_an_error() -> None:
    first, second = (lost(name, f"{name} is lost") for name in "ab")
    with pytest.raises(ts.StretchError, match=r"[ab] is lost"):
        ts.compile(worth_sharing(), [first, second], cpu_threads=1)


def test_an_unknown_kind_of_device_is_refused() -> None:
    with pytest.raises(ts.StretchError, match=r"expected one of gpu, .* got 'vax'"):
        ts.compile(network(), {"kind": "opencl", "device": "vax"})


def test_a_processor_without_work_is_not_needed() -> None:
    """The artifact of a plan for the CPU runs where no driver is."""
    model = ts.compile(network(), [TARGET, GPU], cpu_threads=1)
    assert [spec.name for spec in model.graph.processors] == ["cpu"]


def test_an_artifact_replaced_by_another(tmp_path: Path) -> None:
    """The system's loader would answer with the file that it knows by this name."""
    x = np.ones((4,), "float32")
    for factor in (2.0, 3.0):
        scaled = module(lambda v, k=factor: relax.op.multiply(v, relax.const(k)), (4,))
        ts.compile(scaled, TARGET, cpu_threads=1).export(tmp_path / "net.so")
        np.testing.assert_array_equal(ts.load(tmp_path / "net.so")(x), factor * x)
