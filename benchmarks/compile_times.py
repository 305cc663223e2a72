"""Seconds that torchvision's networks take to compile, each in a process with an empty cache.

    python -m benchmarks.compile_times resnet50 swin_t .. [--targets llvm,opencl] [--effort low]

Processor time, which other programs disturb less than the clock: to read the network until it is
canonical, then all of `ts.compile`, then the same once more, without the imports of torch and TVM
and without torch's export.  The last row is the median.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence

from benchmarks.commands import campaign, in_a_process, options, say

VIDEOS = ("r3d_18", "mc3_18", "r2plus1d_18", "s3d", "mvit_v1_b", "mvit_v2_s")
SIZES = {"inception_v3": 299, "swin_v2_t": 256, "swin_v2_s": 256, "swin_v2_b": 256}
WITH_BACKBONE = ("fcn_", "deeplabv3_", "lraspp_")


def measured(name: str, targets: list[str], effort: str) -> tuple[float, float, float]:
    """Seconds to read a network, to compile it, and to compile it again; for an own process."""
    import torch
    import torchvision

    import tvm_stretch as ts

    options = {"weights": None}
    if name.startswith(WITH_BACKBONE):
        options["weights_backbone"] = None
    if name in ("googlenet", "inception_v3"):
        options["init_weights"] = False
    network = torchvision.models.get_model(name, **options).eval()
    size = SIZES.get(name, 224)
    inputs = (torch.rand(1, 3, size, size),)
    if name.startswith("raft"):
        inputs = (torch.rand(1, 3, 128, 128), torch.rand(1, 3, 128, 128))
    if name in VIDEOS or name.startswith("swin3d"):
        inputs = (torch.rand(1, 3, 16, 224, 224),)
    program = torch.export.export(network, inputs)
    _ = ts.compile, ts.load  # imports take seconds, too
    times = []

    def note(line: str) -> None:
        if not times and line.startswith(("building", "searching")):
            times.append(time.process_time())

    settings = {"targets": targets, "cpu_threads": 1, "effort": effort, "progress": note}
    begin = time.process_time()
    ts.compile(program, **settings)
    end = time.process_time()
    ts.compile(program, **settings)
    return (times or [end])[0] - begin, end - begin, time.process_time() - end


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    words = ("words*", (), "networks of torchvision")
    args = options(__doc__, arguments, words, ("--targets", "llvm"), ("--effort", "full"))

    def measure(name: str) -> tuple[float, ...] | None:
        how = name, args.targets.split(","), args.effort
        with tempfile.TemporaryDirectory() as cache:
            try:
                return in_a_process(measured, *how, XDG_CACHE_HOME=cache, OMP_NUM_THREADS="1")
            except Exception as error:
                say(f"{name}: {str(error)[-300:]}")
                return None

    heads = "network", "read, CPU s", "compile, CPU s", "again, CPU s"
    rows = campaign(args.words, measure, heads, lambda row: (f"{s:.1f}" for s in row))
    if rows:
        middle = statistics.median(compiled for _, compiled, _ in rows.values())
        print(f"median {middle:.1f} s of {len(rows)}")


if __name__ == "__main__":
    main()
