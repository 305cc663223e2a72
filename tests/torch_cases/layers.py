"""Convolutions, products, normalisations, attentions, recurrent layers and reductions."""

from __future__ import annotations

from collections.abc import Callable

import torch

from torch_cases.inputs import Case

F = torch.nn.functional
L = torch.nn
attention = F.scaled_dot_product_attention


def _layer(make: Callable[[], torch.nn.Module], *specs: str) -> Case:
    """A layer with the parameters that the first seed gives, statistics included."""
    torch.manual_seed(0)
    layer = make().eval()
    for value in layer.buffers():
        if value.dtype.is_floating_point:
            torch.nn.init.uniform_(value, 0.5, 1.5)
    for value in layer.parameters():
        torch.nn.init.uniform_(value, -0.5, 0.5)
    return (layer, *specs)


class _First(torch.nn.Module):
    """The first result of a module."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *x: torch.Tensor) -> torch.Tensor:
        """Its output without weights of attention."""
        return self.module(*x)[0]


_CONVOLUTIONS = {
    "conv1d": (lambda x, w: F.conv1d(x, w, stride=2, padding=1), "2x4x11", "6x4x3"),
    "conv1d dilated": (lambda x, w: F.conv1d(x, w, dilation=3, groups=2), "1x4x20", "6x2x3"),
    "conv1d same": (lambda x, w: F.conv1d(x, w, padding="same"), "1x4x11", "6x4x4"),
    "conv1d unbatched": (lambda x, w: F.conv1d(x, w), "4x11", "6x4x3"),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, 2, 1), "2x3x9x8", "4x3x3x3", "4"),
    "conv2d pads": (lambda x, w: F.conv2d(x, w, None, (1, 2), (2, 0)), "1x3x9x8", "4x3x3x2"),
    "conv2d same": (lambda x, w: F.conv2d(x, w, padding="same"), "1x3x9x8", "4x3x4x3"),
    "conv2d same dilated": (
        lambda x, w: F.conv2d(x, w, padding="same", dilation=(2, 3)),
        "1x3x9x8",
        "4x3x4x2",
    ),
    "conv2d valid": (lambda x, w: F.conv2d(x, w, padding="valid"), "1x3x9x8", "4x3x4x3"),
    "conv2d groups": (lambda x, w: F.conv2d(x, w, groups=3, padding=1), "1x6x7x7", "9x2x3x3"),
    "conv2d depthwise": (lambda x, w: F.conv2d(x, w, groups=6, padding=1), "1x6x7x7", "12x1x3x3"),
    "conv2d unbatched": (lambda x, w: F.conv2d(x, w), "3x7x7", "4x3x3x3"),
    "conv2d half": (lambda x, w, b: F.conv2d(x, w, b), "f16:1x3x7x7", "f16:4x3x3x3", "f16:4"),
    "conv2d double": (lambda x, w: F.conv2d(x, w), "f64:1x3x7x7", "f64:4x3x3x3"),
    "conv2d reflecting": _layer(
        lambda: L.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), "1x3x7x7"
    ),
    "conv2d circular": _layer(
        lambda: L.Conv2d(3, 4, 3, padding=(1, 2), padding_mode="circular"), "1x3x7x7"
    ),
    "conv3d": (lambda x, w, b: F.conv3d(x, w, b, padding=1), "1x2x4x5x6", "3x2x3x3x3", "3"),
    "conv3d strided": (lambda x, w: F.conv3d(x, w, stride=(1, 2, 2)), "1x2x4x7x6", "3x2x2x3x3"),
    "conv3d groups": (lambda x, w: F.conv3d(x, w, groups=2, padding=1), "1x4x4x5x6", "6x2x3x3x3"),
    "conv3d half": (lambda x, w: F.conv3d(x, w), "f16:1x2x4x5x6", "f16:3x2x3x3x3"),
    "transposed 1d": (lambda x, w: F.conv_transpose1d(x, w, stride=3), "1x4x6", "4x5x4"),
    "transposed 1d cut": (
        lambda x, w: F.conv_transpose1d(x, w, stride=2, padding=2, output_padding=1, groups=2),
        "1x4x6",
        "4x3x5",
    ),
    "transposed 1d dilated": (lambda x, w: F.conv_transpose1d(x, w, dilation=2), "1x4x6", "4x5x3"),
    "transposed 2d": (lambda x, w, b: F.conv_transpose2d(x, w, b, 2), "1x4x5x6", "4x3x2x2", "3"),
    "transposed 2d cut": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1),
        "1x4x5x6",
        "4x3x3x3",
    ),
    "transposed 2d groups": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, groups=2),
        "1x4x5x6",
        "4x3x3x3",
    ),
    "transposed 2d dilated": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, dilation=2, padding=1),
        "1x4x5x6",
        "4x3x3x3",
    ),
    "transposed 2d half": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2),
        "f16:1x4x5x6",
        "f16:4x3x2x2",
    ),
    "transposed 3d": (
        lambda x, w, b: F.conv_transpose3d(x, w, b, stride=2, padding=1, output_padding=1),
        "1x4x3x4x5",
        "4x3x3x3x3",
        "3",
    ),
}

_PRODUCTS = {
    "linear": (F.linear, "2x5x8", "6x8", "6"),
    "linear of a vector": (F.linear, "8", "6x8", "6"),
    "linear half": (F.linear, "f16:3x8", "f16:6x8", "f16:6"),
    "bilinear": (F.bilinear, "3x4", "3x5", "6x4x5", "6"),
    "matmul": (lambda x, y: x @ y, "2x1x3x4", "5x4x6"),
    "matmul vectors": (lambda x, y: x @ y, "7", "7"),
    "matmul vector matrix": (lambda x, y: x @ y, "4", "2x4x5"),
    "matmul matrix vector": (lambda x, y: x @ y, "2x3x4", "4"),
    "matmul ints": (lambda x, y: x @ y, "i64:3x4~-9,9", "i64:4x5~-9,9"),
    "mm half": (torch.mm, "f16:3x8", "f16:8x5"),
    "bmm": (torch.bmm, "2x3x4", "2x4x5"),
    "mv": (torch.mv, "3x4", "4"),
    "dot": (torch.dot, "7~0,1", "7~0,1"),
    "outer": (torch.outer, "3", "4"),
    "addmm": (lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), "5", "3x4", "4x5"),
    "addmm without bias": (lambda c, a, b: torch.addmm(c, a, b, beta=0), "3x5", "3x4", "4x5"),
    "baddbmm": (
        lambda c, a, b: torch.baddbmm(c, a, b, beta=0, alpha=0.125),
        "2x3x5",
        "2x3x4",
        "2x4x5",
    ),
    "baddbmm half": (
        lambda c, a, b: torch.baddbmm(c, a, b, beta=0.5, alpha=2),
        "f16:2x3x5",
        "f16:2x3x4",
        "f16:2x4x5",
    ),
    "addmv": (torch.addmv, "3", "3x4", "4"),
    "addbmm": (torch.addbmm, "3x5", "2x3x4", "2x4x5"),
    "einsum": (lambda x, y: torch.einsum("bhqd,bhkd->bhqk", x, y), "2x2x3x4", "2x2x5x4"),
    "einsum outer": (lambda x, y: torch.einsum("i,d->id", x, y), "3", "4"),
    "einsum transposed": (lambda x: torch.einsum("nchw->nhwc", x), "2x3x4x5"),
    "einsum three": (lambda x, y, z: torch.einsum("ab,bc,cd->ad", x, y, z), "2x3", "3x4", "4x5"),
    "einsum dots": (lambda x, y: torch.einsum("...ij,jk->...ik", x, y), "2x3x4", "4x5"),
    "einsum diagonal": (lambda x: torch.einsum("bii->bi", x), "2x4x4"),
    "einsum trace": (lambda x: torch.einsum("ii->", x), "4x4"),
    "einsum summed": (lambda x, y: torch.einsum("bij,bkj->bi", x, y), "2x3x4", "2x5x4"),
    "tensordot": (lambda x, y: torch.tensordot(x, y, dims=([1, 2], [0, 1])), "2x3x4", "3x4x5"),
    "kron": (torch.kron, "2x3", "3x2"),
    "cdist": (torch.cdist, "2x3x4", "2x5x4"),
    "cdist of matrices": (lambda a, b: torch.cdist(a, b, p=1.0), "30x4", "27x4"),
    "cdist, largest": (lambda a, b: torch.cdist(a, b, p=float("inf")), "2x3x4", "2x5x4"),
    "cross": (lambda x, y: torch.linalg.cross(x, y), "4x3", "4x3"),
    "embedding": (lambda i, w: F.embedding(i, w), "i64:2x3~0,9", "10x4"),
    "embedding padded": (lambda i, w: F.embedding(i, w, padding_idx=0), "i64:2x3~0,9", "10x4"),
    "embedding of negative pad": (lambda i, w: F.embedding(i, w, -1), "i32:5~0,9", "10x4"),
    "embedding of 0-d": (lambda i, w: F.embedding(i, w), "i64:()~0,9", "10x4"),
    "embedding_bag": (
        lambda i, w: F.embedding_bag(i, w, mode="mean"),
        "i64:2x3~0,9",
        "10x4",
    ),
    "one_hot": (lambda i: F.one_hot(i, 5), "i64:2x3~0,4"),
}

_NORMALISATIONS = {
    "batch_norm": _layer(lambda: L.BatchNorm2d(3), "2x3x4x5"),
    "batch_norm 1d": _layer(lambda: L.BatchNorm1d(3), "2x3"),
    "batch_norm 3d": _layer(lambda: L.BatchNorm3d(3, eps=0.1), "2x3x2x2x2"),
    "batch_norm plain": _layer(lambda: L.BatchNorm2d(3, affine=False), "2x3x4x5"),
    "batch_norm of its batch": _layer(
        lambda: L.BatchNorm2d(3, track_running_stats=False), "2x3x4x5"
    ),
    "batch_norm half": _layer(lambda: L.BatchNorm2d(3).half(), "f16:2x3x4x5"),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (7,), w, b), "2x3x7", "7", "7"),
    "layer_norm of two axes": (lambda x: F.layer_norm(x, (3, 7), eps=0.1), "2x3x7"),
    "layer_norm plain": (lambda x: F.layer_norm(x, (7,)), "2x3x7"),
    "layer_norm without bias": (lambda x, w: F.layer_norm(x, (7,), w), "2x3x7", "7"),
    "layer_norm half": (lambda x, w, b: F.layer_norm(x, (7,), w, b), "f16:2x7", "f16:7", "f16:7"),
    "group_norm": (lambda x, w, b: F.group_norm(x, 3, w, b), "2x6x4x5", "6", "6"),
    "group_norm plain": (lambda x: F.group_norm(x, 2), "2x6x4x5"),
    "group_norm of one": (lambda x: F.group_norm(x, 1), "2x6x4x5"),
    "group_norm 1d": (lambda x, w: F.group_norm(x, 6, w), "2x6x9", "6"),
    "group_norm of a matrix": (lambda x, w, b: F.group_norm(x, 2, w, b), "4x6", "6", "6"),
    "group_norm half": (lambda x: F.group_norm(x, 2), "f16:2x6x4x5"),
    "group_norm far from zero": (lambda x: F.group_norm(x + 30, 1), "1x16x56x56"),
    "instance_norm far from zero": (lambda x: F.instance_norm(x + 30), "1x2x56x56"),
    "instance_norm": (F.instance_norm, "2x3x4x5"),
    "instance_norm affine": _layer(lambda: L.InstanceNorm2d(3, affine=True), "2x3x4x5"),
    "instance_norm tracked": _layer(
        lambda: L.InstanceNorm2d(3, affine=True, track_running_stats=True), "2x3x4x5"
    ),
    "instance_norm 1d": _layer(lambda: L.InstanceNorm1d(3, affine=True), "2x3x9"),
    "instance_norm 3d": _layer(lambda: L.InstanceNorm3d(3), "2x3x3x4x5"),
    "rms_norm": (lambda x, w: F.rms_norm(x, (7,), w, 1e-6), "2x3x7", "7"),
    "rms_norm plain": (lambda x: F.rms_norm(x, (7,)), "2x3x7"),
    "local_response_norm": (lambda x: F.local_response_norm(x, 3, 0.1, 0.75, 2), "2x7x4x4"),
    "weight_norm": _layer(lambda: L.utils.parametrizations.weight_norm(L.Conv1d(3, 4, 3)), "1x3x8"),
    "spectral_norm": _layer(lambda: L.utils.parametrizations.spectral_norm(L.Linear(3, 4)), "2x3"),
}

_Q, _K = "2x3x5x8", "2x3x7x8"
_ATTENTIONS = {
    "attention": (attention, _Q, _K, _K),
    "attention causal": (lambda q, k, v: attention(q, k, v, is_causal=True), _Q, _Q, _Q),
    "attention causal wide": (lambda q, k, v: attention(q, k, v, is_causal=True), _Q, _K, _K),
    "attention mask": (lambda q, k, v, m: attention(q, k, v, m), _Q, _K, _K, "2x1x5x7"),
    "attention bool mask": (
        lambda q, k, v, m: attention(q, k, v, m),
        _Q,
        _K,
        _K,
        "bool:5x7",
    ),
    "attention without keys": (
        lambda q, k, v, m: attention(q, k, v, m & (m != m)),
        _Q,
        _K,
        _K,
        "bool:5x7",
    ),
    "attention scale": (lambda q, k, v: attention(q, k, v, scale=0.3), _Q, _K, _K),
    "attention groups": (
        lambda q, k, v: attention(q, k, v, enable_gqa=True),
        "2x6x5x8",
        "2x2x7x8",
        "2x2x7x8",
    ),
    "attention groups causal": (
        lambda q, k, v: attention(q, k, v, is_causal=True, enable_gqa=True),
        "1x4x5x8",
        "1x2x5x8",
        "1x2x5x8",
    ),
    "attention of three axes": (attention, "3x5x8", "3x7x8", "3x7x4"),
    "attention of matrices": (attention, "5x8", "7x8", "7x8"),
    "attention half": (attention, f"f16:{_Q}", f"f16:{_K}", f"f16:{_K}"),
    "multi-head": _layer(
        lambda: _First(L.MultiheadAttention(8, 2, batch_first=True)), "2x5x8", "2x7x8", "2x7x8"
    ),
    "encoder layer": _layer(lambda: L.TransformerEncoderLayer(8, 2, 16, batch_first=True), "2x5x8"),
    "encoder layer first": _layer(
        lambda: L.TransformerEncoderLayer(8, 2, 16, activation="gelu", norm_first=True), "5x2x8"
    ),
    "decoder layer": _layer(
        lambda: L.TransformerDecoderLayer(8, 2, 16, batch_first=True), "2x5x8", "2x7x8"
    ),
}


_RECURRENT = {
    "lstm": _layer(lambda: L.LSTM(3, 4, 2, bidirectional=True, batch_first=True), "2x5x3"),
    "lstm one step": _layer(lambda: L.LSTM(3, 4), "1x2x3"),
    "lstm unbatched": _layer(lambda: L.LSTM(3, 4), "5x3"),
    "gru": _layer(lambda: L.GRU(3, 4, 2, bidirectional=True), "5x2x3"),
    "gru with state": _layer(lambda: L.GRU(3, 4), "5x2x3", "1x2x4"),
    "rnn": _layer(lambda: L.RNN(3, 4, bidirectional=True), "5x2x3"),
    "lstm cell": _layer(lambda: L.LSTMCell(3, 4), "2x3"),
    "gru cell": _layer(lambda: L.GRUCell(3, 4), "2x3", "2x4"),
    "rnn cell": _layer(lambda: L.RNNCell(3, 4), "2x3"),
}

_REDUCTIONS = {
    **{name: (getattr(torch, name), "2x3x5") for name in ("sum", "mean", "amax", "amin", "max")},
    **{name: (getattr(torch, name), "2x3x5") for name in ("min", "prod", "std", "var", "median")},
    **{
        f"{name} axis": (lambda x, name=name: getattr(torch, name)(x, -2), "2x3x5")
        for name in ("sum", "mean", "prod", "std", "var", "amax", "argmax", "argmin", "median")
    },
    **{
        f"{name} keepdim": (lambda x, name=name: getattr(torch, name)(x, 1, keepdim=True), "2x3x5")
        for name in ("sum", "mean", "prod", "std", "var", "amin", "argmax", "max", "min", "all")
    },
    **{
        f"{name} axes": (lambda x, name=name: getattr(torch, name)(x, (0, -1)), "2x3x5")
        for name in ("sum", "mean", "std", "var", "amax", "logsumexp", "var_mean", "std_mean")
    },
    "sum of ints": (lambda x: x.sum(1), "i32:2x9~0,9"),
    "sum of bools": (lambda x: x.sum(), "bool:2x9"),
    "sum as float": (lambda x: x.sum(1, dtype=torch.float32), "i64:2x9~0,9"),
    "sum of no axes": (lambda x: x.sum(()), "2x3"),
    "sum half": (lambda x: x.sum(1), "f16:2x300"),
    "mean half": (lambda x: x.mean(1), "f16:2x300"),
    "mean as float": (lambda x: x.mean(1, dtype=torch.float32), "i64:2x9~0,9"),
    "var biased": (lambda x: x.var(1, unbiased=False), "2x9"),
    "var correction": (lambda x: torch.var(x, 1, correction=2, keepdim=True), "2x9"),
    "std biased": (lambda x: x.std((1, 2), unbiased=False, keepdim=True), "2x3x5"),
    "var far from zero": (lambda x: torch.var(x + 1000, 1), "2x64"),
    "var_mean biased": (lambda x: torch.var_mean(x, 1, correction=0, keepdim=True), "2x9"),
    "logsumexp": (lambda x: x.logsumexp(-1), "2x9~-99,99"),
    "logsumexp keepdim": (lambda x: x.logsumexp(0, keepdim=True), "2x9"),
    "prod of ints": (lambda x: x.prod(1), "i32:2x5~1,9"),
    "argmax": (lambda x: x.argmax(), "2x3x5"),
    "argmax keepdim of all": (lambda x: x.argmax(-1, keepdim=True), "2x9"),
    "argmax of equals": (lambda x: x.argmax(1), "9x9~0,2,1"),
    "argmin of ints": (lambda x: x.argmin(0), "i64:9x9~0,5"),
    "max of ints": (lambda x: x.max(1).values, "i64:3x9~-9,9"),
    "max of equals": (lambda x: x.max(1).indices, "9x9~0,2,1"),
    "aminmax": (lambda x: torch.aminmax(x, dim=1), "3x9"),
    "all": (lambda x: (x > 0).all(), "2x2"),
    "all axis": (lambda x: (x < 2).all(1), "5x3"),
    "any axis": (lambda x: (x > 1).any(-1), "5x3"),
    "any of floats": (lambda x: x.any(1), "9x2~0,1,1"),
    "any keepdim": (lambda x: (x > 1).any(0, keepdim=True), "5x3"),
    "count_nonzero": (lambda x: x.count_nonzero(1), "3x9~0,2,1"),
    "norm": (lambda x: x.norm(), "3x9"),
    "norm 1": (lambda x: x.norm(1, dim=1), "3x9"),
    "norm inf": (lambda x: torch.linalg.vector_norm(x, float("inf"), dim=1), "3x9"),
    "norm keepdim": (lambda x: torch.linalg.vector_norm(x, 2, dim=(1, 2), keepdim=True), "2x3x5"),
    "norm 0": (lambda x: torch.linalg.vector_norm(x, 0, dim=1), "3x9~0,2,1"),
    "norm fro": (lambda x: torch.linalg.matrix_norm(x), "2x3x4"),
    "cumsum": (lambda x: x.cumsum(-1), "3x9"),
    "cumsum of ints": (lambda x: x.cumsum(0), "i32:3x9~0,9"),
    "cumprod": (lambda x: x.cumprod(1), "3x9"),
    "cummax": (lambda x: x.cummax(1), "3x9~0,9,1"),
    "cummin": (lambda x: x.cummin(1).values, "3x9"),
    "logcumsumexp": (lambda x: x.logcumsumexp(1), "3x9"),
    "diff": (lambda x: x.diff(dim=1), "3x9"),
    "topk": (lambda x: x.topk(3), "4x9"),
    "topk least": (lambda x: x.topk(2, dim=0, largest=False), "4x9"),
    "topk unsorted": (lambda x: x.topk(4, sorted=False)[0].sort(-1)[0], "4x9"),
    "topk of ints": (lambda x: x.topk(3).values, "i64:4x9~0,99"),
    "sort": (lambda x: x.sort(0), "9x4"),
    "sort descending": (lambda x: x.sort(-1, descending=True), "4x9"),
    "sort stable": (lambda x: x.sort(dim=-1, stable=True), "4x20~0,3,1"),
    "sort stable descending": (
        lambda x: x.sort(dim=-1, stable=True, descending=True),
        "4x20~0,3,1",
    ),
    "argsort": (lambda x: x.argsort(1, descending=True), "4x9"),
    "msort": (torch.msort, "9x4"),
    "kthvalue": (lambda x: x.kthvalue(3, 1), "4x9"),
    "quantile": (lambda x: x.quantile(0.3, dim=1), "4x9"),
    "unique": (lambda x: x.unique(), "i64:9~0,3"),
    "bincount": (lambda x: x.bincount(minlength=5), "i64:9~0,4"),
    "histc": (lambda x: x.histc(4, -1, 1), "20"),
    "trace": (torch.trace, "4x4"),
    "det": (torch.linalg.det, "3x3"),
    "inv": (torch.linalg.inv, "3x3"),
    "cross_entropy": (lambda x, t: F.cross_entropy(x, t), "4x9", "i64:4~0,8"),
    "nll_loss": (lambda x, t: F.nll_loss(x, t), "4x9", "i64:4~0,8"),
    "mse_loss": (F.mse_loss, "4x9", "4x9"),
    "l1_loss": (F.l1_loss, "4x9", "4x9"),
    "smooth_l1_loss": (F.smooth_l1_loss, "4x9", "4x9"),
    "bce": (lambda x, y: F.binary_cross_entropy(x.sigmoid(), y), "4x9", "4x9~0,1"),
    "bce with logits": (F.binary_cross_entropy_with_logits, "4x9", "4x9~0,1"),
    "kl_div": (lambda x, y: F.kl_div(x, y, reduction="batchmean"), "4x9", "4x9~0.1,1"),
}

CASES: dict[str, Case] = {
    **_CONVOLUTIONS,
    **_PRODUCTS,
    **_NORMALISATIONS,
    **_ATTENTIONS,
    **_RECURRENT,
    **_REDUCTIONS,
}
