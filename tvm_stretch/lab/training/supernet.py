"""A supernet (BigNAS) trains all candidates of a stretching at once, with shared weights.

    candidate 0    conv_1.b0  12 x 16        shared    conv_1.b0  16 x 16
    candidate 1    conv_1.b0  16 x 8                   the first rows and columns of each

    nets = [st.to_torch(candidate.design) for candidate in st.candidates if candidate.kept]
    supernet = Supernet(nets)
    fit_supernet(supernet, loader, Training(epochs=30))
    net = supernet.candidate(3); recalibrate(net, images); accuracy(net, tests)

Weights of the same name share one weight of the largest size; a candidate uses its first rows.
Columns follow the channels that a layer reads: each channel is known by the operator that computed
it and its index there. The sums of a chain of residual blocks count as computed by the first block,
so branches of different depths read and write the same channels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from tvm_stretch.base.errors import InputError
from tvm_stretch.lab.training.data import Loader
from tvm_stretch.lab.training.loop import Training, train
from tvm_stretch.lab.training.network import TrainableNetwork
from tvm_stretch.lab.training.torch_graph import BATCH_NORM, Graph, Node, Weight

Layout: TypeAlias = tuple[tuple[str, int], ...]
"""The channels of a tensor: for each operator that computed some, how many of its first ones."""

_MIXES = ("nn.conv1d", "nn.conv2d", "nn.conv2d_transpose", "matmul", "TupleGetItem", "permute_dims")
"""Operators whose result has channels of its own."""


class Supernet(nn.Module):
    """Candidates of a search that share weights; a call computes the largest one.

    Attributes:
        nets: the candidates; their own weights are no longer used.
        largest: the position of the candidate with the most parameters.
        smallest: the position of the candidate with the fewest.

    Examples:
        >>> found = ts.stretch("resnet18.onnx", device="snapdragon-855")
        >>> nets = [found.to_torch(one.design) for one in found.candidates[:2]]
        >>> supernet = ts.training.Supernet(nets)
        >>> supernet(torch.zeros(1, 3, 224, 224)).shape
        torch.Size([1, 1000])
    """

    def __init__(self, nets: Sequence[TrainableNetwork]) -> None:
        super().__init__()
        if len(nets) < 2 or any(n.graph.inputs != nets[0].graph.inputs for n in nets):
            raise InputError(
                f"expected two or more designs of one network for nets, got {len(nets)}; give "
                "st.to_torch(candidate.design) for several candidates"
            )
        self.nets = list(nets)  # a list, not a ModuleList: torch would train their weights too
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
        """Map a candidate's weight into the shared one, and copy its values there."""
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
        """A candidate's part of the shared weights, by its own keys."""
        weights = {}
        for name, (key, places) in self._places[index].items():
            value: Tensor = self.shared[key]
            for axis, place in enumerate(places):
                if len(place) < value.shape[axis]:
                    value = value.index_select(axis, place.to(value.device))
            weights[name] = value
        return weights

    @property
    def fingerprint(self) -> str:
        """A hash of all but the values of the weights."""
        text = " ".join(net.graph.fingerprint for net in self.nets)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def get_extra_state(self) -> list[dict[str, Tensor]]:
        """The statistics of normalisations, which each candidate has by itself."""
        return [dict(net.named_buffers()) for net in self.nets]

    def set_extra_state(self, state: list[dict[str, Tensor]]) -> None:
        """Restore the result of `get_extra_state`."""
        for net, buffers in zip(self.nets, state, strict=True):
            net.load_state_dict({**net.state_dict(), **buffers})

    def say(self, index: int, images: Tensor) -> Tensor:
        """The output of a candidate."""
        net = self.nets[index].to(images.device).train(self.training)
        result: Tensor = functional_call(net, self.weights(index), (images,))
        return result

    def forward(self, images: Tensor) -> Tensor:
        """The output of the largest candidate."""
        return self.say(self.largest, images)

    def candidate(self, index: int) -> TrainableNetwork:
        """A candidate with copies of its weights, to be recalibrated or trained by itself."""
        net = self.nets[index]
        values = {name: net.state_dict()[net.weight_key(name)] for name in net.weight_names}
        candidate = TrainableNetwork(net.graph, values, net.design)
        own = {name: value.detach().clone() for name, value in self.weights(index).items()}
        candidate.load_state_dict({**candidate.state_dict(), **own})
        return candidate


