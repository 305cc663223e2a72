"""Networks with fewer channels and factors of low rank, cut and fitted."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
import tvm
from helpers.stretch_networks import BLOCKS, SIZE, conv, network
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.base.errors import InputError, UnsupportedError
from tvm_stretch.lab.training import to_torch
from tvm_stretch.network.operators import Operators
from tvm_stretch.passes.canonicalise import CanonicaliseTrainable
from tvm_stretch.passes.low_rank import _halves, low_rank
from tvm_stretch.passes.prune_channels import channel_groups, prune_channels

IMAGES = np.random.default_rng(0).standard_normal((96, 3, SIZE, SIZE)).astype("float32")
OTHERS = np.random.default_rng(1).standard_normal((32, 3, SIZE, SIZE)).astype("float32")


def answers(mod: tvm.IRModule, images: np.ndarray = OTHERS) -> np.ndarray:
    net = to_torch(mod).eval()
    with torch.no_grad():
        return net(torch.as_tensor(images)).numpy()


def off(mod: tvm.IRModule, other: tvm.IRModule) -> float:
    """The difference of two networks on other images, relative to the spread of the answers."""
    wanted = answers(other)
    return float(np.abs(answers(mod) - wanted).mean() / wanted.std())


def work(mod: tvm.IRModule) -> int:
    return sum(operator.multiply_adds for operator in Operators(mod["main"]))


def residual(widths: tuple[int, ...], flat: bool = True, dead: float = 1.0) -> tvm.IRModule:
    """A stem, and a sum of it with two convolutions; some of its channels weigh ``dead``."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 3, SIZE, SIZE), "float32"))

    def layer(value: relax.Expr, width: int, seed: int) -> relax.Expr:
        made = builder.emit(conv(value, width, 3, seed=seed))
        scale = np.where(np.arange(width) % 2, 1.0, dead).astype("float32").reshape(1, -1, 1, 1)
        return builder.emit(relax.op.multiply(made, relax.const(scale))) if dead != 1 else made

    with builder.function("main", [x]):
        with builder.dataflow():
            stem = builder.emit(relax.op.nn.relu(layer(x, widths[0], 1)))
            y = builder.emit(relax.op.nn.relu(layer(stem, widths[1], 2)))
            y = builder.emit(relax.op.add(layer(y, widths[0], 3), stem))
            mean = builder.emit(relax.op.mean(y, [2, 3], keepdims=not flat))
            weight = np.random.default_rng(4).standard_normal((widths[0], 5)).astype("float32")
            dense = relax.op.matmul(mean, relax.const(weight)) if flat else mean
            out = builder.emit_output(dense)
        builder.emit_func_output(out)
    return CanonicaliseTrainable()(builder.get())


def test_channels_of_a_sum_go_together() -> None:
    mod = residual((16, 24))
    groups = channel_groups(Operators(mod["main"]))
    assert sorted((group.channels, len(group.makers)) for group in groups) == [(16, 2), (24, 1)]
    smaller, sources = prune_channels(mod, 0.5)
    operators = Operators(smaller["main"])
    widths = [op.shape[1] for op in operators if op.kind == "nn.conv2d"]
    assert widths == [8, 16, 8], "multiples of 8"
    assert operators[operators.outputs[0]].shape == (1, 5)
    (joined,) = (group.makers for group in groups if len(group.makers) > 1)
    first, second = (sources[maker].channels.tolist() for maker in joined)
    assert first == second


