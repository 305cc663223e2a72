"""Attention of com.microsoft and caches that are written, beside ONNX Runtime's own results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.one_operator import Case, Dice

from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.read import load_network
from tvm_stretch.read import onnx as onnx_reader
from tvm_stretch.read.onnx.node import CONVERTERS

DICE = Dice()
numbers, signed, whole = DICE.numbers, DICE.signed, DICE.whole

MASK = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], "int32")
LONG_MASK = np.array([[1, 1, 1, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1, 1, 1]], "int32")
TOKENS = (numbers(2, 5, 8), numbers(8, 24), numbers(24))
PAST = numbers(2, 2, 2, 3, 4)
QUERY, KEY, VALUE = numbers(2, 5, 8), numbers(2, 7, 8), numbers(2, 7, 12)
INTEGERS = (whole(256, 2, 5, 8, dtype="uint8"), signed(8, 24), numbers(24))
ZEROS = (np.array(120, "uint8"), np.array(0, "int8"))
UNITS = (np.array(0.02, "float32"), np.array(0.01, "float32"))
TWO = {"num_heads": 2}
CACHE = numbers(2, 3, 8, 5)


def _grouped(
    steps: int, past: int, total: int, *rest: np.ndarray | None, **attributes: Any
) -> Case:
    """Four heads that share two of keys; of 16 numbers, as ONNX Runtime wants."""
    sizes = (64, 32, 32)
    caches = (numbers(1, 2, past, 16), numbers(1, 2, past, 16))
    inputs: list[np.ndarray | None] = [numbers(1, steps, size) for size in sizes]
    inputs += [*caches, np.int32([total - 1]), np.array(total, "int32")]
    inputs += [numbers(64, 8), numbers(64, 8), *rest]
    every = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1, **attributes}
    return Case("GroupQueryAttention", inputs, every, (0, 1, 2), fixed=(6, 7, 8))


def _plain(*inputs: np.ndarray | None, results: tuple[int, ...] = (0,), **given: Any) -> Case:
    """ONNX's own operator without a mask."""
    return Case("Attention", inputs, given, results, domain="", opset=24)


def _written(axis: int, steps: int, *places: int, **attributes: Any) -> Case:
    rows = [*CACHE.shape]
    rows[axis] = steps
    inputs = [CACHE, numbers(*rows), np.array(places, "int64")]
    attributes["axis"] = axis
    return Case("TensorScatter", inputs, attributes, domain="", opset=24)


