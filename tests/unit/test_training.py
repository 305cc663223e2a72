"""Networks as torch modules: the same numbers both ways, and what is refused."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import onnxruntime
import pytest
import torch
import tvm
from helpers.relax_helpers import answers, module
from helpers.relax_numpy import evaluate
from helpers.search_helpers import costs
from helpers.stretch_networks import BLOCKS, SIZE, basic, network, regnet
from tvm import relax

import tvm_stretch as ts
from tutorials import zoo
from tvm_stretch.base.errors import InputError, UnsupportedError
from tvm_stretch.lab.stretching.design_rules import Rules
from tvm_stretch.lab.stretching.stretching import Stretching, stretch_network
from tvm_stretch.passes.duplicate_and_scale import branch_operators, duplicate_and_scale
from tvm_stretch.plan.design import MERGES

X = np.random.default_rng(0).standard_normal((3, 3, SIZE, SIZE)).astype("float32")
WEAK = Rules(capacity=0.5, tolerance=0.5, least_ratio=0.1)


def said(net: torch.nn.Module, x: np.ndarray = X) -> np.ndarray:
    with torch.no_grad():
        return net(torch.from_numpy(x)).numpy()


def assert_same(mod: tvm.IRModule, net: torch.nn.Module) -> None:
    expected = np.concatenate([evaluate(mod, X[i : i + 1]) for i in range(len(X))])
    assert np.abs(said(net) - expected).max() <= 1e-5 * np.abs(expected).max()


def shaken(net: torch.nn.Module) -> torch.nn.Module:
    """With other weights and statistics."""
    torch.manual_seed(0)
    with torch.no_grad():
        for value in net.parameters():
            value += 0.1 * torch.rand_like(value)
    net.train()
    net(torch.from_numpy(X))
    return net.eval()


def stretching(block=basic, *speeds: float) -> Stretching:
    known = costs(*(speeds or (1, 1)))
    return stretch_network(network(block), known, range(len(speeds or (1, 1))), WEAK)


@pytest.mark.parametrize("kind", BLOCKS)
def test_same_numbers_as_relax(kind: str):
    mod = network(BLOCKS[kind])
    net = ts.training.to_torch(mod).eval()
    assert_same(mod, net)
    back = ts.training.load_torch(mod, shaken(net))
    assert_same(back, net)
    assert relax.analysis.check_well_formed(back)


SIZES = {"inception_v3": 96, "inception_v4": 96, "lstm": None}


@pytest.mark.parametrize(
    "name",
    [
        "shufflenet_v2",
        "fast_style_transfer",
        *(
            pytest.param(name, marks=pytest.mark.full)
            for name in zoo.names()
            if name not in ("shufflenet_v2", "fast_style_transfer")
        ),
    ],
)
def test_networks_of_the_zoo_say_what_onnx_runtime_says(name: str):
    model = zoo.build(name, size=SIZES.get(name, 64))
    (known,) = model.graph.input
    shape = [dim.dim_value for dim in known.type.tensor_type.shape.dim]
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (expected,) = session.run(None, {known.name: x})
    found = said(ts.training.to_torch(model).eval(), x)
    assert np.abs(found - expected).max() <= 2e-5 * np.abs(expected).max()


@pytest.mark.full
def test_stretched_networks_and_back():
    """Every merge, three branches; a copy and a pickled copy are the same network."""
    for block, merge in zip((basic, regnet, BLOCKS["squeeze_mb_conv"]), MERGES, strict=True):
        known = costs(1, 1, 1)
        st = stretch_network(network(block), known, range(3), WEAK, merge)
        net = shaken(st.to_torch(st.candidates[0].design))
        back = st.load_torch(pickle.loads(pickle.dumps(copy.deepcopy(net))))
        assert_same(back, net)
        assert branch_operators(back) == branch_operators(st.module(st.candidates[0].design))


def test_warm_start():
    st = stretching()
    assert_same(st.module(), st.to_torch().eval())
    cold = st.to_torch(warm_start=False)
    assert not np.allclose(said(cold.eval()), said(st.to_torch().eval()))


def test_names_and_modes():
    """Parameters are named by layers; training uses the batch's statistics and keeps them."""
    st = stretching()
    net = st.to_torch()
    names = dict(net.named_parameters())
    assert {"conv2d.weight", "conv2d1_b0.weight", "conv2d1_b1.weight"} <= set(names)
    assert sum(p.numel() for p in names.values()) == st.best.parameters
    first = net.get_submodule("tuplegetitem")
    before = first.running_mean.clone()
    alone, batch = said(net.eval(), X[:1]), said(net, X)[:1]
    np.testing.assert_allclose(alone, batch, rtol=1e-5)
    assert torch.equal(first.running_mean, before)
    net.train()
    assert not np.allclose(said(net, X), said(net.eval(), X))
    assert not torch.equal(first.running_mean, before)


