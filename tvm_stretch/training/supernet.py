"""A supernet: all candidates of a stretching trained at once, with shared weights (BigNAS).

    candidate 0    conv_1.b0  12 x 16        shared    conv_1.b0  16 x 16
    candidate 1    conv_1.b0  16 x 8                   the first rows and columns of each

    nets = [st.to_torch(candidate.design) for candidate in st.candidates if candidate.kept]
    supernet = Supernet(nets)
    fit_supernet(supernet, loader, epochs=30)
    net = supernet.candidate(3); recalibrate(net, images); accuracy(net, tests)

Weights of one name are one weight, as large as the largest; a candidate's are its first rows. Its
columns are those of the channels that it reads: who computed them and which of his they are. What
a chain of residual blocks adds up counts as computed by the first, so that branches of other
depths read and leave the same.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from tvm_stretch.errors import InputError
from tvm_stretch.progress import Progress
from tvm_stretch.training.data import Loader
from tvm_stretch.training.graph import BATCH_NORM, Graph, Node, Weight
from tvm_stretch.training.loop import Settings, train
from tvm_stretch.training.network import TrainableNetwork

Layout: TypeAlias = tuple[tuple[str, int], ...]
"""Whose channels a tensor has: who computed them, and how many of his first ones."""

_MIXES = ("nn.conv1d", "nn.conv2d", "nn.conv2d_transpose", "matmul", "TupleGetItem", "permute_dims")
"""After these, channels are others."""


class Supernet(nn.Module):
    """See the module docstring; called, it says what its largest candidate says.

    Attributes:
        nets: the candidates as they were given; their weights are not used any more.
        largest: the position of that with the most parameters.
        smallest: of that with the fewest.
    """

    def __init__(self, nets: Sequence[TrainableNetwork]) -> None:
        super().__init__()
        if len(nets) < 2 or any(n.graph.inputs != nets[0].graph.inputs for n in nets):
            raise InputError(
                f"expected two or more designs of one network for nets, got {len(nets)}; give "
                "st.to_torch(candidate.design) for several candidates"
            )
        self.nets = list(nets)  # no part of this module: their weights would be trained too
        by_size = sorted(range(len(nets)), key=lambda index: _size(nets[index]))
        self.smallest, self.largest = by_size[0], by_size[-1]
        layouts = [_axes_of_weights(net.graph) for net in nets]
        full = _full_counts(layouts)
        unions = _unions(layouts)
        self.shared = nn.ParameterDict()
        self._places: list[dict[str, tuple[str, list[Tensor]]]] = [{} for _ in nets]
        for index in by_size:  # the largest writes last
            for weight in nets[index].graph.weights:
                if weight.trained:
                    self._add(index, weight, layouts[index][weight.name], unions, full)

    def _add(
        self,
        index: int,
        weight: Weight,
        axes: Mapping[int, Layout],
        unions: Mapping[tuple[str, int], tuple[str, ...]],
        full: Mapping[str, int],
    ) -> None:
        """Give a weight of a candidate its place in a shared one, and its numbers to that."""
        places, sizes = [], []
        for axis, length in enumerate(weight.shape):
            if axis not in axes:
                places.append(torch.arange(length))
                sizes.append(length)
                continue
            starts, total = {}, 0
            for producer in unions[weight.name, axis]:
                starts[producer], total = total, total + full[producer]
            places.append(torch.cat([starts[p] + torch.arange(count) for p, count in axes[axis]]))
            sizes.append(total)
        key = weight.name.replace(".", "_").replace(":", "_")
        given = self.nets[index].state_dict()[self.nets[index].weight_key(weight.name)]
        if key not in self.shared:
            self.shared[key] = nn.Parameter(torch.zeros(sizes))
        with torch.no_grad():
            self.shared[key][torch.meshgrid(*places, indexing="ij")] = given.cpu()
        self._places[index][self.nets[index].weight_key(weight.name)] = (key, places)

    def weights(self, index: int) -> dict[str, Tensor]:
        """What a candidate has of the shared weights, by the keys of its own."""
        found = {}
        for name, (key, places) in self._places[index].items():
            value: Tensor = self.shared[key]
            for axis, place in enumerate(places):
                if len(place) < value.shape[axis]:
                    value = value.index_select(axis, place.to(value.device))
            found[name] = value
        return found

    @property
    def fingerprint(self) -> str:
        """Differs where anything but the numbers of the weights differs."""
        text = " ".join(net.graph.fingerprint for net in self.nets)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def get_extra_state(self) -> list[dict[str, Tensor]]:
        """Statistics of the candidates, each of which has its own."""
        return [dict(net.named_buffers()) for net in self.nets]

    def set_extra_state(self, state: list[dict[str, Tensor]]) -> None:
        """Take what `get_extra_state` gave."""
        for net, buffers in zip(self.nets, state, strict=True):
            net.load_state_dict({**net.state_dict(), **buffers})

    def say(self, index: int, images: Tensor) -> Tensor:
        """What a candidate says."""
        net = self.nets[index].to(images.device).train(self.training)
        result: Tensor = functional_call(net, self.weights(index), (images,))
        return result

    def forward(self, images: Tensor) -> Tensor:
        """What the largest candidate says."""
        return self.say(self.largest, images)

    def candidate(self, index: int) -> TrainableNetwork:
        """A candidate by itself, with copies of its weights: to be recalibrated or trained."""
        net = self.nets[index]
        values = {name: net.state_dict()[net.weight_key(name)] for name in net.weight_names}
        found = TrainableNetwork(net.graph, values, net.design)
        own = {name: value.detach().clone() for name, value in self.weights(index).items()}
        found.load_state_dict({**found.state_dict(), **own})
        return found


def fit_supernet(
    supernet: Supernet,
    loader: Loader,
    *,
    epochs: int,
    sampled: int = 2,
    rate: float = 0.1,
    momentum: float = 0.9,
    weight_decay: float = 5e-5,
    seed: int = 0,
    device: str | torch.device | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> list[float]:
    """Train all candidates by the sandwich rule: the largest, the smallest, and some by chance.

    The largest learns from labels, the others from what the largest says.

    Args:
        supernet: changed in place.
        loader: as for `fit`.
        epochs: as for `fit`.
        sampled: how many candidates by chance in every step.
        rate: as for `fit`.
        momentum: as for `fit`.
        weight_decay: as for `fit`.
        seed: as for `fit`.
        device: as for `fit`.
        checkpoint: as for `fit`.
        progress: as for `fit`.
    """
    what = f"the sandwich rule with {sampled} by chance"
    settings = Settings(epochs, rate, momentum, weight_decay, seed, what)
    count = len(supernet.nets)

    def loss(images: Tensor, said: Tensor, labels: Tensor) -> Tensor:
        found = functional.cross_entropy(said, labels)
        taught = functional.softmax(said.detach(), 1)
        chosen = {supernet.smallest, *torch.randint(count, (sampled,)).tolist()}
        for index in sorted(chosen - {supernet.largest}):
            found = found + functional.cross_entropy(supernet.say(index, images), taught)
        return found

    return train(supernet, loader, loss, settings, device, checkpoint, progress)


def _size(net: nn.Module) -> int:
    return sum(value.numel() for value in net.parameters())


# --- whose channels ---


def _axes_of_weights(graph: Graph) -> dict[str, dict[int, Layout]]:
    """For every weight the axes that are channels, with whose channels they are."""
    held = {weight.name: weight for weight in graph.weights}
    layouts: dict[str, Layout] = {
        name: ((name, shape[1]),) for name, shape in graph.inputs.items() if len(shape) > 1
    }
    order = {node.name: position for position, node in enumerate(graph.nodes)}
    found: dict[str, dict[int, Layout]] = {name: {} for name in held}
    for node in graph.nodes:
        reads = [layouts[name] for name in node.inputs if name in layouts]
        layouts[node.name] = own = _layout(node, reads, order)
        for name in node.inputs:
            if name in held:
                found[name] = _axes(node, held[name], reads[0] if reads else own, own)
    return found


def _layout(node: Node, reads: Sequence[Layout], order: Mapping[str, int]) -> Layout:
    """Whose channels a node's result has."""
    channels = node.shape[1] if len(node.shape) > 1 else 0
    if node.kind == "concat" and node.attrs["axis"] == 1:
        return tuple(part for layout in reads for part in layout)
    fits = [layout for layout in reads if sum(count for _, count in layout) == channels]
    is_grouped = node.kind == "nn.conv2d" and node.attrs["groups"] > 1
    if fits and (node.kind not in _MIXES or is_grouped):
        return min(fits, key=lambda layout: order.get(layout[0][0], -1))
    return ((node.name, channels),)


