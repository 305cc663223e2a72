"""Bands of tokens: the same numbers, one exchange for each attention, clear refusals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from helpers.relax_helpers import assert_same_numerics, module, random_const
from helpers.search_helpers import costs
from tvm import relax

from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.network.emitting.row_branches import plan_row_split
from tvm_stretch.network.operators import Operators
from tvm_stretch.passes.branch_segments import branch_segments
from tvm_stretch.passes.name_operators import NameOperators
from tvm_stretch.plan.search import search
from tvm_stretch.plan.search.pieces import Network
from tvm_stretch.plan.splits import RowSplit
from tvm_stretch.read import load_network

TOKENS, WIDTH, HEADS = 7, 16, 2
Body = Callable[[relax.Expr], relax.Expr]


def dense(x: relax.Expr, inputs: int, outputs: int, seed: int, bias: bool = True) -> relax.Expr:
    x = relax.op.matmul(x, random_const(inputs, outputs, seed=seed))
    return relax.op.add(x, random_const(outputs, seed=seed)) if bias else x


def by_head(x: relax.Expr, tokens: int, width: int) -> relax.Expr:
    x = relax.op.reshape(x, (1, tokens, HEADS, width // HEADS))
    return relax.op.permute_dims(x, [0, 2, 1, 3])


def normalised(x: relax.Expr) -> relax.Expr:
    x = relax.op.subtract(x, relax.op.mean(x, [2], keepdims=True))
    square = relax.op.mean(relax.op.multiply(x, x), [2], keepdims=True)
    return relax.op.divide(x, relax.op.sqrt(relax.op.add(square, relax.const(1e-5))))


def attention(
    x: relax.Expr, tokens: int, width: int, seed: int, mask: relax.Expr | None = None
) -> relax.Expr:
    q, k, v = (by_head(dense(x, width, width, seed + i), tokens, width) for i in range(3))
    scores = relax.op.matmul(q, relax.op.permute_dims(k, [0, 1, 3, 2]))
    scores = relax.op.divide(scores, relax.const(3.0))
    scores = scores if mask is None else relax.op.add(scores, mask)
    y = relax.op.matmul(relax.op.nn.softmax(scores, 3), v)
    y = relax.op.reshape(relax.op.permute_dims(y, [0, 2, 1, 3]), (1, tokens, width))
    return dense(y, width, width, seed + 3)


def layer(
    x: relax.Expr,
    seed: int,
    *,
    first: bool = True,
    tokens: int = TOKENS,
    width: int = WIDTH,
    mask: relax.Expr | None = None,
) -> relax.Expr:
    """A layer of a transformer; ``first``: normalisations come before products, not after sums."""
    before, after = (normalised, lambda y: y) if first else (lambda y: y, normalised)
    x = after(relax.op.add(x, attention(before(x), tokens, width, seed, mask)))
    inner = relax.op.nn.gelu(dense(before(x), width, 2 * width, seed + 4))
    return after(relax.op.add(x, dense(inner, 2 * width, width, seed + 5)))


def network(body: Body, *shape: int) -> tvm.IRModule:
    return NameOperators()(module(body, shape or (1, TOKENS, WIDTH)))


def whole(mod: tvm.IRModule, ratios: tuple[float, ...]) -> RowSplit:
    operators = Operators(mod["main"])
    return RowSplit(operators.params[0], operators.outputs[0], ratios)


@pytest.mark.parametrize(
    "count, body, ratios",
    [
        (1, lambda x: relax.op.add(x, attention(x, TOKENS, WIDTH, 1)), (2, 4, 1)),
        pytest.param(2, lambda x: layer(layer(x, 1), 8), (1, 1), marks=pytest.mark.full),
        pytest.param(
            *(2, lambda x: layer(layer(x, 1, first=False), 8, first=False), (2, 4, 1)),
            marks=pytest.mark.full,
        ),
    ],
)
def test_layers_exchange_keys_and_values_alone(
    count: int, body: Body, ratios: tuple[float, ...]
) -> None:
    mod = network(body)
    after, (made,) = branch_segments(mod, [whole(mod, ratios)])
    joins = [op for op in Operators(after["main"]) if op.kind == "concat"]
    assert [op.name for op in joins] == list(made.joins)
    assert [op.shape for op in joins] == [(1, TOKENS, WIDTH)] * (2 * count + 1)
    assert_same_numerics(mod, after)


def by_split(x: relax.Expr) -> list[relax.Expr]:
    """As GPT-2 takes queries, keys and values of one product apart."""
    parts = relax.BlockBuilder.current().emit(relax.op.split(x, [WIDTH, 2 * WIDTH], 2))
    return [by_head(parts[i], TOKENS, WIDTH) for i in range(3)]


def by_slices(x: relax.Expr) -> list[relax.Expr]:
    """As timm does."""
    x = relax.op.reshape(x, (1, TOKENS, 3, HEADS, WIDTH // HEADS))
    x = relax.BlockBuilder.current().emit(relax.op.permute_dims(x, [2, 0, 3, 1, 4]))
    return [relax.op.squeeze(relax.op.strided_slice(x, [0], [i], [i + 1]), [0]) for i in range(3)]


def turned(x: relax.Expr) -> relax.Expr:
    """A rotary embedding, and keys that two heads share, as in Qwen2."""
    cut = [relax.op.strided_slice(x, [3], [i], [i + 4]) for i in (0, 4)]
    other = relax.op.concat([relax.op.negative(cut[1]), cut[0]], 3)
    cos, sin = (random_const(1, 1, TOKENS, 8, seed=seed) for seed in (5, 6))
    x = relax.op.add(relax.op.multiply(x, cos), relax.op.multiply(other, sin))
    x = relax.op.expand_dims(relax.BlockBuilder.current().emit(x), [2])
    x = relax.op.broadcast_to(x, (1, HEADS, 2, TOKENS, 8))
    return relax.op.reshape(x, (1, 2 * HEADS, TOKENS, 8))


@pytest.mark.parametrize("apart", [by_split, pytest.param(by_slices, marks=pytest.mark.full)])
def test_one_product_may_make_queries_keys_and_values(
    apart: Callable[[relax.Expr], list[relax.Expr]],
) -> None:
    def body(x: relax.Expr) -> relax.Expr:
        made = relax.BlockBuilder.current().emit(dense(x, WIDTH, 3 * WIDTH, 1))
        q, k, v = apart(made)
        q, k = turned(q), turned(k)
        v = relax.op.concat([v, v], 1)
        mask = relax.const(np.triu(np.full((TOKENS, TOKENS), -np.inf, "float32"), 1))
        scores = relax.op.add(relax.op.matmul(q, relax.op.permute_dims(k, [0, 1, 3, 2])), mask)
        y = relax.op.matmul(relax.op.nn.softmax(scores, 3), v)
        return relax.op.reshape(relax.op.permute_dims(y, [0, 2, 1, 3]), (1, TOKENS, 2 * WIDTH))

    mod = network(body)
    after, (made,) = branch_segments(mod, [whole(mod, (2, 5))])
    # the turned keys and the product, of which values are a part
    assert len(made.joins) == 3
    # queries are made of the branch's own tokens
    rows = {op.shape[2] for op in Operators(after["main"]) if op.kind == "nn.softmax"}
    assert rows == {2, 5}
    assert_same_numerics(mod, after)


def test_rows_are_not_cut_or_put_side_by_side() -> None:
    for body in (
        lambda x: relax.op.strided_slice(x, [1], [0], [TOKENS - 1]),
        lambda x: relax.op.concat([x, relax.op.nn.relu(x)], 1),
    ):
        mod = network(lambda x, body=body: body(relax.op.nn.relu(x)))
        with pytest.raises(UnsupportedError, match="rows"):
            plan_row_split(Operators(mod["main"]), whole(mod, (1, 1)))


def test_products_come_before_the_exchange() -> None:
    """So branches meet once for keys and values."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, TOKENS, WIDTH), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            made = []
            for seed in range(3):
                product = builder.emit(dense(x, WIDTH, WIDTH, seed, bias=False))
                made.append(builder.emit(by_head(product, TOKENS, WIDTH)))
            q, k, v = made
            scores = builder.emit(relax.op.matmul(q, relax.op.permute_dims(k, [0, 1, 3, 2])))
            y = builder.emit(relax.op.matmul(relax.op.nn.softmax(scores, 3), v))
            y = relax.op.reshape(relax.op.permute_dims(y, [0, 2, 1, 3]), (1, TOKENS, WIDTH))
            y = builder.emit_output(y)
        builder.emit_func_output(y)
    mod = NameOperators()(builder.get())
    _, (result,) = branch_segments(mod, [whole(mod, (1, 1))])
    order = [binding.var.name for binding in result.bindings]
    assert result.joins[:2] == ("matmul1", "matmul2")
    assert order.index("matmul2.r1") < order.index("matmul1")


