"""A phone runs models with TVM's runtime alone: no Relax, no code generation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from helpers.cpu_targets import TARGET
from helpers.relax_helpers import module, random_inputs
from tvm import relax

import tvm_stretch as ts

SCRIPT = """
import importlib.abc, sys

class Refusing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("tvm.relax", "tvm_stretch.make.code", "tvm_stretch.passes")):
            raise ImportError(f"{name} needs the compiler")

sys.meta_path.insert(0, Refusing())
import numpy as np
import tvm_stretch as ts

model = ts.load(sys.argv[1])
np.save(sys.argv[2], model(np.load(sys.argv[3])))
print(model.plan.explain(), model.benchmark(2), model.timeline(repeat=1))
"""


def test_a_model_is_loaded_and_run(tmp_path: Path) -> None:
    mod = module(relax.op.nn.relu, (4, 8))
    model, (x,) = ts.compile(mod, TARGET, cpu_threads=1), random_inputs(mod)
    model.export(artifact := tmp_path / "model.so")
    given, answer = tmp_path / "x.npy", tmp_path / "y.npy"
    np.save(given, x)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, artifact, answer, given],
        env={**os.environ, "TVM_USE_RUNTIME_LIB": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(answer), model(x))
