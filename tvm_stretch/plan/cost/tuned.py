"""The configurations of a GPU's kernels that ``ts.tune.measure`` found to be fastest.

    opencl.tuned.json   {"template": "group_conv", "in_channels": 64, .. "items": [8, 4], ..}
                        {"window": {..}, "conv": {..}, "tile": [32, 4, 1, 2]}
        -> kernels for GPUs take them before their models are asked

The file lies next to the models of ``ts.tune.measure`` and follows its rules: one that is damaged,
of another version, or of another device or driver is an error. A configuration that would not be
proposed for the device is one, too, because kernels trust their configurations.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tvm_stretch.base.errors import CostModelError
from tvm_stretch.base.formats import Format
from tvm_stretch.passes.join_depthwise import JoinDepthwise
from tvm_stretch.plan.cost.fingerprint import check_device, fingerprint
from tvm_stretch.targets.cpu.kernels.conv import ConvConfig
from tvm_stretch.targets.cpu.kernels.window import WindowConfig
from tvm_stretch.targets.kernels.template import Template, every_template
from tvm_stretch.targets.opencl.kernels.base import Layer, TunedTemplate
from tvm_stretch.targets.opencl.kernels.machine import GpuMachine, Winners
from tvm_stretch.targets.opencl.kernels.pair import APART, Pair, PairTile, pair_tiles
from tvm_stretch.targets.processor import Processor

FORMAT = Format(
    "tvm_stretch.tuned",
    2,
    "the tuned kernels of ts.tune.measure",
    CostModelError,
    "delete the file and measure again",
    is_sealed=True,
)


@dataclass(frozen=True)
class Tuned:
    """What was measured of the configurations of layers."""

    device: dict[str, Any]  # on which
    winners: dict[Layer, Any]  # the fastest configuration of each layer, by layer
    pairs: dict[Pair, PairTile]  # the fastest tile of each pair of layers, or `APART`
    dropped: dict[str, str]  # configurations that failed, as `described`, and why

    @property
    def table(self) -> dict[Any, Any]:
        """Everything that was found, for `Winners`."""
        return {**self.winners, **self.pairs}

    def apply(self, processor: Processor) -> Processor:
        """The processor, whose kernels have these configurations."""
        return with_winners(processor, self.table) if self.table else processor

    def write(self, path: Path) -> None:
        """Write the file; it appears complete or not at all."""
        configs = [{"template": c.template, **asdict(c)} for c in self.winners.values()]
        pairs = [{**asdict(pair), "tile": tile} for pair, tile in self.pairs.items()]
        data = {"device": self.device, "winners": configs, "pairs": pairs}
        FORMAT.write(path, {**data, "dropped": self.dropped}, indent=1)

    @staticmethod
    def read(path: Path, processor: Processor) -> Tuned:
        """What a file holds of a GPU; nothing if there is no file."""
        own, gpu = fingerprint(processor), processor.machine.gpu
        if gpu is None or not os.access(path, os.F_OK):
            return Tuned(own, {}, {}, {})
        where, data = f"{FORMAT.what} in {path}", FORMAT.read(path)
        names = {"device", "winners", "pairs", "dropped"}
        lists = [data.get("winners"), data.get("pairs")]
        if set(data) != names or not all(isinstance(one, list) for one in lists):
            raise CostModelError(
                f"expected device, winners, pairs and dropped for {where}, got {sorted(data)}; "
                f"{FORMAT.again}"
            )
        check_device(data["device"], own, str(path))
        configs = [_config(item, gpu, where) for item in data["winners"]]
        pairs = dict(_pair(item, gpu, where) for item in data["pairs"])
        return Tuned(own, {c.bare(): c for c in configs}, pairs, dict(data["dropped"]))


def tuned_path(folder: Path, processor: Processor) -> Path:
    """The file of a processor."""
    return folder / f"{processor.name}.tuned.json"


def with_winners(processor: Processor, winners: Mapping[Any, Any] | Winners) -> Processor:
    """A GPU's processor that takes these configurations of layers, and tiles of pairs."""
    machine = processor.machine
    assert machine.gpu is not None
    table = winners if isinstance(winners, Winners) else Winners(winners)
    gpu = replace(machine.gpu, winners=table)
    joins: Any = JoinDepthwise(gpu)  # mypy sees no pass
    code = processor.code
    phases = [joins if isinstance(phase, JoinDepthwise) else phase for phase in code.phases]
    code = replace(code, phases=tuple(phases))
    return replace(processor, machine=replace(machine, gpu=gpu), code=code)


def described(config: Any) -> str:
    """A configuration as a text."""
    values = {"template": config.template, **asdict(config)}
    return " ".join(f"{key}={_joined(value)}" for key, value in values.items())


def _joined(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _config(data: Any, gpu: GpuMachine, where: str) -> Any:
    """The configuration of an object in the file."""
    values = dict(data) if isinstance(data, dict) else {}
    kind = every_template().get(str(values.pop("template", "")), Template)
    if issubclass(kind, TunedTemplate) and _is_plain(values):
        config = FORMAT.build(kind, values, f"a winner of {where}")
        try:
            if config.is_possible(gpu):
                return config
        except _NO_LAYER:
            pass
    raise CostModelError(
        f"expected a configuration of this device's kernels for a winner of {where}, got "
        f"{str(data)[:200]}; {FORMAT.again}"
    )


def _pair(data: Any, gpu: GpuMachine, where: str) -> tuple[Pair, PairTile]:
    """The pair of an object in the file, and its tile."""
    values = dict(data) if isinstance(data, dict) else {}
    layers = [values.get("window"), values.get("conv"), {"tile": values.get("tile")}]
    if set(values) == {"window", "conv", "tile"} and all(map(_is_plain, layers)):
        what = f"a pair of {where}"
        window = FORMAT.build(WindowConfig, values["window"], what)
        pair = Pair(window, FORMAT.build(ConvConfig, values["conv"], what))
        try:
            tile = PairTile(*values["tile"])
            if tile == APART or tile in pair_tiles(pair, gpu):
                return pair, tile
        except _NO_LAYER:
            pass
    raise CostModelError(
        f"expected two layers and a tile of this device's kernels for a pair of {where}, got "
        f"{str(data)[:200]}; {FORMAT.again}"
    )


def _is_plain(values: Any) -> bool:
    """Whether an object has no other values than those of layers."""
    if not isinstance(values, dict):
        return False
    numbers = [n for v in values.values() for n in (v if isinstance(v, list) else [v])]
    return all((type(n) is int and 0 <= n < 2**31) or n in _WORDS for n in numbers)


_NO_LAYER = TypeError, ValueError, ArithmeticError, IndexError
"""What values that are of no layer at all raise."""

_WORDS = ("depthwise", "max", "avg", None, True, False)
