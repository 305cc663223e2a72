"""``compile()`` and ``plan_for()``: from a trained network to a model, or to a plan alone.

    Options ──> Site ──> canonical Relax ──choose()──> Decision ──build()──> Model

Each station explains itself: options.py, plan/search/site.py, make/reading.py,
plan/search/choose.py and plan/search/decision.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

import tvm

from tvm_stretch.api.options import Options, read_options
from tvm_stretch.base.compiling import compiling
from tvm_stretch.base.errors import InputError
from tvm_stretch.base.files import as_path, check_place, write_whole, writing
from tvm_stretch.base.named_arguments import named_arguments
from tvm_stretch.base.progress import Progress, reporting
from tvm_stretch.make.branching import branch
from tvm_stretch.make.onnx_file import onnx_file
from tvm_stretch.make.pipeline import Observer
from tvm_stretch.make.reading import Reader
from tvm_stretch.network.properties.integer_summary import has_integers
from tvm_stretch.passes.carry_states import States
from tvm_stretch.plan.plan import Plan, PlanLike
from tvm_stretch.plan.scheduling.named import SchedulerLike, read_scheduler
from tvm_stretch.plan.search.candidates import PlanFront, front_of
from tvm_stretch.plan.search.choose import find, predict
from tvm_stretch.plan.search.decision import PlansLike, with_plans
from tvm_stretch.plan.search.lengths import (
    build_each,
    choose_each,
    sized_networks,
)
from tvm_stretch.plan.search.limits import NO_LIMITS
from tvm_stretch.plan.search.objective import Objective, read_objective
from tvm_stretch.plan.search.site import DeviceLike, Site, Targets, site_of
from tvm_stretch.plan.search.wrong_answers import WrongAnswerError
from tvm_stretch.read import require_file
from tvm_stretch.read.lengths import Lengths
from tvm_stretch.read.load import Shapes
from tvm_stretch.run.model import Model
from tvm_stretch.targets.processor import RegionError


@named_arguments
def compile(
    source: object,
    targets: Targets = None,
    *,
    device: DeviceLike = None,
    plan: PlanLike | None = None,
    plans: PlansLike | None = None,
    shapes: Shapes = None,
    lengths: Lengths | None = None,
    states: States | None = None,
    cpu_threads: int | None = None,
    spare: bool = False,
    streams: bool = False,
    max_share: Mapping[str, float] | None = None,
    share_parts: int | None = None,
    objective: str | Objective = "latency",
    effort: str = "full",
    precision: str = "float32",
    scheduler: SchedulerLike | None = None,
    dump_dir: str | os.PathLike[str] | None = None,
    debug: bool = False,
    options: Options | None = None,
    progress: Progress | None = None,
) -> Model:
    """Compile a trained network for the given processors, without changing what it computes.

    Args:
        source: path or bytes of an ONNX file, ``onnx.ModelProto``, Relax ``IRModule``,
            ``torch.export.ExportedProgram`` or the path of a ``.pt2`` file of one, or a
            `LanguageModel` or the path of its ``.gguf`` file.
        targets: processors that may run operators, as TVM targets: strings, dicts, tags or
            ``tvm.target.Target``; or as ``Processor``.  Plain ``"llvm"``, the default, means this
            machine's CPU with all its features, ``"opencl"`` its first OpenCL device. Operators
            that failed in ``ts.tune.probe`` on a processor are refused there, and the plan says so.
        device: a device of ``ts.connect``: the network is compiled for its processors, all or those
            in `targets`, and plans are measured there. Or the name of a device that was connected
            before: plans are chosen by its cost models of ``ts.tune.measure``, not measured. Or the
            name of a phone with a profile, such as ``snapdragon-855``, or the path of a profile:
            plans are chosen by its predictions. Models can be exported, and loaded by the device
            (``Device.load``).
        plan: which processor runs which operators: a ``Plan``, the path of its JSON file, or a
            dict.  By default the fastest plan that the search proposes, measured here; it uses
            several processors only if they are faster than one. Targets whose device this machine
            lacks are then left out, and the plan says so.
        plans: makes a model with several plans, which can switch to the one that is fastest at
            present; see ``Model.adapt``. Either plans by name, or True for ``plan`` (or the fastest
            plan) and a plan without each of the processors. The plans share their weights.
        shapes: shapes of inputs whose dimensions the network leaves open; a name instead of a size
            is a dimension of `lengths`.
        lengths: the sizes of dimensions that the network or `shapes` name: ``{"n": [64, 128]}``.
            The model takes inputs of each of these lengths, with one set of weights; with
            ``{"n": ts.Length(1, 512)}`` of any length. ``docs/lengths.md``.
        states: inputs that the model keeps from run to run, by name, and the output that each holds
            after a run: ``{"past.*": "present.*"}``; ``docs/states.md``.
        cpu_threads: the number of cores for CPU kernels; by default the cores that this process may
            use, without those of another processor's driver, and at most the environment variable
            TVM_NUM_THREADS.
        spare: whether the artifact also has CPU kernels for all operators. If another processor
            fails, or is absent when the artifact is loaded, the CPU runs the whole network again
            and all later runs; `Model.lost` says why.
        streams: whether the model can run as a `Model.stream`, which computes of each frame of a
            video what changed. The CPU computes it, and OpenCL devices that are the host's CPU
            compute areas of layers meanwhile; no feature maps share memory.
        max_share: the largest share of the network's multiply-adds that a processor may compute, by
            name: ``{"opencl": 0.7}``. Operators that no other processor supports are not counted.
            It is also the largest share of the time for which runs keep the processor busy, and
            only that beside a `plan`, which says itself who computes what.
        share_parts: the denominator of shares of layers and segments: 8 for whole eighths. By
            default shares are as fine as kernels allow.
        objective: ``"latency"``, ``"energy"``, or an `Objective` with budgets: what the plan is to
            make small. Energy is measured by a meter where plans are measured, and predicted from
            the powers of a profile elsewhere.
        effort: ``"low"`` searches and measures no plan: the model has the plan that won before on
            this machine, or else all runs on the first of `targets` that supports it.
        precision: ``"float16"`` computes in float16 between the network's inputs and outputs, on
            processors that support it; operators that need more precision stay in float32, and the
            plan names them. ``"float16+float32"`` accumulates the sums of layers in float32.
            ``"bfloat16"`` multiplies in layers with the tiles of CPUs that have AMX.
        scheduler: plans the whole network, beside the search: ``"hope"``, ``"hope-greedy"`` or
            ``"heft"``, or a function that takes a ``scheduling.Problem`` and returns a
            ``scheduling.Result``. Its schedule is checked and becomes a plan, which is measured
            with the others and taken only if it is the fastest. To have it in any case, give the
            `plan` that ``ts.problems.network_problem(...).plan(result)`` makes of it.
        dump_dir: folder that receives the IR after every phase, one numbered file each.
        debug: check the rules of the intermediate representation after every phase.
        options: all of these but the source as one value, for several compiles; arguments that are
            given, too, go first.
        progress: receives a line of text after every step, such as ``kernel 17 of 63``; by default
            a terminal shows the last line.

    Returns:
        A model that can be called, measured and exported.

    Examples:
        >>> model = ts.compile("resnet18.onnx", targets=["llvm", "opencl"])
        >>> model(np.zeros((1, 3, 224, 224), "float32")).shape
        (1, 1000)
        >>> print(model.plan.explain())
        region  processor  operators  predicted ms  why
        ...
    """
    require_file(source)
    options = read_options(options, locals())
    with reporting(progress), compiling():
        site = options.site()
        limits = options.limits(site)
        site = site.limited(limits.caps)
        widen = site.without_float16 or options.precision != "float32"
        given = options.shapes, options.precision, options.states, widen, site.multiplies_integers
        reader = Reader(source, *given)
        networks, spans = sized_networks(options.lengths, reader, site)
        site = site.in_precision(options.precision, has_integers(networks[0].mod["main"]))
        observer = Observer(options.dump_dir, site.processors if options.debug else None)
        while True:
            try:
                decisions = choose_each(networks, site, limits, options.first_plan, observer)
                if options.plans and len(decisions[0].site.placeable) > 1:
                    decisions = [with_plans(decisions[0], options.named_plans, limits)]
                decisions = [
                    one.noted(*network.notes, site.note, limits.text)
                    for one, network in zip(decisions, networks, strict=True)
                ]
                if options.lengths is None:
                    model = decisions[0].build(options.spare, options.streams, reader.name)
                else:
                    model = build_each(networks, decisions, spans, options.spare, reader.name)
                return options.checked(model, limits)
            except RegionError:
                continue  # its operators go elsewhere in the next plan
            except WrongAnswerError as error:
                site = error.site.noted(str(error))


@named_arguments
def plan_for(
    source: object,
    targets: Targets = None,
    *,
    device: DeviceLike = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    cpu_threads: int | None = None,
    objective: str | Objective = "latency",
    scheduler: SchedulerLike | None = None,
    as_built: bool = False,
    progress: Progress | None = None,
) -> Plan:
    """Predict the best plan, without building or measuring anything.

    Args:
        source: as for `compile`.
        targets: as for `compile`; for a device with a profile by default all of its processors,
            including those without kernels yet.
        device: as for `compile`.
        shapes: as for `compile`.
        cpu_threads: as for `compile`.
        objective: as for `compile`; energy is known of devices whose profile has powers.
        scheduler: as for `compile`; its plan is taken only if it is predicted to be the fastest.
        as_built: a device with a profile computes the network as it is: floats in float32, which
            some DSPs refuse. By default a plan is for its 8 bits, as `quantize` makes them.
        progress: as for `compile`.

    Returns:
        A plan whose regions have predicted times.

    Examples:
        >>> plan = ts.plan_for("resnet18.onnx", device="snapdragon-855")
        >>> plan.processors
        ('cpu', 'opencl', 'hexagon')
        >>> plan.predicted_ns < 20_000_000
        True
    """
    limits = replace(NO_LIMITS, objective=read_objective(objective))
    if scheduler is not None:
        limits = replace(limits, scheduler=read_scheduler(scheduler))
    with reporting(progress), compiling():
        mod, notes, site = to_predict(source, targets, device, shapes, cpu_threads, as_built)
        decision = predict(site.job(mod), site, limits).noted(*notes, site.note)
        return replace(decision.job.plan, reason=decision.reason)


@named_arguments
def plan_front(
    source: object,
    targets: Targets = None,
    *,
    device: DeviceLike = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    progress: Progress | None = None,
) -> PlanFront:
    """Predict the Pareto front of latency and energy.

    Args:
        source: as for `compile`.
        targets: as for `plan_for`.
        device: a device whose profile has powers.
        shapes: as for `compile`.
        progress: as for `compile`.

    Raises:
        InputError: the powers of the device are not known.

    Examples:
        >>> print(ts.plan_front("resnet18.onnx", device="snapdragon-855"))
        | ms | mJ | plan |
        | --- | --- | --- |
        ...
        | 13.19 | 20.4 | hexagon alone on hexagon |
    """
    with reporting(progress), compiling():
        mod, _, site = to_predict(source, targets, device, shapes)
        limits = replace(NO_LIMITS, objective=Objective("energy"))
        return front_of(find(mod, site, limits)[2])


@named_arguments
def to_onnx(
    source: object,
    path: str | os.PathLike[str],
    targets: Targets = None,
    *,
    device: DeviceLike = None,
    plan: PlanLike | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    progress: Progress | None = None,
) -> Plan | None:
    """Write a network as an ONNX file, for other engines: compressed, stretched, or branched.

    The file's metadata names the meeting points, and with processors each node's processor
    (``tvm_stretch.processor``). Batch normalisations are folded.

    Args:
        source: as for `compile`, such as the result of ``ts.compress`` or ``load_torch``.
        path: the file to write.
        targets: as for `plan_for`. Without targets, device and plan, no processor is named.
        device: as for `plan_for`.
        plan: as for `compile`; by default the best one of `plan_for`.
        shapes: as for `compile`.
        progress: as for `compile`.

    Returns:
        The plan whose processors and branches are in the file, None without processors.

    Raises:
        UnsupportedError: an operator has no form in ONNX that we know.
        InputError: the file cannot be written there.

    Examples:
        >>> ts.to_onnx(ts.compress("resnet18.onnx", prune=0.3), "small.onnx")
        >>> ts.to_onnx("resnet18.onnx", "placed.onnx", device="snapdragon-855").processors
        ('cpu', 'opencl', 'hexagon')
    """
    place = as_path(path, "the network")
    check_place(place, "the network")
    with reporting(progress), compiling(), writing("the network", InputError):
        if targets is None and device is None and plan is None:
            write_whole(place, onnx_file(Reader(source, shapes).sized({}).mod, None))
            return None
        mod, _, site = to_predict(source, targets, device, shapes)
        job = site.job(mod)
        chosen = predict(job, site).plan if plan is None else Plan.read(plan)
        chosen = job.by(chosen).plan
        plain = branch(mod, chosen.shares, chosen.splits)
        write_whole(place, onnx_file(plain.mod, chosen))
        return chosen


def to_predict(
    source: object,
    targets: Targets,
    device: DeviceLike,
    shapes: Shapes,
    cpu_threads: int | None = None,
    as_built: bool = False,
) -> tuple[tvm.IRModule, list[str], Site]:
    """The network, remarks for people, and where it would run; nothing is built or measured."""
    site = site_of(device, targets, cpu_threads, may_drop=True, built=as_built)
    read = Reader(source, shapes, widen=site.without_float16).sized({})
    site = site.in_precision("float32", has_integers(read.mod["main"]), as_built)
    return read.mod, [*read.notes], site
