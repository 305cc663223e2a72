"""Fits a stretched network to the outputs of the given one by least squares, without labels.

    teacher    x -> conv -> norm -> y            64 channels
    branch     x' -> conv.b1 -> norm.b1 -> y'    40 of these, from an x' that lacks channels

Layers are fitted in topological order. Each convolution gets the weights that bring the output of
the following normalisation nearest to the teacher's channels that it stands for, given the inputs
that the stretched network really computes. A layer therefore compensates for missing channels and
blocks, and for errors of earlier layers. If a sum follows, the summand that is computed last
compensates for the other one.

The channels inside a block may be any of the teacher's: a branch takes the channels that contribute
most to its next layer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tvm_stretch.base.errors import InputError, TrainingError
from tvm_stretch.base.progress import Progress, count, reporting
from tvm_stretch.lab.training.data import device_of, evaluating, image_batches, undone
from tvm_stretch.lab.training.network import TrainableNetwork
from tvm_stretch.lab.training.statistics import recalibrate
from tvm_stretch.lab.training.torch_graph import BATCH_NORM, Node
from tvm_stretch.plan.design import Source

ROWS = 50_000
"""The number of pixels that a layer is fitted to."""

RIDGE = 1e-3
"""How strongly weights are held at their start values, relative to the inputs' mean square."""


@torch.no_grad()
def imitate(
    net: TrainableNetwork,
    teacher: TrainableNetwork,
    images: object,
    progress: Progress | None = None,
) -> None:
    """Fit the weights of a stretched network to the given one's activations; nothing is trained.

    Args:
        net: the module of `Stretching.to_torch`; changed in place, restored after an error.
        teacher: `to_torch` of the network that was stretched; moved to the device of ``net``,
            where it stays.
        images: as for `recalibrate`; some hundreds, computed as one batch.
        progress: as for ``ts.compile``.

    Raises:
        InputError: there are no images, or the networks do not belong together.
        TrainingError: an activation is not finite.

    Examples:
        >>> found = ts.stretch("resnet18.onnx", device="snapdragon-855")
        >>> net = found.to_torch()
        >>> teacher = ts.training.to_torch("resnet18.onnx")
        >>> ts.training.imitate(net, teacher, torch.randn(4, 3, 224, 224))
    """
    check_belong(net, teacher)
    with undone(net), evaluating(net, teacher), reporting(progress):
        batches = list(image_batches(images))  # a generator can be read only once
        recalibrate(net, batches)
        x = torch.cat(batches).to(device_of(net), torch.float32)
        teacher.to(x.device)
        _Imitation(net, teacher, x).run()
        recalibrate(net, batches)


def check_belong(net: object, teacher: object) -> None:
    """Refuse ``net`` unless it is a stretching of ``teacher``."""
    for what, given in (("net", net), ("teacher", teacher)):
        if not isinstance(given, TrainableNetwork):
            raise InputError(
                f"expected a torch module that to_torch made for {what}, got "
                f"{type(given).__name__}; weights are fitted layer by layer"
            )
    assert isinstance(net, TrainableNetwork) and isinstance(teacher, TrainableNetwork)
    there = {node.name: node.shape for node in teacher.graph.nodes} | dict(teacher.graph.inputs)
    own = [net.sources[node.name] for node in net.graph.nodes if node.name in net.sources]
    fits = all(s.tensor in there and _fits(s, there[s.tensor]) for s in own)
    if not own or not fits or net.graph.inputs != teacher.graph.inputs:
        raise InputError(
            "expected the network that was stretched for teacher, and for net what to_torch of "
            "its stretching gave, got others; see Stretching.to_torch and training.to_torch"
        )


def _fits(source: Source, shape: tuple[int, ...]) -> bool:
    return len(shape) < 2 or len(shape) > 4 or int(source.channels.max()) < shape[1]


@dataclass(frozen=True)
class _Fit:
    """A layer whose weights are fitted."""

    layer: Node  # a convolution or matrix product
    result: Node  # the normalisation that follows, or the addition of biases
    # the value to bring near to the teacher's: ``result``, or its sum with another tensor
    wanted: str
    other: str = ""  # the other summand, if it is computed before the layer