def test_other_operators():
    """Everything that torch pads, slices or counts in another way than Relax."""
    op = relax.op
    weight = relax.const(np.random.default_rng(0).standard_normal((4, 3, 2, 2)).astype("float32"))

    def body(x: relax.Expr) -> relax.Expr:
        up = op.nn.conv2d_transpose(x, weight, strides=2, padding=[1, 0, 0, 1], groups=2)
        up = op.nn.conv2d(up, relax.const(np.ones((4, 6, 3, 2), "float32")), padding=[1, 0, 2, 1])
        up = op.nn.max_pool2d(op.nn.leakyrelu(up, 0.3), (3, 3), 2, padding=[0, 0, 1, 1])
        flat = op.nn.avg_pool2d(up, (2, 2), 1, padding=[0, 1, 1, 0], count_include_pad=False)
        flat = op.nn.pad(flat, [0, 0, 0, 0, 1, 0, 0, 2])
        flat = op.strided_slice(flat, [2, 3], [0, 1], [4, 2**31 - 1], [1, 2])
        flat = op.concat([op.sigmoid(flat), op.clip(flat, 0, 3)], axis=1)
        parts = op.split(op.permute_dims(flat, [0, 2, 3, 1]), [3], axis=3)
        flat = op.maximum(op.sum(parts[0], [3]), op.max(parts[1], [3]))
        return op.nn.softmax(op.squeeze(op.expand_dims(flat, 1), [1]), -1)

    mod = ts.training.exchange.load_trainable(module(body, (1, 4, 5, 5)))
    x = np.random.default_rng(1).standard_normal((1, 4, 5, 5)).astype("float32")
    net = ts.training.to_torch(mod).eval()
    np.testing.assert_allclose(said(net, x), answers(mod, x)[0], rtol=1e-4, atol=1e-6)
    both = said(net, np.concatenate([x, 2 * x]))
    np.testing.assert_allclose(both[:1], said(net, x), rtol=1e-5)


def test_an_operator_without_gradient_is_refused():
    mod = module(lambda x: relax.op.round(x), (1, 4))
    with pytest.raises(UnsupportedError, match=r"operators that can be trained for .*, got round"):
        ts.training.to_torch(mod)


def test_inputs_that_do_not_fit():
    net = ts.training.to_torch(network(basic))
    with pytest.raises(InputError, match="expected batches of shape"):
        net(torch.zeros(2, 3, 5, 5))
    with pytest.raises(InputError, match="expected 1 inputs"):
        net()


def test_other_batches_only_where_the_first_axis_is_the_batch():
    mod = module(lambda x: relax.op.squeeze(relax.op.mean(x, [2, 3]), [0]), (1, 4, 3, 3))
    net = ts.training.to_torch(ts.training.exchange.load_trainable(mod))
    assert net(torch.zeros(1, 4, 3, 3)).shape == (4,)
    with pytest.raises(UnsupportedError, match="the first axis of 'reshape' is another one"):
        net(torch.zeros(2, 4, 3, 3))


def test_modules_of_others_are_refused():
    st = stretching()
    net = st.to_torch()
    with pytest.raises(InputError, match="got Linear"):
        st.load_torch(torch.nn.Linear(2, 2))
    with pytest.raises(InputError, match=r"got DataParallel; give its \.module"):
        st.load_torch(torch.nn.DataParallel(net))
    with pytest.raises(InputError, match="network without design"):
        st.load_torch(ts.training.to_torch(network(basic)))
    with pytest.raises(InputError, match="expected the torch module of this network"):
        ts.training.load_torch(network(basic), net)
    with pytest.raises(InputError, match=r"to_torch of this stretching|torch module of this"):
        stretching(regnet).load_torch(net)


def test_weights_that_do_not_fit():
    st = stretching()

    def refused(words: str, change) -> None:
        net = st.to_torch()
        change(net)
        with pytest.raises(InputError, match=words):
            st.load_torch(net)

    def poison(net) -> None:
        net.conv2d.weight.data[0] = torch.nan

    def resize(net) -> None:
        net.conv2d.weight = torch.nn.Parameter(torch.zeros(2, 2))

    refused(r"finite numbers for 'conv2d\.weight'", poison)
    refused(r"a weight of shape \(8, 3, 3, 3\) for 'conv2d\.weight', got \(2, 2\)", resize)
    refused(r"none for 'conv2d\.weight'", lambda net: delattr(net.conv2d, "weight"))
    refused("one more, 'extra'", lambda net: net.register_buffer("extra", torch.zeros(1)))


def test_branches_without_design_are_scaled_from_trained_weights():
    """A trained original is stretched through Relax: what it learned is where the branch starts."""
    mod = network(basic)
    net = shaken(ts.training.to_torch(mod))
    trained = ts.training.load_torch(mod, net)
    design = stretching().best.design
    whole = ts.training.to_torch(duplicate_and_scale(trained, design, noise=0))
    assert torch.equal(whole.conv2d.weight, net.conv2d.weight)
