"""Measuring while devices disappear and processes are killed: clear errors, and nothing is lost."""

from __future__ import annotations

import itertools
import json
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tvm
from helpers import fresh_process
from helpers.fake_targets import TARGET, fake_processor
from helpers.mutations import interruptions
from helpers.relax_helpers import module
from helpers.rpc_processes import RpcProcess
from tvm import relax, rpc

import tvm_stretch as ts
from tvm_stretch.base.errors import CostModelError, DeviceError
from tvm_stretch.phone.device_processors import processors_of
from tvm_stretch.plan.cost.fingerprint import chosen_folder
from tvm_stretch.plan.cost.measured_model import load_cost_model
from tvm_stretch.plan.measuring.dataset import Dataset
from tvm_stretch.plan.measuring.samples import Sample
from tvm_stretch.plan.measuring.transfers import measure_transfers
from tvm_stretch.plan.search.costs import planning_costs
from tvm_stretch.targets.processor import Processor

ROOT = Path(__file__).resolve().parents[2]
SMALL = (Sample("conv", 8, (6, 6), 8, epilogue="relu"), Sample("dense", 16, (1, 1), 8))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prior of two samples, few hand-overs, each measured for a moment, however busy all is."""
    monkeypatch.setattr("tvm_stretch.plan.measuring.timing._TOLERANCE", 1e9)
    few = partial(measure_transfers, sizes=(64, 1024), runs=3)
    monkeypatch.setattr("tvm_stretch.plan.measuring.campaign.measure_transfers", few)
    monkeypatch.setattr("tvm_stretch.plan.measuring.transfers._LAYERS", ((64, 1),))
    monkeypatch.setattr("tvm_stretch.plan.measuring.campaign.load_prior", lambda: list(SMALL))
    monkeypatch.setattr("tvm_stretch.plan.measuring.bench._SECONDS", 0.02)


def measured(folder: Path, **settings: Any) -> list[str]:
    """A short campaign; the lines of progress."""
    lines: list[str] = []
    options: dict[str, Any] = {"budget": 0.2, "cpu_threads": 1, "progress": lines.append}
    ts.tune.measure(**{"targets": [TARGET], "cache": folder, **options, **settings})
    return lines


# --- a device behind an RPC session ---------------------------------------------------------------


class Server(RpcProcess):
    """An RPC server that can be killed."""

    def __init__(self) -> None:
        super().__init__("tvm.exec.rpc_server")

    def connect(self) -> ts.Device:
        return ts.connect(rpc.connect("127.0.0.1", self.port), "phone")


@pytest.fixture
def start() -> Iterator[Callable[[], Server]]:
    """Starts servers; all are killed in the end."""
    pytest.importorskip("cloudpickle")
    servers: list[Server] = []

    def started() -> Server:
        servers.append(Server())
        return servers[-1]

    yield started
    for server in servers:
        server.kill()


LOST = r"^expected cpu to be there .*, got .*; its \d+ kernels are kept in .*: bring it back"


@pytest.mark.full
def test_a_server_that_is_killed_and_comes_back(
    start: Callable[[], Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile somebody sets the wall clock, forth and back, which nothing waits for."""
    now, jumps = time.time, itertools.cycle((0.0, -1e8, 1e8))
    monkeypatch.setattr(time, "time", lambda: now() + next(jumps))
    first = start()
    killed = []

    def kill(line: str) -> None:
        if not killed and " in all" in line:
            killed.append(line)
            first.kill()

    with pytest.raises(DeviceError, match=LOST):
        measured(tmp_path, device=first.connect(), budget=600, progress=kill)
    kept = (tmp_path / "cpu.jsonl").read_bytes()
    assert killed and kept.count(b"\n") > 2
    measured(tmp_path, device=start().connect())
    assert (tmp_path / "cpu.jsonl").read_bytes().startswith(kept)
    remote = Dataset.open(tmp_path / "cpu.jsonl")
    assert {row.batch for row in remote.rows} >= {0, 1}
    model = load_cost_model(tmp_path / "cpu.json")
    assert model.device["machine"] == "phone"

    # Rows are of the same form, wherever they come from.
    measured(tmp_path / "local")
    local = Dataset.open(tmp_path / "local" / "cpu.jsonl")
    for rows in (remote.rows, local.rows):
        assert {"conv", "dense", "run"} <= {row.features.family for row in rows}
        assert all(row.nanoseconds > 0 for row in rows)
    forms = [{json.dumps(sorted(row.to_json())) for row in found.rows} for found in (remote, local)]
    assert forms[0] == forms[1]


