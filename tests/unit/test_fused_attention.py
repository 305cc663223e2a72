"""Attention in one kernel: against NumPy for vectors of every width, and where it is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from helpers.cpu_targets import TARGET, built
from helpers.relax_helpers import assert_same_numerics, module, random_const
from tvm import relax, te, topi

from tvm_stretch.make.kernels import kernels_alone
from tvm_stretch.network.operators import Calls
from tvm_stretch.passes.block_channels import BlockChannels
from tvm_stretch.passes.canonicalise import Canonicalise
from tvm_stretch.passes.expand_math import ExpandMath
from tvm_stretch.passes.keep_nan import KeepNan
from tvm_stretch.plan.regions import form_regions
from tvm_stretch.targets.cpu.cpu import cpu_processor
from tvm_stretch.targets.cpu.kernels.attention import AttentionConfig, AttentionFeatures
from tvm_stretch.targets.kernels.layers import AttentionShape
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.schedule import schedule_kernel
from tvm_stretch.targets.kernels.template import choose

op, nn = relax.op, relax.op.nn
AVX2 = VectorMachine(lanes=8, registers=16, broadcast_operand=False, l2_bytes=2**19, threads=1)
NEON = VectorMachine(lanes=4, registers=32, broadcast_operand=True, l2_bytes=2**12, threads=1)
TWO_CORES = VectorMachine(16, 32, False, 2**20, threads=2)
MACHINES = pytest.mark.parametrize(
    "machine", [AVX2, NEON, TWO_CORES], ids=["avx2", "neon", "avx512"]
)

SHAPES = {
    "heads": AttentionShape((2, 3, 37, 20), (2, 3, 20, 43), (2, 3, 43, 16)),
    "whole vectors": AttentionShape((5, 32), (32, 48), (48, 32), scale=0.25),
    "a mask of keys": AttentionShape((3, 9, 8), (3, 8, 19), (3, 19, 17), (1, 1, 19)),
    "a mask of all": AttentionShape((3, 9, 8), (3, 8, 19), (3, 19, 17), (9, 19), 0.5),
    "keys of all heads": AttentionShape((4, 7, 8), (1, 8, 21), (4, 21, 17)),
    "values of all heads": AttentionShape((4, 7, 8), (4, 8, 21), (21, 17)),
    "narrow heads": AttentionShape((2, 9, 4), (2, 4, 21), (2, 21, 4)),
    "few keys": AttentionShape((3, 9, 8), (3, 8, 5), (3, 5, 6)),
    "one query": AttentionShape((3, 1, 20), (3, 43, 20), (3, 43, 16), None, 0.5, True),
    "few queries": AttentionShape((2, 3, 5), (2, 18, 5), (2, 18, 16), (2, 1, 18), 1.0, True),
}


def expected(shape: AttentionShape, q: np.ndarray, k: np.ndarray, *others: np.ndarray) -> tuple:
    """The definition in float64."""
    v, *mask = (x.astype("float64") for x in others)
    scores = q.astype("float64") @ (k.swapaxes(-1, -2) if shape.in_place else k) * shape.scale
    scores = scores + mask[0] if mask else scores
    with np.errstate(invalid="ignore"):
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        return powers / powers.sum(-1, keepdims=True) @ v


def result(shape: AttentionShape, machine: VectorMachine, *arrays: np.ndarray) -> np.ndarray:
    """The template's result, doubled by an epilogue."""
    config = shape if isinstance(shape, AttentionConfig) else choose(shape, machine)
    assert config is not None
    inputs = [te.placeholder(array.shape, name=f"x{i}") for i, array in enumerate(arrays)]
    func = te.create_prim_func([*inputs, topi.multiply(config.meaning(*inputs), 2.0)])
    func = KeepNan()(ExpandMath()(tvm.IRModule({"f": func})))["f"]
    out = tvm.runtime.tensor(np.full(config.out_shape, 7e7, "float32"))
    built(schedule_kernel(func, machine))["kernel"](*map(tvm.runtime.tensor, arrays), out)
    return out.numpy()


