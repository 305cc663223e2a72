"""Models of similar devices, from which few measured kernels make one of a new device.

    ts.tune.measure(device=phone, budget=60, like=["costs/pixel-7", "costs/mi-9"])

Layers of the zoo are measured first whose latencies tell most about all of them
(`plan/cost/correction.py`). The model with the least error after its correction is taken.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tvm_stretch.base.errors import CostModelError, InputError
from tvm_stretch.base.files import as_path
from tvm_stretch.base.progress import say
from tvm_stretch.plan.cost.correction import Ratios
from tvm_stretch.plan.cost.measured_model import MeasuredModel, load_cost_model
from tvm_stretch.plan.measuring.samples import Sample
from tvm_stretch.targets.kernels.features import EpilogueWork, Features
from tvm_stretch.targets.kernels.layers import ConvShape, WindowShape, taken
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import Template, choose
from tvm_stretch.targets.opencl.kernels.pair import choose_pair

Folders = Sequence[str | os.PathLike[str]] | str | os.PathLike[str]

_MOST = 120
"""Samples that are put in order; in a minute no device measures more."""

_FLOPS = {"none": 0, "bias": 1, "relu": 2, "relu6": 3, "leaky": 3, "add": 2, "add_relu": 3}
_PAIR_OPERANDS = 3  # of a pair's depthwise layer: image, weights, bias
_EXPONENTIAL = 20
"""Arithmetic of an epilogue, for each number."""


def folders_of(like: Folders | None) -> list[Path]:
    """The argument ``like`` as folders."""
    if like is None:
        return []
    if not isinstance(like, str | os.PathLike | Sequence):
        raise InputError(
            f"expected folders of ts.tune.measure for like, got {like!r}; name those of similar "
            "devices"
        )
    listed = [like] if isinstance(like, str | os.PathLike) else like
    return [as_path(folder, "a folder of a similar device") for folder in listed]


def similar_models(folders: Sequence[Path], processor: str) -> list[MeasuredModel]:
    """The models of a processor of this name, without their residuals.

    AVX2 kernels that a model of AVX-512 predicted: after the same 60 samples, errors of networks
    were 8.4 % with its trees and 4.6 % without (one AMD EPYC of the Zen 4 kind).
    """
    paths = [folder / f"{processor}.json" for folder in folders]
    models = [load_cost_model(path).without_residuals() for path in paths if path.exists()]
    if folders and not models:
        names = ", ".join(map(str, folders))
        raise CostModelError(
            f"expected a model of {processor} of a similar device, got none in {names}; "
            "ts.tune.measure writes them, or leave out like"
        )
    return models


def telling_first(
    samples: Sequence[Sample], model: MeasuredModel, machine: VectorMachine
) -> list[Sample]:
    """The samples, those first whose measurement tells most about the latencies of all."""
    kernels = [kernel_of_sample(sample, machine) for sample in samples]
    parts = model.parts([kernel for kernel in kernels if kernel is not None])
    places = [i for i, kernel in enumerate(kernels) if kernel is not None]
    described = [(i, part) for i, part in zip(places, parts, strict=True) if part is not None]
    if not described:
        return list(samples)
    positions, wanted = zip(*described, strict=True)
    order = Ratios(model.phases).telling_first(wanted, wanted, _MOST)
    first = [positions[i] for i in order]
    say(f"{len(first)} of {len(samples)} samples in the order of what they tell")
    rest = set(first)
    return [samples[i] for i in (*first, *(i for i in range(len(samples)) if i not in rest))]


def kernel_of_sample(sample: Sample, machine: VectorMachine) -> Features | None:
    """The kernel that a sample will be, as far as its layer decides it; None without template."""
    template = _template_of(sample, machine)
    if template is None:
        return None
    out_height, out_width = sample.out_size
    count = sample.out_channels * out_height * out_width
    flops = count * _FLOPS.get(sample.epilogue, _EXPONENTIAL)
    extra = 4 * count if sample.epilogue.startswith("add") else 0
    return template.work(EpilogueWork(flops, extra, 4 * count), machine, 4)


def _template_of(sample: Sample, machine: VectorMachine) -> Template | None:
    if sample.kind == "pair":
        window, conv = (_template_of(layer, machine) for layer in sample.of_pair)
        if machine.gpu is None or window is None or conv is None:
            return None
        return choose_pair(window, conv, _PAIR_OPERANDS, machine.gpu)
    if sample.kind in ("depthwise", "max", "avg"):
        return choose(taken(WindowShape, sample, batch=1, channels=sample.in_channels), machine)
    if sample.kind in ("conv", "dense"):
        return choose(taken(ConvShape, sample, batch=1), machine)
    return None
