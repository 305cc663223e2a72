"""Small graphs of hand-written kernels on CPU and OpenCL, and what they should compute.

    steps = [("scale", 0, ("x",), "a"), ("add", 1, ("a", "w"), "b"), ("scale", 0, ("b",), "y")]

is a network of three regions: `a` on the CPU, `b` on OpenCL, `y` on the CPU. `x` is the input,
`w` a weight, `y` the output; everything is a vector of float32. Processor 2 is a fake one, or
another name for the OpenCL device.  The operator `hook` is a copy that calls `HOOK` first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import tvm
from helpers.cpu_targets import TARGET
from helpers.fake_targets import fake_code
from hypothesis import strategies as st
from tvm import te

from tvm_stretch.make.lowering.executor_graph import (
    COPY_KERNEL,
    CPU,
    Graph,
    Node,
    Port,
    ProcessorSpec,
    Region,
    Tensor,
)
from tvm_stretch.run.autoload import load_native_library
from tvm_stretch.targets.opencl.code.opencl_code import (
    BELL_ARGUMENT,
    BELL_PRELUDE,
    DOORBELL,
    doorbell_launch,
    kernel_text,
)

load_native_library()

OPENCL = ProcessorSpec("opencl", "opencl")
FAKE = ProcessorSpec("fake", "fake")

HOOK: list[Callable[[], object]] = []
"""Called, in order, by each `hook` that runs on the CPU or on the fake processor."""


@tvm.register_global_func("opencl_graphs.hook", override=True)
def _hook(source: tvm.runtime.Tensor, target: tvm.runtime.Tensor) -> None:
    for call in HOOK:
        call()
    target.copyfrom(source)


Step = tuple[str, int, tuple[str, ...], str]

SOURCE = """
__kernel void add(__global const float* a, int a_first, __global const float* b, int b_first,
                  __global float* out, int out_first) {
  for (int i = get_group_id(0) * 64 + get_local_id(0); i < get_group_id(0) * 64 + 64;
       i += get_local_size(0)) out[out_first + i] = a[a_first + i] + b[b_first + i];
}
"""

SCALE_SOURCE = """
__kernel void scale(__global const float* a, int a_first, __global float* out, int out_first,
                    int rounds) {
  int size = get_num_groups(0) * 64;
  for (int i = get_group_id(0) * 64 + get_local_id(0); i < get_group_id(0) * 64 + 64;
       i += get_local_size(0)) {
    float value = a[a_first + i] * 1.5f + 1.0f;
    for (int j = 1; j < rounds; ++j) value += a[a_first + (i + j) % size];
    out[out_first + i] = value;
  }
}
"""

BUFFER_0, BUFFER_1, BUFFER_2 = (
    [["buffer", i], ["offset", i]] for i in range(3)
)  # memory of tensor i, and where in it the tensor starts


def with_bell(source: str) -> str:
    """The same kernel with a bell as its first argument."""
    entry, params = source.split("__kernel void ")[1].split(") {")[0].split("(")
    names = ", ".join(param.split()[-1] for param in params.split(","))
    work = source.replace(f"__kernel void {entry}(", f"static void {entry}_work(")
    return work + kernel_text(entry, [params], f"{entry}_work({names});", bells=True)


def opencl_code(
    size: int, *, rounds: int = 1, options: str = "", bells: bool = True, **changes: object
) -> str:
    """The JSON of the kernels `add` and `scale`; `changes` replace fields of `scale`.

    With `bells`, as the compiler makes them for a host's CPU: one work-item for each group.
    """
    assert size % 64 == 0
    shape = {"groups": [size // 64, 1, 1], "group_size": [1 if bells else 64, 1, 1]}
    add = {"entry": "add", "source": SOURCE, "args": [*BUFFER_0, *BUFFER_1, *BUFFER_2], **shape}
    scale = {
        "entry": "scale",
        "source": SCALE_SOURCE,
        "args": [*BUFFER_0, *BUFFER_1, ["int32", rounds]],
        **shape,
        **changes,
    }
    sources = [str(add["source"]), str(scale["source"])]
    kernels = {"add": [{**add, "source": 0}], "scale": [{**scale, "source": 1}]}
    if bells:
        sources = [BELL_PRELUDE + with_bell(source) for source in sources]
        for (launch,) in kernels.values():
            launch["args"] = [list(BELL_ARGUMENT), *launch["args"]]
        kernels[DOORBELL] = [doorbell_launch()]
    return json.dumps({"sources": sources, "kernels": kernels, "options": options})


@cache
def cpu_kernels(size: int, rounds: int = 1) -> tvm.runtime.Module:
    """The same kernels for the CPU. `scale` adds the `rounds` - 1 elements that follow."""
    a = te.placeholder((size,), name="a")
    b = te.placeholder((size,), name="b")
    total = te.compute((size,), lambda i: a[i] + b[i])
    rest = te.reduce_axis((1, max(rounds, 2)), name="rest")
    sums = te.compute((size,), lambda i: te.sum(a[(i + rest) % size], axis=rest), name="sums")
    scaled = te.compute(
        (size,), lambda i: a[i] * 1.5 + 1.0 + (sums[i] if rounds > 1 else 0.0), name="scaled"
    )
    functions = {
        "add": te.create_prim_func([a, b, total]).with_attr("global_symbol", "add"),
        "scale": te.create_prim_func([a, scaled]).with_attr("global_symbol", "scale"),
    }
    hook = te.extern(
        [(size,)],
        [a],
        lambda reads, writes: tvm.tirx.call_packed("opencl_graphs.hook", reads[0], writes[0]),
        dtype="float32",
    )
    functions["hook"] = te.create_prim_func([a, hook]).with_attr("global_symbol", "hook")
    return tvm.tirx.build(tvm.IRModule(functions), target=TARGET)


def expected(steps: Sequence[Step], x: np.ndarray, w: np.ndarray, rounds: int = 1) -> np.ndarray:
    """What the network computes."""
    values = {"x": x, "w": w}
    for op, _, reads, writes in steps:
        args = [values[name] for name in reads]
        if op == "add":
            values[writes] = args[0] + args[1]
        elif op == "scale":
            values[writes] = args[0] * np.float32(1.5) + np.float32(1)
            for j in range(1, rounds):
                values[writes] = values[writes] + np.roll(args[0], -j)
        else:
            values[writes] = args[0]
    return values["y"]


def build_graph(steps: Sequence[Step], size: int, third: ProcessorSpec = FAKE) -> Graph:
    """The graph; consecutive steps of one processor are one region unless they wait."""
    names = ["x", "w"] + [writes for *_, writes in steps]
    ids = {name: i for i, name in enumerate(names)}
    nbytes = 4 * size
    slot = (nbytes + 63) // 64 * 64
    kinds = {"x": "input", "y": "output", "w": "constant"}

    def tensor(name: str) -> Tensor:
        kind = kinds.get(name, "arena")
        offset = slot * (ids[name] - 2) if kind == "arena" else 0
        return Tensor((size,), "float32", kind, 0, offset, nbytes)  # type: ignore[arg-type]

    nodes = tuple(
        Node(
            COPY_KERNEL if op == "copy" else op,
            f"{op}{i}",
            tuple(ids[name] for name in reads),
            (ids[writes],),
        )
        for i, (op, _, reads, writes) in enumerate(steps)
    )
    return Graph(
        inputs=(Port("x", 0),),
        outputs=(Port("y", ids["y"]),),
        tensors=tuple(map(tensor, names)),
        prepare=(),
        nodes=nodes,
        processors=(CPU, OPENCL, third)[: max(2, 1 + max(step[1] for step in steps))],
        regions=tuple(_regions(steps, ids)),
        arena_bytes=slot * len(steps),
        weights_bytes=slot,
        prepared_bytes=0,
    )


def _regions(steps: Sequence[Step], ids: dict[str, int]) -> list[Region]:
    groups: list[list[int]] = []
    owner = {writes: processor for _, processor, _, writes in steps}
    for i, (_, processor, reads, _) in enumerate(steps):
        waits = any(owner.get(name, processor) != processor for name in reads)
        if groups and steps[groups[-1][0]][1] == processor and not waits:
            groups[-1].append(i)
        else:
            groups.append([i])
    writer = {steps[i][3]: region for region, group in enumerate(groups) for i in group}
    received: set[tuple[int, str]] = set()
    regions = []
    for number, group in enumerate(groups):
        processor = steps[group[0]][1]
        reads = dict.fromkeys(name for i in group for name in steps[i][2] if name != "w")
        foreign = [
            name for name in reads if name == "x" or steps[groups[writer[name]][0]][1] != processor
        ]
        new = [name for name in foreign if (processor, name) not in received]
        received.update((processor, name) for name in new)
        sends = [
            steps[i][3]
            for i in group
            if steps[i][3] == "y"
            or any(steps[i][3] in step[2] and step[1] != processor for step in steps)
        ]
        regions.append(
            Region(
                name=f"r{number}",
                processor=processor,
                nodes=tuple(group),
                after=tuple(sorted({writer[name] for name in foreign if name != "x"})),
                receives=tuple(ids[name] for name in new),
                sends=tuple(ids[name] for name in sends),
            )
        )
    return regions


def weights_tensor(w: np.ndarray) -> tvm.runtime.Tensor:
    """The weights as the blob that belongs to `build_graph`."""
    slot = (w.nbytes + 63) // 64 * 64
    blob = np.zeros(slot + 64, "uint8")
    start = -blob.ctypes.data % 64
    aligned = blob[start : start + slot]
    aligned[: w.nbytes] = w.view("uint8")
    return tvm.runtime.from_dlpack(aligned)


def create_executor(
    steps: Sequence[Step],
    w: np.ndarray,
    code: str | None = None,
    rounds: int = 1,
    bells: bool = True,
    third: ProcessorSpec = FAKE,
) -> tvm.runtime.Module:
    """An executor of these steps."""
    size = len(w)
    module = tvm.get_global_func("tvm_stretch.create_opencl_code")(
        code or opencl_code(size, rounds=rounds, bells=bells)
    )
    create = tvm.get_global_func("tvm_stretch.create_executor")
    graph = build_graph(steps, size, third)
    devices = [module, module if third.kind == "opencl" else fake_code()]
    codes = [cpu_kernels(size, rounds), *devices][: len(graph.processors)]
    return create(graph.to_json(), weights_tensor(w), *codes)


@st.composite
def random_steps(draw: st.DrawFn, processors: int = 2, longest: int = 12) -> list[Step]:
    """Any network over `x` and `w` whose last value is `y`."""
    steps: list[Step] = []
    names = ["x"]
    count = draw(st.integers(1, longest))
    for i in range(count):
        op = draw(st.sampled_from(["add", "scale", "copy"]))
        reads = [draw(st.sampled_from(names))]
        if op == "add":
            reads.append(draw(st.sampled_from([*names, "w"])))
        name = "y" if i == count - 1 else f"v{i}"
        steps.append((op, draw(st.integers(0, processors - 1)), tuple(reads), name))
        names.append(name)
    return steps


CHAIN: list[Step] = [
    ("scale", 0, ("x",), "a"),
    ("add", 1, ("a", "w"), "b"),
    ("scale", 1, ("b",), "c"),
    ("add", 0, ("c", "a"), "d"),
    ("copy", 1, ("d",), "e"),
    ("add", 1, ("e", "b"), "f"),
    ("add", 0, ("f", "w"), "y"),
]
"""CPU and OpenCL in turn; values are reused by later regions of the same processor."""
