"""Kernels of GPUs under oclgrind: no data race, no access out of bounds, no divergent barrier.

oclgrind interprets every work-item. It is an OpenCL driver of its own; each test runs a process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.oclgrind_forms import GPUS, code_of, small_layers

DRIVER = Path("/usr/lib/oclgrind/liboclgrind-rt-icd.so")
TESTS = Path(__file__).resolve().parents[1]

CASE = """
import sys
sys.path[:0] = [{tests!r}, {tests!r} + "/unit"]
import numpy as np
import test_gpu_kernels as gpu
from helpers.relax_helpers import module, random_const
from tvm import relax

{code}
"""

CONVOLUTION = """
with gpu.tile_of(*{tile}, images={images}):
    gpu.check(gpu.convolution({shape}, {out}, {kernel}, padding={padding}))
"""

WINDOW = """
with gpu.window_of((2, 1), 32, images=2):
    gpu.check(gpu.convolution((1, 10, 5, 6), 10, 3, groups=10, padding=1))
"""

PAIR = """
from test_join_depthwise import pair, pair_of
with pair_of(*{config}):
    gpu.check(pair({shape}, {out}, strides={stride}))
"""

WINOGRAD = """
with gpu.winograd_of({tile}, 8, 2, 1, 1, 1, 1, 1):
    gpu.check(gpu.convolution((1, 8, 5, 6), 8, 3, padding=1))
"""

ROW = """
weight = random_const(70, 12)
gpu.check(module(lambda x: relax.op.matmul(x, weight), (1, 70)))
"""

SOFTMAX = """
gpu.check(module(lambda x: relax.op.nn.softmax(x), (2, 37)))
"""

NORM = """
def normalised(x):
    apart = relax.op.subtract(x, relax.op.mean(x, [-1], keepdims=True))
    variance = relax.op.mean(relax.op.multiply(apart, apart), [-1], keepdims=True)
    return relax.op.divide(apart, relax.op.sqrt(relax.op.add(variance, relax.const(1e-6))))
gpu.check(module(normalised, (3, 37)))
"""

MEAN = """
weight = random_const(4, 3, 1, 1)
def mean(x):
    return relax.op.mean(relax.op.nn.conv2d(x, weight), [2, 3], keepdims=True)
gpu.check(module(mean, (1, 3, 5, 9)))
"""

PRODUCT = """
gpu.check(module(lambda x, y: relax.op.matmul(x, y), (2, 9, 5), (2, 5, 10)))
"""

MATRIX = """
weight = random_const(8, 12)
gpu.check(module(lambda x: relax.op.nn.gelu(relax.op.matmul(x, weight)), (5, 8)))
"""

NIBBLES = """
from test_nibbles import check_on_a_gpu
check_on_a_gpu({rows}, {outputs}, {depth}, {size}, {level})
"""

IN_ORDER = """
from test_in_order import CASES, test_a_gpu_takes_steps_in_order as check
for case in CASES:
    check(case)
"""

_PARTS = 6
"""Processes for the layers of a GPU; two run beside each other where tests do."""

WITH_ONE_BARRIER = """
from tvm_stretch.targets.opencl.kernels import conv_nest as conv
from tvm import tirx
left = [conv.barrier()]
conv.barrier = lambda: left.pop() if left else tirx.Evaluate(tirx.const(0, "int32"))
with gpu.tile_of(8, 2, 1, 1, 1, 2, 1):
    gpu.check(gpu.convolution((1, 8, 4, 4), 8, 1))
