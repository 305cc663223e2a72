"""Measurements on disk: JSON lines, appended and flushed as they come.

    {"format": "tvm_stretch.measurements", "version": 1, "device": {...}}
    {"features": {"family": "conv", ...}, "nanoseconds": 81234, "spread": 0.02, "runs": 20, ...}

A process that is killed leaves at most one torn last line, which the next one drops.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tvm_stretch.cost.device import check_device
from tvm_stretch.cost.features import MEASUREMENTS, Features, from_json, to_json
from tvm_stretch.errors import CostModelError


@dataclass(frozen=True)
class Row:
    """One measured kernel.

    Attributes:
        features: what was measured.
        nanoseconds: the time of one run.
        spread: distance of the quartiles relative to it.
        runs: how many undisturbed runs are behind it.
        network: the network it is a kernel of; empty for samples.
        batch: which batch of samples it belongs to; -1 for kernels of networks.
        sample: the sample as JSON; None for kernels of networks.
        quiet: whether the reference kernel ran at its usual speed.
        together: how many times as long kernels take while another processor works; of rows of
            transfers.
    """

    features: Features
    nanoseconds: int
    spread: float
    runs: int
    network: str = ""
    batch: int = -1
    sample: dict[str, Any] | None = None
    quiet: bool = True
    together: float = 1.0

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads."""
        return {**vars(self), "features": to_json(self.features)}

    @staticmethod
    def from_json(data: dict[str, Any], where: str) -> Row:
        """Read what `to_json` wrote."""
        row = MEASUREMENTS.build(Row, data, where)
        return replace(row, features=from_json(data["features"]))


class Dataset:
    """The measurements of one device in one file."""

    def __init__(self, path: Path, device: Mapping[str, Any], rows: Sequence[Row]) -> None:
        self.path = path
        self.device = dict(device)
        self.rows = list(rows)

    @staticmethod
    def create(path: str | Path, device: Mapping[str, Any]) -> Dataset:
        """An empty file, in place of whatever is there."""
        dataset = Dataset(Path(path), device, [])
        dataset.path.parent.mkdir(parents=True, exist_ok=True)
        dataset.path.unlink(missing_ok=True)
        dataset._write({**MEASUREMENTS.head, "device": dataset.device})
        return dataset

    @staticmethod
    def open(path: str | Path, device: Mapping[str, Any] | None = None) -> Dataset:
        """Read a file; a torn last line is cut off.

        Args:
            path: the file.
            device: what it must have been measured on; None takes any.

        Raises:
            CostModelError: another schema or device, or a damaged line that is not the last.
        """
        path = Path(path)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise CostModelError(
                f"expected measurements in {path}, got {error}; run ts.measure first"
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
        return Dataset(path, head["device"], rows)

    def append(self, *rows: Row) -> None:
        """Add rows, all in one piece; they are on the disk when this returns."""
        self._write(*(row.to_json() for row in rows))
        self.rows.extend(rows)

    def _write(self, *items: Mapping[str, Any]) -> None:
        lines = (json.dumps(item, separators=(",", ":")) + "\n" for item in items)
        with self.path.open("ab") as file:
            file.write("".join(lines).encode())
            file.flush()
            os.fsync(file.fileno())
