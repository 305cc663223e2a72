"""Shapes, slices, indices, scatters and tensors that are made."""

from __future__ import annotations

import torch

from torch_cases.inputs import Case

F = torch.nn.functional
_X = "2x3x4x5"

_SHAPES = {
    "reshape": (lambda x: x.reshape(6, -1), _X),
    "view": (lambda x: x.view(2, 12, 5), _X),
    "view as type": (lambda x: x.view(torch.int32), "4x5"),
    "flatten": (lambda x: x.flatten(1), _X),
    "flatten of 0-d": (lambda x: x.flatten(), "()"),
    "unflatten": (lambda x: x.unflatten(1, (2, -1)), "3x6x2"),
    "permute": (lambda x: x.permute(0, -1, 1, 2), _X),
    "transpose": (lambda x: x.transpose(-1, 1), _X),
    "transpose and view": (lambda x: x.transpose(1, 2).contiguous().view(2, 4, 15), _X),
    "t": (lambda x: x.t(), "3x4"),
    "mT": (lambda x: x.mT, "2x3x4"),
    "movedim": (lambda x: x.movedim((0, 1), (-1, 0)), _X),
    "swapaxes": (lambda x: x.swapaxes(0, 3), _X),
    "squeeze": (lambda x: x.squeeze(), "1x3x1"),
    "squeeze axis": (lambda x: x.squeeze(-1).squeeze(0), "2x3x1"),
    "squeeze axes": (lambda x: x.squeeze((0, 2)), "1x3x1"),
    "unsqueeze": (lambda x: x.unsqueeze(-1).unsqueeze(0), "2x3"),
    "expand": (lambda x: x.expand(4, -1, 5), "3x1"),
    "expand_as": (lambda x, y: x.expand_as(y), "3x1", "2x3x4"),
    "broadcast_to": (lambda x: x.broadcast_to(2, 3, 4), "3x1"),
    "repeat": (lambda x: x.repeat(2, 1, 3), "3x4"),
    "tile": (lambda x: x.tile(2), "3x4"),
    "tile more": (lambda x: x.tile(2, 1, 3), "3x4"),
    "repeat_interleave": (lambda x: x.repeat_interleave(3, dim=1), "2x4"),
    "repeat_interleave flat": (lambda x: x.repeat_interleave(2), "2x4"),
    "repeat_interleave tensor": (
        lambda x: x.repeat_interleave(torch.tensor([1, 2, 0, 1]), dim=1, output_size=4),
        "2x4",
    ),
    "cat": (lambda x, y: torch.cat([x, y], -1), "2x3", "2x4"),
    "cat of types": (lambda x, y: torch.cat([x, y]), "2x3", "i64:1x3~0,9"),
    "stack": (lambda x, y: torch.stack([x, y], -1), "2x3", "2x3"),
    "hstack": (lambda x, y: torch.hstack([x, y]), "2x3", "2x4"),
    "dstack": (lambda x, y: torch.dstack([x, y]), "2x3", "2x3"),
    "split": (lambda x: x.split(2, 1), "2x5"),
    "split sections": (lambda x: x.split([1, 3, 1], -1), "2x5"),
    "chunk": (lambda x: x.chunk(3, 1), "2x7"),
    "chunk of few": (lambda x: x.chunk(5, 0), "2x7"),
    "tensor_split": (lambda x: x.tensor_split(3, 1), "2x7"),
    "unbind": (lambda x: x.unbind(-1), "2x3"),
    "unbind of one": (lambda x: x.unbind(1)[0], "2x1x3"),
    "flip": (lambda x: x.flip(-1, 0), "2x3x4"),
    "roll": (lambda x: x.roll(2, 1), "2x5"),
    "roll back": (lambda x: x.roll((-1, 2), (0, 1)), "3x5"),
    "roll flat": (lambda x: x.roll(4), "3x5"),
    "roll far": (lambda x: x.roll(-12, -1), "3x5"),
    "rot90": (lambda x: x.rot90(1, (1, 2)), "2x3x4"),
    "as_strided": (lambda x: x.as_strided((3, 2), (2, 5), 1), "20"),
    "diagonal": (lambda x: x.diagonal(1, 0, 1), "4x5"),
    "diagonal of batches": (lambda x: x.diagonal(dim1=-2, dim2=-1), "2x4x4"),
    "diag": (torch.diag, "4"),
    "diag_embed": (torch.diag_embed, "2x3"),
    "tril": (lambda x: x.tril(), "2x4x5"),
    "tril below": (lambda x: x.tril(-1), "4x5"),
    "triu": (lambda x: x.triu(1), "4x5"),
    "triu of bools": (lambda x: (x > 0).triu(1), "4x5"),
    "tril of ints": (lambda x: x.tril(1), "i64:4x5~0,9"),
    "block_diag": (torch.block_diag, "2x3", "1x2"),
    "cartesian_prod": (torch.cartesian_prod, "3", "2"),
    "meshgrid": (lambda x, y: torch.meshgrid(x, y, indexing="ij"), "3", "4"),
    "meshgrid xy": (lambda x, y: torch.meshgrid(x, y, indexing="xy"), "3", "4"),
    "atleast_3d": (torch.atleast_3d, "3x4"),
    "vander": (lambda x: torch.vander(x, 3), "4"),
}