def operands(shape: AttentionShape) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = [shape.q, shape.k, shape.v, *([shape.mask] if shape.mask else [])]
    return [rng.standard_normal(size, "float32") for size in shapes]


@pytest.mark.variants(4)
@MACHINES
@pytest.mark.parametrize("name", SHAPES)
def test_same_as_numpy(name: str, machine: VectorMachine) -> None:
    shape = SHAPES[name]
    arrays = operands(shape)
    got = result(shape, machine, *arrays)
    np.testing.assert_allclose(got, 2 * expected(shape, *arrays), rtol=2e-5, atol=5e-6)


@pytest.mark.variants(2)
@MACHINES
@pytest.mark.parametrize("mask", [None, (5, 90)])
def test_keys_in_pieces(mask: tuple[int, ...] | None, machine: VectorMachine) -> None:
    """A row may see nothing of the first or of a later piece, or nothing at all."""
    shape = AttentionShape((2, 5, 9), (2, 9, 90), (2, 90, 32), mask, 0.5)
    q, k, v, *others = operands(shape)
    for hidden in others:
        hidden[0, :40] = hidden[1, 30:] = hidden[2] = hidden[3, 16:64] = -np.inf
        hidden[4, :20] = np.finfo("float32").min
    k[:, :, 50] *= 20  # a greatest score of a later piece
    config = choose(shape, machine)
    assert isinstance(config, AttentionConfig) and config.piece == 90
    got = result(replace(config, piece=32), machine, q, k, v, *others)
    right = 2 * expected(shape, q, k, v, *others)
    assert np.isnan(right[:, 2]).all() or mask is None
    np.testing.assert_allclose(got, right, rtol=2e-5, atol=5e-6)


@MACHINES
def test_rows_that_see_nothing_of_any_piece(machine: VectorMachine) -> None:
    shape = AttentionShape((2, 5, 9), (2, 9, 90), (2, 90, 32), (5, 90), 0.5, zeroes_hidden=True)
    q, k, v, mask = operands(shape)
    mask[1], mask[2, :40] = -np.inf, -np.inf
    config = choose(shape, machine)
    assert isinstance(config, AttentionConfig)
    got = result(replace(config, piece=32), machine, q, k, v, mask)
    right = 2 * np.nan_to_num(expected(shape, q, k, v, mask))
    assert not got[:, 1].any() and got[:, 2].any()
    np.testing.assert_allclose(got, right, rtol=2e-5, atol=5e-6)


@MACHINES
@pytest.mark.parametrize("queries", [40, 3])
def test_pieces_that_a_mask_hides_are_not_read(queries: int, machine: VectorMachine) -> None:
    """As places of a cache that no token has; a row that sees nothing is the mean of all values."""
    is_few = queries == 3
    keys, mask = ((2, 200, 16), (1, 200)) if is_few else ((2, 16, 200), (40, 200))
    shape = AttentionShape((2, queries, 16), keys, (2, 200, 32), mask, 0.5, is_few)
    config = choose(shape, machine)
    assert isinstance(config, AttentionConfig) and config.piece == (64 if is_few else 128)
    q, k, v, mask = operands(shape)
    mask[:, 50:] = -1e30
    v[:, 128:] = np.nan
    got = result(config, machine, q, k, v, mask)
    read = k[:, :128] if is_few else k[:, :, :128]
    right = 2 * expected(shape, q, read, v[:, :128], mask[:, :128])
    np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-5)
    v[:, 128:], mask[-1] = 0, -1e30
    got = result(config, machine, q, k, v, mask)
    np.testing.assert_allclose(got, 2 * expected(shape, q, k, v, mask), rtol=1e-5, atol=1e-5)


def test_keys_that_exceed_the_second_level_cache_have_pieces() -> None:
    long = AttentionShape((6, 1500, 64), (6, 64, 1500), (6, 1500, 64))
    assert (one := choose(long, AVX2)) is not None and one.piece == 192
    roomy = replace(AVX2, l2_bytes=2**21)
    assert (other := choose(long, roomy)) is not None and other.piece == 1500
    # a last piece of one key would be less than a vector
    odd = AttentionShape((1, 99, 64), (1, 64, 1921), (1, 1921, 64))
    assert (third := choose(odd, AVX2)) is not None and third.piece == 184


