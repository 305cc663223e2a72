"""A compiled network, ready to run."""

from __future__ import annotations

import functools
import json
import tempfile
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar

import tvm

from tvm_stretch.base.errors import ArtifactError, DeviceError, InputError
from tvm_stretch.base.files import as_path
from tvm_stretch.base.named_arguments import named_arguments
from tvm_stretch.base.words import counted
from tvm_stretch.make.lowering.executor_graph import Graph
from tvm_stretch.plan.plan import Plan
from tvm_stretch.run.artifact import (
    PrivateCopy,
    check_artifact,
    copy_artifact,
    load_executor,
    open_artifact,
    read_artifact,
    read_data,
    write_data,
)
from tvm_stretch.run.asynchronous import BackgroundRuns, LocalRun
from tvm_stretch.run.autoload import load_native_library
from tvm_stretch.run.lengths_of_model import LengthsOfModel
from tvm_stretch.run.measures_of_model import MetersOfModel
from tvm_stretch.run.plans_of_model import Executor, PlansOfModel
from tvm_stretch.run.report import write_report
from tvm_stretch.run.states_of_model import (
    States,
    changed_sampling,
    chosen_type,
    fed_values,
    one_or_more,
    stop_values,
)
from tvm_stretch.run.stream import Stream
from tvm_stretch.run.values import (
    Answer,
    PresentAll,
    TensorInfo,
    like,
    outputs_type,
    shortened,
    taking_memory,
    true_sizes,
)

if TYPE_CHECKING:  # a phone has no compiler
    from tvm_stretch.run.parts import Parts


P = ParamSpec("P")
T = TypeVar("T")