def test_constants_of_tokens_are_cut() -> None:
    places = random_const(1, TOKENS, WIDTH)
    mod = network(lambda x: relax.op.nn.relu(relax.op.add(x, places)))
    after, _ = branch_segments(mod, [whole(mod, (3, 4))])
    assert [op.shape for op in Operators(after["main"]) if op.kind == "add"] == [
        (1, 3, WIDTH),
        (1, 4, WIDTH),
    ]
    assert_same_numerics(mod, after)


@pytest.mark.parametrize("rows", [1, TOKENS])
def test_a_mask_from_outside_is_read_like_a_constant(rows: int) -> None:
    """Each branch reads its own rows of it, or all of it where all rows are equal."""
    shapes = (1, TOKENS, WIDTH), (1, 1, rows, TOKENS)

    def body(x: relax.Expr, mask: relax.Expr) -> relax.Expr:
        return relax.op.add(x, attention(x, TOKENS, WIDTH, 1, relax.op.exp(mask)))

    mod = NameOperators()(module(body, *shapes))
    after, _ = branch_segments(mod, [whole(mod, (2, 5))])
    operators = Operators(after["main"])
    read = [op.shape[2] for op in operators if op.kind == "strided_slice" and len(op.shape) == 4]
    assert read == ([] if rows == 1 else [2, 5])
    assert [op.name for op in operators if op.kind == "exp"] == ["exp"]
    assert_same_numerics(mod, after)