def fit_supernet(
    supernet: Supernet, loader: Loader, training: Training, *, sampled: int = 2
) -> list[float]:
    """Train all candidates by the sandwich rule: the largest, the smallest and random ones.

    The largest learns from the labels, the others from the largest one's outputs.

    Args:
        supernet: changed in place.
        loader: gives pairs of images and labels, once an epoch.
        training: how it is trained.
        sampled: the number of random candidates in every step.

    Examples:
        >>> found = ts.stretch("resnet18.onnx", device="snapdragon-855")
        >>> nets = [found.to_torch(one.design) for one in found.candidates[:2]]
        >>> supernet = ts.training.Supernet(nets)
        >>> loader = [(torch.randn(2, 3, 224, 224), torch.tensor([0, 1]))]
        >>> training = ts.training.Training(epochs=1, rate=0.01)
        >>> len(ts.training.fit_supernet(supernet, loader, training, sampled=0))
        1
    """
    what = f"the sandwich rule with {sampled} by chance"
    count = len(supernet.nets)

    def loss(images: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
        total = functional.cross_entropy(logits, labels)
        taught = functional.softmax(logits.detach(), 1)
        chosen = {supernet.smallest, *torch.randint(count, (sampled,)).tolist()}
        for index in sorted(chosen - {supernet.largest}):
            total = total + functional.cross_entropy(supernet.say(index, images), taught)
        return total

    return train(supernet, loader, loss, training, what)


def _size(net: nn.Module) -> int:
    return sum(value.numel() for value in net.parameters())


# --- channels by the operator that computed them ---


def _axes_of_weights(graph: Graph) -> dict[str, dict[int, Layout]]:
    """The axes of each weight that are channels, with their layouts."""
    held = {weight.name: weight for weight in graph.weights}
    layouts: dict[str, Layout] = {
        name: ((name, shape[1]),) for name, shape in graph.inputs.items() if len(shape) > 1
    }
    order = {node.name: position for position, node in enumerate(graph.nodes)}
    axes: dict[str, dict[int, Layout]] = {name: {} for name in held}
    for node in graph.nodes:
        reads = [layouts[name] for name in node.inputs if name in layouts]
        layouts[node.name] = own = _layout(node, reads, order)
        for name in node.inputs:
            if name in held:
                axes[name] = _axes(node, held[name], reads[0] if reads else own, own)
    return axes


def _layout(node: Node, reads: Sequence[Layout], order: Mapping[str, int]) -> Layout:
    """The layout of a node's result."""
    channels = node.shape[1] if len(node.shape) > 1 else 0
    if node.kind == "concat" and node.attrs["axis"] == 1:
        return tuple(part for layout in reads for part in layout)
    fits = [layout for layout in reads if sum(count for _, count in layout) == channels]
    is_grouped = node.kind == "nn.conv2d" and node.attrs["groups"] > 1
    if fits and (node.kind not in _MIXES or is_grouped):
        return min(fits, key=lambda layout: order.get(layout[0][0], -1))
    return ((node.name, channels),)


def _axes(node: Node, weight: Weight, read: Layout, own: Layout) -> dict[int, Layout]:
    """The axes of one weight that are channels, with their layouts."""
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
    """The largest number of channels that each producer has in any candidate."""
    counts: dict[str, int] = {}
    for axes in (axes for own in layouts for axes in own.values()):
        for producer, count in (part for layout in axes.values() for part in layout):
            counts[producer] = max(count, counts.get(producer, 0))
    return counts


def _unions(
    layouts: Sequence[Mapping[str, Mapping[int, Layout]]],
) -> dict[tuple[str, int], tuple[str, ...]]:
    """The producers that each weight's axis has in any candidate."""
    unions: dict[tuple[str, int], dict[str, None]] = {}
    for own in layouts:
        for name, axes in own.items():
            for axis, layout in axes.items():
                unions.setdefault((name, axis), {}).update(dict.fromkeys(p for p, _ in layout))
    return {key: tuple(producers) for key, producers in unions.items()}
