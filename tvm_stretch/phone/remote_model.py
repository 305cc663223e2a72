"""A model that runs on a remote device, with the interface of `Model`.

    remote = phone.load(model)          # sends only files that the phone lacks
    y = remote(x)                       # NumPy in, NumPy out; each tensor is sent once
    remote.benchmark()                  # by the phone's clock

After a lost session the executor is opened again.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tvm

from tvm_stretch.base.errors import (
    ArtifactError,
    DeviceError,
    RunCancelledError,
)
from tvm_stretch.base.files import as_path, writing
from tvm_stretch.base.progress import step
from tvm_stretch.make.lowering.executor_graph import Graph
from tvm_stretch.phone.device_recorder import DeviceRecorder
from tvm_stretch.phone.link import Link
from tvm_stretch.run.artifact import PrivateCopy, machine_of, read_artifact
from tvm_stretch.run.asynchronous import RUN_NUMBERS
from tvm_stretch.run.benchmark import BenchmarkResult
from tvm_stretch.run.loops_of_model import LoopsOfModel
from tvm_stretch.run.measures_of_model import MetersOfModel, require_runs
from tvm_stretch.run.meters import (
    Meters,
    measure_energy,
    read_meters,
)
from tvm_stretch.run.model import Model
from tvm_stretch.run.parts import Parts
from tvm_stretch.run.values import Answer, PresentAll

if TYPE_CHECKING:
    from tvm_stretch.phone.device import Device, RemoteModule


_LONGEST_SECONDS = 1.0  # of runs timed with one call
_METERED_SECONDS = 0.25  # of runs with one call, while a meter is read
_CANCEL_SECONDS = 5.0  # for a device to answer
_CANCELLED = "got a call of cancel"  # in the executor's message


class RemoteRun:
    """One run on a device, announced with a number so that exactly this run can be stopped."""

    def __init__(self) -> None:
        self.number = next(RUN_NUMBERS)
        self._cancelled = threading.Event()
        self._link: Link | None = None  # set from announcement to end
        self._beginning = threading.Lock()

    @contextlib.contextmanager
    def on(self, link: Link) -> Iterator[None]:
        """Context in which the run is in progress on the device."""
        link.function("tvm_stretch.announce_run")(self.number)
        with self._beginning:
            if self._cancelled.is_set():
                raise RunCancelledError
            self._link = link
        try:
            yield
        except tvm.error.RPCError as error:
            if self._cancelled.is_set() and _CANCELLED in str(error):
                raise RunCancelledError from error
            raise
        finally:
            self._link = None

    def cancel(self) -> None:
        """Stop the run from another thread; see `RunFuture.cancel`."""
        with self._beginning:
            self._cancelled.set()
            link = self._link
        if link is not None:  # if the run is over, the device ignores its number
            link.cancel(self.number, _CANCEL_SECONDS)


class RemoteExecutor:
    """An executor on a device, opened on first use and after a lost session.

    Args:
        device: its device.
        open_it: a function that opens it.
    """

    def __init__(self, device: Device, open_it: Callable[[], RemoteModule]) -> None:
        self.device = device
        self._open = open_it
        self._opened: RemoteModule | None = None
        # on the device, for each list of shapes and types
        self._buffers: dict[object, list[tvm.runtime.Tensor]] = {}
        self._lock = threading.RLock()  # guards the session's state
        self._kept: dict[str, tuple[Any, ...]] = {}  # arguments of `keep`, the newest last

    def now(self) -> RemoteModule:
        """The module of the current session.

        Raises:
            DeviceError: the device cannot open it.
        """
        with self._lock:
            if self._opened is None or self._opened.session != self.device.session_number:
                self._buffers = {}
                opened = self._open()
                for method, given in self._kept.items():
                    opened[method](*given)
                self._opened = opened  # only after all settings succeeded
            return self._opened

    def keep(self, method: str, *given: Any) -> None:
        """Call a method that sets something, now and again in later sessions."""
        with self._lock:
            self.now()[method](*given)
            self._kept.pop(method, None)
            self._kept[method] = given

    def __getitem__(self, method: str) -> Callable[..., Any]:
        """A method of the executor."""
        return lambda *given: self.now()[method](*given)

    def invoke(
        self,
        inputs: Sequence[tvm.runtime.Tensor],
        graph: Graph,
        run: RemoteRun | None = None,
        steps: int = 0,
        stops: str = "",
    ) -> tuple[int, list[tvm.runtime.Tensor]]:
        """Run the model once, or ``steps`` times by ``run_steps``; each tensor is sent once.

        Buffers of single runs stay on the device. Returns how many steps there were, and the
        outputs.
        """
        count = (steps,) if steps else ()
        outputs = [graph.tensors[port.tensor] for port in graph.outputs]
        ports = (
            *((tuple(value.shape), str(value.dtype)) for value in inputs),
            *(((*count, *spec.shape), spec.dtype) for spec in outputs),
        )
        with self._lock:
            module = self.now()

            def action(link: Link) -> tuple[int, list[tvm.runtime.Tensor]]:
                there = link.session.cpu(0)
                buffers = self._buffers.get(ports)
                if buffers is None:
                    buffers = [tvm.runtime.empty(*port, there) for port in ports]
                if not steps:
                    self._buffers[ports] = buffers
                for value, buffer in zip(inputs, buffers, strict=False):
                    value.copyto(buffer)
                with run.on(link) if run else contextlib.nullcontext():
                    if steps:
                        stop = [stops] if stops else []
                        done = int(module.method("run_steps")(steps, *buffers, *stop))
                    else:
                        done = module.method("invoke")(*buffers) or 0
                return done, [buffer.copyto(tvm.cpu()) for buffer in buffers[len(inputs) :]]

            answer: tuple[int, list[tvm.runtime.Tensor]] = self.device.ask(
                "to run the model", action, session=module.session
            )
            return answer

    def feed(self, values: tvm.runtime.Tensor, outputs: int) -> list[tvm.runtime.Tensor]:
        """Let the model read values in pieces; returns its first outputs, this number of them."""
        with self._lock:
            module = self.now()

            def action(link: Link) -> list[tvm.runtime.Tensor]:
                module.method("feed")(values.copyto(link.session.cpu(0)))
                there = map(module.method("get_output"), range(outputs))
                return [one.copyto(tvm.cpu()) for one in there]

            answer: list[tvm.runtime.Tensor] = self.device.ask(
                "to read values", action, session=module.session
            )
            return answer


class RemoteMeters(MetersOfModel):
    """What a model on a device measures."""

    _module: RemoteExecutor

    def timed_run(self) -> Callable[[], float]:
        """See `MetersOfModel.timed_run`; the time is measured by the device's clock."""
        module = self._with_inputs()
        return lambda: self._timed(module, 1)[0]

    def benchmark(self, repeat: int = 20, energy: bool | Meters = False) -> BenchmarkResult:
        """Measure the latency of runs on the device, with random inputs, after warm-up runs.

        Args:
            repeat: the number of runs.
            energy: whether the energy of a run is measured afterwards, by the battery of the
                device (True), which must discharge, or by a meter that can be read here.
        """
        require_runs(repeat)
        meters = read_meters(energy) if energy not in (True, False) else ()
        module = self._with_inputs()
        longest = max(self._timed(module, 1)[0] for _ in range(max(2, repeat // 10)))
        at_once = max(1, int(_LONGEST_SECONDS / max(longest, 1e-6)))
        samples: list[float] = []
        while len(samples) < repeat:
            step()
            samples += self._timed(module, min(at_once, repeat - len(samples)))
        if energy is False:
            return BenchmarkResult(tuple(samples))
        at_once = max(1, int(_METERED_SECONDS / max(longest, 1e-6)))
        spent = measure_energy(
            lambda: self._timed(module, at_once),
            meters or DeviceRecorder(self._module.device),
            at_once=at_once,
        )
        return BenchmarkResult(tuple(samples), spent)

    def _with_inputs(self) -> RemoteModule:
        """The module after a run, because the module of a new session has no inputs."""
        self.random_run()
        return self._module.now()

    def _timed(self, module: RemoteModule, count: int) -> list[float]:
        text = str(module["time_runs"](count))
        try:
            times = [int(word) / 1e9 for word in text.split(",")]
        except ValueError:
            times = []
        if len(times) != count or min(times) < 0:
            raise DeviceError(
                f"expected {count} times of {self._module.device.name}, got {text[:80]!r}; look at "
                "the device, start its server anew, and call again"
            )
        return times


class RemoteLoops(LoopsOfModel):
    """A model's ways to run many times on a device."""

    _model: RemoteModel

    def _fed(self, values: tvm.runtime.Tensor) -> list[tvm.runtime.Tensor]:
        outputs = self._model.module.feed(values, len(self._model.graph.outputs))
        self._model._warn_once()
        return outputs


class RemoteModel(Model):
    """A model on a device; see `Model`.

    Differences: latencies are measured on the device, without transfers to it; a run can only be
    cancelled if the server is `tvm_stretch_rpc`, not TVM's Python server; and `health` waits for
    other calls of the device, such as a run.
    """

    module: RemoteExecutor

    @property
    def device(self) -> Device:
        """The device that it runs on."""
        return self.module.device

    def run_async(self, /, *args: object, **kwargs: object) -> Future[Answer]:
        """See `Model.run_async`."""
        run = RemoteRun()
        bound = self._bind(args, kwargs)
        return self._background.start(lambda: self._run(*bound, run), run.cancel)

    @property
    def meters(self) -> RemoteMeters:
        """What measures the model, by the device's clock."""
        return RemoteMeters(self.module, self.graph, self.plans, self._load, lambda: self.lost)

    @property
    def loops(self) -> LoopsOfModel:
        """What runs it many times there."""
        return RemoteLoops(self)

    def create_instance(self) -> Model:
        """Another model on the device with the same weights and its own scratch memory."""
        parent = self.module
        executor = RemoteExecutor(parent.device, lambda: parent.now()["create_instance"]())
        return RemoteModel(executor, **vars(self.origin))

    def fork(self) -> Model:
        """See `Model.fork`; a fork that has lost its session begins with the present states."""
        parent = self.module
        executor = RemoteExecutor(parent.device, lambda: parent.now()["create_instance"](True))
        return RemoteModel(executor, **vars(self.origin))

    def _load(self) -> None:
        self.module.now()

    def _run(
        self,
        present: PresentAll,
        inputs: Sequence[tvm.runtime.Tensor],
        run: RemoteRun | None = None,
    ) -> Any:
        graph = self.lengths.graph_for(inputs, 0, self.plans.number)
        _, outputs = self.module.invoke(inputs, graph, run)
        self._warn_once()
        return self.interface.presented(present, outputs)

    def _run_steps(
        self, count: int, inputs: Sequence[tvm.runtime.Tensor], graph: Graph, stops: str
    ) -> tuple[int, list[tvm.runtime.Tensor]]:
        answer = self.module.invoke(inputs, graph, steps=count, stops=stops)
        self._warn_once()
        return answer

    def _what_failed(self) -> str | None:
        with contextlib.suppress(DeviceError):  # outputs are here; the next run reports it
            return super()._what_failed()
        return None

    @property
    def _set(self) -> Callable[..., None]:
        return self.module.keep


def load_there(device: Device, model: Model | str | Path) -> RemoteModel:
    """Load a model on a device; see `Device.load`."""
    if isinstance(model, Model) and model.parts is not None:
        parts = model.parts
        require_fitting(device, parts.graph)
        executor = RemoteExecutor(device, lambda: _open_parts(device, parts))
        remote = RemoteModel(executor, parts=parts)
    else:
        artifact = (
            model.origin.artifact
            if isinstance(model, Model)
            else read_artifact(as_path(model, "the artifact"))
        )
        assert artifact is not None  # a loaded model has one
        _require_machine(device, machine_of(artifact))
        executor = RemoteExecutor(device, lambda: _open_artifact(device, artifact))
        remote = RemoteModel(executor, artifact=artifact)
    executor.now()
    return remote


def require_fitting(device: Device, graph: Graph) -> None:
    """Refuse a model that the device cannot run, before sending it."""
    triple = str(graph.target.get("mtriple", ""))
    if triple:
        _require_machine(device, triple.partition("-")[0])
    missing = device.describe().lacks(graph.cpu_features)
    if missing:
        raise ArtifactError(
            f"expected a model for what {device.name} has, got one that needs "
            f"{', '.join(missing)}; compile it with device="
        )


def _require_machine(device: Device, machine: str) -> None:
    own = device.describe().triple.partition("-")[0]
    if machine != own:
        raise ArtifactError(
            f"expected a model for {device.name}, which is {own}, got one for {machine}; compile "
            "it with device="
        )


def _open_parts(device: Device, parts: Parts) -> RemoteModule:
    """Upload kernels and weights separately, because plans of a network share weights."""
    sent = writing("what is sent to the device", ArtifactError)
    with sent, tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "kernels.so")
        parts.write(library, with_weights=False)
        kept = [device.upload(path, ".bin") for path in parts.write_weights(Path(folder))]
        module = device.open_library(device.upload(library, ".so"))
    module["use_weights"](*map(device.path_of, kept))
    module["load"]()
    return module


def _open_artifact(device: Device, artifact: PrivateCopy) -> RemoteModule:
    module = device.open_library(device.upload(artifact.path, ".so", "the artifact"))
    module["load"]()
    return module
