"""Measurements on disk: JSON lines, appended and flushed as they come.

    {"format": "tvm_stretch.measurements", "version": 1, "device": {...}}
    {"features": {"family": "conv", ...}, "nanoseconds": 81234, "spread": 0.02, "runs": 20, ...}

A killed process leaves at most one truncated last line, which the next one drops.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvm_stretch.base.errors import CostModelError, InputError
from tvm_stretch.base.files import make_folder, read_whole, reason_of, write_whole, writing
from tvm_stretch.base.progress import say
from tvm_stretch.plan.cost.fingerprint import check_device
from tvm_stretch.plan.cost.generic_features import MEASUREMENTS, from_json, to_json
from tvm_stretch.plan.measuring.samples import Sample
from tvm_stretch.targets.kernels.features import Features


def require_networks(networks: object) -> None:
    """Refuse an argument that is not a mapping of networks."""
    if not isinstance(networks, Mapping | None):
        raise InputError(
            f"expected networks by their names for networks, got {networks!r}; give a dictionary "
            "such as {'resnet50': 'resnet50.onnx'}"
        )


@dataclass(frozen=True)
class Row:
    """One measured kernel."""

    features: Features  # the kernel's features
    nanoseconds: int  # the time of one run
    spread: float  # distance of the quartiles relative to it
    runs: int  # the number of undisturbed runs that it is taken from
    network: str = ""  # the network it is a kernel of; empty for samples
    batch: int = -1  # which batch of samples it belongs to; -1 for kernels of networks
    sample: dict[str, Any] | None = None  # the sample as JSON; None for kernels of networks
    quiet: bool = True  # whether the reference kernel ran at its usual speed
    reference_ns: int = 0  # the reference kernel's time then; 0 if none ran
    # in rows of transfers, the slowdown of kernels while another processor works
    together: float = 1.0

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads."""
        return {**vars(self), "features": to_json(self.features)}

    @staticmethod
    def from_json(data: dict[str, Any], where: str) -> Row | None:
        """Read what `to_json` wrote; None if the kernel's family has changed since."""
        features = from_json(data["features"]) if "features" in data else None
        if "features" in data and features is None:
            return None
        row = MEASUREMENTS.build(
            Row, data if features is None else {**data, "features": features}, where
        )
        least = min(row.spread, row.runs, row.reference_ns, row.together)
        if row.nanoseconds <= 0 or least < 0:
            raise CostModelError(
                f"expected positive nanoseconds, and no negative number, for {where}, got "
                f"{data!r:.200}; remove the line, or {MEASUREMENTS.again}"
            )
        if row.sample is not None:
            Sample.from_json(row.sample)
        return row


_MOST_BYTES = 2**31
"""The largest file of measurements; a line has some hundred bytes."""


def usual_pace(rows: Sequence[Row]) -> float:
    """Nanoseconds of the reference kernel beside the median row; 0 if it ran beside none.

    Virtual machines move between hosts of different clocks, and clocks follow the load.
    Measurements of different days are comparable only relative to a kernel that ran at the same
    time.
    """
    return statistics.median([row.reference_ns for row in rows if row.reference_ns] or [0])


def at_pace(nanoseconds: float, reference_ns: int, usual: float) -> float:
    """A time, scaled to the usual speed of the machine."""
    return nanoseconds * usual / reference_ns if usual and reference_ns else nanoseconds


class Dataset:
    """The measurements of one device in one file."""

    def __init__(self, path: Path, device: Mapping[str, Any], rows: Sequence[Row]) -> None:
        self.path = path
        self.device = dict(device)
        self.rows = list(rows)

    @staticmethod
    def create(path: str | Path, device: Mapping[str, Any]) -> Dataset:
        """Create an empty file, which replaces an existing one."""
        dataset = Dataset(Path(path), device, [])
        head = json.dumps({**MEASUREMENTS.head, "device": dataset.device}, separators=(",", ":"))
        with writing(MEASUREMENTS.what, CostModelError):
            make_folder(dataset.path.parent)
            write_whole(dataset.path, head + "\n")
        return dataset

    @staticmethod
    def open(path: str | Path, device: Mapping[str, Any] | None = None) -> Dataset:
        """Read a file, and cut off a truncated last line.

        Args:
            device: the device that it must have been measured on; None accepts any.
        """
        path = Path(path)
        try:
            content = read_whole(path, _MOST_BYTES)
        except OSError as error:
            raise CostModelError(
                f"expected measurements in {path}, got {reason_of(error)}; run ts.tune.measure"
            ) from error
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.truncate(path, len(whole))
        lines = whole.decode("utf-8", errors="replace").splitlines()
        head = MEASUREMENTS.parse(lines[0] if lines else "{}", f"line 1 of {path}")
        if device is not None:
            check_device(head.get("device"), device, str(path))
        rows = []
        for number, line in enumerate(lines[1:], 2):
            where = f"line {number} of {path}"
            rows.append(Row.from_json(MEASUREMENTS.load(line, where), where))
        readable = [row for row in rows if row is not None]
        if len(readable) < len(rows):
            say(
                f"{len(rows) - len(readable)} of {len(rows)} measurements in {path} are of kernels "
                "whose cost family has changed, and are ignored"
            )
        return Dataset(path, head.get("device") or {}, readable)

    def append(self, *rows: Row) -> None:
        """Append rows atomically; they are on disk when this returns.

        Raises:
            CostModelError: they cannot be written; then the file has none of them.
        """
        lines = (json.dumps(row.to_json(), separators=(",", ":")) + "\n" for row in rows)
        content = "".join(lines).encode()
        with writing(MEASUREMENTS.what, CostModelError), self.path.open("ab", 0) as file:
            size = file.seek(0, os.SEEK_END)
            try:
                while content:
                    content = content[file.write(content) :]
                os.fsync(file.fileno())
            except OSError:
                file.truncate(size)
                raise
        self.rows.extend(rows)
