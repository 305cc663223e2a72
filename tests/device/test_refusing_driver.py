"""ts.tune.measure() on a driver that refuses some work-groups, and forgets others."""

from __future__ import annotations

import ctypes.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
LIBRARY = ctypes.util.find_library("OpenCL") or ctypes.util.find_library("pocl")

CASE = """
import sys, time
sys.path[:0] = [{tests!r}, {tests!r} + "/unit"]
from pathlib import Path
import test_tune as tuning
from tvm_stretch.plan.cost.tuned import Tuned
from tvm_stretch.plan.measuring import trial, tune_gpu
from helpers.relax_helpers import module, random_const
from tvm import relax

tune_gpu._SECONDS = 0.0
simple = tuning.replace(tuning.GPU, local_on_chip=False)
workshop = tuning.Workshop([tuning.processor(simple), tuning.cpu_processor(tuning.TARGET, 1)])
weight = random_const(24, 16, 1, 1)
networks = [module(lambda x: relax.op.nn.conv2d(x, weight), (1, 16, 9, 8))]
small = tuning.Sample("depthwise", 4, (2, 2), 4, groups=4)
with tuning.patch.object(tuning.workshop_of_bench, "REFERENCE", small):
    bench = tuning.Bench(workshop)
end = time.monotonic() + 60
trial.tune((tune_gpu.Layers,), workshop, bench, networks, Path({path!r}), end)
"""


@pytest.mark.full
@pytest.mark.skipif(LIBRARY is None, reason="neither an OpenCL loader nor PoCL")
def test_what_the_driver_does_wrong_is_dropped(tmp_path: Path) -> None:
    shim, path = tmp_path / "refusing.so", tmp_path / "opencl.tuned.json"
    source = TESTS / "native" / "refusing_opencl.c"
    subprocess.run(
        [
            "cc",
            "-shared",
            "-fPIC",
            "-Wl,--no-as-needed",
            "-o",
            shim,
            source,
            f"-l:{LIBRARY}",
            "-ldl",
        ],
        check=True,
    )
    env = {
        **os.environ,
        "TVM_STRETCH_OPENCL_LIB": str(shim),
        "TVM_STRETCH_CACHE_DIR": str(tmp_path / "cache"),
        "REFUSED_ITEMS": "64",
        "FORGOTTEN_ITEMS": "32",
    }
    text = CASE.format(tests=str(TESTS), path=str(path))
    subprocess.run([sys.executable, "-c", text], env=env, check=True, timeout=300)
    found = json.loads(path.read_text())
    reasons = set(found["dropped"].values())
    assert any("CL_INVALID_WORK_GROUP_SIZE" in reason for reason in reasons)
    assert any("numbers are wrong" in reason for reason in reasons)
    (winner,) = found["winners"]
    tile = f"pixels={winner['pixels']} ", f"group_items={winner['group_items']}"
    assert not any(all(word in dropped + " " for word in tile) for dropped in found["dropped"])
