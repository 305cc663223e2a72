"""The forms of ResNet-18 that `table2` compares, and how often each is right.

    given ──ts.compress──> fitted, without labels ──three epochs──> trained
                                └──ts.quantize──> in 8 bits             └──ts.quantize──> in 8 bits

The tasks are those of `benchmarks.accuracy`: drawn shapes, and scikit-learn's digits, enlarged to
the same 32x32 pixels of three channels. Networks and results stay in the folder, so that a command
that was stopped takes up where it was.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx
import torch
import tvm

import tvm_stretch as ts
from benchmarks.accuracy import Schedule, batches_of, fresh, percent, silent
from benchmarks.accuracy_tasks import Data, digits, shapes
from tutorials import zoo
from tvm_stretch.lab.training import Training, fit, load_torch, to_torch
from tvm_stretch.lab.training.exchange import graph_of
from tvm_stretch.read import load_trainable

CLASSES, SMALL = 10, 32
TASKS = ("shapes", "digits")
_STEPS, _EPOCHS, _RATE = 60, 3, 0.02
_TESTED, _CALIBRATED = 2000, 128

Network: TypeAlias = tvm.IRModule | onnx.ModelProto


@dataclass(frozen=True)
class Form:
    """Changes of the network before it is compiled."""

    prune: float | None = None
    low_rank: float | None = None
    is_quantised: bool = False

    @property
    def name(self) -> str:
        """For people; empty for the given network."""
        floats = ("pruning" if self.prune else "", "low rank" if self.low_rank else "")
        return ", ".join(filter(None, (*floats, "8 bits" if self.is_quantised else "")))

    @property
    def in_floats(self) -> Form:
        """The form before it is quantised."""
        return Form(self.prune, self.low_rank)

    @property
    def how(self) -> dict[str, float]:
        """Arguments of `ts.compress`; none for the given network."""
        given = {"prune": self.prune, "low_rank": self.low_rank}
        return {name: share for name, share in given.items() if share}


GIVEN = Form()
LOW_RANK, PRUNED, BOTH = Form(low_rank=0.5), Form(prune=0.3), Form(prune=0.3, low_rank=0.7)
EIGHT_BITS, PRUNED_8, BOTH_8 = (Form(f.prune, f.low_rank, True) for f in (GIVEN, PRUNED, BOTH))
FORMS = (GIVEN, LOW_RANK, PRUNED, BOTH, EIGHT_BITS, PRUNED_8, BOTH_8)


def in_8_bits(network: tvm.IRModule, images: np.ndarray) -> onnx.ModelProto:
    """The network as `ts.quantize` makes it from images."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "floats.onnx"
        ts.to_onnx(network, path)
        return ts.quantize(path, images)


def accuracies(folder: Path, seed: int) -> dict[str, dict[str, tuple[float, float]]]:
    """Percent of each task and form: fitted without labels, and after more epochs."""
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for task in TASKS:
        kept = folder / f"table2.{task}.{seed}.json"
        known = json.loads(kept.read_text()) if kept.exists() else {}
        mod, data = None, _data(task, folder, seed)
        for form in FORMS:
            if form.is_quantised or {form.name, quantised(form).name} <= known.keys():
                continue
            mod = mod or trained(task, folder, seed)
            known |= _accuracies(mod, form, data)
            kept.write_text(json.dumps(known))
            print(f"{task}, {form.name or 'given'}: {known}", file=sys.stderr, flush=True)
        found[task] = known
    return found


def quantised(form: Form) -> Form:
    """The same form in 8 bits."""
    return Form(form.prune, form.low_rank, True)


def trained(task: str, folder: Path, seed: int) -> tvm.IRModule:
    """ResNet-18 for a task; its weights stay in the folder."""
    mod = load_trainable(zoo.build("resnet18", size=SMALL, classes=CLASSES))
    net, path = fresh(graph_of(mod)[0], seed), folder / f"resnet18.{task}.{seed}.pt"
    if path.exists():
        net.load_state_dict(torch.load(path, weights_only=True))
    else:
        schedule = Schedule()
        batches = batches_of(_data(task, folder, seed), schedule)
        fit(net, batches, _training(schedule.epochs, schedule.rate))
        torch.save(net.state_dict(), path)
    return load_torch(mod, net)


def _accuracies(mod: tvm.IRModule, form: Form, data: Data) -> Mapping[str, tuple[float, float]]:
    """Percent of a form in floats and in 8 bits, each fitted and trained."""
    images = data.images.numpy()
    fitted = ts.compress(mod, **form.how, data=images, steps=_STEPS) if form.how else mod
    longer = fitted
    if form.how:
        net = to_torch(fitted)
        fit(net, batches_of(data, Schedule()), _training(_EPOCHS, _RATE))
        longer = load_torch(fitted, net)
    pair = (fitted, longer)
    few = images[:_CALIBRATED]
    return {
        form.name: tuple(percent(to_torch(one), data) for one in pair),
        quantised(form).name: tuple(_right_in_8_bits(in_8_bits(one, few), data) for one in pair),
    }


def _right_in_8_bits(network: onnx.ModelProto, data: Data) -> float:
    model = ts.compile(network, cpu_threads=1)
    answers = [int(np.argmax(model(image[None]))) for image in data.test_images.numpy()]
    return 100 * float(np.mean(np.asarray(answers) == data.test_labels.numpy()))


def _data(task: str, folder: Path, seed: int) -> Data:
    if task == "shapes":
        return shapes(seed, Schedule().trained, _TESTED)
    found = digits(folder / "digits.pt", seed)
    return Data(_large(found.images), found.labels, _large(found.test_images), found.test_labels)


def _large(images: torch.Tensor) -> torch.Tensor:
    """Pictures of 8x8 grey pixels at the size of the others."""
    wide = torch.nn.functional.interpolate(images, size=(SMALL, SMALL), mode="bilinear")
    return wide.repeat(1, 3, 1, 1)


def _training(epochs: int, rate: float) -> Training:
    return Training(epochs=epochs, rate=rate, device="cpu", progress=silent)