def test_rows_of_a_batch_are_tokens_too() -> None:
    mod = network(lambda x: relax.op.nn.relu(dense(x, WIDTH, 8, 1)), 5, WIDTH)
    plan = plan_row_split(Operators(mod["main"]), whole(mod, (2, 3)))
    assert [rows["relu"] for rows in plan.rows] == [(0, 2), (2, 5)]
    assert plan.bytes_read == (2 * WIDTH * 4, 3 * WIDTH * 4)
    assert_same_numerics(mod, branch_segments(mod, [whole(mod, (2, 3))])[0])


@pytest.mark.parametrize(
    "body, reason",
    [
        (lambda x: relax.op.mean(x, [1], keepdims=True), "mean 'mean': each of its results"),
        (lambda x: relax.op.nn.softmax(x, 1), "softmax 'softmax': each of its results"),
        (lambda x: relax.op.reshape(x, (1, WIDTH, TOKENS)), "reshape 'reshape': each of its"),
        (lambda x: relax.op.permute_dims(x, [0, 2, 1]), "'permute_dims', whose rows"),
        (lambda x: relax.op.matmul(x, random_const(1, TOKENS, TOKENS)), "matmul 'matmul': each"),
        (lambda x: relax.op.concat([x, x], axis=1), "concat 'concat': each of its results"),
    ],
)
def test_operators_that_need_all_tokens_are_refused(body: Body, reason: str) -> None:
    mod = network(body, 1, TOKENS, TOKENS if "matmul" in reason else WIDTH)
    with pytest.raises(UnsupportedError, match=reason):
        branch_segments(mod, [whole(mod, (1, 1))])


@pytest.mark.parametrize("first", [pytest.param(True, marks=pytest.mark.full), False])
def test_a_search_splits_all_layers_at_once(first: bool) -> None:
    """A normalisation after a sum is a kernel with meeting points inside, which are left out."""

    def body(x: relax.Expr) -> relax.Expr:
        for seed in (1, 8):
            x = layer(x, seed, first=first, tokens=64, width=64)
        return x

    mod = load_network(module(body, (1, 64, 64)))
    known = costs(1.0, 1.0, meeting=2_000)
    assert all(piece.start for piece in Network(mod, known.kernels).pieces)
    rival, *_ = search(mod, known).rivals
    (split,) = rival.plan.splits
    operators = Operators(mod["main"])
    assert (split.start, split.end) == (operators.params[0], operators.outputs[0])
    np.testing.assert_allclose(split.ratios, (32, 32), atol=1)


def test_a_mask_that_all_layers_read_leaves_meeting_points_between_them() -> None:
    def body(x: relax.Expr, visible: relax.Expr) -> relax.Expr:
        mask = relax.op.where(visible, relax.const(0.0), relax.const(-1e9))
        mask = relax.BlockBuilder.current().emit(mask)
        for seed in (1, 8):
            x = layer(x, seed, tokens=64, width=64, mask=mask)
        return x

    mod = module(body, (1, 64, 64), (1, 1, 1, 64), dtype=("float32", "bool"))
    mod, known = load_network(mod), costs(1.0, 1.0, meeting=2_000)
    network = Network(mod, known.kernels)
    assert network.aside == {mod["main"].params[1].name, "where"}
    assert [piece.start for piece in network.pieces].count("") == 1  # the mask is made there
    rival, *_ = search(mod, known).rivals
    (split,) = rival.plan.splits
    assert split.end == Operators(mod["main"]).outputs[0]
