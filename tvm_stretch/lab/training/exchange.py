"""A Relax network as a torch module, and trained weights back into Relax."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import tvm

from tvm_stretch.base.errors import InputError
from tvm_stretch.lab.training.network import TrainableNetwork
from tvm_stretch.lab.training.relax_graph import graph_of, with_weights
from tvm_stretch.plan.design import Source
from tvm_stretch.read import load_trainable


def to_torch(
    source: Any,
    design: Mapping[str, Any] | None = None,
    sources: Mapping[str, Source] | None = None,
) -> TrainableNetwork:
    """Convert a network to a torch module with its weights and batch normalisations, for training.

    Args:
        source: as for ``ts.compile``, or the module of a stretching.
        design: the design of a stretching, as JSON; the module keeps it.
        sources: the sources of a stretching; the module keeps them too.

    Raises:
        UnsupportedError: the network has an operator that cannot be trained here.

    Examples:
        >>> net = ts.training.to_torch("resnet18.onnx")
        >>> net(torch.zeros(2, 3, 224, 224)).shape
        torch.Size([2, 1000])
    """
    mod = source if isinstance(source, tvm.IRModule) else load_trainable(source)
    return TrainableNetwork(*graph_of(mod), design, sources)


def load_torch(source: Any, net: object) -> tvm.IRModule:
    """Put the weights of a torch module that `to_torch` made back into the Relax network.

    Args:
        source: the network that was given to `to_torch`.
        net: the module that `to_torch` returned, trained.

    Raises:
        InputError: ``net`` is of another network, or weights are missing or not finite.

    Examples:
        >>> net = ts.training.to_torch("resnet18.onnx")
        >>> trained = ts.training.load_torch("resnet18.onnx", net)
        >>> ts.compile(trained)(np.zeros((1, 3, 224, 224), "float32")).shape
        (1, 1000)
    """
    mod = source if isinstance(source, tvm.IRModule) else load_trainable(source)
    graph, _ = graph_of(mod)
    known = as_network(net)
    if known.graph.fingerprint != graph.fingerprint:
        raise InputError(
            f"expected the torch module of this network, got one of {_size_text(known)} where this "
            f"has {len(graph.nodes)} operators and {len(graph.weights)} weights; give what "
            "to_torch made of the same network and design"
        )
    return with_weights(mod, _weights(known))


def as_network(net: object) -> TrainableNetwork:
    """Check that a module came from `to_torch`, and return it.

    Raises:
        InputError: it did not.
    """
    if isinstance(net, TrainableNetwork):
        return net
    wraps = [n for n in ("module", "_orig_mod") if isinstance(getattr(net, n, 0), TrainableNetwork)]
    hint = f"give its .{wraps[0]}" if wraps else "give what it returned"
    raise InputError(
        f"expected the torch module that to_torch made for net, got {type(net).__name__}; {hint}"
    )


def _size_text(net: TrainableNetwork) -> str:
    return f"{len(net.graph.nodes)} operators and {len(net.graph.weights)} weights"


def _weights(net: TrainableNetwork) -> dict[str, np.ndarray]:
    """All weights by the graph's names, after checks of shapes and values."""
    state = net.state_dict()
    wanted = {net.weight_key(weight.name): weight for weight in net.graph.weights}
    counters = {key for key in state if key.endswith(".num_batches_tracked")}
    extra, missing = set(state) - set(wanted) - counters, set(wanted) - set(state)
    if missing or extra:
        what = f"none for {min(missing)!r}" if missing else f"one more, {min(extra)!r}"
        raise InputError(
            f"expected the {len(wanted)} weights that to_torch made, got {what}; leave layers and "
            "their parameters in place (no pruning, no parametrisation)"
        )
    found = {}
    for key, weight in wanted.items():
        value = state[key].detach().cpu()
        if tuple(value.shape) != weight.shape:
            raise InputError(
                f"expected a weight of shape {weight.shape} for {key!r}, got "
                f"{tuple(value.shape)}; the network's layers must keep their sizes"
            )
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise InputError(
                f"expected finite numbers for {key!r}, got NaN or infinity; train with a lower "
                "rate, from a checkpoint before that"
            )
        found[weight.name] = value.float().numpy() if value.is_floating_point() else value.numpy()
    return found