_SLICES = {
    "slice": (lambda x: x[:, 1:-1], "2x5"),
    "slice step": (lambda x: x[..., ::2], "2x5"),
    "slice beyond": (lambda x: x[:, 2:99], "2x5"),
    "slice back": (lambda x: x[:, -3:], "2x5"),
    "select": (lambda x: x[:, -1], "2x5x3"),
    "ellipsis": (lambda x: x[..., None, 0], "2x5x3"),
    "narrow": (lambda x: x.narrow(-1, 1, 2), "2x5"),
    "slice assigned": (lambda x: _assigned(x, (slice(None), slice(1, 3)), 7.0), "2x5"),
    "slice assigned steps": (lambda x: _assigned(x, (slice(None), slice(0, 9, 2)), 7.0), "2x5"),
    "row assigned": (lambda x, y: _assigned(x, 1, y), "3x5", "5"),
    "slice added": (lambda x: _added(x), "3x5"),
    "masked assigned": (lambda x: _assigned(x, x > 0, -1.0), "3x5"),
    "slice_scatter": (lambda x, y: torch.slice_scatter(x, y, 1, 1, 5, 2), "3x5", "3x2"),
    "select_scatter": (lambda x, y: torch.select_scatter(x, y, 1, -1), "3x5", "3"),
    "diagonal_scatter": (torch.diagonal_scatter, "3x3", "3"),
    "slice of nothing": (lambda x: torch.cat([x[:, 3:3], x], 1), "2x5"),
}


def _assigned(x: torch.Tensor, place: object, value: object) -> torch.Tensor:
    y = x.clone()
    y[place] = value  # type: ignore[index, assignment]
    return y