def test_each_product_has_lanes_of_its_own() -> None:
    """Heads of 4 have narrower vectors than their 21 keys."""
    config = choose(SHAPES["narrow heads"], AVX2)
    assert isinstance(config, AttentionConfig)
    assert (config.lanes, config.of_scores[2], config.of_values[2]) == (8, 8, 4)


def test_scores_are_read_once_before_their_product() -> None:
    """Their maximum is found where they are computed, and powers are added where they are."""
    shape = SHAPES["whole vectors"]
    config = choose(shape, AVX2)
    assert config is not None
    inputs = [te.placeholder(s, name=f"x{i}") for i, s in enumerate((shape.q, shape.k, shape.v))]
    text = schedule_kernel(te.create_prim_func([*inputs, config.meaning(*inputs)]), AVX2).script()
    assert text.count("for vector in") == 1


def test_hidden_keys_and_hidden_rows() -> None:
    """What a mask hides has no share; hidden rows are NaN, as in ONNX Runtime."""
    shape = SHAPES["a mask of all"]
    q, k, v, mask = operands(shape)
    mask[:, 5:], mask[4] = -np.inf, -np.inf
    mask[7, 1:] = np.finfo("float32").min
    got = result(shape, AVX2, q, k, v, mask)
    assert np.isnan(got[:, 4]).all()
    rest = [0, 1, 2, 3, 5, 6, 7, 8]
    right = 2 * expected(shape, q, k, v, mask)[:, rest]
    np.testing.assert_allclose(got[:, rest], right, rtol=2e-5, atol=5e-6)


def without_numbers(name: str) -> list[np.ndarray]:
    """Operands with a score that is no number, and a row whose keys are all hidden."""
    q, k, v, mask = operands(SHAPES[name])
    q[0, 0, 0] = np.nan
    mask[..., -1, 1:] = -np.inf
    mask[(0,) * (mask.ndim - 1)] = -np.inf
    return [q, k, v, mask]


@pytest.mark.variants(2)
@MACHINES
@pytest.mark.parametrize("name", ["a mask of all", "few queries"])
def test_shares_that_are_no_numbers_become_zero(name: str, machine: VectorMachine) -> None:
    """All shares of a row with a score that is none, or of one whose keys are all hidden."""
    shape, arrays = replace(SHAPES[name], zeroes_nan=True), without_numbers(name)
    got = result(shape, machine, *arrays)
    right = 2 * np.nan_to_num(expected(shape, *arrays))
    assert not right[:, 0].any() or name != "a mask of all"
    assert right[1, 1].any() and not got[0, 0].any()
    np.testing.assert_allclose(got, right, rtol=2e-5, atol=5e-6)


@pytest.mark.variants(2)
@MACHINES
@pytest.mark.parametrize("name", ["a mask of all", "few queries"])
def test_shares_of_hidden_rows_become_zero(name: str, machine: VectorMachine) -> None:
    """A row becomes zero if all its scores are -inf; a score that is NaN makes its row NaN."""
    shape, arrays = replace(SHAPES[name], zeroes_hidden=True), without_numbers(name)
    got = result(shape, machine, *arrays)
    q, k, _, mask = arrays
    scores = q.astype("float64") @ (k.swapaxes(-1, -2) if shape.in_place else k) * shape.scale
    is_hidden = (scores + mask == -np.inf).all(-1)
    right = 2 * np.where(is_hidden[..., None], 0, expected(shape, *arrays))
    assert np.isnan(right[0, 0]).all() and is_hidden.any() and np.isfinite(right[1, 1]).all()
    np.testing.assert_allclose(got, right, rtol=2e-5, atol=5e-6)


