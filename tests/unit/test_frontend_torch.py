"""Operators of torch.export programs that TVM alone gets wrong, or that no target runs."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
import torch
from helpers.relax_helpers import module, op_names, run
from tvm import relax

from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.network.operators import Operators
from tvm_stretch.read import load_network

F = torch.nn.functional
Function = Callable[[torch.Tensor], "torch.Tensor | tuple[torch.Tensor, ...]"]


class Net(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """The function's result."""
        return self.function(x)


def _layers(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    kind = x.dtype
    weight = torch.arange(54, dtype=kind).reshape(2, 3, 3, 3) / 64
    conv = F.conv2d(x, weight, torch.ones(2, dtype=kind))
    dense = F.linear(x, torch.ones(5, 8, dtype=kind) / 8, torch.ones(5, dtype=kind))
    return conv, dense


def _indices(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x[:, [0, -1], [2, 3]], x[[0, 1], :, [2, 3]], x[:, :, [[0, -1], [2, 3]]]


def _folds(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Overlapping windows, pixels without one, patches side by side, no batch."""
    dilated = {"kernel_size": (2, 3), "dilation": 2, "stride": (3, 2), "padding": (1, 0)}
    return (
        F.fold(F.unfold(x, 3, padding=1), (8, 8), 3, padding=1),
        F.fold(F.unfold(x, **dilated), (8, 8), **dilated),
        F.fold(F.unfold(x, 2, stride=2) * 2, (8, 8), 2, stride=2),
        F.fold(F.unfold(x[0], 3), (8, 8), 3),
    )


def _divisions(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    n = (x * 4).to(torch.int64)
    modes = (None, "floor", "trunc")
    numbers = [torch.div(x, -3, rounding_mode=mode) for mode in modes]
    tensors = [torch.div(n, n.abs().to(torch.int32) + 2, rounding_mode=mode) for mode in modes]
    return (x // 2, n // 3, n / 2, *numbers, *tensors)


def _reductions(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    extremes = (x.amax((2, 3)), x.amin(-1, keepdim=True), x.amax(()), *x.min(2), *x.min(-1, True))
    return (*extremes, x.prod(1), x.prod(-1, keepdim=True), (x > 9).any(), x.any())


def _edges(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    signal, volume = x[0], x[None]
    return (
        F.pad(x, (1, 2, 0, 3), "reflect"),
        F.pad(x, (2, 0, 1, 1), "replicate"),
        *(F.pad(signal, (3, 1), mode) for mode in ("reflect", "replicate")),
        *(F.pad(volume, (1, 1, 2, 0, 0, 1), mode) for mode in ("reflect", "replicate")),
    )


def _nearest(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    sizes = [F.interpolate(x, size) for size in ((16, 24), (7, 5), (19, 3), (8, 11))]
    factors = (2, 1.3, 0.7, (1.5, 3.0))  # 5 / 1.3 is below 4, and 5 * 5 / 6 is not
    return (*sizes, *(F.interpolate(x[..., :5, :5], scale_factor=factor) for factor in factors))


def _scattered(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    places = torch.tensor([0, 2, 2, 1]).reshape(1, 1, 1, 4).expand(2, 3, 8, 4)
    y = x[..., :4] * 2
    kinds = ("sum", "prod", "amax", "amin")
    reduced = [x.scatter_reduce(3, places, y, kind) for kind in kinds]
    return (x.scatter_add(3, places, y), *reduced, torch.select_scatter(x, x[:, :, 1], 2, -2))


CASES: dict[str, Function] = {
    "reductions": _reductions,
    "edges": _edges,
    "nearest": _nearest,
    "scattered": _scattered,
    "divisions": _divisions,
    "topk": lambda x: (*x.topk(3), x.topk(2, dim=1, largest=False).values),
    "sort": lambda x: (*x.sort(-1), x.argsort(2, descending=True), *x.max(2)),
    "running": lambda x: (x.cumsum(1), (x > 0).cumsum(-1), x[..., :3].cumprod(3)),
    "unfold": lambda x: (F.unfold(x, 3, padding=1), F.unfold(x, (2, 3), dilation=2, stride=2)),
    "fold": _folds,
    "windows": lambda x: (x.unfold(2, 3, 2), x.unfold(-1, 2, 1).unfold(2, 4, 4)),
    "indices": _indices,
    "layers": _layers,
}


@pytest.mark.parametrize(
    "name",
    [n if n not in ("fold", "unfold") else pytest.param(n, marks=pytest.mark.full) for n in CASES],
)
def test_same_as_torch(name: str) -> None:
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    net = Net(CASES[name]).eval()
    mod = load_network(torch.export.export(net, (x,)))
    assert not {"relax.topk", "relax.sort", "relax.argsort"} & set(op_names(mod))
    expected = net(x)
    for got, want in zip(run(mod, x.numpy())[: len(expected)], expected, strict=True):
        assert got.dtype == want.numpy().dtype
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-5)


RECURRENT = {
    "lstm": (torch.nn.LSTM, {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    "gru": (torch.nn.GRU, {"num_layers": 2}),
    "gru without bias": (torch.nn.GRU, {"bias": False, "bidirectional": True}),
    "rnn": (torch.nn.RNN, {"batch_first": True}),
    "rnn of relu": (torch.nn.RNN, {"nonlinearity": "relu", "bidirectional": True}),
}


@pytest.mark.parametrize(
    "name",
    [n if n in ("lstm", "gru") else pytest.param(n, marks=pytest.mark.full) for n in RECURRENT],
)
@pytest.mark.filterwarnings("ignore:The tensor attributes")
def test_recurrent_layers(name: str) -> None:
    """Weights of a state add up to less than an eighth, so that steps make errors smaller."""
    kind, options = RECURRENT[name]
    features, hidden = 3, 6
    net = kind(features, hidden, **options).eval()
    dice = torch.Generator().manual_seed(0)
    for weight in net.parameters():
        torch.nn.init.uniform_(weight, -1 / (8 * hidden), 1 / (8 * hidden), generator=dice)
    x = torch.randn(2, 5, features, generator=dice).clamp(-1, 1)
    mod = load_network(torch.export.export(net, (x,)))
    kinds = [operator.kind for operator in Operators(mod["main"])]
    assert sum(k.startswith("recurrent.") for k in kinds) == options.get("num_layers", 1)
    with torch.no_grad():
        y, states = net.double()(x.double())
    want = [y, *(states if isinstance(states, tuple) else (states,))]
    # all numbers are below 1; each step rounds sums and 32 ulps of activations, each layer again
    bound = 2 * (features + 2 * hidden + 34) * 2.0**-24 * 8
    for expected, got in zip(want, run(mod, x.numpy()), strict=True):
        np.testing.assert_allclose(got, expected.numpy(), rtol=0, atol=bound)


@pytest.mark.filterwarnings("ignore:The tensor attributes")
@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "num_layers": 2, "bias": False}])
def test_lstms_with_projection(options: dict[str, object]) -> None:
    torch.manual_seed(0)
    net = torch.nn.LSTM(3, 6, proj_size=2, **options).eval()
    count = 4 if options else 1
    inputs = torch.randn(4, 2, 3), (torch.randn(count, 2, 2), torch.randn(count, 2, 6))
    mod = load_network(torch.export.export(net, inputs))
    y, states = net(*inputs)
    arrays = [x.numpy() for x in (inputs[0], *inputs[1])]
    for got, want in zip(run(mod, *arrays), (y, *states), strict=True):
        np.testing.assert_allclose(got, want.detach().numpy(), rtol=0, atol=2e-6)


def test_projections_whose_rows_are_alike_are_refused() -> None:
    net = torch.nn.LSTM(3, 6, proj_size=2).eval()
    torch.nn.init.ones_(net.weight_hr_l0)
    program = torch.export.export(net, (torch.zeros(4, 1, 3),))
    with pytest.raises(UnsupportedError, match="expected a projection of full rank"):
        load_network(program)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_layers_in_half_precision(kind: torch.dtype) -> None:
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)).to(kind)
    net = Net(_layers).eval()
    mod = load_network(torch.export.export(net, (x,)))
    assert {str(field.dtype) for field in mod["main"].ret_ty.fields} == {str(kind)[6:]}
    dtype = ml_dtypes.bfloat16 if kind == torch.bfloat16 else np.float16
    for got, want in zip(run(mod, x.float().numpy().astype(dtype)), net(x), strict=True):
        np.testing.assert_allclose(got.astype("f"), want.float().numpy(), rtol=0.02, atol=0.02)


def test_sorts_of_relax_networks() -> None:
    mod = module(lambda x: relax.op.topk(x, 2, axis=1, ret_type="indices", dtype="int32"), (2, 5))
    x = np.float32([[1, 9, 3, 9, 5], [0, -1, -2, 7, 7]])
    got = run(load_network(mod), x)[0]
    np.testing.assert_array_equal(got, [[1, 3], [3, 4]])
    assert got.dtype == "int32"


def test_control_flow_is_refused_as_such() -> None:
    def either(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda y: y.relu(), lambda y: y * 2, (x,))

    program = torch.export.export(Net(either), (torch.zeros(2, 3),))
    with pytest.raises(UnsupportedError, match="without control flow, got 'cond'"):
        load_network(program)
