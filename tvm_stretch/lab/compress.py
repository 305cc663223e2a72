"""``compress()``: fewer channels, factors of low rank, weights fitted again; to be compiled.

    small = ts.compress("resnet18.onnx", prune=0.3, low_rank=0.6, data=images)
    model = ts.compile(small, targets=["llvm", "opencl"])

    given ──prune──> fitted to the given one ──low rank──> fitted to the pruned one ──> quantised

Each step is a pass, and its result is fitted to the network before it: layer by layer by least
squares (`training.imitate`), then by gradient descent on all layers (`training.refine`). Neither
needs labels. `quantize` comes last, because the ranges of activations are those of the fitted
network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, overload

import numpy as np
import onnx
import torch
import tvm

from tvm_stretch.base.compiling import compiling
from tvm_stretch.base.errors import InputError
from tvm_stretch.base.files import is_finite
from tvm_stretch.base.named_arguments import is_one_of, named_arguments
from tvm_stretch.base.progress import Progress, reporting, say
from tvm_stretch.lab.training import TrainableNetwork, imitate, load_torch, refine, to_torch
from tvm_stretch.make.quantise import quantize as in_integers
from tvm_stretch.passes.low_rank import low_rank as decompose
from tvm_stretch.passes.prune_channels import prune_channels
from tvm_stretch.plan.design import Source
from tvm_stretch.read import load_trainable

_MOST = 0.95
_IMITATED_PIXELS = 2**21
"""Pixels of the images for the fit layer by layer, which computes them as one batch."""

_IMITATED = (512, 2048)
"""The least and the most of these images: the last layers of networks see few pixels of each, and
fewer pixels than weights are fitted too closely."""

_HELD = 5
"""One of this number of images is held out of the fit."""

_CALIBRATED = 128
"""The most images for the ranges of activations, which ONNX Runtime keeps in memory."""

_Step = Callable[[tvm.IRModule, float], tuple[tvm.IRModule, dict[str, Source]]]
Pass: TypeAlias = tuple[str, float, _Step]
"""The name of a level, its share, and the pass that carries it out."""


@overload
def compress(
    source: object,
    *,
    prune: float | None = None,
    low_rank: float | None = None,
    quantize: None = None,
    data: object = None,
    steps: int = 400,
    shapes: Mapping[str, Sequence[int]] | None = None,
    progress: Progress | None = None,
) -> tvm.IRModule: ...


@overload
def compress(
    source: object,
    *,
    prune: float | None = None,
    low_rank: float | None = None,
    quantize: str,
    data: object = None,
    steps: int = 400,
    shapes: Mapping[str, Sequence[int]] | None = None,
    progress: Progress | None = None,
) -> onnx.ModelProto: ...


@named_arguments
def compress(
    source: object,
    *,
    prune: float | None = None,
    low_rank: float | None = None,
    quantize: str | None = None,
    data: object = None,
    steps: int = 400,
    shapes: Mapping[str, Sequence[int]] | None = None,
    progress: Progress | None = None,
) -> tvm.IRModule | onnx.ModelProto:
    """A smaller network that computes nearly the same.

    Args:
        source: as for ``ts.compile``, in float32.
        prune: the share of channels that go. Channels that a sum joins go together. The smallest
            ones go; with `data` inside blocks those that contribute the least to the next layer.
        low_rank: the share of its multiply-adds that each convolution keeps as a product of two or
            three convolutions.
        quantize: ``"uint8"`` or ``"int8"`` for weights of 8 bits and activations of this type, as
            ``ts.quantize`` makes them of the smaller network, from up to 128 of `data`.
        data: typical inputs, an array of some hundreds or thousands; without them weights are cut
            and factorised, but not fitted.
        steps: of gradient descent for each step of compression; 0 for the fit layer by layer alone.
        shapes: as for ``ts.compile``.
        progress: as for ``ts.compile``.

    Returns:
        A network for ``ts.compile``: a Relax module, with `quantize` an ``onnx.ModelProto``.

    Raises:
        InputError: a share is none, or `data` are no images of the network.
        InstallError: ONNX Runtime, whose quantiser `quantize` uses, is not installed.
        UnsupportedError: no channel can go, no convolution has factors that are cheaper, or ONNX
            has no form of an operator to quantise.

    Examples:
        >>> small = ts.compress("resnet18.onnx", prune=0.3)
        >>> ts.compile(small)(np.zeros((1, 3, 224, 224), "float32")).shape
        (1, 1000)
    """
    passes = _passes(prune, low_rank, quantize)
    checked_steps(steps)
    if quantize is not None and (not is_one_of(quantize, ("uint8", "int8")) or data is None):
        raise InputError(
            "expected 'uint8' or 'int8' for quantize, with data for the ranges of activations, got "
            f"{quantize!r} {'without' if data is None else 'with'} data; give typical inputs"
        )
    with reporting(progress), compiling():
        mod = load_trainable(source, shapes)
        images = None if data is None else read_images(mod, data)
        mod = compressed(mod, passes, images, steps)
        return mod if quantize is None or images is None else in_8_bits(mod, images, quantize)


def compressed(
    mod: tvm.IRModule, passes: Sequence[Pass], images: np.ndarray | None, steps: int
) -> tvm.IRModule:
    """The network after the passes, fitted after each of them if there are images."""
    for name, share, step in passes:
        say(f"{name} {share:g}")
        smaller, sources = step(mod, share)
        mod = smaller if images is None else _fitted(smaller, sources, mod, images, steps)
    return mod


def in_8_bits(mod: tvm.IRModule, images: np.ndarray, activations: str) -> onnx.ModelProto:
    """The network in 8 bits, with ranges from some of the images."""
    say(f"quantize {activations}")
    calibrating = images[:: -(-len(images) // _CALIBRATED)]
    return in_integers(mod, calibrating, activations=activations)


def checked_steps(steps: int) -> None:
    """Refuse everything but a number of steps.

    Raises:
        InputError: it is none.
    """
    if type(steps) is not int or steps < 0:
        raise InputError(f"expected steps of 0 or more, got {steps!r}; 400 suit small images")


def unseen(images: np.ndarray) -> np.ndarray:
    """The images that no fit sees."""
    return images[: max(1, len(images) // _HELD)]


def passes_of(prune: float | None, low_rank: float | None) -> list[Pass]:
    """The passes that are wanted, in order."""
    pairs: list[tuple[str, float | None, _Step]] = [
        ("prune", prune, prune_channels),
        ("low_rank", low_rank, decompose),
    ]
    return [(name, share, step) for name, share, step in pairs if share is not None]


def _passes(prune: float | None, low_rank: float | None, quantize: str | None) -> list[Pass]:
    """The passes in float32, with their shares checked."""
    passes = passes_of(prune, low_rank)
    for name, share, _ in passes:
        if not (is_finite(share) and 0 < share <= _MOST):
            raise InputError(
                f"expected a share above 0 and up to {_MOST} for {name}, got {share!r}; 0.3 is a "
                "beginning"
            )
    if not passes:
        levels = "neither" if quantize is None else "quantize alone"
        raise InputError(
            f"expected prune or low_rank for compress, got {levels}; prune=0.3 begins, and "
            "ts.quantize only quantises"
        )
    return passes


def _fitted(
    mod: tvm.IRModule,
    sources: dict[str, Source],
    before: tvm.IRModule,
    images: np.ndarray,
    steps: int,
) -> tvm.IRModule:
    """The network with weights that bring it near to the one before, or as it was if none do.

    Where many channels of a sum are gone, a fit may end farther from the network before than the
    weights that were cut: images that the fit never saw decide.
    """
    net, teacher = to_torch(mod, sources=sources), to_torch(before)
    held = unseen(images)
    seen, tests = images[len(held) :], torch.as_tensor(held)
    cut = _distance(net, teacher, tests)
    least, most = _IMITATED
    count = min(most, max(least, _IMITATED_PIXELS // images[0, 0].size))
    imitate(net, teacher, seen[:count])
    if steps:
        refine(net, teacher, seen, steps=steps)
    fitted = _distance(net, teacher, tests)
    say(f"distance to the network before: {cut:.3g}, fitted {fitted:.3g}")
    return load_torch(mod, net) if fitted < cut else mod


@torch.no_grad()
def _distance(net: TrainableNetwork, teacher: TrainableNetwork, images: torch.Tensor) -> float:
    """The mean squared difference of two networks' answers."""
    return float((net.eval()(images) - teacher.eval()(images)).square().mean())


def read_images(mod: tvm.IRModule, data: Any) -> np.ndarray:
    """The data as one array that fits the network's input."""
    shapes = [[int(d) for d in param.ty.shape] for param in mod["main"].params]
    try:
        images = np.asarray(data, "float32")
    except (TypeError, ValueError) as error:
        raise InputError(
            f"expected an array of images for data, got {type(data).__name__} ({error}); stack "
            "them into one array"
        ) from error
    if len(shapes) != 1 or list(images.shape[1:]) != shapes[0][1:] or len(images) < 3:
        raise InputError(
            f"expected three images or more of shape {shapes[0][1:]} for data, got an array of "
            f"{list(images.shape)}; compress networks of one input"
        )
    if not np.isfinite(images).all():
        raise InputError("expected finite numbers for data, got others; look for NaN")
    return images
