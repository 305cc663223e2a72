"""A compiled network, ready to run."""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tvm

from tvm_stretch.base.errors import ArtifactError, DeviceError, InputError
from tvm_stretch.base.words import counted
from tvm_stretch.make.lowering.executor_graph import Graph
from tvm_stretch.plan.plan import Plan
from tvm_stretch.run.artifact import (
    PrivateCopy,
    check_artifact,
    load_executor,
    open_artifact,
)
from tvm_stretch.run.asynchronous import BackgroundRuns, LocalRun
from tvm_stretch.run.autoload import load_native_library
from tvm_stretch.run.interface_of_model import InterfaceOfModel
from tvm_stretch.run.lengths_of_model import LengthsOfModel
from tvm_stretch.run.loops_of_model import LoopsOfModel
from tvm_stretch.run.measures_of_model import MetersOfModel
from tvm_stretch.run.members import of_member
from tvm_stretch.run.origin import Origin
from tvm_stretch.run.plans_of_model import Executor, PlansOfModel
from tvm_stretch.run.report import write_report
from tvm_stretch.run.states_of_model import (
    States,
    one_or_more,
)
from tvm_stretch.run.values import (
    Answer,
    PresentAll,
    TensorInfo,
    like,
    taking_memory,
)

if TYPE_CHECKING:  # a phone has no compiler
    from tvm_stretch.run.parts import Parts


