"""``ts.tune.measure()`` times kernels on the device and learns a cost model of each processor.

On a GPU it first tries the best configurations of the networks' layers, and of pairs of layers
that one kernel can compute, and keeps the fastest.

    models = ts.tune.measure(["llvm", "opencl"], budget=300, cache="costs")
        costs/cpu.jsonl, costs/opencl.jsonl       measurements, one line each
        costs/cpu.json,  costs/opencl.json        the models learned from them

If it is killed, the next call goes on where it stopped.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping, Sequence

from tvm_stretch.base.errors import InputError
from tvm_stretch.base.files import as_path
from tvm_stretch.base.named_arguments import named_arguments
from tvm_stretch.base.progress import Progress, reporting, say
from tvm_stretch.phone.device import Device
from tvm_stretch.phone.device_processors import processors_of
from tvm_stretch.phone.fleet import Fleet, measure_fleet
from tvm_stretch.plan.cost.fingerprint import chosen_folder
from tvm_stretch.plan.cost.measured_model import MeasuredModel
from tvm_stretch.plan.cost.trees import the_xgboost
from tvm_stretch.plan.cost.tuned import tuned_path
from tvm_stretch.plan.measuring.bench import Bench, by_packets
from tvm_stretch.plan.measuring.campaign import (
    Campaign,
    batches_ahead,
    learn,
    losing_no_rows,
    measure_together,
    measuring_into,
    open_dataset,
)
from tvm_stretch.plan.measuring.dataset import require_networks
from tvm_stretch.plan.measuring.similar import Folders, folders_of, similar_models
from tvm_stretch.plan.measuring.trial import tune
from tvm_stretch.plan.measuring.tune_gpu import Layers
from tvm_stretch.plan.measuring.tune_pairs import Pairs
from tvm_stretch.plan.measuring.workshop import Workshop
from tvm_stretch.targets.registry import TargetLike


@named_arguments
def measure(
    targets: Sequence[TargetLike] | TargetLike | None = None,
    *,
    budget: float = 480.0,
    resume: bool = True,
    cache: str | os.PathLike[str] | None = None,
    networks: Mapping[str, object] | None = None,
    like: Folders | None = None,
    device: Device | Fleet | None = None,
    cpu_threads: int | None = None,
    progress: Progress | None = None,
    seed: int = 0,
) -> dict[str, MeasuredModel]:
    """Measure kernels of each processor and learn a cost model from them.

    Args:
        targets: the processors, as for ``compile``; by default the CPU, or all of the device.
        budget: seconds to spend on measuring, over all processors.
        resume: go on with the measurements that the folder holds; False starts again.
        cache: folder where measurements and models go; by default the user's cache.
        networks: networks, by name, whose kernels are measured first, in place. On a GPU, the
            configurations of their layers are tried before, and pairs of layers as one kernel and
            as two, in at most half of the budget; ``compile`` uses the fastest ones.
        like: folders of measurements of similar devices. Then a budget of 60 seconds is enough:
            kernels are measured first that tell most about the difference, and the model of the
            closest device is corrected.
        device: where to measure, as ``ts.connect`` gives it; by default this machine. A
            ``ts.tune.Fleet``: on all of its phones at the same time.
        cpu_threads: as for ``compile``.
        progress: receives a line of text after every step; by default they are shown on one line of
            the terminal, if there is one.
        seed: the seed of the samples.

    Returns:
        The models by name of processor, for a fleet by ``key/processor``. They are also written to
        the folder, for a fleet to a folder for each key.

    Raises:
        InputError: the budget is not positive, or ``device`` is not a device.
        InstallError: xgboost is not installed.
        CostModelError: the folder's measurements are damaged or from another device, or another
            campaign is writing to it.
        DeviceError: a device disappeared, or gave a wrong answer; measurements are kept, and
            another call goes on with them.

    Examples:
        >>> models = ts.tune.measure(["llvm"], budget=1, cache="measured")
        >>> sorted(models)
        ['cpu']
    """
    if not isinstance(budget, int | float) or not budget > 0:
        raise InputError(f"expected a positive number of seconds for budget, got {budget!r}")
    the_xgboost()  # now: learning imports it late, where Ctrl-C would end the process
    require_networks(networks)
    folders = folders_of(like)
    if not isinstance(seed, int):
        raise InputError(f"expected a whole number for seed, got {seed!r}; 0 is one")
    if isinstance(device, Fleet):
        if folders:
            raise InputError(
                f"expected no similar devices for a fleet, got {like!r} for like; measure one phone"
            )
        path = None if cache is None else as_path(cache, "the folder for measurements")
        with reporting(progress):
            return measure_fleet(
                device, targets, budget, resume, path, networks or {}, cpu_threads, seed
            )
    processors, placeable = processors_of(device, targets, cpu_threads)
    kept_in = chosen_folder(cache, processors[0])
    models: dict[str, MeasuredModel] = {}
    host = processors[0]
    others = [p for p in placeable if p is not host]
    in_order = sorted(placeable, key=lambda p: p is not host)  # models build on the host's
    similar = {p.name: similar_models(folders, p.name) for p in placeable}
    with reporting(progress), measuring_into(kept_in):
        for index, processor in enumerate(in_order):
            workshop = Workshop([processor, *(p for p in processors[:1] if p is not processor)])
            share = budget / (len(placeable) - index)
            start = time.monotonic()
            dataset = open_dataset(kept_in, processor, resume)
            ahead = batches_ahead(processor, None if device is None else device.describe())
            with losing_no_rows(dataset, processor):
                bench = Bench(workshop, device)
                if processor.machine.gpu is not None:
                    tuned = tuned_path(kept_in, processor)
                    if not resume:
                        tuned.unlink(missing_ok=True)
                    end, every = start + share / 2, (networks or {}).values()
                    workshop = tune(
                        (Layers, Pairs), workshop, bench, every, tuned, end, ahead=ahead
                    )
                    bench = Bench(workshop, device)
                    share = max(1.0, share - (time.monotonic() - start))
                if processor.hardware.packet_ns:
                    say(f"{processor.name}: {by_packets(processor)}; hand-overs are typical ones")
                elif processor in others:
                    measure_together(dataset, host, processor, bench)
            closest = next(iter(similar[processor.name]), None)
            campaign = Campaign(workshop, dataset, random.Random(seed), closest)
            campaign.run(bench, share, networks or {}, ahead)
            budget = max(1.0, budget - (time.monotonic() - start))
            cpu = models.get(host.name) if processor.hardware.on_host_cores else None
            below = similar[processor.name] or ([cpu] if cpu else [])
            models[processor.name] = learn(dataset, processor, below)
            models[processor.name].save(kept_in / f"{processor.name}.json")
            say(f"{processor.name}: {len(dataset.rows)} kernels, model in {kept_in}")
    return models
