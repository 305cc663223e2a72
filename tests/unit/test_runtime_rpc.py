"""Every method of the executor, called over TVM's RPC: in this process and over a socket."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tvm
from helpers.rpc_processes import Phone, RpcProcess
from helpers.small_models import SHAPE, random_input, scaled_model, scaled_reference
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


@contextlib.contextmanager
def device_farm() -> Iterator[int]:
    """A tracker with one server; yields the tracker's port."""
    with contextlib.ExitStack() as stack:
        tracker = RpcProcess("tvm.exec.rpc_tracker")
        stack.callback(tracker.kill)
        farm = f"--tracker=127.0.0.1:{tracker.port}"
        stack.callback(RpcProcess("tvm.exec.rpc_server", farm, "--key=phone").kill)
        yield tracker.port


@pytest.mark.full  # slow to start; the next one does the same
def test_tracker_and_server(artifact: Path) -> None:
    for module in ("tornado", "psutil", "cloudpickle"):
        pytest.importorskip(module)
    with device_farm() as port:
        tracker = rpc.connect_tracker("127.0.0.1", port)
        check_methods(tracker.request("phone"), artifact)


def test_a_server_without_python(artifact: Path) -> None:
    """A wrong name comes back as an error, and the session lives: one C++ library for all."""
    phone = Phone()
    try:
        check_methods(rpc.connect("127.0.0.1", phone.port, "pixel"), artifact)
    finally:
        phone.kill()
