"""TemplateLayers: the same numbers, from layers that templates know."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from helpers.relax_helpers import (
    assert_same_numerics,
    assert_unchanged,
    module,
    op_names,
    random_const,
)
from tvm import relax

from tvm_stretch.passes.template_layers import TemplateLayers

op, nn = relax.op, relax.op.nn
Body = Callable[..., relax.Expr]

IMAGE, ROWS, SIGNAL = (2, 6, 5, 4), (2, 5, 6), (2, 6, 9)
DENSE, TAPS = random_const(6, 3), random_const(8, 3, 4)


def transposed(*kernel: int, **attributes: object) -> Body:
    """A transposed convolution of IMAGE, or with a kernel of one axis of SIGNAL, to 8 channels."""
    outputs = 8 // int(attributes.get("groups", 1))
    layer = nn.conv1d_transpose if len(kernel) == 1 else nn.conv2d_transpose
    return lambda x: layer(x, random_const(6, outputs, *kernel), **attributes)


LAYERS: dict[str, tuple[Body, tuple[int, ...], str]] = {
    "kernel as stride": (transposed(2, 2, strides=2), IMAGE, "nn.conv2d"),
    "stride 1": (transposed(3, 3, padding=1), IMAGE, "nn.conv2d"),
    "overlap": (transposed(4, 4, strides=2, padding=1), IMAGE, "nn.conv2d"),
    "uneven": (
        transposed(4, 3, strides=(2, 3), padding=(0, 1, 3, 2), groups=2, output_padding=(1, 2)),
        IMAGE,
        "nn.conv2d",
    ),
    "padding beyond the kernel": (transposed(4, 2, strides=2, padding=3), IMAGE, "nn.conv2d"),
    "a signal": (transposed(4, strides=2, padding=1), SIGNAL, "nn.conv2d"),
    "groups of a signal": (
        transposed(6, strides=3, padding=(2, 1), groups=2, output_padding=1),
        SIGNAL,
        "nn.conv2d",
    ),
    "dense": (lambda x: op.matmul(x, DENSE), ROWS, "matmul"),
    "a column": (
        lambda x: nn.conv2d(x, random_const(8, 3, 4, 1), (2, 1), (1, 0, 2, 0), (2, 1), 2),
        (2, 6, 9, 1),
        "nn.conv2d",
    ),
    "a long filter": (
        lambda x: nn.conv1d(x, random_const(8, 6, 64), padding=64),
        SIGNAL,
        "nn.conv2d",
    ),
    "1-D": (lambda x: nn.conv1d(x, TAPS, 2, (1, 2), 2, 2), SIGNAL, "nn.conv2d"),
}


UNEVEN_TAPS: dict[str, Body] = {
    "3x3 by 2": transposed(3, 3, strides=2),
    "cut": transposed(3, 3, strides=2, padding=1, output_padding=1),
    "5x5 by 3 and 2": transposed(5, 5, strides=(3, 2), padding=(4, 2, 1, 0), groups=2),
    "one axis": transposed(4, 3, strides=2, padding=(1, 3, 2, 1)),
    "signal": transposed(11, strides=5, padding=(3, 2), output_padding=2),
}


@pytest.mark.parametrize("name", UNEVEN_TAPS)
def test_images_of_their_own_taps(name: str) -> None:
    def body(x: relax.Expr) -> relax.Expr:
        bias = random_const(8, *[1] * (len(shape) - 2))
        return nn.relu(op.add(UNEVEN_TAPS[name](x), bias))

    shape = SIGNAL if name == "signal" else IMAGE
    before = module(body, shape)
    after = TemplateLayers()(before)
    names = op_names(after)
    assert not any("transpose" in name for name in names)
    assert names.count("relax.nn.conv2d") == names.count("relax.nn.relu") > 1
    assert_same_numerics(before, after)


@pytest.mark.variants(2)
@pytest.mark.parametrize("name", LAYERS)
def test_same_numbers(name: str) -> None:
    layer, shape, kind = LAYERS[name]

    def body(x: relax.Expr) -> relax.Expr:
        y = layer(x)
        bias = random_const(3) if kind == "matmul" else random_const(8, *[1] * (len(shape) - 2))
        return nn.silu(op.multiply(op.add(y, bias), relax.const(np.float32(0.5))))

    before = module(body, shape)
    after = TemplateLayers()(before)
    names = op_names(after)
    first = names.index(f"relax.{kind}")
    assert names[first:][:4] == [
        f"relax.{kind}", "relax.add", "relax.multiply", "relax.nn.silu",
    ]  # fmt: skip
    assert "relax.nn.conv1d" not in names and not any("transpose" in name for name in names)
    assert_same_numerics(before, after)


def test_values_that_others_read_stay() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        y = relax.BlockBuilder.current().emit(op.matmul(x, DENSE))
        return op.multiply(y, op.sigmoid(y))

    before = module(body, ROWS)
    after = TemplateLayers()(before)
    assert op_names(after)[-3:] == ["relax.reshape", "relax.sigmoid", "relax.multiply"]
    assert_same_numerics(before, after)


def test_what_follows_a_part_of_the_result_stays() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        return op.sigmoid(op.strided_slice(op.matmul(x, DENSE), [2], [1], [2]))

    before = module(body, ROWS)
    after = TemplateLayers()(before)
    assert op_names(after)[-3:] == ["relax.reshape", "relax.strided_slice", "relax.sigmoid"]
    assert_same_numerics(before, after)


KEPT: dict[str, tuple[Body, tuple[int, ...]]] = {
    "stride above the kernel": (transposed(1, 2, strides=2), IMAGE),
    "stride of a signal above the kernel": (transposed(2, strides=3), SIGNAL),
    "dilation": (transposed(2, 2, strides=2, dilation=2), IMAGE),
    "a matrix": (lambda x: op.matmul(x, DENSE), (5, 6)),
    "several matrices": (lambda x: op.matmul(x, random_const(2, 6, 3)), ROWS),
}


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    body, shape = KEPT[name]
    assert_unchanged(TemplateLayers(), module(body, shape))
