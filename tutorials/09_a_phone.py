"""A phone, from the box to a timeline; here the phone is a server of this machine.

    python tutorials/09_a_phone.py

A tracker lends phones, `tvm_stretch_rpc` runs on each of them. This page starts both here, on
127.0.0.1. With an Android phone on the cable one command does steps 1 and 2: `tvm-stretch phone`
(docs/phones.md); for boards with Linux, tvm_stretch/phone/server/README.md has both commands.
"""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TVM_STRETCH_CACHE_DIR", tempfile.mkdtemp())  # do not touch the user's cache

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.run.autoload import find_file


def started(command: list[str], ready: str) -> tuple[subprocess.Popen[bytes], str]:
    """A process that has said on its standard error that it is ready; and what it said."""
    libraries = str(Path(tvm_ffi.__file__).parent / "lib")
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            stderr=log,
            env={**os.environ, "LD_LIBRARY_PATH": libraries},
            start_new_session=True,
        )
        while not (found := re.search(ready, os.pread(log.fileno(), 9999, 0).decode())):
            assert process.poll() is None, "it has ended"
            time.sleep(0.02)
        return process, found[1]


def small_network() -> tvm.IRModule:
    """Three layers; the name of an ONNX file would do as well."""
    dice, builder = np.random.default_rng(0), relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 16, 28, 28), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y: relax.Expr = x
            for inputs, outputs in ((16, 64), (64, 128), (128, 64)):
                weight = dice.standard_normal((outputs, inputs, 3, 3), dtype=np.float32)
                y = builder.emit(relax.op.nn.conv2d(y, relax.const(weight / 30), padding=1))
                y = builder.emit(relax.op.nn.relu(y))
            out = builder.emit_output(y)
        builder.emit_func_output(out)
    return builder.get()


# 1. On the machine where networks are compiled: the tracker.
tracker, port = started(
    [sys.executable, "-m", "tvm.exec.rpc_tracker", "--host=127.0.0.1", "--port-end=9290"],
    r"bind to 127.0.0.1:(\d+)",
)
address = f"127.0.0.1:{port}"

# 2. On the phone: our server, with the libraries that `make phone` puts beside it. It offers itself
#    under a key that names the kind of phone. On a phone, this is a line of `adb shell` or `ssh`.
server, _ = started(
    [
        str(find_file("bin/tvm_stretch_rpc")),
        *("--tracker", address),
        *("--key", "pixel-8"),
        *("--library", str(Path(tvm.__file__).parent / "lib" / "libtvm_runtime.so")),
        *("--library", str(find_file("lib/libtvm_stretch_runtime.so"))),
    ],
    r"offered (as) ",
)

try:
    # 3. Describe the phone. A call that exceeds `timeout` raises ts.DeviceError.
    phone = ts.connect(address, "pixel-8", timeout=60)
    print(phone.describe())

    # 4. A network for its processors. With several of them, plans would be compared in turns there.
    network = small_network()
    model = ts.compile(network, ["llvm"], device=phone)
    print(model.plan.explain())

    # 5. Load the model on the phone. Uploads are content-addressed: each file is sent once.
    remote = phone.load(model)
    sent, weights = phone.sent_bytes / 1e6, model.graph.weights_bytes / 1e6
    print(f"{sent:.1f} MB sent, {weights:.1f} of them weights")
    x = np.random.default_rng(0).standard_normal((1, 16, 28, 28), dtype=np.float32)
    np.testing.assert_allclose(remote(x), model(x), rtol=1e-4, atol=1e-4)
    before = phone.sent_bytes
    other = dataclasses.replace(model.plan, reason="another plan, say")
    phone.load(ts.compile(network, ["llvm"], device=phone, plan=other))
    print(f"{(phone.sent_bytes - before) / 1e6:.1f} MB for another plan")

    # 6. Its clock, not ours: the way to the phone is not part of a latency.
    print(remote.benchmark(10))
    print(remote.timeline())

    # 7. A phone that goes takes nothing with it: the next call begins a session with any phone of
    #    that key. (`ts.tune.measure(device=phone)` goes on where it stopped, too.)
    phone.close()
    np.testing.assert_allclose(remote(x), model(x), rtol=1e-4, atol=1e-4)

    # 8. Without it, by what it said: the plan ends with "not measured", and the artifact is linked
    #    for the phone. For other machines than this one that needs zig or an Android NDK.
    offline = ts.compile(network, ["llvm"], device="pixel-8")
    with tempfile.TemporaryDirectory() as folder:
        offline.export(Path(folder, "network.so"))
        print(f"{Path(folder, 'network.so').stat().st_size / 1e6:.1f} MB")

    # 9. Many phones: with fleet = ts.tune.Fleet(address, keys=["pixel-8", "mi-9"]),
    #    ts.tune.measure(device=fleet) measures on all of them at the same time, and
    #    ts.tune.compare_plans(network, fleet) says which plan is best for all. Here there is one.
    print(ts.tune.Fleet(address, keys=["pixel-8"]).count())
    phone.close()
finally:
    for process in (server, tracker):
        os.killpg(process.pid, signal.SIGKILL)  # the tracker has a process of its own below it
