"""``ts.tune.calibrate()`` makes a profile of your own phone.

    calibration = ts.tune.calibrate("phone.csv", {"R-34": "resnet34.onnx", ..}, name="my-phone")
    print(calibration)    # residuals, also of each network left out of the fit
    calibration.write("my-phone.toml")
    ts.plan_for("mobilenet.onnx", device="my-phone.toml")

The table holds latencies of whole networks, each on one processor, measured with any engine. A
folder of kernels that `ts.tune.measure(device=...)` timed can replace the table. Latencies
of one processor do not determine names, targets, precisions and transfers; these come from another
profile.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tvm_stretch.base.compiling import compiling
from tvm_stretch.base.errors import CostModelError
from tvm_stretch.base.files import as_path
from tvm_stretch.base.named_arguments import named_arguments
from tvm_stretch.base.progress import Progress, count, reporting
from tvm_stretch.plan.cost.calibrate import Calibration, Latency, calibrate_profile, read_latencies
from tvm_stretch.plan.cost.profile import Profile
from tvm_stretch.plan.cost.profile_file import load_profile
from tvm_stretch.plan.measuring.dataset import Dataset, require_networks
from tvm_stretch.plan.search.twin import twin_processors, works_of
from tvm_stretch.read import load_network
from tvm_stretch.targets.kernels.features import Work


@named_arguments
def calibrate(
    latencies: str | os.PathLike[str],
    networks: Mapping[str, object] | None = None,
    *,
    name: str,
    like: str | os.PathLike[str] = "snapdragon-855",
    progress: Progress | None = None,
) -> Calibration:
    """Fit the profile of a measured device.

    Args:
        latencies: a table (.csv) with the columns ``model``, ``processor``, ``latency_ms``, or a
            folder that `ts.tune.measure` has filled.
        networks: the networks of the table by name, as for `compile`; not for a folder.
        name: what the device is called.
        like: a profile with the facts that latencies do not determine; see the module docstring.
        progress: as for `compile`.

    Raises:
        CostModelError: the table, the folder or the profile is invalid.

    Examples:
        >>> import csv
        >>> rows = [["model", "processor", "latency_ms"], ["R-18", "cpu", 23.5]]
        >>> with open("phone.csv", "w") as file:
        ...     csv.writer(file).writerows(rows)
        >>> found = ts.tune.calibrate("phone.csv", {"R-18": "resnet18.onnx"}, name="my-phone")
        >>> found.write("my-phone.toml")
        >>> ts.plan_for("resnet18.onnx", device="my-phone.toml").processors
        ('cpu', 'opencl', 'hexagon')
    """
    base = load_profile(like)
    path = as_path(latencies, "latencies")
    require_networks(networks)
    with reporting(progress), compiling():
        if path.is_dir():
            rows, works = _measured(path, base)
            source = f"kernels that ts.tune.measure timed, {len(rows)} in all"
        else:
            rows = read_latencies(path)
            works = works_of_networks(networks or {}, base, [row.network for row in rows])
            source = f"latencies of whole networks on one processor, {len(rows)} in all"
        source += f"; targets, precisions and transfers as in {base.device}"
        return calibrate_profile(rows, works, replace(base, device=name, source=source))


def works_of_networks(
    networks: Mapping[str, object], like: Profile, wanted: Sequence[str]
) -> dict[str, list[Work]]:
    """The work of the kernels of the wanted networks."""
    (host, *_), _ = twin_processors(like, ["cpu"])
    names = [name for name in dict.fromkeys(wanted) if name in networks]
    found = {}
    for number, name in enumerate(names, start=1):
        count("network", number, len(names))
        groups = works_of(load_network(networks[name]), host)
        found[name] = [work for works in groups.values() for work in works]
    return found


def _measured(folder: Path, base: Profile) -> tuple[list[Latency], dict[str, list[Work]]]:
    """Timed kernels as latencies; the kernels of one network form one entry."""
    rows: list[Latency] = []
    works: dict[str, list[Work]] = {}
    for processor in base.processors:
        path = folder / f"{processor}.jsonl"
        if not path.exists():
            continue
        for number, row in enumerate(Dataset.open(path).rows):
            if row.features.is_kernel:
                network = f"{processor}: {row.network or f'samples {row.batch}'}"
                rows.append(Latency(network, processor, row.nanoseconds / 1e6, f"{number}"))
                works[rows[-1].label] = [row.features.device_work()]
    if not rows:
        raise CostModelError(
            f"expected measurements of {' or '.join(base.processors)} in {folder}, got none; run "
            "ts.tune.measure(..., cache=...) first"
        )
    return rows, works