def _added(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[:, 1:3] += x[:, :2]
    y[0].mul_(3)
    return y


_PLACES = "i64:2x3~0,3"
_INDICES = {
    "index": (lambda x, i: x[i], "4x5", _PLACES),
    "index of second": (lambda x, i: x[:, i], "2x4x5", _PLACES),
    "index two": (lambda x, i, j: x[i, j], "4x4x5", _PLACES, "i64:3~0,3"),
    "index apart": (lambda x, i: x[i, :, i], "4x3x4", "i64:5~0,3"),
    "index negative": (lambda x, i: x[:, i], "2x4", "i64:5~-4,3"),
    "index int32": (lambda x, i: x[i], "4x5", "i32:5~0,3"),
    "index list": (lambda x: x[:, [0, -1, 2]], "2x4"),
    "index mask": (lambda x: x[x > 0], "2x4"),
    "index constant mask": (lambda x: x[:, torch.tensor([True, False, True])], "2x3"),
    "index by 0-d": (lambda x, i: x[i], "4x5", "i64:()~0,3"),
    "index of ints": (lambda x, i: x[i], "i64:4x5~0,9", _PLACES),
    "index of bools": (lambda x, i: x[i], "bool:4x5", _PLACES),
    "index with None": (lambda x, i: x[None, :, i], "2x4", "i64:3~0,3"),
    "index_select": (lambda x, i: x.index_select(-1, i), "2x4", "i64:5~0,3"),
    "take": (torch.take, "3x4", "i64:5~0,11"),
    "take_along_dim": (lambda x, i: torch.take_along_dim(x, i, 1), "2x4", _PLACES),
    "gather": (lambda x, i: x.gather(1, i), "2x4", _PLACES),
    "gather first": (lambda x, i: x.gather(0, i), "5x3", _PLACES),
    "gather smaller": (lambda x, i: x.gather(-1, i), "3x2x4", "i64:2x1x3~0,3"),
    "gather of 0-d": (lambda x, i: x.gather(0, i), "()", "i64:()~0,0"),
    "scatter": (lambda x, i, y: x.scatter(1, i.argsort(1), y), "2x4", "2x3", "2x3"),
    "scatter smaller": (lambda x, y: x.scatter(1, y.argsort(1), y), "3x4", "2x3"),
    "scatter value": (lambda x, i: x.scatter(1, i, 7.0), "2x4", _PLACES),
    "scatter value of ints": (lambda x, i: x.scatter(1, i, 7), "i64:2x4~0,3", _PLACES),
    "scatter add": (lambda x, i, y: x.scatter_add(1, i, y), "2x4", _PLACES, "2x3"),
    "scatter add first": (lambda x, i, y: x.scatter_add(0, i, y), "4x3", _PLACES, "2x3"),
    "scatter reduce kw": (lambda x, i, y: x.scatter(1, i, y, reduce="add"), "2x4", _PLACES, "2x3"),
    **{
        f"scatter_reduce {kind} {whole}": (
            lambda x, i, y, kind=kind, whole=whole: x.scatter_reduce(
                1, i, y, kind, include_self=whole
            ),
            "2x4",
            _PLACES,
            "2x3",
        )
        for kind in ("sum", "prod", "amax", "amin", "mean")
        for whole in (True, False)
    },
    "index_put": (
        lambda x, y: x.index_put((torch.tensor([0, 2]),), y),
        "3x4",
        "2x4",
    ),
    "index_put two": (
        lambda x, y: x.index_put((torch.tensor([0, 2]), torch.tensor([1, 3])), y),
        "3x4",
        "2",
    ),
    "index_put added": (
        lambda x, i, y: x.index_put((i,), y, accumulate=True),
        "3x4",
        "i64:5~0,2",
        "5x4",
    ),
    "index_put of second": (
        lambda x, y: _assigned(x, (slice(None), torch.tensor([0, 2])), y),
        "2x4",
        "2x2",
    ),
    "index_put spread": (lambda x, y: x.index_put((torch.tensor([0, 2]),), y), "3x4", "4"),
    "index_put at a position": (
        lambda x, i, y: _assigned(x, (0, i), y),
        "1x5x4",
        "i64:1~0,4",
        "1x4",
    ),
    "index_put by masks": (lambda x, m: x.index_put((m,), torch.tensor(3.0)), "3x4", "bool:3x4"),
    "index_add": (lambda x, i, y: x.index_add(0, i, y, alpha=2), "4x3", "i64:5~0,3", "5x3"),
    "index_copy": (lambda x, y: x.index_copy(0, torch.tensor([2, 0]), y), "4x3", "2x3"),
    "index_fill": (lambda x: x.index_fill(1, torch.tensor([2, 0]), -1), "4x3"),
    "masked_select": (lambda x: x.masked_select(x > 0), "3x4"),
    "masked_scatter": (lambda x, m, y: x.masked_scatter(m, y), "3x4", "bool:3x4", "12"),
    "nonzero": (lambda x: (x > 0).nonzero(), "3x4"),
    "argwhere": (lambda x: torch.argwhere(x > 0), "3x4"),
}

_MADE = {
    "arange": (lambda x: x + torch.arange(5), "2x5"),
    "arange float": (lambda x: x + torch.arange(0, 1, 0.25), "2x4"),
    "arange float end": (lambda x: x * torch.arange(2.5), "2x3"),
    "arange step": (lambda x: x + torch.arange(9, -1, -2), "2x5"),
    "arange int32": (lambda x: x + torch.arange(5, dtype=torch.int32), "i32:2x5~0,9"),
    "linspace": (lambda x: x + torch.linspace(-1, 1, 5), "2x5"),
    "linspace of one": (lambda x: x + torch.linspace(3, 9, 1), "2x1"),
    "logspace": (lambda x: x + torch.logspace(0, 1, 5), "2x5"),
    "full": (lambda x: x + torch.full((2, 1), 0.5), "2x5"),
    "full of ints": (lambda x: x + torch.full((2, 1), 3), "i64:2x5~0,9"),
    "full of bools": (lambda x: x & torch.full((2, 1), True), "bool:2x5"),
    "full_like": (lambda x: torch.full_like(x, 3.5), "2x5"),
    "full_like of another type": (lambda x: torch.full_like(x, 3, dtype=torch.int64), "2x5"),
    "full_like of bools": (lambda x: torch.full_like(x, True), "bool:2x5"),
    "zeros": (lambda x: torch.cat([x, torch.zeros(1, 5)]), "2x5"),
    "zeros_like": (lambda x: torch.zeros_like(x) + 1, "2x5"),
    "zeros_like of another type": (lambda x: torch.zeros_like(x, dtype=torch.bool), "2x5"),
    "ones": (lambda x: x + torch.ones(2, 5, dtype=torch.float64), "2x5"),
    "ones_like": (lambda x: torch.ones_like(x), "i64:2x5~0,9"),
    "ones_like of another type": (lambda x: torch.ones_like(x, dtype=torch.float16), "2x5"),
    "new_zeros": (lambda x: torch.cat([x, x.new_zeros(1, 5)]), "f16:2x5"),
    "new_ones": (lambda x: x.new_ones(3), "2x5"),
    "new_full": (lambda x: x.new_full((3,), 2), "2x5"),
    "new_tensor": (lambda x: x + x.new_tensor([1.0, 2.0]), "3x2"),
    "eye": (lambda x: x + torch.eye(3), "3x3"),
    "eye wide": (lambda x: x + torch.eye(3, 5), "3x5"),
    "scalar_tensor": (lambda x: x + torch.tensor(2), "2x5"),
    "tensor": (lambda x: x * torch.tensor([1.0, 2.0]), "3x2"),
    "tril_indices": (lambda x: x[tuple(torch.tril_indices(3, 3))], "3x3"),
    "hann_window": (lambda x: x * torch.hann_window(6), "2x6"),
    "hamming_window": (lambda x: x * torch.hamming_window(6, periodic=False), "2x6"),
    "rand": (lambda x: x + torch.rand(3), "2x3"),
    "randn_like": (lambda x: x + torch.randn_like(x), "2x3"),
    "multinomial": (lambda x: torch.multinomial(x, 1), "2x3~0,1"),
    "constant result": (lambda x: (x, torch.ones(2)), "2x3"),
    "input as result": (lambda x: (x, x + 1), "2x3"),
    "same result twice": (lambda x: (x + 1,) * 2, "2x3"),
    "unused input": (lambda x, y: x + 1, "2x3", "4"),
    "item": (lambda x: x + x.sum().item(), "2x3"),
    "dict": (lambda x: {"a": x + 1, "b": [x, x * 2]}, "2x3"),
    "vmap": (lambda x: torch.vmap(lambda row: row.sum())(x), "2x3"),
    "autocast": (lambda x: _autocast(x), "4x4"),
    "no_grad": (lambda x: _no_grad(x), "2x3"),
    "assert": (lambda x: _asserting(x), "2x3"),
}


def _autocast(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return x @ x


@torch.no_grad()
def _no_grad(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def _asserting(x: torch.Tensor) -> torch.Tensor:
    torch._check(x.shape[0] == 2)
    torch._assert_async((x < 99).all())
    return x + 1


CASES: dict[str, Case] = {**_SHAPES, **_SLICES, **_INDICES, **_MADE}