def test_models_of_a_phone_are_read_for_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_STRETCH_CACHE_DIR", str(tmp_path))
    phone, other = (ts.connect(rpc.LocalSession(), key) for key in ("phone", "other"))
    ts.tune.measure(["llvm"], device=phone, budget=0.2, cpu_threads=1)
    network = module(lambda x: relax.op.nn.relu(relax.op.abs(x)), (1, 8, 6, 6))
    sources = {}
    for device in (phone, other, None):
        processors, _ = processors_of(device, ["llvm"], 1)
        name = device.name if device else "here"
        sources[name] = planning_costs(processors).trusted
        verdicts = ts.tune.probe(network, "llvm", device=device, cpu_threads=1)
        assert verdicts.reasons and not verdicts.refused
        assert device is None or verdicts.device["machine"] == name
        assert (chosen_folder(None, processors[0]) / "cpu.json").is_file() == (name == "phone")
    assert sources == {"phone": True, "other": False, "here": False}


def test_measurements_of_two_phones_do_not_mix(tmp_path: Path) -> None:
    measured(tmp_path, device=ts.connect(rpc.LocalSession(), "phone"))
    kept = (tmp_path / "cpu.jsonl").read_bytes()
    for other in ({"device": ts.connect(rpc.LocalSession(), "another")}, {}):
        with pytest.raises(CostModelError, match=r"measurements of this device .*machine 'phone'"):
            measured(tmp_path, **other)
    assert (tmp_path / "cpu.jsonl").read_bytes() == kept


# --- a device of this machine ---------------------------------------------------------------------


def lost_after(builds: int) -> Processor:
    """A processor whose driver fails from some network on."""
    good, lost = fake_processor("npu"), {f"r{i}": {"fails": "device lost"} for i in range(60)}
    bad = fake_processor("npu", regions={**lost, "other": {"fails": "device lost"}})
    made = []

    def build(*arguments: Any) -> tvm.runtime.Module:
        made.append(1)
        return (good if len(made) <= builds else bad).code.build(*arguments)

    return replace(good, code=replace(good.code, build=build))


@pytest.mark.parametrize("builds", [*(pytest.param(n, marks=pytest.mark.full) for n in (0, 4)), 13])
@pytest.mark.full
def test_a_driver_that_is_lost_and_comes_back(builds: int, tmp_path: Path) -> None:
    """At the reference kernel, while hand-overs are measured, among the samples."""
    with pytest.raises(DeviceError, match=r"^expected npu to be there .*device lost"):
        measured(tmp_path, targets=[lost_after(builds)], budget=600)
    kept = (tmp_path / "npu.jsonl").read_bytes()
    assert not (tmp_path / "npu.json").exists()
    assert any(row.batch == 0 for row in Dataset.open(tmp_path / "npu.jsonl").rows) == (builds > 11)
    measured(tmp_path, targets=[fake_processor("npu")])
    assert (tmp_path / "npu.jsonl").read_bytes().startswith(kept)
    rows = Dataset.open(tmp_path / "npu.jsonl").rows
    assert sum(row.features.family == "transfer" for row in rows) == 4
    assert any(row.batch >= 0 for row in rows)


# --- a process that is killed, or interrupted -----------------------------------------------------

SCRIPT = """
import signal, sys
sys.path[:0] = {paths}
import tvm_stretch.plan.measuring.bench, tvm_stretch.plan.measuring.campaign
import tvm_stretch.plan.measuring.timing
import test_measure_faults as tests
signal.signal(signal.SIGINT, signal.default_int_handler)
tvm_stretch.plan.measuring.campaign.load_prior = lambda: list(tests.SMALL)
tvm_stretch.plan.measuring.bench._SECONDS = 0.02
tvm_stretch.plan.measuring.timing._TOLERANCE = 1e9
try:
    tests.measured({folder!r}, budget=600, progress=lambda line: print(line, flush=True))
except KeyboardInterrupt:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("interrupted", flush=True)
"""


@interruptions(by_default=1)
def test_interrupted_at_any_point(
    how: signal.Signals, piece: int, rounds: int, tmp_path: Path
) -> None:
    """Every row that was complete stays, and measuring goes on behind it."""
    paths = [str(ROOT / "tests" / "unit"), str(ROOT / "tests")]
    script = SCRIPT.format(paths=paths, folder=str(tmp_path))
    dice = random.Random(piece)
    kept = b""
    for _ in range(rounds):
        with fresh_process.start(script) as process:
            while " in all" not in process.text():  # the first batch is there
                time.sleep(0.02)
            time.sleep(dice.random() / 2)
            process.kill() if how == signal.SIGKILL else process.interrupt()
            status, text = process.wait()
        assert status == (-how if how == signal.SIGKILL else 0), text
        assert how == signal.SIGKILL or "interrupted\n" in text, text
        content = (tmp_path / "cpu.jsonl").read_bytes()
        assert content.startswith(kept) and len(content) > len(kept)
        kept = content[: content.rfind(b"\n") + 1]
    measured(tmp_path)
    assert (tmp_path / "cpu.jsonl").read_bytes().startswith(kept)
    rows = Dataset.open(tmp_path / "cpu.jsonl").rows
    batches = [row.batch for row in rows]
    assert batches == sorted(batches) and set(batches) == set(range(max(batches) + 1))
    assert {found.name for found in tmp_path.iterdir()} == {"cpu.json", "cpu.jsonl"}
    assert load_cost_model(tmp_path / "cpu.json").families or rows