@pytest.mark.parametrize(
    ("kind", "widths"),
    [("one channel", [8, 8, 1, 16]), ("padded", [16, 24, 16]), ("joined", [16, 24, 8, 16])],
)
def test_summands_of_unequal_width(kind: str, widths: list[int]) -> None:
    """A map of one channel is added to all; zeros or other channels make a shortcut wider."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 3, SIZE, SIZE), "float32"))

    def layer(value: relax.Expr, width: int, seed: int) -> relax.Expr:
        return builder.emit(conv(value, width, 3, seed=seed))

    with builder.function("main", [x]):
        with builder.dataflow():
            stem = builder.emit(relax.op.nn.relu(layer(x, 16, 1)))
            y = layer(stem, 16 if kind == "one channel" else 24, 2)
            if kind == "one channel":
                shortcut = layer(stem, 1, 3)
            elif kind == "padded":
                shortcut = builder.emit(relax.op.nn.pad(stem, [0, 0, 0, 8, 0, 0, 0, 0]))
            else:
                shortcut = builder.emit(relax.op.concat([stem, layer(stem, 8, 3)], 1))
            y = builder.emit(relax.op.nn.relu(builder.emit(relax.op.add(y, shortcut))))
            y = builder.emit(relax.op.mean(builder.emit(relax.op.nn.relu(layer(y, 24, 4))), [2, 3]))
            weight = np.random.default_rng(4).standard_normal((24, 5)).astype("float32")
            out = builder.emit_output(relax.op.matmul(y, relax.const(weight)))
        builder.emit_func_output(out)
    smaller = ts.compress(builder.get(), prune=0.5, steps=0)
    found = [op.shape[1] for op in Operators(smaller["main"]) if op.kind == "nn.conv2d"]
    assert found == widths
    assert answers(smaller).shape == (len(OTHERS), 5)


def test_a_result_of_the_network_keeps_its_channels() -> None:
    smaller, _ = prune_channels(residual((16, 24), flat=False), 0.5)
    assert [op.shape[1] for op in Operators(smaller["main"]) if op.kind == "nn.conv2d"] == [
        16,
        16,
        16,
    ]


@pytest.mark.parametrize("kind", BLOCKS)
def test_channels_without_weight_are_not_missed(kind: str) -> None:
    """What reads removed channels is 0, so that the answer stays; pruned are exactly these."""
    mod = network(BLOCKS[kind], ((16, 2), (32, 2)))
    silenced = _silenced(mod)
    smaller, _ = prune_channels(silenced, 0.5)
    assert work(smaller) < 0.7 * work(mod)
    np.testing.assert_allclose(answers(smaller), answers(silenced), rtol=1e-3, atol=1e-4)


def _silenced(mod: tvm.IRModule) -> tvm.IRModule:
    """The network whose channels that pruning takes are 0, and stay 0 through normalisations."""
    operators = Operators(mod["main"])
    kept = prune_channels(mod, 0.5)[1]
    net = to_torch(mod)
    for operator in operators:
        source = kept.get(operator.name)
        if source is None or operator.kind not in ("nn.conv2d", "nn.batch_norm"):
            continue
        width = int(operator.binding.value.args[1].ty.shape.values[0])
        gone = np.setdiff1d(np.arange(width), source.channels)
        if operator.kind == "nn.conv2d":
            net.weight_of(operator.name).data[gone] = 0
        else:
            norm = net.norm_of(operator.name) if net.holds(operator.name) else None
            assert norm is None or norm.bias is not None
    for operator in operators:
        if operator.kind == "nn.batch_norm":
            for reader in operators.readers[operator.name]:
                if reader in kept and net.holds(reader):
                    norm = net.norm_of(reader)
                    gone = np.setdiff1d(np.arange(len(norm.weight)), kept[reader].channels)
                    norm.weight.data[gone] = norm.bias.data[gone] = 0
                    norm.running_mean[gone] = 0
    return ts.training.load_torch(mod, net)


def test_fitted_weights_are_nearer_than_cut_ones() -> None:
    """Answers to the images that the fit does not see are nearer."""
    mod = residual((32, 32))
    cut = ts.compress(mod, low_rank=0.4)
    fitted = ts.compress(mod, low_rank=0.4, data=IMAGES, steps=0)
    assert work(fitted) == work(cut) < 0.6 * work(mod)
    assert off(fitted, mod) < 0.8 * off(cut, mod)


@pytest.mark.parametrize("kind", BLOCKS)
def test_a_fit_that_helps_no_image_is_not_kept(kind: str) -> None:
    mod = network(BLOCKS[kind], ((16, 2), (32, 2)))
    held = IMAGES[: len(IMAGES) // 5]
    cut, fitted = (ts.compress(mod, prune=0.4, data=d, steps=0) for d in (None, IMAGES))
    wanted = answers(mod, held)
    errors = [float(np.square(answers(one, held) - wanted).mean()) for one in (cut, fitted)]
    assert work(fitted) == work(cut) < 0.8 * work(mod)
    assert errors[1] <= 1.001 * errors[0]


def test_low_rank_keeps_a_share_of_the_work_and_full_factors_keep_the_answer() -> None:
    mod = residual((32, 32))
    half, sources = low_rank(mod, 0.5)
    layers = [op for op in Operators(mod["main"]) if op.kind == "nn.conv2d"]
    assert work(half) - layers[0].multiply_adds <= 0.51 * sum(op.multiply_adds for op in layers[1:])
    assert all(sources[op.name].is_new == (op is not layers[0]) for op in layers)
    assert off(low_rank(mod, 0.9)[0], mod) < off(half, mod)


def test_weights_of_low_rank_are_found_exactly() -> None:
    """A convolution that is a product of smaller ones is replaced without an error."""
    left, right = (np.random.default_rng(i).standard_normal((16, 4)) for i in (1, 2))
    weight = np.einsum("or,ir,hw->oihw", left, right, np.ones((3, 3))).astype("float32")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 16, SIZE, SIZE), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            made = relax.op.nn.conv2d(x, relax.const(weight), padding=1, strides=2)
            out = builder.emit_output(made)
        builder.emit_func_output(out)
    mod = CanonicaliseTrainable()(builder.get())
    images = np.random.default_rng(3).standard_normal((2, 16, SIZE, SIZE)).astype("float32")
    smaller = low_rank(mod, 0.5)[0]
    assert work(smaller) <= 0.5 * work(mod)
    wanted = answers(mod, images)
    np.testing.assert_allclose(answers(smaller, images), wanted, atol=1e-3 * np.abs(wanted).max())


@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (24, 24), (6, 200)])
@pytest.mark.parametrize("known", [1, 3, 5])
def test_halves_are_those_of_a_singular_value_decomposition(
    shape: tuple[int, int], known: int
) -> None:
    """A matrix whose own rank is smaller has finite halves, too."""
    random = np.random.default_rng(known)
    parts = random.standard_normal((shape[0], known)), random.standard_normal((known, shape[1]))
    for matrix in (parts[0] @ parts[1], random.standard_normal(shape), np.zeros(shape)):
        left, sizes, right = np.linalg.svd(matrix.astype("float32"), full_matrices=False)
        for rank in (1, 3, 5):
            halves = [half.astype("float32") for half in _halves(matrix.astype("float32"), rank)]
            assert [half.shape for half in halves] == [(shape[0], rank), (rank, shape[1])]
            wanted = (left[:, :rank] * sizes[:rank]) @ right[:rank]
            np.testing.assert_allclose(halves[0] @ halves[1], wanted, atol=1e-4)
            biggest = max(float(np.abs(half).max()) for half in halves)
            assert biggest <= 1.01 * np.sqrt(sizes[0]) + 1e-30


@pytest.mark.full
def test_both_together_compile_and_run() -> None:
    mod = residual((32, 32))
    small = ts.compress(mod, prune=0.25, low_rank=0.6, data=IMAGES, steps=4)
    assert work(small) < 0.6 * work(mod)
    model = ts.compile(small, targets=["llvm"], cpu_threads=1)
    np.testing.assert_allclose(model(OTHERS[:1]), answers(small)[:1], rtol=1e-3, atol=1e-3)


@pytest.mark.full
@pytest.mark.parametrize("activations", ["uint8", "int8"])
def test_one_call_gives_a_pruned_network_of_low_rank_in_8_bits(activations: str) -> None:
    """Every layer multiplies integers, and the answers are near to those before quantising."""
    mod = residual((32, 32))
    how: dict[str, Any] = {"prune": 0.25, "low_rank": 0.6, "data": IMAGES, "steps": 0}
    floats, small = ts.compress(mod, **how), ts.compress(mod, **how, quantize=activations)
    made = {name: node for node in small.graph.node for name in node.output}
    layers = [node for node in small.graph.node if node.op_type in ("Conv", "Gemm", "MatMul")]
    values = {value.name: value for value in small.graph.initializer}
    wanted_layers = [op for op in Operators(floats["main"]) if op.multiply_adds]
    assert len(layers) == len(wanted_layers) > 4, "a factor is a layer of its own"
    for layer in layers:
        assert {made[name].op_type for name in layer.input} == {"DequantizeLinear"}
        assert values[made[layer.input[1]].input[0]].data_type == onnx.TensorProto.INT8
    zeros = [values[n.input[2]] for n in small.graph.node if n.op_type == "QuantizeLinear"]
    assert {zero.data_type for zero in zeros} == {
        getattr(onnx.TensorProto, activations.upper()),
    }
    model = ts.compile(small, targets=["llvm"], cpu_threads=1)
    found = np.concatenate([model(image[None]) for image in OTHERS])
    wanted = answers(floats)
    assert np.abs(found - wanted).mean() < 0.03 * wanted.std()
    assert "integer operators" in model.plan.reason and "in float" not in model.plan.reason


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "expected prune or low_rank"),
        ({"quantize": "uint8", "data": IMAGES}, "got quantize alone; .* ts.quantize only"),
        ({"prune": 0.3, "quantize": "uint8"}, "with data for the ranges .* 'uint8' without data"),
        ({"prune": 0.3, "quantize": True, "data": IMAGES}, "'uint8' or 'int8' for quantize"),
        ({"prune": 1.0}, "above 0 and up to 0.95 for prune"),
        ({"low_rank": 0}, "up to 0.95 for low_rank"),
        ({"prune": "much"}, "for prune"),
        ({"prune": 0.3, "steps": -1}, "expected steps of 0 or more"),
        ({"prune": 0.3, "data": IMAGES[:1]}, "three images or more"),
        ({"prune": 0.3, "data": IMAGES[..., 1:]}, "three images or more of shape"),
        ({"prune": 0.3, "data": IMAGES * np.nan}, "expected finite numbers for data"),
        ({"prune": 0.3, "data": "images"}, "expected an array of images for data"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ts.compress(residual((16, 16)), **options)


def test_networks_without_channels_to_remove_are_refused() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.nn.relu(x))
        builder.emit_func_output(out)
    for option in ("prune", "low_rank"):
        with pytest.raises(UnsupportedError, match="got none"):
            ts.compress(builder.get(), **{option: 0.5})