class _Imitation:
    """Computes both networks in step and fits layer after layer."""

    def __init__(self, net: TrainableNetwork, teacher: TrainableNetwork, x: Tensor) -> None:
        self.net, self.teacher, self.x = net, teacher, x
        self.rows = _Rows(len(x))
        self.sources = net.sources
        self.channels = {
            name: torch.as_tensor(source.channels, device=x.device)
            for name, source in net.sources.items()
        }
        self._choose_channels()
        self.fits = list(find_fits(net))
        self.targets = _Targets(teacher, x, self.rows, Counter(map(self._target, self.fits)))

    def run(self) -> None:
        """Fit every layer, in order."""
        fits = {fit.layer.name: fit for fit in self.fits}
        for number, (node, values) in enumerate(_before(self.net, self.x), 1):
            count("layer", number, len(self.net.graph.nodes))
            if node.name in fits:
                self._fit(fits[node.name], values)

    # --- which channels ---

    def _choose_channels(self) -> None:
        """Choose the channels inside each block that contribute most to the next layer."""
        for tied, energy in self._energies().items():
            members = [name for name, source in self.sources.items() if source.tied == tied]
            unit = self.sources[members[0]].unit
            units = energy.reshape(-1, unit).sum(1)
            size = len(self.channels[members[0]]) // unit
            if size >= len(units):
                continue
            best = units.topk(size).indices.sort().values
            inside = torch.arange(unit, device=best.device)
            chosen = (best[:, None] * unit + inside).flatten()
            self.channels.update(dict.fromkeys(members, chosen))

    def _energies(self) -> dict[str, Tensor]:
        """By class of tied tensors: each channel's variance times its readers' squared weights."""
        readers = [
            node
            for node in self.net.graph.nodes
            if node.kind == "nn.conv2d"
            and node.attrs["groups"] == 1
            and node.inputs[0] in self.sources
            and self.sources[node.inputs[0]].tied
            and self._is_given(node)
        ]
        wanted = {self.sources[node.inputs[0]].tensor for node in readers}
        spread = {
            name: self.rows.take(values[name]).var(0)
            for node, values in _before(self.teacher, self.x)
            for name in wanted.intersection(node.inputs)
        }
        energies: dict[str, Tensor] = {}
        for node in readers:
            read, written = self.sources[node.inputs[0]], self.sources[node.name]
            weight = self._scaled(written.tensor)
            rows = weight if written.tied else weight[self.channels[node.name].clamp_min(0)]
            energy = spread[read.tensor] * rows.square().sum((0, 2, 3))
            energies[read.tied] = energies.get(read.tied, torch.zeros(())) + energy
        return energies

    # --- weights ---

    def _target(self, fit: _Fit) -> str:
        return self.sources[fit.wanted].tensor

    def _fit(self, fit: _Fit, values: Mapping[str, Tensor]) -> None:
        """Fit the weights of one layer."""
        layer, data = fit.layer, values[fit.layer.inputs[0]]
        target = self.targets.take(self._target(fit))[:, self.channels[fit.wanted].clamp_min(0)]
        if fit.other:
            target = target - self.rows.take(values[fit.other])
        held, start = self._held(fit), self._start(fit)
        groups = layer.attrs.get("groups", 1)
        read = self.rows.windows(layer, data, tuple(held.shape[2:]))
        weights, offsets = _least_squares(
            read.reshape(len(read), groups, -1).transpose(0, 1),
            target.reshape(len(target), groups, -1).transpose(0, 1),
            start.reshape(groups, len(start) // groups, -1).mT,
        )
        if not (weights.isfinite().all() and offsets.isfinite().all()):
            raise TrainingError(
                f"expected finite values around {layer.name!r}, got others; look for NaN among "
                "the images and the weights"
            )
        self._put(fit, held, weights.mT.reshape(held.shape), offsets.flatten(), data)

    def _held(self, fit: _Fit) -> Tensor:
        """The weights of a layer, outputs first."""
        weight = self.net.weight_of(fit.layer.name)
        return weight if fit.layer.kind == "nn.conv2d" else weight.mT

    def _start(self, fit: _Fit) -> Tensor:
        """The teacher's weights between these channels, times its normalisation's scale."""
        layer, result = fit.layer, fit.result
        if layer.kind == "matmul" or not self._is_given(layer):
            return self._held(fit) * _scale(self.net, result, self._held(fit))
        weight = self._scaled(self.sources[layer.name].tensor)
        weight = weight[self.channels[layer.name].clamp_min(0)]
        columns = self.channels.get(layer.inputs[0])
        if columns is None or layer.attrs["groups"] > 1:
            return weight
        taken = columns.clamp_min(0)
        times = torch.bincount(columns[columns >= 0], minlength=weight.shape[1]).clamp_min(1)
        share = (columns >= 0) / times[taken]
        return weight[:, taken] * share[:, None, None]

    def _is_given(self, layer: Node) -> bool:
        """Whether the teacher has this layer; a new one only stands for a teacher's tensor."""
        source = self.sources[layer.name]
        return not source.is_new and self.teacher.holds(source.tensor)

    def _scaled(self, name: str) -> Tensor:
        """The weights of a teacher's convolution, with the following normalisation's scale."""
        weight = self.teacher.weight_of(name)
        readers = [node for node in self.teacher.graph.nodes if name in node.inputs]
        return weight * _scale(self.teacher, readers[0], weight)

    def _put(self, fit: _Fit, held: Tensor, weights: Tensor, offsets: Tensor, data: Tensor) -> None:
        """Write the weights. Before a normalisation they keep their norm; its scale compensates."""
        kept = self.channels[fit.result.name] >= 0
        if fit.result.kind != BATCH_NORM:
            held[kept] = weights[kept]
            if fit.result is not fit.layer:
                self.net.weight_of(fit.result.name, "bias").reshape(-1)[kept] = offsets[kept]
            return
        sizes = [w.flatten(1).norm(dim=1).clamp_min(1e-6) for w in (held, weights)]
        factor = sizes[0] / sizes[1]
        held[kept] = (weights * _columns(factor, weights))[kept]
        output = self.net.compute(fit.layer, {fit.layer.inputs[0]: data}, len(data))
        variance, mean = torch.var_mean(self.rows.take(output), 0)
        norm = self.net.norm_of(fit.result.name)
        deviation = (variance + norm.eps).sqrt()
        for old, new in (
            (norm.running_mean, mean),
            (norm.running_var, variance),
            (norm.weight.data, deviation / factor),
            (norm.bias.data, offsets + mean / factor),
        ):
            assert old is not None
            old[kept] = new[kept]


def _scale(net: TrainableNetwork, result: Node, weight: Tensor) -> Tensor:
    """The factor of each channel in a normalisation, shaped to multiply weights."""
    if result.kind != BATCH_NORM:
        return torch.ones((), device=weight.device)
    norm = net.norm_of(result.name)
    assert norm.running_var is not None
    return _columns(norm.weight.data / (norm.running_var + norm.eps).sqrt(), weight)


def _columns(values: Tensor, weight: Tensor) -> Tensor:
    return values.reshape(-1, *(1,) * (weight.ndim - 1))


def find_fits(net: TrainableNetwork) -> Iterator[_Fit]:
    """Convolutions and dense layers that a normalisation or an addition of biases follows."""
    readers: dict[str, list[Node]] = defaultdict(list)
    place = {node.name: index for index, node in enumerate(net.graph.nodes)}
    for node in net.graph.nodes:
        for name in node.inputs:
            readers[name].append(node)

    def only_reader(node: Node, kind: str) -> Node | None:
        readers_of = readers[node.name]
        return readers_of[0] if len(readers_of) == 1 and readers_of[0].kind == kind else None

    for node in net.graph.nodes:
        is_layer = node.kind in ("nn.conv2d", "matmul") and len(node.shape) in (2, 4)
        if not is_layer or not net.holds(node.name) or node.name not in net.sources:
            continue
        added = only_reader(node, "add")
        biases = added if added is not None and net.holds(added.name, "bias") else None
        result = only_reader(node, BATCH_NORM) or biases
        if result is None or result.name not in net.sources:
            continue
        total = only_reader(result, "add")
        others = [n for n in total.inputs if n in place and n != result.name] if total else []
        if total and others and place[others[0]] < place[node.name] and total.name in net.sources:
            yield _Fit(node, result, total.name, others[0])
        else:
            yield _Fit(node, result, result.name)


def _before(net: TrainableNetwork, x: Tensor) -> Iterator[tuple[Node, Mapping[str, Tensor]]]:
    """Each operator before it is computed, with the values that are still live."""
    values: dict[str, Tensor] = dict.fromkeys(net.graph.inputs, x)
    for node in net.graph.nodes:
        yield node, values
        values[node.name] = net.compute(node, values, len(x) // net.graph.batch)
        for name in node.inputs:
            if net.graph.last_reader.get(name) == node.name:
                values.pop(name, None)


class _Rows:
    """Takes a sample of pixels as rows: the same pixels of all tensors of one size."""

    def __init__(self, images: int) -> None:
        self.pixels_per_image = -(-ROWS // images)

    def take(self, values: Tensor) -> Tensor:
        """Sampled rows of a tensor whose second axis is the channels."""
        if values.ndim == 2:
            return values
        columns = values.flatten(2)
        return self._sampled(columns).transpose(1, 2).flatten(0, 1)

    def windows(self, layer: Node, data: Tensor, kernel: tuple[int, ...]) -> Tensor:
        """The inputs that a layer reads for each sampled pixel of its result."""
        if layer.kind == "matmul":
            return data
        top, left, bottom, right = layer.attrs["padding"]
        padded = functional.pad(data, (left, right, top, bottom))
        strides, dilation = layer.attrs["strides"], layer.attrs["dilation"]
        columns = functional.unfold(padded, kernel, dilation=dilation, stride=strides)
        return self._sampled(columns).transpose(1, 2).flatten(0, 1)

    def _sampled(self, columns: Tensor) -> Tensor:
        pixels = columns.shape[2]
        if pixels <= self.pixels_per_image:
            return columns
        random = torch.Generator().manual_seed(pixels)
        return columns[:, :, torch.randperm(pixels, generator=random)[: self.pixels_per_image]]


class _Targets:
    """The teacher's activations, computed on demand and kept until their last use."""

    def __init__(
        self, teacher: TrainableNetwork, x: Tensor, rows: _Rows, uses: Counter[str]
    ) -> None:
        self.uses, self.rows = uses, rows
        self.taken: dict[str, Tensor] = {}
        self.run = self._computed(teacher, x)

    def _computed(self, teacher: TrainableNetwork, x: Tensor) -> Iterator[None]:
        for _, values in _before(teacher, x):
            self._keep(values)
            yield
        self._keep(values)
        yield

    def _keep(self, values: Mapping[str, Tensor]) -> None:
        for name in values:
            if self.uses[name] and name not in self.taken:
                self.taken[name] = self.rows.take(values[name])

    def take(self, name: str) -> Tensor:
        """Sampled rows of a tensor; the caller's use is counted."""
        while name not in self.taken:
            next(self.run)
        rows = self.taken[name]
        self.uses[name] -= 1
        if not self.uses[name]:
            del self.taken[name]
        return rows


def _least_squares(read: Tensor, wanted: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and offsets, for each group, that map ``read`` nearest to ``wanted``.

    Args:
        read: groups x rows x inputs.
        wanted: groups x rows x outputs.
        start: groups x inputs x outputs; kept in directions that the rows do not determine.
    """
    at, level = read.mean(1, keepdim=True), wanted.mean(1, keepdim=True)
    centred = read - at
    left = wanted - level - centred @ start
    products = (centred.mT @ centred).double()
    ridge = RIDGE * products.diagonal(dim1=1, dim2=2).mean(1) + 1e-9
    products.diagonal(dim1=1, dim2=2).add_(ridge[:, None])
    change = torch.linalg.solve(products, (centred.mT @ left).double())
    weights = start + change.float()
    return weights, level - at @ weights