class Model:
    """A network bound to its kernels, its weights and memory to run in.

        y = model(x)                      # by position
        y = model(input=x)                # by name
        y = model({"input.1": x})         # whatever the names are

    Several threads may call one model; the calls then run one after the other. To run at the same
    time, give each thread its own `create_instance()`.

    Examples:
        >>> model = ts.compile("resnet18.onnx")
        >>> model.benchmark(repeat=5)
        median ... ms ...
        >>> print(model.timeline())
        run ... ms, several processors busy for ...
        >>> model.report("report.html")
    """

    def __init__(
        self,
        module: Executor,
        *,
        parts: Parts | None = None,
        artifact: PrivateCopy | None = None,
        data: PrivateCopy | None = None,
    ) -> None:
        """Wrap an executor; `load` and `from_parts` are the ways to get one.

        Args:
            module: a module of kind `tvm_stretch.executor`.
            parts: what `export` has to write, for a model that was just compiled.
            artifact: what the model was loaded from.
            data: the network, if it came beside its kernels.
        """
        self.module = module
        self.origin = Origin(parts, artifact, data)
        self.sampling: dict[str, float] = {}  # what `set_sampling` changed
        self._warned = False  # that a processor is lost, or made a run take another plan

    @classmethod
    def from_parts(cls, parts: Parts) -> Model:
        """A compiled model; one for another machine can only be exported."""
        code = parts.code
        kernels = code.load() if code.runs_here else code.as_static_library()
        return cls(parts.create_executor(kernels), parts=parts)

    @classmethod
    def opened(cls, artifact: PrivateCopy, data: PrivateCopy | None = None) -> Model:
        """The model of an artifact that was checked, with the network beside it, if it is there."""
        model = cls(open_artifact(artifact, data), artifact=artifact, data=data)
        for plan in model.plans.values() if model.graph.plan else ():
            if plan.execution is not None and plan.execution.strays:
                raise ArtifactError(
                    f"expected regions as the plan in {artifact.name} has them, got others: "
                    f"{plan.execution}; compile it again"
                )
        return model

    @classmethod
    def _of_bytes(cls, code: bytes, data: bytes | None) -> Model:
        """The model of a pickle."""
        load_native_library()
        artifact = PrivateCopy.of_bytes("a pickled model", code)
        check_artifact(artifact)
        beside = None if data is None else PrivateCopy.of_bytes("a pickled model's data", data)
        return cls.opened(artifact, beside)

    @property
    def parts(self) -> Parts | None:
        """What `export` writes; None for a model that was loaded."""
        return self.origin.parts

    @functools.cached_property
    def graph(self) -> Graph:
        """The nodes, tensors and memory plan that the executor runs."""
        if self.origin.parts is not None:
            return self.origin.parts.graph
        return Graph.from_json(self.module["graph"]())

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """Name, shape and dtype of each input."""
        return self.interface.infos("inputs", self.plans.number)

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """Name, shape and dtype of each output."""
        return self.interface.infos("outputs", self.plans.number)

    @property
    def lost(self) -> str | None:
        """Why the CPU runs everything: how another processor failed. None while they all work.

        Only models that were compiled with `spare` go on then; for others it is an error. A DSP
        is tried again by later runs, other processors by a new instance.
        """
        return str(self.module["lost"]()) or None if self.graph.spare else None

    def health(self) -> dict[str, dict[str, object]]:
        """How each processor beside the CPU is, by its name; also while a run is in progress.

        A DSP says whether it runs (``state``), its process, how often it was started and failed,
        why it failed last, how long it is left alone, what it did. Others have nothing to say.
        """
        names = [processor.name for processor in self.graph.processors[1:]]
        return dict(zip(names, json.loads(self.module["health"]()), strict=False))

    def __call__(self, /, *args: object, **kwargs: object) -> Answer:
        """Run the network.

        Args:
            args: inputs by position: NumPy arrays or anything that speaks DLPack; or one mapping
                from names to inputs.
            kwargs: inputs by name.

        Returns:
            The output, an array of the first input's kind: NumPy's for NumPy's, PyTorch's for
            PyTorch's; a named tuple if the network has several. They belong to the caller.

        Raises:
            InputError: an input is missing, unknown or has the wrong shape, dtype or device.
            ArtifactError: the model was compiled for another processor.
            DeviceError: a processor other than the CPU failed, and there is no spare.
            RunError: memory is missing, or the model belongs to another process.
        """
        return self._run(*self._bind(args, kwargs))

    @functools.cached_property
    def interface(self) -> InterfaceOfModel:
        """What callers give and get."""
        return InterfaceOfModel(self.graph)

    @functools.cached_property
    def plans(self) -> PlansOfModel:
        """The plans between which the model can change, by name."""
        return PlansOfModel(self.module, self.graph, self._set)

    @functools.cached_property
    def lengths(self) -> LengthsOfModel:
        """The sizes of named dimensions for which it was compiled; empty if there were no names."""
        return LengthsOfModel(self.graph)

    @property
    def meters(self) -> MetersOfModel:
        """What measures the model."""
        return MetersOfModel(self.module, self.graph, self.plans, self._load, lambda: self.lost)

    @property
    def loops(self) -> LoopsOfModel:
        """What runs the model many times."""
        return LoopsOfModel(self)

    @functools.cached_property
    def states(self) -> States:
        """The inputs that the model keeps from run to run, of ``ts.compile(..., states=)``."""
        self._load()
        return States(self.module, self.graph)

    @property
    def running(self) -> Graph:
        """The graph, without what other plans than the next run's are made of."""
        return self.graph.of_plan(self.plans.number)

    @property
    def plan(self) -> Plan:
        """Which processor runs which operators, what was refused, and what fell back.

        Of a model with several plans, that of the next run.
        """
        return self.plans.numbered(self.plans.number)

    @property
    def in_use(self) -> str:
        """See `PlansOfModel.in_use`."""
        return self.plans.in_use

    @property
    def paces(self) -> dict[str, float]:
        """See `PlansOfModel.paces`."""
        return self.plans.paces

    @property
    def predicted(self) -> dict[str, float]:
        """See `PlansOfModel.predicted`."""
        return self.plans.predicted

    use = of_member("plans", PlansOfModel.use)
    adapt = of_member("plans", PlansOfModel.adapt)
    length_for = of_member("lengths", LengthsOfModel.roomy)
    timed_run = of_member("meters", MetersOfModel.timed_run)
    random_run = of_member("meters", MetersOfModel.random_run)
    benchmark = of_member("meters", MetersOfModel.benchmark)
    profile = of_member("meters", MetersOfModel.profile)
    timeline = of_member("meters", MetersOfModel.timeline)
    export = of_member("origin", Origin.export)
    export_data = of_member("origin", Origin.export_data)
    reset = of_member("loops", LoopsOfModel.reset)
    feed = of_member("loops", LoopsOfModel.feed)
    set_sampling = of_member("loops", LoopsOfModel.set_sampling)
    run_steps = of_member("loops", LoopsOfModel.run_steps)
    steps = of_member("loops", LoopsOfModel.steps)
    tokens = of_member("loops", LoopsOfModel.tokens)
    stream = of_member("loops", LoopsOfModel.stream)

    def _run_steps(
        self, count: int, inputs: Sequence[tvm.runtime.Tensor], graph: Graph, stops: str
    ) -> tuple[int, list[tvm.runtime.Tensor]]:
        """How many steps there were, and their outputs, whose ports are those of ``graph``."""
        outputs = []
        for spec in (graph.tensors[port.tensor] for port in graph.outputs):
            with taking_memory(count * spec.bytes):
                outputs.append(tvm.runtime.empty((count, *spec.shape), spec.dtype))
        self._load()
        stop = [stops] if stops else []
        return self.module["run_steps"](count, *inputs, *outputs, *stop), outputs

    def run_async(self, /, *args: object, **kwargs: object) -> Future[Answer]:
        """Run the network in the background; arguments and result as for a call.

        Runs of one model follow each other; the inputs must not change before theirs is done.

        Returns:
            The future of the outputs; `cancel` also stops a run that is in progress, and no other.

        Raises:
            InputError: an input is missing, unknown or has the wrong shape, dtype or device.
            RunError: the interpreter is ending.
        """
        run, bound = LocalRun(), self._bind(args, kwargs)
        return self._background.start(lambda: run(lambda: self._run(*bound)), run.cancel)

    def report(
        self, path: str | Path, peak_gflops: float | None = None, picture: str | None = None
    ) -> None:
        """Write a page for the browser: what would make it faster, plan, timeline, kernels, memory.

        Args:
            path: the HTML file to write. A ``.json`` file is a graph for Model Explorer, coloured
                by processor, with the times of kernels in a second file, ``.times.json``; an
                ``.onnx`` file shows the kernels in Netron.
            peak_gflops: what one core can do at best; by default it is measured.
            picture: an SVG that the page shows beside that, such as ``st.front().svg()``.
        """
        write_report(self, path, peak_gflops, picture=picture)

    def set_affinity(self, cores: Iterable[int] | None) -> None:
        """Choose the cores for the CPU's regions: the big ones of a phone, for example.

        It holds for the thread that calls the model, during the call, for TVM's pool, and for
        threads of ours that serve a GPU or a DSP. Drivers place their threads themselves. (With
        TVM_BIND_THREADS=0 in the environment, TVM leaves the threads of its pool where they are.)

        Args:
            cores: their numbers; None for those that the calling thread may use, without those
                where other processors of this model have threads.

        Raises:
            InputError: this process may not use them.
        """
        if not isinstance(cores, Iterable | None):
            raise InputError(
                f"expected numbers of cores for cores, got {cores!r}; give a list of them"
            )
        try:
            self._set("set_affinity", ",".join(map(str, () if cores is None else cores)))
        except DeviceError:
            raise
        except ValueError as error:
            raise InputError(str(error).strip().splitlines()[-1]) from error

    def create_instance(self) -> Model:
        """Another model with the same weights and its own scratch memory."""
        instance = self.module["create_instance"]()
        return Model(instance, **vars(self.origin))

    def fork(self) -> Model:
        """As `create_instance`, with the present states: a prefix is computed once.

        Each of several continuations of a prompt goes on in a fork of its own.
        """
        self._load()
        instance = self.module["create_instance"](True)
        return Model(instance, **vars(self.origin))

    def __reduce__(self) -> tuple[Any, ...]:
        """For `pickle` and `copy`: the artifact, from which a new model is loaded."""
        return Model._of_bytes, self.origin.bytes()

    def __repr__(self) -> str:
        """One line: what goes in, what comes out, how much there is in between."""
        graph = self.graph
        return (
            f"Model(({', '.join(map(str, self.inputs))}) -> ({', '.join(map(str, self.outputs))}), "
            f"{len(graph.nodes)} kernels, {graph.weights_bytes / 1e6:.1f} MB weights, "
            f"{graph.arena_bytes / 1e6:.1f} MB arena, {counted(graph.threads, 'thread')})"
        )

    @property
    def _set(self) -> Callable[..., None]:
        """Calls a method of the executor that sets something; it does not refer to the model."""
        module = self.module
        return lambda method, *given: module[method](*given)

    def _load(self) -> None:
        load_executor(self.module)

    @functools.cached_property
    def _invoke(self) -> Callable[..., Any]:
        self._load()
        return self.module["invoke"]

    def _run(self, present: PresentAll, inputs: Sequence[tvm.runtime.Tensor]) -> Any:
        result = self._invoke(*inputs)
        self._warn_once()
        return self.interface.presented(
            present, [result] if isinstance(result, tvm.runtime.Tensor) else [*result]
        )

    def _warn_once(self) -> None:
        """Warn of a run that has an answer but did not follow its plan; for `_run`."""
        if not self._warned and (reason := self._what_failed()):
            self._warned = True
            warnings.warn(reason, RuntimeWarning, stacklevel=4)

    def _what_failed(self) -> str | None:
        """Why a run did not go as was planned, if it still has an answer."""
        if reason := self.lost:
            return f"{reason}; the CPU runs everything now"
        if self.graph.plans and (reason := str(self.module["replaced"]())):
            return f"a run took another plan: {reason}"
        return None

    @functools.cached_property
    def _background(self) -> BackgroundRuns:
        return BackgroundRuns()

    def _bind(
        self, args: tuple[object, ...], kwargs: Mapping[str, object], steps: int = 0
    ) -> tuple[PresentAll, list[tvm.runtime.Tensor]]:
        """What makes arrays of outputs, and the inputs in the order of the graph, checked."""
        given = self.interface.by_name(args, kwargs)
        arrays = [*given.values()]
        graph = self.lengths.graph_for(arrays, steps, self.plans.number)
        present = like(arrays)
        inputs = [
            one_or_more(port.name, given[port.name], graph.tensors[port.tensor], steps)
            for port in graph.inputs
        ]
        return lambda outputs: [*map(present, outputs)], inputs
