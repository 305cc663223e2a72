"""Memory that is not there is one clear error, wherever it is missing."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest
from helpers import fresh_process
from helpers.cpu_targets import TARGET
from helpers.small_models import build_model
from tvm import relax
from tvm.script import tirx as T

from tvm_stretch.run.model import Model

CODE = """
import resource
from pathlib import Path
import numpy as np
from helpers.cpu_targets import TARGET
from helpers.relax_helpers import module
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
        assert " free memory" in str(error), error
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


def hungry_model() -> Model:
    """``x + 1``; two threads need 128 MB each."""

    @T.prim_func(s_tir=True)
    def each(x: T.Buffer((2,), "int64"), y: T.Buffer((2,), "int64")):
        T.func_attr({"tirx.noalias": True, "global_symbol": "each"})
        for thread in T.parallel(2):
            with T.sblock("thread"):
                own = T.axis.spatial(2, thread)
                large = T.sblock_alloc_buffer((1 << 24,), "int64")
                for i in range(1 << 24):
                    with T.sblock("fill"):
                        place = T.axis.spatial(1 << 24, i)
                        large[place] = x[own] + T.int64(1)
                with T.sblock("read"):
                    y[own] = large[x[own]]

    builder = relax.BlockBuilder()
    kernel = builder.add_func(each, "each")
    x = relax.Var("x", relax.TensorType((2,), "int64"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(relax.call_tir(kernel, relax.Tuple([x]), x.ty))
        builder.emit_func_output(out)
    return build_model(builder.get(), TARGET)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit of the address space")
@pytest.mark.parametrize("megabytes", [16, 160])
def test_temporaries_of_kernels_on_threads_of_their_own(megabytes: int) -> None:
    """There is room for none of the temporaries, or for one; TVM would end the process."""
    code = f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from test_lacking_memory import hungry_model
        model, x = hungry_model(), np.array([3, 5])
        leave({megabytes})
        check(lambda: model(x))
        resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
        np.testing.assert_array_equal(model(x), x + 1)
    """
    fresh_process.run(CODE + textwrap.dedent(code))
