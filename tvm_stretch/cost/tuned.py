"""The configurations of a GPU's kernels that ``ts.tune.measure`` found to be fastest.

    opencl.tuned.json   {"template": "group_conv", "in_channels": 64, .. "items": [8, 4], ..}
        -> kernels for GPUs take them before their models are asked

The file lies next to the models of ``ts.tune.measure`` and follows its rules: one that is damaged,
of another version, or of another device or driver is an error. A configuration that would not be
proposed for the device is one, too, because kernels trust their configurations.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tvm_stretch.cost.fingerprint import check_device, fingerprint
from tvm_stretch.errors import CostModelError
from tvm_stretch.files import replace_whole, sealed, writing
from tvm_stretch.formats import Format
from tvm_stretch.passes.join_depthwise import JoinDepthwise
from tvm_stretch.targets.kernels.gpu.candidates import CONFIGS, Layer, bare_layer, is_possible
from tvm_stretch.targets.kernels.gpu.machine import GpuMachine
from tvm_stretch.targets.kernels.gpu.winners import Winners
from tvm_stretch.targets.processor import Processor
from tvm_stretch.trusted import make_folder

FORMAT = Format(
    "tvm_stretch.tuned",
    1,
    "the tuned kernels of ts.tune.measure",
    CostModelError,
    "delete the file and measure again",
    is_sealed=True,
)


@dataclass(frozen=True)
class Tuned:
    """What was measured of the configurations of layers."""

    device: dict[str, Any]  # on which
    winners: dict[Layer, Layer]  # the fastest configuration of each layer, by layer
    dropped: dict[str, str]  # configurations that failed, as `described`, and why

    def apply(self, processor: Processor) -> Processor:
        """The processor, whose kernels have these configurations."""
        return with_winners(processor, self.winners) if self.winners else processor

    def write(self, path: Path) -> None:
        """Write the file; it appears complete or not at all."""
        configs = [{"template": c.template, **asdict(c)} for c in self.winners.values()]
        data = {**FORMAT.head, "device": self.device, "winners": configs, "dropped": self.dropped}
        with writing(FORMAT.what, CostModelError):
            make_folder(path.parent)
            replace_whole(path, sealed(json.dumps(data, indent=1) + "\n"))

    @staticmethod
    def read(path: Path, processor: Processor) -> Tuned:
        """What a file holds of a GPU; nothing if there is no file."""
        own, gpu = fingerprint(processor), processor.machine.gpu
        if gpu is None or not os.access(path, os.F_OK):
            return Tuned(own, {}, {})
        where, found = f"{FORMAT.what} in {path}", FORMAT.read(path)
        if set(found) != {"device", "winners", "dropped"} or not isinstance(found["winners"], list):
            raise CostModelError(
                f"expected device, winners and dropped for {where}, got {sorted(found)}; "
                f"{FORMAT.again}"
            )
        check_device(found["device"], own, str(path))
        configs = [_config(item, gpu, where) for item in found["winners"]]
        return Tuned(own, {bare_layer(c): c for c in configs}, dict(found["dropped"]))


def tuned_path(folder: Path, processor: Processor) -> Path:
    """The file of a processor."""
    return folder / f"{processor.name}.tuned.json"


def with_winners(processor: Processor, winners: Mapping[Layer, Layer] | Winners) -> Processor:
    """A GPU's processor that takes these configurations."""
    machine = processor.machine
    assert machine.gpu is not None
    table = winners if isinstance(winners, Winners) else Winners(winners)
    gpu = replace(machine.gpu, winners=table)
    joins: Any = JoinDepthwise(gpu)  # mypy sees no pass
    phases = [joins if isinstance(phase, JoinDepthwise) else phase for phase in processor.phases]
    return replace(processor, machine=replace(machine, gpu=gpu), phases=tuple(phases))


def described(config: Layer) -> str:
    """A configuration as a text."""
    values = {"template": config.template, **asdict(config)}
    return " ".join(f"{key}={_joined(value)}" for key, value in values.items())


def _joined(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _config(data: Any, gpu: GpuMachine, where: str) -> Layer:
    """The configuration of an object in the file."""
    values = dict(data) if isinstance(data, dict) else {}
    kind = CONFIGS.get(str(values.pop("template", "")))
    numbers = [n for v in values.values() for n in (v if isinstance(v, list) else [v])]
    plain = all((type(n) is int and 0 <= n < 2**31) or n in _WORDS for n in numbers)
    if kind is not None and plain:
        config = FORMAT.build(kind, values, f"a winner of {where}")
        try:
            if is_possible(config, gpu):
                return config
        except (TypeError, ValueError, ArithmeticError, IndexError):  # of no layer at all
            pass
    raise CostModelError(
        f"expected a configuration of this device's kernels for a winner of {where}, got "
        f"{str(data)[:200]}; {FORMAT.again}"
    )


_WORDS = ("depthwise", "max", "avg", None, True, False)