def _axes(node: Node, weight: Weight, read: Layout, own: Layout) -> dict[int, Layout]:
    """Of one weight."""
    if node.kind in ("nn.conv1d", "nn.conv2d"):
        return {0: own} if node.attrs["groups"] > 1 else {0: own, 1: read}
    if node.kind == "matmul":
        return {0: read, 1: own} if len(weight.shape) == 2 else {}
    if node.kind == BATCH_NORM:
        return {0: own}
    axis = len(weight.shape) - len(node.shape) + 1
    channels = sum(count for _, count in own)
    return {axis: own} if axis >= 0 and weight.shape[axis] == channels > 1 else {}


def _full_counts(layouts: Sequence[Mapping[str, Mapping[int, Layout]]]) -> dict[str, int]:
    """How many channels each producer has in the candidate where it has the most."""
    found: dict[str, int] = {}
    for axes in (axes for own in layouts for axes in own.values()):
        for producer, count in (part for layout in axes.values() for part in layout):
            found[producer] = max(count, found.get(producer, 0))
    return found


def _unions(
    layouts: Sequence[Mapping[str, Mapping[int, Layout]]],
) -> dict[tuple[str, int], tuple[str, ...]]:
    """All producers that a weight's axis has in some candidate."""
    found: dict[tuple[str, int], dict[str, None]] = {}
    for own in layouts:
        for name, axes in own.items():
            for axis, layout in axes.items():
                found.setdefault((name, axis), {}).update(dict.fromkeys(p for p, _ in layout))
    return {key: tuple(producers) for key, producers in found.items()}
