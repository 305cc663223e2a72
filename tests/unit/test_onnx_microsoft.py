"""Operators that ONNX Runtime's optimiser writes, beside ONNX Runtime's own results."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.one_operator import Case, Dice

from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.read import load_network

DICE = Dice()
numbers, signed, whole = DICE.numbers, DICE.signed, DICE.whole

MASK = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], "int32")
IMAGE = (numbers(1, 3, 8, 8), numbers(4, 3, 3, 3), numbers(4))
TOKENS = (numbers(2, 5, 8), numbers(8, 24), numbers(24))
WORDS = (whole(9, 2, 5), whole(2, 2, 5), numbers(9, 8), numbers(7, 8), numbers(2, 8))
SUM = (numbers(2, 3, 8), numbers(2, 3, 8), numbers(8))


SCALES = np.linspace(0.01, 0.03, 5, dtype="float32")
BYTES = whole(256, 3, 7, dtype="uint8")
SCALE = (np.array(0.02, "float32"), np.array(120, "uint8"))
OTHER = (np.array(0.7, "float32"), np.array(100, "uint8"))
TABLES = (
    ("halves of bytes", 40, whole(256, 9, 20, dtype="uint8"), [], True),
    (
        "halves and zeros",
        40,
        whole(256, 9, 20, dtype="uint8"),
        [whole(256, 9, 2, dtype="uint8")],
        True,
    ),
    ("bytes", 41, whole(256, 9, 41, dtype="uint8"), [], False),
    ("int4", 41, (whole(16, 9, 41) - 8).astype(ml_dtypes.int4), [], True),
    (
        "uint4",
        41,
        whole(16, 9, 41).astype(ml_dtypes.uint4),
        [whole(16, 9, 3).astype(ml_dtypes.uint4)],
        True,
    ),
)


def _convolution(kind: str, *given: float) -> Case:
    attributes: dict[str, Any] = {"activation": kind, "pads": [1] * 4}
    if given:
        attributes["activation_params"] = [*given]
    return Case("FusedConv", IMAGE, attributes, fixed=(1, 2))


CASES = {
    "gelu": Case("Gelu", [numbers(3, 8)]),
    "gelu of a sum": Case("BiasGelu", [numbers(3, 8), numbers(8)]),
    "gelu by tanh": Case("FastGelu", [numbers(3, 8), numbers(8)]),
    "gelu by sigmoid": Case("QuickGelu", [numbers(3, 8)], {"alpha": 1.5}),
    "product": Case(
        "FusedMatMul",
        [numbers(2, 4, 3), numbers(2, 5, 4)],
        {"transA": 1, "transB": 1, "alpha": 0.5},
    ),
    "product of a transposed matrix": Case(
        "TransposeMatMul", [numbers(2, 4, 3), numbers(2, 4, 5)], {"transA": 1, "alpha": 0.5}
    ),
    "convolution": _convolution("Relu"),
    "convolution, LeakyRelu": _convolution("LeakyRelu", 0.2),
    "convolution, Clip": _convolution("Clip", -1.0, 2.0),
    "convolution, HardSigmoid": _convolution("HardSigmoid", 0.2, 0.5),
    "convolution and sum": Case(
        "FusedConv",
        [*IMAGE, numbers(1, 4, 8, 8)],
        {"activation": "Relu", "pads": [1] * 4},
        fixed=(1, 2),
    ),
    "normalised sum": Case(
        "SkipLayerNormalization",
        [*SUM, numbers(8), numbers(8)],
        {"epsilon": 1e-5},
        results=(0, 3),
    ),
    "normalised sum without mean": Case(
        "SkipSimplifiedLayerNormalization", [*SUM, numbers(8)], {"epsilon": 1e-5}, results=(0, 3)
    ),
    "normalised without mean": Case(
        "SimplifiedLayerNormalization",
        [numbers(2, 3, 8), numbers(8)],
        {"epsilon": 1e-5, "axis": -1},
        domain="",
    ),
    "words": Case(
        "EmbedLayerNormalization", [*WORDS, numbers(8), numbers(8), MASK], results=(0, 1)
    ),
    "words without segments": Case(
        "EmbedLayerNormalization",
        [WORDS[0], None, WORDS[2], WORDS[3], None, numbers(8), numbers(8)],
        results=(0, 2),
    ),
    "dense layer": Case(
        "FusedGemm",
        [numbers(3, 7), numbers(5, 7), numbers(5)],
        {"activation": "LeakyRelu", "activation_alpha": 0.2, "transB": 1},
        fixed=(1, 2),
    ),
    "dynamic integers": Case(
        "DynamicQuantizeMatMul",
        [numbers(2, 3, 7), signed(7, 5), SCALES, np.zeros(5, "int8"), numbers(5)],
        fixed=(1, 2, 3, 4),
    ),
    "dynamic integers alone": Case(
        "DynamicQuantizeMatMul", [numbers(3, 7), signed(7, 5), SCALES], fixed=(1, 2)
    ),
    "integers to floats": Case(
        "MatMulIntegerToFloat",
        [BYTES, signed(7, 5), np.float32([0.02]), SCALES, np.uint8([99]), None, numbers(5)],
        fixed=(1, 2, 3, 4, 6),
    ),
    "chosen integers": Case(
        "QLinearWhere",
        [
            *(whole(2, 3, 1, dtype="bool"), BYTES, *SCALE),
            *(whole(256, 1, 7, dtype="uint8"), *OTHER),
            *(np.array(0.04, "float32"), np.array(100, "uint8")),
        ],
        fixed=(2, 3, 5, 6, 7, 8),
    ),
    "integer image, channels last": Case(
        "QLinearConv",
        [
            *(whole(256, 1, 9, 7, 5, dtype="uint8"), *SCALE, signed(6, 5, 3, 3)),
            *(np.float32(np.linspace(0.01, 0.02, 6)), np.zeros(6, "int8"), *OTHER),
        ],
        {"pads": [1, 0, 1, 2], "strides": [2, 1], "channels_last": 1},
        fixed=(1, 2, 3, 4, 5, 6, 7),
    ),
    "integer mean, channels last": Case(
        "QLinearGlobalAveragePool",
        [whole(256, 2, 5, 7, 3, dtype="uint8"), *SCALE, *SCALE],
        {"channels_last": 1},
        fixed=(1, 2, 3, 4),
    ),
    "integer maxima, channels last": Case(
        "NhwcMaxPool",
        [whole(256, 1, 7, 9, 5, dtype="uint8")],
        {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]},
    ),
    **{
        f"rows of {kind}, {columns} columns": Case(
            "GatherBlockQuantized",
            [table, whole(9, 2, 3), numbers(9, 3), *zero],
            {
                "block_size": 16,
                "quantize_axis": 1,
                "bits": 8 if table.dtype == "uint8" and not half else 4,
            },
            fixed=(0, 2, 3) if zero else (0, 2),
            opset=21,
        )
        for kind, columns, table, zero, half in TABLES
    },
}
QUICK = (
    "gelu of a sum", "convolution and sum", "normalised sum", "words", "dense layer",
    "dynamic integers", "integer image, channels last", "rows of uint4, 41 columns",
)  # fmt: skip


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.full) for n in CASES]
)
def test_same_as_onnx_runtime(name: str) -> None:
    CASES[name].check(products=27)


def test_a_recurrent_layer_in_dynamic_integers_is_one_of_floats() -> None:
    """ONNX Runtime rounds inputs and states to bytes; ours are not rounded."""
    x, w, r = numbers(3, 2, 6), signed(1, 6, 16), signed(1, 4, 16)
    rest = [numbers(1, 32), None, numbers(1, 2, 4), numbers(1, 2, 4)]
    scales = [np.float32([0.02]), np.int8([3]), np.float32([0.03]), np.int8([0])]
    attributes = {"hidden_size": 4}
    integers = Case(
        "DynamicQuantizeLSTM",
        [x, w, r, *rest, None, *scales],
        attributes,
        results=(0, 1, 2),
        fixed=(1, 2, 3, 8, 9, 10, 11),
    )
    weights = [
        np.float32((m.astype("float32") - zero) * scale).transpose(0, 2, 1)
        for m, scale, zero in ((w, *scales[:2]), (r, *scales[2:]))
    ]
    floats = Case(
        "LSTM", [x, *weights, *rest], attributes, results=(0, 1, 2), fixed=(1, 2, 3), domain=""
    )
    for result, expected in zip(integers.computed(), floats.expected(), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_an_unknown_activation_is_refused() -> None:
    case = Case("FusedGemm", [numbers(3, 7), numbers(7, 5)], {"activation": "Erf"})
    with pytest.raises(UnsupportedError, match=r"an activation of .* for FusedGemm, got Erf"):
        load_network(case.model())
