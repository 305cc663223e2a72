"""Networks for inputs of any length: padded to one of a few sizes where that is harmless."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from helpers.relax_helpers import answers, module
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.api.cli.values import length
from tvm_stretch.base.errors import InputError
from tvm_stretch.network.properties.padding import masks_of
from tvm_stretch.plan.search.lengths import ladder
from tvm_stretch.read import load_network
from tvm_stretch.targets.kernels.top_k import Running, running_call

op, nn = relax.op, relax.op.nn

WIDTH = 8


def const(*shape: int) -> relax.Expr:
    return relax.const(np.random.default_rng(len(shape)).standard_normal(shape).astype("float32"))


def masked(x: relax.Expr, mask: relax.Expr, much: float = 1e9) -> relax.Expr:
    """Self-attention over positions that the mask does not hide, and their mean."""
    hidden = op.multiply(op.subtract(relax.const(1.0), mask), relax.const(-much))
    scores = op.matmul(op.matmul(x, const(WIDTH, WIDTH)), op.permute_dims(x, [0, 2, 1]))
    shares = nn.softmax(op.add(scores, op.expand_dims(hidden, 1)), axis=-1)
    y = nn.layer_norm(op.matmul(shares, x), const(WIDTH), const(WIDTH), [-1])
    counts = op.expand_dims(mask, 2)
    mean = op.divide(op.sum(op.multiply(y, counts), [1]), op.sum(counts, [1]))
    return relax.Tuple([y, mean])


def attends(x: relax.Expr) -> relax.Expr:
    return op.matmul(nn.softmax(op.matmul(x, op.permute_dims(x, [0, 2, 1]))), x)


def causal(x: relax.Expr) -> relax.Expr:
    """Attention of each position to itself and the ones before."""
    n = x.ty.shape.values[1]
    scores = op.matmul(x, op.permute_dims(x, [0, 2, 1]))
    past = op.tril(op.ones((1, n, n), "float32"))
    hidden = op.multiply(op.subtract(relax.const(1.0), past), relax.const(-1e9))
    return op.matmul(nn.softmax(op.add(scores, hidden)), x)


def convolved(padding: Any, stride: int = 1) -> Callable[..., relax.Expr]:
    return lambda x: nn.conv1d(x, const(4, WIDTH, 3), stride, padding)


def joined(x: relax.Expr, last: bool) -> relax.Expr:
    start = const(1, 2, WIDTH)
    return nn.relu(op.concat([start, x] if last else [x, start], 1))


def heads(x: relax.Expr) -> relax.Expr:
    split = op.reshape(x, (1, x.ty.shape.values[1], 2, WIDTH // 2))
    return nn.softmax(op.permute_dims(split, [0, 2, 1, 3]), -1)


def looked_up(x: relax.Expr, *places: int) -> relax.Expr:
    return op.take(x, relax.const(np.array(places)), 1)


ROWS, BATCH = [(1, "n", WIDTH)], [("n", 3, 6, 6)]
CHANNELS = [(1, WIDTH, "n")]
HARMLESS: dict[str, tuple[Callable[..., Any], list[Any], dict[str, int]]] = {
    "rows": (lambda x: nn.gelu(op.matmul(x, const(WIDTH, 5))), ROWS, {}),
    "normalised": (lambda x: nn.rms_norm(x, const(WIDTH), [-1]), ROWS, {}),
    "masked": (masked, [*ROWS, (1, "n")], {"x1": 0}),
    "hidden by ten thousand": (lambda x, m: masked(x, m, 1e4), [*ROWS, (1, "n")], {"x1": 0}),
    "masked by ones": (lambda x, m: masked(x, op.subtract(relax.const(1.0), m)),
                       [*ROWS, (1, "n")], {"x1": 1}),
    "causal": (causal, ROWS, {}),
    "causal convolution": (convolved((2, 0)), CHANNELS, {}),
    "products of zeros": (lambda x: op.matmul(op.permute_dims(x, [0, 2, 1]), nn.relu(x)), ROWS,
                          {"x0": 0}),
    "one tap": (lambda x: nn.conv1d(x, const(4, WIDTH, 1)), CHANNELS, {}),
    "heads": (heads, ROWS, {}),
    "first row": (lambda x: op.strided_slice(x, [1], [0], [1]), ROWS, {}),
    "looked up": (lambda x: looked_up(x, 0, 1), ROWS, {}),
    "running sums": (lambda x: op.multiply(op.cumsum(x, 1), x), ROWS, {}),
    "after a start": (lambda x: joined(x, True), ROWS, {}),
    "batch": (lambda x: op.mean(nn.relu(nn.conv2d(x, const(4, 3, 3, 3), padding=1)), [2, 3]),
              BATCH, {}),
    "pooled batch": (lambda x: nn.adaptive_avg_pool2d(nn.max_pool2d(x, (2, 2)), 1), BATCH, {}),
}  # fmt: skip
HARMFUL: dict[str, tuple[Callable[..., Any], list[Any], str]] = {
    "attention": (attends, ROWS, r"softmax.*shares weight with padding that no mask hides"),
    "mean": (lambda x: op.mean(x, [1]), ROWS, "mean.*mixes padding"),
    "sum": (lambda x: op.sum(op.add(x, relax.const(1.0)), [1]), ROWS, "sum.*mixes padding"),
    "product of columns": (lambda x: op.matmul(op.exp(op.permute_dims(x, [0, 2, 1])), op.exp(x)),
                           ROWS, "adds up padding"),
    "convolution": (convolved((1, 1)), CHANNELS, "looks ahead"),
    "last row": (lambda x: op.strided_slice(x, [1], [-1], [2**31]), ROWS, "other positions"),
    "before an end": (lambda x: joined(x, False), ROWS, "after padding"),
    "sorted": (lambda x: op.sort(x, 1), ROWS, "not known to keep positions apart"),
    "flattened": (lambda x: op.reshape(x, (WIDTH, x.ty.shape.values[1])), ROWS, "rearranges"),
    "weakly hidden": (lambda x, m: masked(x, m, 100.0), [*ROWS, (1, "n")], "no mask hides"),
    "length of the network": (lambda x: op.add(x, op.sum(op.ones(x.ty.shape, "float32"))),
                              ROWS, "constants that change"),
}  # fmt: skip


def both(body: Callable[..., Any], shapes: list[Any]) -> list[tvm.IRModule]:
    return [load_network(module(body, *shapes), sizes={"n": n}) for n in (5, 8)]


@pytest.mark.variants(2)
@pytest.mark.parametrize("name", HARMLESS)
def test_padding_is_harmless(name: str) -> None:
    """What counts of the answer is the same, whatever else padding holds."""
    body, shapes, masks = HARMLESS[name]
    small, large = both(body, shapes)
    found = masks_of(small["main"], large["main"], "n")
    assert dict.fromkeys(found.names, found.fill if found.names else 0) == masks
    assert found.hiding == {one for one in masks if one != "x0"}
    rng = np.random.default_rng(0)
    few, many = [], []
    for place, (one, other) in enumerate(
        zip(small["main"].params, large["main"].params, strict=True)
    ):
        sizes = [tuple(map(int, p.ty.shape.values)) for p in (one, other)]
        fill = masks.get(one.name)
        value = rng.standard_normal(sizes[0]) if place == 0 else np.ones(sizes[0]) - fill
        padded = rng.standard_normal(sizes[1]) if fill is None else np.full(sizes[1], float(fill))
        padded[tuple(map(slice, sizes[0]))] = value
        few.append(value.astype("float32"))
        many.append(padded.astype("float32"))
    for want, got in zip(answers(small, *few), answers(large, *many), strict=True):
        counts = got[tuple(map(slice, want.shape))]
        np.testing.assert_allclose(counts, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", HARMFUL)
def test_padding_would_change_the_answer(name: str) -> None:
    body, shapes, reason = HARMFUL[name]
    small, large = both(body, shapes)
    with pytest.raises(InputError, match=f"does not change by padding.*({reason})"):
        masks_of(small["main"], large["main"], "n")


def test_sums_from_the_end_would_change() -> None:
    def sums(x: relax.Expr) -> relax.Expr:
        return running_call(relax.BlockBuilder.current(), x, Running(backwards=True))

    small, large = (load_network(module(sums, (1, n, WIDTH))) for n in (5, 8))
    with pytest.raises(InputError, match=r"running\.sum.*adds up padding that no mask hides"):
        masks_of(small["main"], large["main"], "n")


@pytest.fixture(scope="module")
def model() -> ts.Model:
    network = module(masked, (1, "n", WIDTH), (1, "n"))
    return ts.compile(network, ["llvm"], lengths={"n": ts.Length(1, 9)}, cpu_threads=1)


def given(n: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    mask = np.ones((1, n), "float32")
    mask[:, n // 2 + 1 :] = 0
    return [rng.standard_normal((1, n, WIDTH)).astype("float32"), mask]


@pytest.mark.parametrize("where", ["here", "loaded", "device"])
def test_any_length_runs(model: ts.Model, where: str, tmp_path: Path) -> None:
    if where == "loaded":
        model.export(tmp_path / "model.so")
        model = ts.load(tmp_path / "model.so")
    if where == "device":
        model = ts.connect(tvm.rpc.LocalSession(), "pixel").load(model)
    assert model.lengths[0] == {"n": 1} and model.lengths[-1] == {"n": 9}
    for n in (1, 2, 5, 9) if where == "here" else (5,):
        network = load_network(module(masked, (1, n, WIDTH), (1, n)))
        for got, want in zip(model(*given(n)), answers(network, *given(n)), strict=True):
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert model.run_async(*given(4)).result()[0].shape == (1, 4, WIDTH)


def test_other_arrays(model: ts.Model) -> None:
    """PyTorch in, PyTorch out, also where inputs are padded."""
    torch = pytest.importorskip("torch")
    result = model(*map(torch.from_numpy, given(5)))
    assert isinstance(result[0], torch.Tensor)
    np.testing.assert_array_equal(result[0].numpy(), model(*given(5))[0])


@pytest.mark.parametrize("n", [0, 10])
def test_lengths_beyond_the_limits_are_refused(model: ts.Model, n: int) -> None:
    with pytest.raises(InputError, match="n may be 1 to 9, the same in all inputs"):
        model(np.zeros((1, n, WIDTH), "float32"), np.ones((1, n), "float32"))


def test_wrong_inputs_are_refused(model: ts.Model) -> None:
    x, mask = given(4)
    with pytest.raises(InputError, match="the same in all inputs"):
        model(x, mask[:, :3])
    with pytest.raises(InputError, match="got float64"):
        model(x.astype("float64"), mask)
    with pytest.raises(InputError, match="in each row of the mask 'x1', got a row of 0"):
        model(x, 0 * mask)
    with pytest.raises(InputError, match="one of the lengths"):
        model.run_steps(2, np.stack([x, x]), mask)


def test_a_batch_of_any_size() -> None:
    body = HARMLESS["batch"][0]
    lengths = {"n": ts.Length(1, 4, waste=0.1), "rows": [6, 7]}
    network = module(body, ("n", 3, "rows", 6))
    model = ts.compile(network, ["llvm"], lengths=lengths, cpu_threads=1)
    assert len(model.lengths) <= 8
    for batch, rows in ((3, 7), (2, 6), (4, 6), (1, 7)):
        x = np.random.default_rng(0).standard_normal((batch, 3, rows, 6)).astype("float32")
        (want,) = answers(load_network(module(body, x.shape)), x)
        np.testing.assert_allclose(model(x), want, rtol=1e-4, atol=1e-5)


def test_sizes_follow_predicted_times() -> None:
    flat = ladder(ts.Length(1, 512), [1, 22, 512], [9.0, 9.0, 12.0])
    assert flat == [1, 512]  # padding costs less than the waste
    steep = ladder(ts.Length(1, 512), [1, 22, 512], [1.0, 22.0, 512.0])
    for few, many in itertools.pairwise(steep):
        assert many <= 1.5 * (few + 1) + 1e-6
    assert ladder(ts.Length(3, 4), [3, 3, 4], [1.0, 1.0, 1.0]) == [3, 4]


@pytest.mark.parametrize(
    "limits", [(0, 4), (-1, 4), (4, 4), (5, 4), (1, 2**40), (1.0, 4), (1, 4, 0), (1, 4, "much")]
)
def test_wrong_limits(limits: Any) -> None:
    with pytest.raises(InputError, match="of a Length"):
        ts.Length(*limits)


def test_the_command_takes_any_length() -> None:
    assert length("n=1..512") == ("n", slice(1, 512))
    assert length("n=1,512") == ("n", (1, 512))


def test_inputs_of_any_layout(model: ts.Model) -> None:
    """Strides, types of masks, and masks that are no numbers of the network."""
    x, mask = given(6)
    want = model(x, mask)
    turned = np.ascontiguousarray(x.transpose(2, 1, 0)).transpose(2, 1, 0)
    spread = np.zeros((1, 12), "float32")[:, ::2]
    spread[:] = mask
    for got in (model(turned, mask), model(x[:, ::-1][:, ::-1], spread)):
        for one, other in zip(got, want, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", ["bool", "int64", "float16"])
def test_masks_of_any_type(dtype: str) -> None:
    def body(x: relax.Expr, mask: relax.Expr) -> relax.Expr:
        return masked(x, op.astype(mask, "float32"))

    types = ["float32", dtype]
    network = module(body, (1, "n", WIDTH), (1, "n"), dtype=types)
    model = ts.compile(network, ["llvm"], lengths={"n": ts.Length(2, 9)}, cpu_threads=1)
    for n in (2, 5, 7):
        x, mask = given(n)[0], given(n)[1].astype(dtype)
        exact = load_network(module(body, x.shape, (1, n), dtype=types))
        for got, want in zip(model(x, mask), answers(exact, x, mask), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match="counts in each row of the mask"):
        model(x, np.zeros_like(mask))


def test_two_dimensions_of_any_size() -> None:
    lengths = {"b": ts.Length(1, 3), "n": ts.Length(2, 9)}
    network = module(lambda x: nn.softmax(x, -1), ("b", "n", WIDTH))
    model = ts.compile(network, ["llvm"], lengths=lengths, cpu_threads=1)
    for rows, n in itertools.product((1, 2, 3), (2, 3, 7, 9)):
        x = np.random.default_rng(n).standard_normal((rows, n, WIDTH)).astype("float32")
        (want,) = answers(load_network(module(lambda x: nn.softmax(x, -1), x.shape)), x)
        np.testing.assert_allclose(model(x), want, rtol=1e-5, atol=1e-6)
