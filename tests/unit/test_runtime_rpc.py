"""Every method of the executor, called over TVM's RPC: in this process and over a socket."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tvm
from small_models import SHAPE, random_input, scaled_model, scaled_reference
from tvm import rpc

X = random_input()


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rpc") / "model.so"
    scaled_model().export(path)
    return path


def check_methods(session: rpc.RPCSession, artifact: Path) -> None:
    session.upload(str(artifact))
    module = session.load_module(artifact.name)
    device = session.cpu(0)
    x = tvm.runtime.tensor(X, device)
    module["set_input"]("x", x)
    module["run"]()
    y = tvm.runtime.empty(SHAPE, "float32", device)
    module["get_output"](0, y)
    np.testing.assert_allclose(y.numpy(), scaled_reference(X), rtol=1e-5)
    np.testing.assert_allclose(module["get_output"](0).numpy(), scaled_reference(X), rtol=1e-5)
    other = module["create_instance"]()
    x2 = tvm.runtime.tensor(2 * X, device)
    other["invoke"](x2, y)
    np.testing.assert_allclose(y.numpy(), scaled_reference(2 * X), rtol=1e-5)
    assert json.loads(module["graph"]())["inputs"][0]["name"] == "x"
    (spans,) = json.loads(module["trace"]())["regions"]
    assert [span["kind"] for span in spans] == ["kernel", "kernel"]
    module["set_affinity"]("0")
    module["run"]()
    module["cancel"]()  # nothing is running: nothing happens
    assert (module["num_inputs"](), module["num_outputs"]()) == (1, 1)
    assert module.time_evaluator("run", device, number=3)().mean > 0
    with pytest.raises(Exception, match="expected one of 'x'"):
        module["set_input"]("wrong", x)


def test_local_session(artifact: Path) -> None:
    check_methods(rpc.LocalSession(), artifact)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def device_farm() -> Iterator[int]:
    """A tracker with one server, each in a process of its own; yields the tracker's port."""
    port, server_port = free_port(), free_port()
    host = ["--host", "127.0.0.1"]
    commands = [
        ["tvm.exec.rpc_tracker", *host, f"--port={port}", f"--port-end={port + 1}"],
        ["tvm.exec.rpc_server", *host, f"--port={server_port}", f"--port-end={server_port + 1}"],
    ]
    commands[1] += [f"--tracker=127.0.0.1:{port}", "--key=phone"]
    processes = [subprocess.Popen([sys.executable, "-m", *command]) for command in commands]
    try:
        while not is_listening(port):
            assert all(process.poll() is None for process in processes), "a process died"
            time.sleep(0.2)
        yield port
    finally:
        for process in processes:
            process.terminate()
            process.wait()


def is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def test_tracker_and_server(artifact: Path) -> None:
    for module in ("tornado", "psutil", "cloudpickle"):
        pytest.importorskip(module)
    with device_farm() as port:
        tracker = rpc.connect_tracker("127.0.0.1", port)
        check_methods(tracker.request("phone"), artifact)
