"""Memory that is not there is one clear error, wherever it is missing."""

from __future__ import annotations

import sys
import textwrap

import fresh_process
import pytest

CODE = """
import resource
from pathlib import Path
import numpy as np
from cpu_targets import TARGET
from relax_helpers import module
from tvm import relax
import tvm_stretch as ts

SHAPE = (1 << 20, 16)  # 64 MB

def twice(x):
    return relax.op.nn.softmax(relax.op.permute_dims(relax.op.nn.softmax(x)))

model = ts.compile(module(twice, SHAPE), TARGET, cpu_threads=1)
x = np.ones(SHAPE, "float32")
read_only = x[:]
read_only.flags.writeable = False

def leave(megabytes):
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (megabytes << 20), -1))

def check(action):
    try:
        action()
    except ts.RunError as error:
        assert "bytes of free memory" in str(error), error
        assert "; free some, " in str(error), error
    else:
        raise SystemExit("no error")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit of the address space")
def test_every_way_to_run() -> None:
    code = """
        runs = {
            "a call": lambda: model(x),
            "a read-only array": lambda: model(read_only),
            "in the background": lambda: model.run_async(x).result(),
            "noise": lambda: model.benchmark(1),
            "another instance": lambda: model.create_instance()(x),
        }
        for megabytes in (16, 100):  # there is no room for one tensor; for one, but not for all
            for name, run in runs.items():
                child = os.fork()
                if child == 0:
                    leave(megabytes)
                    try:
                        check(run)
                    except BaseException as error:
                        print(name, megabytes, repr(error), flush=True)
                        os._exit(1)
                    os._exit(0)
                assert os.waitpid(child, 0)[1] == 0
        leave(16)
        check(lambda: model(x))
        resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
        assert model(x).shape == SHAPE[::-1]  # and the model lives
    """
    fresh_process.run(CODE + textwrap.dedent(code))