CASES = {
    "one product": Case("Attention", TOKENS, TWO),
    "one product, mask": Case("Attention", [*TOKENS, MASK], TWO),
    "one product, lengths": Case("Attention", [*TOKENS, np.int32([3, 5])], TWO),
    "one product, causal": Case("Attention", TOKENS, {**TWO, "unidirectional": 1}),
    "one product, numbers": Case("Attention", [*TOKENS, None, None, numbers(2, 2, 5, 5)], TWO),
    "one product, sizes": Case(
        "Attention",
        [TOKENS[0], numbers(8, 28), numbers(28)],
        {**TWO, "qkv_hidden_sizes": [8, 8, 12]},
    ),
    "one product, past": Case(
        "Attention", [*TOKENS, LONG_MASK, PAST], {**TWO, "unidirectional": 1}, (0, 1)
    ),
    "integers": Case(
        "QAttention", [*INTEGERS, *UNITS, MASK, *ZEROS], TWO, fixed=(1, 2, 3, 4, 6, 7)
    ),
    "integers, past": Case(
        "QAttention", [*INTEGERS, *UNITS, None, *ZEROS, PAST], TWO, (0, 1), (1, 2, 3, 4, 6, 7)
    ),
    "three, bias": Case(
        "MultiHeadAttention", [QUERY, KEY, VALUE, numbers(28)], {**TWO, "scale": 0.3}
    ),
    "three, mask": Case("MultiHeadAttention", [QUERY, KEY, VALUE, None, np.int32([3, 7])], TWO),
    "three, mask of queries": Case(
        "MultiHeadAttention", [QUERY, KEY, VALUE, None, whole(2, 2, 5, 7)], TWO
    ),
    "three, summand": Case(
        "MultiHeadAttention", [QUERY, KEY, VALUE, numbers(28), None, numbers(2, 1, 5, 7)], TWO
    ),
    "three, heads": Case(
        "MultiHeadAttention", [QUERY, numbers(2, 2, 7, 4), numbers(2, 2, 7, 4)], TWO
    ),
    "three, past": Case(
        "MultiHeadAttention",
        [QUERY, numbers(2, 5, 8), numbers(2, 5, 8), None, None, None, PAST[0], PAST[1]],
        {**TWO, "unidirectional": 1},
        (0, 1, 2),
    ),
    **{
        f"rotary, {interleaved}": Case(
            "RotaryEmbedding",
            [numbers(2, 5, 24), whole(9, 2, 5, dtype="int64"), numbers(9, 2), numbers(9, 2)],
            {"interleaved": interleaved, "num_heads": 3, "rotary_embedding_dim": 4},
        )
        for interleaved in (0, 1)
    },
    "rotary, one position": Case(
        "RotaryEmbedding", [numbers(2, 3, 5, 8), np.array([3]), numbers(9, 4), numbers(9, 4)]
    ),
    "groups, prompt": _grouped(5, 0, 5),
    "groups, step": _grouped(1, 7, 8, rotary_interleaved=1),
    "groups, window": _grouped(3, 7, 10, local_window_size=4, softcap=2.0),
    "groups, sinks": _grouped(3, 7, 10, None, None, numbers(4)),
    "groups, smooth": _grouped(1, 7, 8, smooth_softmax=1, scale=0.3),
    "groups, summand": _grouped(2, 7, 9, np.array([[7, 8]]), numbers(1, 1, 2, 9)),
    "plain, groups": _plain(numbers(1, 4, 1, 8), *2 * (numbers(1, 2, 7, 8),), softcap=2.0),
    "plain, past": _plain(
        *(numbers(2, 3, 32), *2 * (numbers(2, 3, 16),), None, *2 * (numbers(2, 2, 5, 8),)),
        results=(0, 1, 2),
        q_num_heads=4,
        kv_num_heads=2,
        is_causal=1,
        scale=0.3,
    ),
    "places of rows": _written(2, 3, 1, 4),
    "places of columns": _written(3, 2, 0, 3),
    "places around the end": _written(-2, 3, 6, 7, mode="circular"),
}
QUICK = (
    "one product, past",
    "plain, past",
    "integers",
    "three, past",
    "rotary, 1",
    "groups, window",
)


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.full) for n in CASES]
)
def test_same_as_onnx_runtime(name: str) -> None:
    CASES[name].check(products=16)


def test_a_cache_that_is_longer_keeps_its_places() -> None:
    """ONNX Runtime leaves open what unused places hold; ours are those of the past."""
    case = _grouped(1, 12, 12)
    case.inputs[5] = np.int32([6])  # seven places are used
    output, keys, values = case.computed()
    expected = case.expected()
    np.testing.assert_allclose(output, expected[0], rtol=2e-6, atol=16 * 25 * 2.0**-24)
    for result, wanted, past in zip((keys, values), expected[1:], case.inputs[3:5], strict=True):
        np.testing.assert_allclose(result[:, :, :7], wanted[:, :, :7], rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(result[:, :, 7:], past[:, :, 7:])


def test_shared_buffers_are_refused() -> None:
    case = Case("Attention", [*TOKENS, None, PAST, None, np.int32([3])], TWO, (0, 1))
    with pytest.raises(UnsupportedError, match="a past as long as it is for Attention"):
        load_network(case.model())


IGNORED = {
    *("hidden_size", "kernel_shape", "num_outputs", "dtype"),  # shapes and types say the same
    *("round_mode", "saturate"),  # of types that are refused
    *("stash_type", "precision", "softmax_precision"),  # ours is at least float32
    "qk_matmul_output_mode",  # of a result that is left to the operator's function
    "sorted",  # results always are
    *("pool_strings", "type"),  # a pool of strings is refused; no optional is empty
    *("momentum", "seed", "ratio", "training_mode", "is_test", "consumed_inputs"),  # of training
}


def test_every_attribute_of_onnx_is_known() -> None:
    """A new version of ONNX may add some to operators, such as windows to an Attention."""
    sources = "".join(path.read_text() for path in Path(onnx_reader.__file__).parent.rglob("*.py"))
    unknown = {
        f"{name}: {attribute}"
        for name in CONVERTERS
        if onnx.defs.has(name, "")
        for attribute in onnx.defs.get_schema(name, "").attributes
        if f'"{attribute}"' not in sources and attribute not in IGNORED
    }
    assert unknown == set()