@pytest.mark.parametrize("sizes", [(4, 3, 5), (4, 9, 3), (0, 9, 9)], ids=str)
def test_no_template_for_rows_below_the_least_vector(sizes: tuple[int, int, int]) -> None:
    queries, keys, width = sizes
    shape = AttentionShape((queries, 6), (6, keys), (keys, width))
    assert choose(shape, AVX2) is None
    assert choose(replace(shape, k=(6, 16), v=(16, 16)), AVX2) is not None or not queries


def attention(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
    """As exporters write it, with a scale and a mask."""
    keys = op.permute_dims(k, [0, 2, 1])
    scores = op.multiply(op.matmul(q, keys), relax.const(np.float32(0.3)))
    return op.matmul(nn.softmax(op.add(scores, random_const(1, 1, 17))), v)


def names(mod: tvm.IRModule, lanes: int = 8) -> list[str]:
    after = BlockChannels({"cpu": replace(AVX2, lanes=lanes)})(mod)
    assert_same_numerics(mod, after)
    return [var.name_hint for var in after.get_global_vars() if var.name_hint != "main"]


def test_found_in_a_network() -> None:
    mod = module(attention, (2, 9, 12), (2, 17, 12), (2, 17, 16))
    assert names(mod) == ["attention"]


def zeroed(q: relax.Expr, k: relax.Expr, v: relax.Expr, zero: float = 0.0) -> relax.Expr:
    """As PyTorch exports it: shares that are no numbers become 0."""
    emit = relax.BlockBuilder.current().emit
    shares = emit(nn.softmax(emit(op.matmul(q, k))))
    return op.matmul(op.where(op.isnan(shares), relax.const(np.float32(zero)), shares), v)


def test_shares_that_are_zeroed_are_part_of_it() -> None:
    assert names(module(zeroed, (2, 9, 12), (2, 12, 17), (2, 17, 16))) == ["attention"]


def hidden(
    q: relax.Expr,
    k: relax.Expr,
    v: relax.Expr,
    mask: relax.Expr | None = None,
    *,
    axis: int = -1,
    least: float = -np.inf,
) -> relax.Expr:
    """As our reader writes PyTorch's `_safe_softmax`."""
    emit = relax.BlockBuilder.current().emit
    scores = emit(op.matmul(q, k))
    scores = scores if mask is None else emit(op.add(scores, mask))
    shares = emit(nn.softmax(scores))
    most = emit(op.max(scores, [axis], keepdims=True))
    is_hidden = emit(op.equal(most, relax.const(np.float32(least))))
    return op.matmul(op.where(is_hidden, relax.const(np.float32(0)), shares), v)


@pytest.mark.parametrize("masked", [False, True])
def test_rows_that_are_hidden_are_part_of_it(masked: bool) -> None:
    sizes = (2, 9, 12), (2, 12, 17), (2, 17, 16), (1, 9, 17)
    assert names(module(hidden, *sizes[: 3 + masked])) == ["attention"]


@pytest.mark.parametrize("how", [{"axis": 1}, {"least": np.inf}, {"least": 0.0}], ids=str)
def test_other_choices_are_not(how: dict[str, Any]) -> None:
    sizes = (2, 9, 12), (2, 12, 17), (2, 17, 16)
    assert "attention" not in names(module(lambda *x: hidden(*x, **how), *sizes))


def test_shares_that_become_another_number_stay() -> None:
    sizes = (2, 9, 12), (2, 12, 17), (2, 17, 16)
    assert "attention" not in names(module(lambda *x: zeroed(*x, zero=1.0), *sizes))


def test_few_queries_read_keys_as_they_are() -> None:
    mod = module(attention, (2, 2, 12), (2, 17, 12), (2, 17, 16))
    after = BlockChannels({"cpu": AVX2})(mod)
    assert "permute_dims" not in after.script() and names(mod) == ["attention"]


def test_shares_that_others_read_stay() -> None:
    def body(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
        emit = relax.BlockBuilder.current().emit
        shares = emit(nn.softmax(emit(op.matmul(q, k))))
        return op.add(op.matmul(shares, v), op.sum(shares, [2], keepdims=True))

    mod = module(body, (2, 9, 12), (2, 12, 17), (2, 17, 16))
    assert "attention" not in names(mod)


def shared_keys(masks: int = 1, queries: int = 1, mask_axes: int = 4) -> tvm.IRModule:
    """Queries of six heads, two of which share keys and values, as exporters write it."""

    def repeated(x: relax.Expr, width: int) -> relax.Expr:
        emit = relax.BlockBuilder.current().emit
        wide = emit(op.broadcast_to(emit(op.expand_dims(x, 2)), (1, 3, 2, 17, width)))
        return emit(op.reshape(wide, (1, 6, 17, width)))

    def body(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
        keys = relax.BlockBuilder.current().emit(op.permute_dims(repeated(k, 12), [0, 1, 3, 2]))
        size = (1, masks, queries, 17)[4 - mask_axes :]
        scores = op.add(op.matmul(q, keys), random_const(*size))
        return op.matmul(nn.softmax(scores), repeated(v, 16))

    return module(body, (1, 6, queries, 12), (1, 3, 17, 12), (1, 3, 17, 16))


def test_heads_that_share_keys_are_queries_of_one_head() -> None:
    mod = shared_keys()
    text = BlockChannels({"cpu": AVX2})(mod).script()
    assert names(mod) == ["attention"]
    assert "broadcast_to" not in text and "permute_dims" not in text


@pytest.mark.parametrize("queries", [2, 4, 5, 19])
@pytest.mark.parametrize("mask_axes", [1, 2, 3, 4])
def test_keys_of_several_heads_are_not_repeated(queries: int, mask_axes: int) -> None:
    """Few queries read them as they are; for many each is transposed once."""
    mod = shared_keys(queries=queries, mask_axes=mask_axes)
    blocked = BlockChannels({"cpu": AVX2})(mod)
    text = blocked.script()
    assert names(mod) == ["attention"]
    assert "broadcast_to" not in text
    assert ("permute_dims" in text) == (queries > 4)
    assert_same_numerics(mod, blocked)


def test_heads_with_masks_of_their_own_keep_their_keys() -> None:
    mod = shared_keys(masks=6)
    assert names(mod) == ["attention"]
    assert "broadcast_to" in BlockChannels({"cpu": AVX2})(mod).script()


def test_its_operators_are_one_group() -> None:
    """Searches place them together, and know what the kernel costs."""
    mod = Canonicalise()(module(zeroed, (2, 40, 16), (2, 16, 40), (2, 40, 16)))
    level = kernels_alone(mod, cpu_processor(TARGET, 1))
    (group,) = level.graph.groups
    assert [operator.kind for operator in group.operators] == [
        *("matmul", "nn.softmax", "isnan", "where", "matmul")
    ]
    assert group.is_joint and group.multiply_adds == 2 * 2 * 40 * 40 * 16
    (features,) = level.features(group.name)
    assert isinstance(features, AttentionFeatures)
    assert features.flops == 2 * group.multiply_adds and features.out_bytes == 4 * 2 * 40 * 16
    assert 0 < sum(features.own_phases().values()) < 1e5 and features.matrices == 2


def test_it_stays_in_one_region() -> None:
    """Its values come from another processor: it waits as a whole."""

    def body(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
        values = relax.BlockBuilder.current().emit(op.exp(v))
        return zeroed(q, k, values)

    mod = Canonicalise()(module(body, (2, 9, 12), (2, 12, 17), (2, 17, 16)))
    calls = [name for name in Calls(mod["main"]).calls if name != "exp"]
    placed = {**dict.fromkeys(calls, "cpu"), "exp": "gpu"}
    order = [*calls[:-1], "exp", calls[-1]]
    apart = form_regions(mod["main"], placed, order)
    assert [region.operators for region in apart if region.processor == "cpu"] == [
        *(tuple(calls[:-1]), (calls[-1],))
    ]
    joint = form_regions(mod["main"], placed, order, [calls])
    assert [(region.processor, region.operators) for region in joint] == [
        *(("gpu", ("exp",)), ("cpu", tuple(calls)))
    ]
