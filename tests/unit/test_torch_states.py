"""Buffers that a torch program changes are states; what is random is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.cpu_targets import QUICK

import tvm_stretch as ts
from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.read.load import load_trainable

pytestmark = pytest.mark.filterwarnings("ignore")


class Cache(torch.nn.Module):
    """Two buffers: one begins with zeros, one does not and is returned, too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("k", torch.zeros(4, 3))
        self.register_buffer("n", torch.full((3,), 2.5), persistent=False)
        self.register_buffer("last", torch.ones(3))

    def forward(self, x, place):
        before = self.last + 0
        self.k[place] = x
        self.n.add_(x)
        self.last.copy_(x)
        return self.k.sum(0), self.n, before


def exported(module, *inputs):
    return torch.export.export(module, inputs, strict=False)


def steps(module):
    rng = np.random.default_rng(0)
    for place in (1, 3, 1):
        x = torch.from_numpy(rng.standard_normal(3).astype("float32"))
        yield x, torch.tensor([place])


def check(model, module) -> None:
    program = module()
    with torch.no_grad():
        for inputs in steps(module):
            for got, want in zip(model(*inputs), program(*inputs), strict=True):
                torch.testing.assert_close(got, want)
        torch.testing.assert_close(torch.from_numpy(model.states["k"]), program.k)
        torch.testing.assert_close(torch.from_numpy(model.states["n"]), program.n)


def test_changed_buffers_are_states(tmp_path: Path) -> None:
    program = exported(Cache(), *next(steps(Cache)))
    model = ts.compile(program, targets=[QUICK])
    assert list(model.states) == ["k", "n", "last"]
    np.testing.assert_array_equal(model.states["n"], np.full(3, 2.5, "float32"))
    check(model, Cache)
    model.reset()
    np.testing.assert_array_equal(model.states["n"], np.full(3, 2.5, "float32"))
    model.export(tmp_path / "cache.so")
    loaded = ts.load(tmp_path / "cache.so")
    check(loaded, Cache)
    check(loaded.create_instance(), Cache)
    xs, places = (torch.stack(parts) for parts in zip(*steps(Cache), strict=True))
    loaded.reset()
    last = loaded.run_steps(3, xs, places)[1][-1]
    torch.testing.assert_close(last, 2.5 + xs.sum(0))


def test_statistics_of_batches_are_computed_and_kept() -> None:
    for norm in (
        torch.nn.BatchNorm2d(3),
        torch.nn.BatchNorm2d(3, track_running_stats=False),
        torch.nn.InstanceNorm2d(3, affine=True, track_running_stats=True),
    ):
        x = torch.arange(96.0).reshape(2, 3, 4, 4).sin() * 2 + 1
        model = ts.compile(exported(norm.train(), x), targets=[QUICK])
        for step in (x, x.cos()):
            torch.testing.assert_close(model(step), norm(step).detach())
        for name, value in model.states.items():
            want = dict(norm.named_buffers())[name]
            torch.testing.assert_close(torch.from_numpy(np.asarray(value)), want)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (torch.nn.Dropout(), (4,)),
        (torch.nn.AlphaDropout(), (4,)),
        (torch.nn.RReLU(), (4,)),
        (torch.nn.LSTM(3, 3, 2, dropout=0.5), (4, 1, 3)),
        (torch.nn.TransformerEncoderLayer(4, 2, 8), (2, 1, 4)),
    ],
)
def test_dropout_is_refused_in_training_mode_alone(module, shape) -> None:
    x = torch.linspace(-2, 2, int(np.prod(shape))).reshape(shape)
    with pytest.raises(UnsupportedError, match="expected a network without random numbers"):
        ts.compile(exported(module.train(), x), targets=[QUICK])
    model = ts.compile(exported(module.eval(), x), targets=[QUICK])
    want = torch.utils._pytree.tree_leaves(module(x))
    got = torch.utils._pytree.tree_leaves(model(x))
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other.detach(), atol=1e-5, rtol=1e-5)


def test_attention_with_dropout_is_refused() -> None:
    class Attention(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.1)

    with pytest.raises(UnsupportedError, match="random numbers"):
        ts.compile(exported(Attention(), torch.ones(1, 2, 3, 4)), targets=[QUICK])


def test_changed_inputs_are_refused() -> None:
    class Writes(torch.nn.Module):
        def forward(self, x):
            x.add_(1)
            return x * 2

    with pytest.raises(UnsupportedError, match="writes to 'x'; return the new value"):
        ts.compile(exported(Writes(), torch.ones(3)), targets=[QUICK])


def test_networks_that_are_trained_here_change_no_buffers() -> None:
    program = exported(torch.nn.BatchNorm2d(3).train(), torch.ones(1, 3, 4, 4))
    with pytest.raises(UnsupportedError, match="changes no buffers"):
        load_trainable(program)
