"""Every template on an emulated phone's core: qemu-aarch64 and a cross compiler, both Debian's."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import tvm
from helpers.cpu_targets import built
from helpers.lowered import winograd_of_tile
from tvm import te, tirx
from tvm.target import Target
from tvm_ffi.libinfo import find_include_path

from tvm_stretch.passes.expand_math import ExpandMath
from tvm_stretch.targets.cpu.cpu import vector_machine
from tvm_stretch.targets.cpu.kernels.conv import ConvConfig
from tvm_stretch.targets.cpu.kernels.integer_conv import IntegerConvConfig
from tvm_stretch.targets.cpu.kernels.integer_window import IntegerWindowConfig
from tvm_stretch.targets.cpu.kernels.window import WindowConfig
from tvm_stretch.targets.cpu.kernels.winograd import (
    WinogradConfig,
    WinogradWeight,
)
from tvm_stretch.targets.kernels.layers import (
    ConvShape,
    IntegerConvShape,
    MatmulShape,
    SoftmaxShape,
    taken,
)
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.schedule import schedule_kernel
from tvm_stretch.targets.kernels.template import choose, configurations

COMPILER, EMULATOR = shutil.which("aarch64-linux-gnu-gcc"), shutil.which("qemu-aarch64")
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        not COMPILER or not EMULATOR, reason="needs gcc-aarch64-linux-gnu and qemu-user"
    ),
]
CORES = ("cortex-a76", "cortex-a55", "apple-m1")
MAIN = Path(__file__).parents[1] / "native" / "run_kernel.c"


class Case(NamedTuple):
    operands: list[te.Tensor]
    out: te.Tensor
    config: ConvConfig | WinogradConfig | None = None


MACHINE = vector_machine(
    Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76"}), 1
)


HALF = replace(MACHINE, lanes=8, half=True)


def convolution(
    shape: ConvShape,
    block: int = 4,
    machine: VectorMachine = MACHINE,
    dtype: str = "float32",
    sums: str = "float32",
) -> Case:
    every = configurations(shape, machine.summing(sums), block, 10_000)
    config = next(c for c in every if isinstance(c, ConvConfig))
    image = (1, config.in_blocks, *shape.in_size, *((block,) if block > 1 else ()))
    data = te.placeholder(image, dtype, name="x")
    weight = te.placeholder(config.weight_shape, sums, name="w")
    out = config.meaning(data, weight, sums=sums)
    return Case([data, weight], out, config)


def winograd(tile: int, channels: int = 16, outputs: int = 24, groups: int = 1) -> Case:
    shape = ConvShape(1, channels, (13, 11), outputs, (3, 3), padding=(1, 1, 1, 1), groups=groups)
    config = winograd_of_tile(shape, MACHINE, tile)
    data = te.placeholder((1, -(-channels // 4), 13, 11, 4), name="x")
    weight = te.placeholder(config.weight_shape, name="w")
    out = config.meaning(data, weight)
    return Case([data, weight], out, config)


def window(kind: str, size: int, stride: int, lanes: int = 4, dtype: str = "float32") -> Case:
    pad = (size // 2,) * 4
    channels = 2 * lanes
    config = WindowConfig(
        kind, 1, channels, (13, 17), (size,) * 2, (stride,) * 2, pad, (1, 1), lanes=lanes
    )
    data = te.placeholder((1, 2, 13, 17, lanes), dtype, name="x")
    weight = te.placeholder((2, size, size, lanes), dtype, name="w")
    operands = [data, weight] if kind == "depthwise" else [data]
    out = config.meaning(*operands)
    return Case(operands, out)


def matmul(a: tuple[int, ...], b: tuple[int, ...]) -> Case:
    config = choose(MatmulShape(a, b), MACHINE)
    assert config is not None
    left, right = te.placeholder(a, name="a"), te.placeholder(b, name="b")
    return Case([left, right], config.meaning(left, right))


def softmax(columns: int, axis: int = -1) -> Case:
    config = choose(SoftmaxShape((3, columns), axis), MACHINE)
    assert config is not None
    data = te.placeholder((3, columns), name="x")
    return Case([data], config.meaning(data))


def generic() -> Case:
    data = te.placeholder((6, 50), name="x")
    k = te.reduce_axis((0, 50), "k")
    return Case([data], te.compute((6,), lambda i: te.sum(data[i, k], axis=k), name="total"))


PADDED = {"padding": (1, 1, 1, 1)}
CASES: dict[str, Callable[[], Case]] = {
    "1x1": lambda: convolution(ConvShape(1, 24, (9, 9), 40, (1, 1))),
    "3x3": lambda: convolution(ConvShape(1, 16, (9, 14), 24, (3, 3), **PADDED)),
    "strided 3x3": lambda: convolution(ConvShape(1, 16, (14, 14), 24, (3, 3), (2, 2), **PADDED)),
    "groups": lambda: convolution(ConvShape(1, 24, (9, 9), 24, (3, 3), groups=4, **PADDED)),
    "first layer": lambda: convolution(ConvShape(1, 3, (20, 20), 16, (7, 7), (2, 2)), 1),
    "dense": lambda: convolution(ConvShape(1, 36, (1, 1), 20, (1, 1))),
    "winograd 2": lambda: winograd(2),
    "winograd 4": lambda: winograd(4),
    "winograd, groups of 6": lambda: winograd(4, 30, 30, 5),
    "depthwise 3x3": lambda: window("depthwise", 3, 1),
    "depthwise 5x5": lambda: window("depthwise", 5, 2),
    "max pool": lambda: window("max", 3, 2),
    "average pool": lambda: window("avg", 3, 1),
    "matmul": lambda: matmul((2, 7, 10), (2, 10, 21)),
    "softmax": lambda: softmax(37),
    "long softmax": lambda: softmax(555),
    "softmax of columns": lambda: softmax(37, 0),
    "generic sum": generic,
}


def half_convolution(shape: ConvShape, block: int = 8) -> Callable[[str], Case]:
    return lambda sums: convolution(shape, block, HALF, "float16", sums)


def half_window(kind: str, size: int, stride: int) -> Callable[[str], Case]:
    return lambda _sums: window(kind, size, stride, 8, "float16")


HALF_CASES: dict[str, Callable[[str], Case]] = {
    "1x1": half_convolution(ConvShape(1, 24, (9, 9), 40, (1, 1))),
    "3x3": half_convolution(ConvShape(1, 16, (9, 14), 24, (3, 3), **PADDED)),
    "strided 3x3": half_convolution(ConvShape(1, 16, (14, 14), 24, (3, 3), (2, 2), **PADDED)),
    "groups": half_convolution(ConvShape(1, 32, (9, 9), 32, (3, 3), groups=4, **PADDED)),
    "first layer": half_convolution(ConvShape(1, 3, (20, 20), 16, (7, 7), (2, 2)), 1),
    "long reduction": half_convolution(ConvShape(1, 640, (3, 3), 64, (3, 3), **PADDED)),
    "dense": half_convolution(ConvShape(1, 36, (1, 1), 20, (1, 1))),
    "depthwise 3x3": half_window("depthwise", 3, 1),
    "depthwise 5x5": half_window("depthwise", 5, 2),
    "max pool": half_window("max", 3, 2),
    "average pool": half_window("avg", 3, 1),
}


def here(function: tirx.PrimFunc, arrays: list[np.ndarray]) -> np.ndarray:
    """What this machine makes of the unscheduled kernel."""
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    tvm.tirx.build(function, target="llvm")(*tensors)
    return tensors[-1].numpy()


def existing(config: ConvConfig | WinogradConfig) -> np.ndarray:
    """One where a packed weight exists, zero where a channel or its group does not."""
    inputs = config.in_channels // config.groups
    winograd = isinstance(config, WinogradConfig)
    ones = np.ones((config.out_channels, inputs, *config.kernel), "f")
    source = te.placeholder(ones.shape, name="source")
    packed = taken(WinogradWeight, config).meaning(source) if winograd else config.pack(source)
    packing = te.create_prim_func([source, packed])
    made = here(packing, [ones, np.empty(config.weight_shape, "float32")])
    return (made != 0).astype("float32")  # of Winograd's none is zero that exists, of ones


def emulated(library: tvm.runtime.Module, arrays: list[np.ndarray], folder: Path) -> np.ndarray:
    """What the kernel of ``library`` makes of all but the last array, which says what it makes."""
    library.write_to_file(str(folder / "kernel.o"), "o")
    program = folder / "program"
    sources = [str(MAIN), str(folder / "kernel.o"), f"-I{find_include_path()}"]
    subprocess.run([COMPILER, "-O1", "-static", *sources, "-o", str(program)], check=True)
    codes = {"i": 0, "u": 1, "f": 2}
    heads = [[a.ndim, codes[a.dtype.kind], 8 * a.itemsize, *a.shape] for a in arrays]
    parts = zip(heads, arrays, strict=True)
    given = b"".join(np.array(head, "int64").tobytes() + a.tobytes() for head, a in parts)
    command = [EMULATOR, "-cpu", "max", str(program)]
    done = subprocess.run(command, input=given, capture_output=True, check=True, timeout=60)
    return np.frombuffer(done.stdout, arrays[-1].dtype).reshape(arrays[-1].shape)


INTEGER_CORES = {"cortex-a76": "sdot", "neoverse-n2": "usdot", "cortex-a53": ""}


@pytest.mark.parametrize("core", INTEGER_CORES)
@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_integers(dtype: str, depthwise: bool, core: str, tmp_path: Path) -> None:
    target = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": core}
    machine = vector_machine(Target(target), 1)
    assert machine.dot == INTEGER_CORES[core]
    operands, out = integer_sums(machine, depthwise, dtype)
    function = te.create_prim_func([*operands, out])
    random = np.random.default_rng(0)
    tensors = [(tuple(int(d) for d in t.shape), str(t.dtype)) for t in (*operands, out)]
    arrays = [random.integers(-100, 100, shape).astype(kind) for shape, kind in tensors]
    scheduled = schedule_kernel(function, machine)
    library = built(scheduled, tvm.target.Target(target))
    got = emulated(library, arrays, tmp_path)
    np.testing.assert_array_equal(got, here(function, arrays))


def integer_sums(
    machine: VectorMachine, depthwise: bool, dtype: str
) -> tuple[list[te.Tensor], te.Tensor]:
    """Operands and sums of a padded convolution, none of whose weights stand for no tap."""
    data = te.placeholder((1, 4, 9, 10, 4), dtype, name="x")
    if depthwise:
        config = IntegerWindowConfig(
            "depthwise", 1, 16, (9, 10), (4, 3), (2, 2), (1, 1, 1, 1), (1, 1),
            lanes=4, dtype=dtype, dot=machine.dot,
        )  # fmt: skip
        weight = te.placeholder(config.weight_shape, config.way.weight, name="w")
        return [data, weight], config.meaning(data, weight)
    shape = ConvShape(1, 16, (9, 10), 24, (3, 3), padding=(1, 1, 1, 1))
    conv = IntegerConvConfig.configure(taken(IntegerConvShape, shape, dtype=dtype), machine, 4)[0]
    weight = te.placeholder(conv.weight_shape, conv.way.weight, name="w")
    return [data, weight], conv.meaning(data, weight)


MATRICES = {
    "rows of a group": ConvShape(1, 16, (6, 10), 24, (3, 3), dilation=(1, 3)),
    "a block alone": ConvShape(2, 20, (5, 9), 7, (1, 2), stride=(2, 1)),
    "one by one": ConvShape(1, 40, (7, 7), 68, (1, 1)),
    "few pixels": ConvShape(1, 8, (2, 3), 30, (1, 1)),
}


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_small_matrices(dtype: str, name: str, tmp_path: Path) -> None:
    target = Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n2"})
    shape, machine = MATRICES[name], vector_machine(target, 1)
    dot = choose(taken(IntegerConvShape, shape, dtype=dtype), machine, 4).dot
    assert dot.endswith("mmla")
    conv = choose(taken(IntegerConvShape, shape, dtype=dtype), machine, 4)
    data = te.placeholder((shape.batch, conv.in_blocks, *shape.in_size, 4), dtype, name="x")
    weight = te.placeholder(conv.weight_shape, conv.way.weight, name="w")
    out = conv.meaning(data, weight)
    function = te.create_prim_func([data, weight, out])
    random = np.random.default_rng(0)
    tensors = [(tuple(int(d) for d in t.shape), str(t.dtype)) for t in (data, weight, out)]
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    arrays = [random.integers(low, high + 1, tensors[0][0]).astype(dtype)]
    arrays += [random.integers(-100, 100, shape).astype(kind) for shape, kind in tensors[1:]]
    if conv.reduce_blocks % 2:
        arrays[1].reshape(*arrays[1].shape[:-1], 2, 2, 4)[:, -1, ..., 1, :] = 0
    got = emulated(built(schedule_kernel(function, machine), target), arrays, tmp_path)
    np.testing.assert_array_equal(got, here(function, arrays))


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("name", CASES)
def test_template(name: str, core: str, tmp_path: Path) -> None:
    operands, out, config = CASES[name]()
    function = te.create_prim_func([*operands, out])
    random = np.random.default_rng(0)
    shapes = [[int(d) for d in tensor.shape] for tensor in (*operands, out)]
    arrays = [random.standard_normal(shape).astype("float32") for shape in shapes]
    if config:
        arrays[1] *= existing(config)
    target = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": core}
    scheduled = schedule_kernel(ExpandMath()(tvm.IRModule({"f": function}))["f"], MACHINE)
    library = built(scheduled, tvm.target.Target(target))
    got = emulated(library, arrays, tmp_path)
    want = here(function, arrays)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("sums", ["float16", "float32"])
@pytest.mark.parametrize("name", HALF_CASES)
def test_template_in_half(name: str, sums: str, core: str, tmp_path: Path) -> None:
    """Against the sums of the same numbers in float32: float16 has 11 bits."""
    operands, out, config = HALF_CASES[name](sums)
    function = te.create_prim_func([*operands, out])
    random = np.random.default_rng(0)
    tensors = [([int(d) for d in t.shape], str(t.dtype)) for t in (*operands, out)]
    arrays = [random.standard_normal(shape).astype(dtype) for shape, dtype in tensors]
    if config:
        arrays[1] *= existing(config).astype(arrays[1].dtype)
    target = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": core}
    got = emulated(built(schedule_kernel(function, HALF), Target(target)), arrays, tmp_path)
    want = here(function, arrays).astype("float32")
    few = 2e-2 if tensors[-1][1] == "float16" else 1e-4
    np.testing.assert_allclose(got.astype("float32"), want, rtol=few, atol=few * abs(want).max())