"""

needs_oclgrind = pytest.mark.skipif(
    not DRIVER.exists() or shutil.which("oclgrind") is None,
    reason="no oclgrind; install Debian's package",
)


def reported(code: str, folder: Path) -> str:
    """What oclgrind reports of some kernels, whose answers are compared."""
    log = folder / "log"
    env = {
        **os.environ,
        "TVM_STRETCH_OPENCL_LIB": str(DRIVER),
        "TVM_STRETCH_CACHE_DIR": str(folder / "cache"),
        "OCLGRIND_DATA_RACES": "1",
        "OCLGRIND_CHECK_API": "1",
        "OCLGRIND_LOG": str(log),
        "OCLGRIND_LOCAL_MEM_SIZE": str(48 * 1024),  # as NVIDIA's GPUs have
        # An inlined `restrict` becomes llvm.experimental.noalias.scope.decl, which oclgrind does
        # not know: it then says that there is no such kernel.
        "OCLGRIND_BUILD_OPTIONS": "-Drestrict=",
    }
    text = CASE.format(tests=str(TESTS), code=code)
    command = [sys.executable, "-c", text]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=1200, check=False
    )
    found = log.read_text() if log.exists() else ""
    return found or (done.stderr if done.returncode else "")


def convolution(
    tile: tuple[int, ...], shape: tuple[int, ...], out: int, kernel: int, images: int = 0
) -> str:
    return CONVOLUTION.format(
        tile=tile, shape=shape, out=out, kernel=kernel, padding=kernel // 2, images=images
    )


@needs_oclgrind
@pytest.mark.parametrize(
    "code",
    [
        # down, across, pixels, quads, depth, slices, splits
        pytest.param(
            convolution((8, 1, 1, 1, 1, 2, 2), (1, 6, 3, 5), 6, 3) + MEAN,
            id="sliced and split, mean",
        ),
        pytest.param(
            convolution((8, 2, 2, 2, 2, 1, 1), (1, 3, 6, 5), 10, 3),
            id="plain",
            marks=pytest.mark.full,
        ),
        pytest.param(
            convolution((8, 2, 2, 1, 1, 2, 2), (1, 12, 5, 6), 10, 3, images=2),
            id="in images",
            marks=pytest.mark.full,
        ),
        pytest.param(
            convolution((16, 4, 1, 1, 4, 4, 1), (2, 40, 4, 4), 20, 1),
            id="pointwise",
            marks=pytest.mark.full,
        ),
        pytest.param(WINDOW, id="depthwise in images", marks=pytest.mark.full),
        pytest.param(
            PAIR.format(config=(4, 2, 1, 2), shape=(1, 9, 5, 6), out=6, stride=1)
            + PAIR.format(config=(7, 1, 2, 1), shape=(2, 12, 5, 4), out=16, stride=2),
            id="depthwise and pointwise",
            marks=pytest.mark.full,
        ),
        pytest.param(WINOGRAD.format(tile=2), id="winograd of 2", marks=pytest.mark.full),
        pytest.param(WINOGRAD.format(tile=4), id="winograd of 4", marks=pytest.mark.full),
        pytest.param(IN_ORDER, id="steps in order", marks=pytest.mark.full),
        pytest.param(ROW, id="row", marks=pytest.mark.full),
        pytest.param(SOFTMAX, id="softmax", marks=pytest.mark.full),
        pytest.param(NORM, id="norm", marks=pytest.mark.full),
        pytest.param(PRODUCT, id="product", marks=pytest.mark.full),
        pytest.param(MATRIX, id="matrix", marks=pytest.mark.full),
        pytest.param(
            NIBBLES.format(rows=6, outputs=20, depth=40, size=32, level=0),
            id="4 bits",
            marks=pytest.mark.full,
        ),
        pytest.param(
            NIBBLES.format(rows=2, outputs=20, depth=80, size=16, level=4),
            id="4 bits, inputs of 8",
            marks=pytest.mark.full,
        ),
    ],
)
def test_nothing_is_reported(code: str, tmp_path: Path) -> None:
    assert reported(code, tmp_path) == ""


@needs_oclgrind
@pytest.mark.full
@pytest.mark.parametrize("part", range(_PARTS))
@pytest.mark.parametrize("gpu", GPUS)
def test_tiles_of_the_zoo(gpu: str, part: int, tmp_path: Path) -> None:
    """Every form of convolution and dense layer that the zoo's networks have on two GPUs."""
    layers = sorted(small_layers(gpu), key=lambda small: small.shape.multiply_adds)
    codes = list(code_of(layers))
    assert len(codes) > 40
    assert reported("\n".join(codes[part::_PARTS]), tmp_path) == ""


@needs_oclgrind
@pytest.mark.full
def test_a_missing_barrier_would_be(tmp_path: Path) -> None:
    assert "data race" in reported(WITH_ONE_BARRIER, tmp_path)