def _of_member(
    member: str, method: Callable[Concatenate[Any, P], T]
) -> Callable[Concatenate[Model, P], T]:
    """The method of one of the model's members, as a method of the model."""

    @functools.wraps(method)
    def call(self: Model, *given: P.args, **named: P.kwargs) -> T:
        result: T = getattr(getattr(self, member), method.__name__)(*given, **named)
        return result

    return call


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
        self._parts = parts
        self._artifact = artifact
        self._data = data
        self._sampling: dict[str, float] = {}  # what `set_sampling` changed
        self._warned = False  # that a processor is lost, or made a run take another plan

    @classmethod
    def from_parts(cls, parts: Parts) -> Model:
        """A compiled model; one for another machine can only be exported."""
        code = parts.code
        kernels = code.load() if code.runs_here else code.as_static_library()
        return cls(parts.create_executor(kernels), parts=parts)

    @property
    def parts(self) -> Parts | None:
        """What `export` writes; None for a model that was loaded."""
        return self._parts

    @property
    def artifact(self) -> PrivateCopy | None:
        """What it was loaded from, if it was; what stands under that path may be another by now."""
        return self._artifact

    @functools.cached_property
    def graph(self) -> Graph:
        """The nodes, tensors and memory plan that the executor runs."""
        if self._parts is not None:
            return self._parts.graph
        return Graph.from_json(self.module["graph"]())

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """Name, shape and dtype of each input."""
        return self._infos("inputs")

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """Name, shape and dtype of each output."""
        return self._infos("outputs")

    def _infos(self, ports: Literal["inputs", "outputs"]) -> tuple[TensorInfo, ...]:
        graph = self.graph
        now = getattr(graph.with_length(self.plans.number) if graph.lengths else graph, ports)
        infos = []
        for place, port in enumerate(now):
            tensors = [graph.tensors[getattr(own, ports)[place].tensor] for own in graph.lengths]
            shapes = tuple(dict.fromkeys(tensor.shape for tensor in tensors))
            tensor = graph.tensors[port.tensor]
            several = shapes if len(shapes) > 1 else ()
            infos.append(TensorInfo(port.name, tensor.shape, tensor.dtype, several))
        return tuple(infos)

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

    use = _of_member("plans", PlansOfModel.use)
    adapt = _of_member("plans", PlansOfModel.adapt)
    length_for = _of_member("lengths", LengthsOfModel.roomy)
    timed_run = _of_member("meters", MetersOfModel.timed_run)
    random_run = _of_member("meters", MetersOfModel.random_run)
    benchmark = _of_member("meters", MetersOfModel.benchmark)
    profile = _of_member("meters", MetersOfModel.profile)
    timeline = _of_member("meters", MetersOfModel.timeline)

    def reset(self) -> None:
        """Set all states to what they were before the first run: zeros, or values of buffers."""
        self._load()
        self.module["reset"]()

    def feed(self, values: object) -> Answer:
        """Run with given values of the state that `Greedy` or `Sample` chooses: a prompt.

        Any number of values is read in pieces, the longest lengths of the model first. The next
        value is chosen once, after the last piece.

        Args:
            values: an array or a list of indices, of one sequence.

        Returns:
            The outputs of the last piece, as of a call.

        Raises:
            InputError: no state is chosen, the lengths do not add up to this number of values, or
                a value is none of the network; the states are those of the last piece that
                succeeded.
        """
        self._load()
        self.module["feed"](fed_values(values, self.graph))
        outputs = [self.module["get_output"](place) for place in range(len(self.graph.outputs))]
        given = [] if isinstance(values, list | tuple) else [values]
        present = like(given)
        return self._presented(lambda found: [*map(present, found)], outputs)

    def set_sampling(self, **changes: float) -> None:
        """Change how states of a `Sample` are drawn from now on, and begin with the seed again.

        Args:
            changes: numbers of a `Sample` by name, such as ``temperature=0.5``; others stay.

        Raises:
            InputError: a number is out of its range, or the model has no `Sample`.
        """
        self._sampling = changed_sampling(self.graph, self._sampling, changes)
        self._set("set_sampling", *self._sampling.values())

    def run_steps(
        self, count: int, /, *args: object, stop: Iterable[int] = (), **kwargs: object
    ) -> Answer:
        """Run the network several times, without Python in between.

        Args:
            count: how many times.
            args: inputs by position, as for a call; an input that differs from step to step has
                one more dimension, the first, with a part for each step.
            stop: the last step is the first one at which all values that `Greedy` or `Sample` chose
                are among these: tokens that end a text.
            kwargs: inputs by name.

        Returns:
            The outputs as of a call, with one more dimension, the first: that of the steps.

        Raises:
            InputError: as for a call; the states are those of the last step that succeeded.
        """
        _check_count(count)
        present, inputs = self._bind(args, kwargs, steps=count)
        graph = self.lengths.graph_for(inputs, count, self.plans.number)
        stops = ",".join(map(str, stop_values(stop)))
        steps, outputs = self._run_steps(count, inputs, graph, stops)
        results = [result[:steps] for result in present(outputs)]
        return self._named(results)

    def steps(
        self, count: int, /, *args: object, stop: Iterable[int] = (), **kwargs: object
    ) -> Iterator[Answer]:
        """Run the network several times; yields the outputs of each step as soon as it is done.

        Args:
            count: how many times at most; who reads may end it before, too.
            args: inputs by position, as for a call.
            stop: as for `run_steps`.
            kwargs: inputs by name.

        Raises:
            InputError: as for a call.
        """
        _check_count(count)
        ends = set(stop_values(stop))
        places = [state.output for state in self.graph.states]
        chosen = [place for place in places if place < len(self.graph.outputs)]
        self._bind(args, kwargs)

        def each() -> Iterator[Any]:
            for _ in range(count):
                outputs = self(*args, **kwargs)
                yield outputs
                values = {int(value) for place in chosen for value in outputs[place].ravel()}
                if ends and values <= ends:
                    return

        return each()

    def tokens(self, count: int, /, *, stop: Iterable[int] = ()) -> Generator[int, None, None]:
        """Run until `count` values are chosen; yields each one, as `steps` would choose them.

        A text that repeats itself is written several tokens at a time: what followed before is
        guessed, and read in one run with the last token. Which guesses come true is decided by the
        scores, greedily or by the same draws. Guesses that cost more time than they save end. For
        this, some length of the model must give scores of each of its positions, and its states
        must be counters and caches at whose places runs write rows.

        Args:
            count: how many values at most; who reads may end it before, too.
            stop: the last value is the first one of these.

        Raises:
            InputError: no state is chosen, or the network forbids a value.
        """
        _check_count(count)
        ends = stop_values(stop)
        chosen_type(self.graph)

        def each() -> Generator[int, None, None]:
            self._load()
            left = count
            while left > 0:
                values = self.module["guess"](left, ",".join(map(str, ends))).numpy().tolist()
                left -= len(values)
                untold = deque(values)
                try:
                    while untold:
                        yield untold.popleft()
                finally:  # who reads may stop before
                    if untold:
                        self.module["take_back"](len(untold))
                if values[-1] in ends:
                    return

        return each()

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

    def stream(
        self,
        *,
        noise: float = 0.0,
        bound: float = 0.0,
        keyframes: int = 0,
        cut: float = 0.9,
        measured: bool = True,
    ) -> Stream:
        """A stream of frames that resemble each other: only what changed is computed.

        With ``noise`` and ``bound`` of 0, answers are equal to those of a call, bit by bit.

        Args:
            noise: the largest difference of a pixel from the frame before that is no change.
            bound: the largest difference of a feature map that is no change, relative to the
                map's largest number. Changes that are left out do not add up over frames.
            keyframes: with 30, every thirtieth frame is computed completely; 0 for never.
            cut: if a larger share of the pixels changed, everything is computed; 0 reuses whole
                frames alone.
            measured: with ``noise`` and ``bound`` of 0, frames are computed completely where that
                took less time; the answers are the same.

        Raises:
            InputError: the model was compiled without ``streams=True``.
        """
        return Stream(self, noise, bound, keyframes, cut, measured)

    def create_instance(self) -> Model:
        """Another model with the same weights and its own scratch memory."""
        instance = self.module["create_instance"]()
        return Model(instance, parts=self._parts, artifact=self._artifact, data=self._data)

    def fork(self) -> Model:
        """As `create_instance`, with the present states: a prefix is computed once.

        Each of several continuations of a prompt goes on in a fork of its own.
        """
        self._load()
        instance = self.module["create_instance"](True)
        return Model(instance, parts=self._parts, artifact=self._artifact, data=self._data)

    def export(
        self,
        path: str | Path,
        *,
        fcompile: Callable[..., object] | None = None,
        data: str | Path | None = None,
    ) -> None:
        """Write the artifact: one shared library that `load` and TVM's `load_module` open.

        Args:
            path: the file to write; it appears complete or not at all.
            data: a second file, for graph, plan and weights; the library then has the kernels only.
                ``load(path, data)`` opens both.
            fcompile: links the library, as for TVM's `export_library`. By default that is this
                machine's compiler; for other machines zig, or the clang of an Android NDK that
                ``ANDROID_NDK_HOME`` names.

        Raises:
            ArtifactError: the folder does not exist, or linking failed.
            TargetError: nothing here links for the target.
        """
        path = as_path(path, "the artifact")
        if fcompile is not None and not callable(fcompile):
            raise InputError(
                f"expected a function for fcompile, got {fcompile!r:.100}; leave it out for the "
                "usual linker"
            )
        if self._parts is not None:
            self._parts.write(path, fcompile, with_weights=data is None)
        elif self._artifact is not None and fcompile is None and data is None and not self._data:
            copy_artifact(self._artifact, path)
        else:
            raise ArtifactError(
                "expected a model that was just compiled for export with fcompile or data, got one "
                "that was loaded; compile it again"
            )
        if data is not None:
            self.export_data(data)

    def export_data(self, path: str | Path) -> None:
        """Write the network as data, for a library of kernels that was exported before.

        The library must have all of its kernels, those of the same layers and plan; weights may be
        others. The file is checked for damage, not for its origin: sign it where that matters.

        Args:
            path: the file to write; it appears complete or not at all.

        Raises:
            ArtifactError: the folder does not exist, or the model was loaded.
        """
        path = as_path(path, "the data")
        if self._parts is not None:
            write_data(self._parts.graph, self._parts.weights, path)
        elif self._data is not None:
            copy_artifact(self._data, path)
        else:
            raise ArtifactError(
                "expected a model that was just compiled for export_data, got one that was "
                "loaded; compile it again"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        """For `pickle` and `copy`: the artifact, from which a new model is loaded."""
        if self._artifact is not None:
            return _load_bytes, (self._artifact.read(), self._data and self._data.read())
        with tempfile.TemporaryDirectory() as folder:
            self.export(path := Path(folder, "model.so"))
            return _load_bytes, (path.read_bytes(),)

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
        return self._presented(
            present, [result] if isinstance(result, tvm.runtime.Tensor) else [*result]
        )

    def _presented(self, present: PresentAll, outputs: Sequence[tvm.runtime.Tensor]) -> Any:
        """The outputs as a caller gets them."""
        results = shortened(present(outputs), self._sizes)
        return self._named(results)

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

    def _named(self, results: Sequence[Any]) -> Any:
        """The first outputs, by their names; a single one alone."""
        if len(results) == 1:
            return results[0]
        return outputs_type(self._output_names[: len(results)])(*results)

    @functools.cached_property
    def _sizes(self) -> dict[int, tuple[int, int]]:
        return true_sizes(self._output_names)

    @functools.cached_property
    def _output_names(self) -> tuple[str, ...]:
        """Outputs that tell sizes follow the others."""
        return tuple(port.name for port in self.graph.outputs)

    @functools.cached_property
    def _background(self) -> BackgroundRuns:
        return BackgroundRuns()

    def _bind(
        self, args: tuple[object, ...], kwargs: Mapping[str, object], steps: int = 0
    ) -> tuple[PresentAll, list[tvm.runtime.Tensor]]:
        """What makes arrays of outputs, and the inputs in the order of the graph, checked."""
        names = [port.name for port in self.graph.inputs]
        if len(args) > len(names):
            raise InputError(
                f"expected {len(names)} inputs {names}, got {len(args)}; leave out the others"
            )
        mapping: Mapping[str, object] = {}
        if len(args) == 1 and isinstance(args[0], Mapping):
            mapping, args = args[0], ()
        given = dict(zip(names, args, strict=False))
        for name, value in [*mapping.items(), *kwargs.items()]:
            if name not in names or name in given:
                problem = "twice" if name in given else "an unknown one"
                raise InputError(
                    f"expected each of the inputs {names} once, got {name!r} ({problem}); "
                    "give every input by position or by name, or all in one dictionary"
                )
            given[name] = value
        missing = [name for name in names if name not in given]
        if missing:
            raise InputError(f"expected the inputs {names}, got none for {missing}; give them all")
        arrays = [given[name] for name in names]
        graph = self.lengths.graph_for(arrays, steps, self.plans.number)
        present = like(arrays)
        inputs = [
            one_or_more(port.name, given[port.name], graph.tensors[port.tensor], steps)
            for port in graph.inputs
        ]
        return lambda outputs: [*map(present, outputs)], inputs


def _check_count(count: object) -> None:
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count < 2**63:
        raise InputError(f"expected 1 to 2**63 - 1 for count, got {count!r}; run at least one step")


@named_arguments
def load(path: str | Path, data: str | Path | None = None) -> Model:
    """Open an artifact that `Model.export` wrote.

    Args:
        path: the artifact.
        data: the network, if it stands beside its kernels, as `Model.export_data` wrote it.

    Raises:
        ArtifactError: a file is missing, truncated, damaged, no artifact, made for another version
            or processor, or for other kernels, or does not run as its plan says.
        RunError: there is no memory for it: a loaded model keeps the bytes of its artifact.

    Examples:
        >>> ts.compile("resnet18.onnx").export("resnet18.so")
        >>> model = ts.load("resnet18.so")
        >>> model.inputs[0].shape
        (1, 3, 224, 224)
    """
    load_native_library()
    path = as_path(path, "the artifact")
    artifact = read_artifact(path)
    return _opened(artifact, None if data is None else read_data(as_path(data, "the data")))


def _load_bytes(code: bytes, data: bytes | None = None) -> Model:
    """The model of a pickle."""
    load_native_library()
    artifact = PrivateCopy.of_bytes("a pickled model", code)
    check_artifact(artifact)
    copy = None if data is None else PrivateCopy.of_bytes("a pickled model's data", data)
    return _opened(artifact, copy)


def _opened(artifact: PrivateCopy, data: PrivateCopy | None = None) -> Model:
    """The model of an artifact that was checked."""
    model = Model(open_artifact(artifact, data), artifact=artifact, data=data)
    if model.graph.plan:
        for plan in model.plans.values():
            _check_execution(plan, artifact.name)
    return model


def _check_execution(plan: Plan, path: str) -> None:
    """Refuse an artifact that would not run as its plan says."""
    if plan.execution is not None and plan.execution.strays:
        raise ArtifactError(
            f"expected regions as the plan in {path} has them, got others: {plan.execution}; "
            "compile it again"
        )
