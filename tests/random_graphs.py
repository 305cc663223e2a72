"""Random networks beside ONNX Runtime: layers, joins, types, states, lengths, 8 bits and plans.

    python tests/random_graphs.py --count 100000 --seed 0 --jobs 16 --second opencl

A seed is a network. Its answer is ONNX Runtime's, and two of ONNX Runtime's answers for inputs that
differ in their last bits say how much rounding matters. Each network runs in a process that may
die. A wrong network is cut down to the first node that is wrong, alone if it is wrong alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime
from helpers import campaign
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import tvm_stretch as ts
from tvm_stretch.plan.plan import Plan, PlannedRegion

QUICK = {"kind": "llvm", "opt-level": 0}
Shape = tuple[int, ...]
Feeds = dict[str, np.ndarray]
_ACTIVATIONS = (
    *("Relu", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Elu", "Softplus", "LeakyRelu"),
    *("Gelu", "Mish", "Selu", "Abs", "Neg", "Sin", "Erf", "Softsign", "Identity"),
)


@dataclass
class Graph:
    """A network that grows; float tensors are the ones that nodes read."""

    random: np.random.Generator
    batch: int = 1  # of all tensors; its name is "n" where lengths are open
    nodes: list[NodeProto] = field(default_factory=list)
    weights: list[TensorProto] = field(default_factory=list)
    inputs: dict[str, Shape] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)  # of float tensors, without the batch

    def pick(self, rank: int | None = None) -> str | None:
        """A tensor, rather a late one; None if there is none of this rank."""
        fitting = [n for n, s in self.shapes.items() if rank is None or len(s) == rank]
        if not fitting:
            return None
        return fitting[-1 - min(int(self.random.exponential(1.5)), len(fitting) - 1)]

    def weight(self, *shape: int, scale: float | None = None, dtype: str = "float32") -> str:
        """Random weights, by default of a size that keeps values near one."""
        if scale is None:
            scale = 1 / np.sqrt(max(np.prod(shape[1:]), 1))
        return self.constant((self.random.standard_normal(shape) * scale).astype(dtype))

    def constant(self, value: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def emit(self, op: str, operands: Sequence[str], shape: Shape | None, **attrs: Any) -> str:
        """A node; ``shape`` None if others may not read its result."""
        name = f"t{len(self.nodes)}"
        domain = attrs.pop("domain", "")
        self.nodes.append(helper.make_node(op, operands, [name], domain=domain, **attrs))
        if shape is not None:
            self.shapes[name] = shape
        return name

    def below(self, limit: int) -> int:
        return int(self.random.integers(limit))

    def chance(self, part: float) -> bool:
        return bool(self.random.random() < part)

    def one_of(self, choices: Sequence[Any]) -> Any:
        return choices[self.below(len(choices))]

    def model(self, results: Sequence[str], is_open: bool) -> ModelProto:
        """The network with these outputs; ``is_open``: the batch is a dimension named n."""
        first = "n" if is_open else self.batch
        given = [_value(name, (first, *shape)) for name, shape in self.inputs.items()]
        outputs = [helper.make_empty_tensor_value_info(name) for name in results]
        graph = helper.make_graph(self.nodes, "random", given, outputs, self.weights)
        opsets = [helper.make_opsetid("", 20)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def _value(name: str, shape: Sequence[int | str]) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def _conv(g: Graph) -> None:
    x = g.pick(3)
    if x is None:
        return
    channels, height, width = g.shapes[x]
    groups = g.one_of([1, 1, 1, channels, *(2,) * (channels % 2 == 0)])
    out = groups * (1 + g.below(12 // groups + 1))
    kernel = [1 + g.below(min(size + 2, 5)) for size in (height, width)]
    kernel = [3, 3] if g.chance(0.4) else [1, 1] if g.chance(0.3) else kernel
    stride, dilation = 1 + g.below(2), g.one_of([1, 1, 1, 2])
    pads = [g.below(3) for _ in range(4)] if g.chance(0.3) else [k // 2 for k in kernel] * 2
    reach = [dilation * (k - 1) + 1 for k in kernel]
    size = [
        (s + pads[i] + pads[i + 2] - reach[i]) // stride + 1 for i, s in enumerate((height, width))
    ]
    if min(size) < 1 or any(
        s + pads[i] + pads[i + 2] < reach[i] for i, s in enumerate((height, width))
    ):
        return
    weight = g.weight(out, channels // groups, *kernel)
    bias = [g.weight(out, scale=0.3)] if g.chance(0.6) else []
    common = {"strides": [stride] * 2, "dilations": [dilation] * 2, "pads": pads}
    g.emit("Conv", [x, weight, *bias], (out, *size), group=groups, **common)


def _conv_transpose(g: Graph) -> None:
    x = g.pick(3)
    if x is None or max(g.shapes[x][1:]) > 12:
        return
    channels, height, width = g.shapes[x]
    out, kernel, stride = 1 + g.below(6), 2 + g.below(2), 1 + g.below(2)
    size = [(s - 1) * stride + kernel for s in (height, width)]
    g.emit(
        "ConvTranspose",
        [x, g.weight(channels, out, kernel, kernel)],
        (out, *size),
        strides=[stride] * 2,
    )


def _pool(g: Graph) -> None:
    x = g.pick(3)
    if x is None or min(g.shapes[x][1:]) < 3:
        return
    channels, *size = g.shapes[x]
    kernel, stride, pad = 2 + g.below(2), 1 + g.below(2), g.below(2)
    op = g.one_of(["MaxPool", "AveragePool"])
    shape = (channels, *((s + 2 * pad - kernel) // stride + 1 for s in size))
    extra = {"count_include_pad": g.below(2)} if op == "AveragePool" else {}
    g.emit(op, [x], shape, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4, **extra)


def _global_pool(g: Graph) -> None:
    x = g.pick(3)
    if x is not None:
        op = g.one_of(["GlobalAveragePool", "GlobalMaxPool"])
        g.emit(op, [x], (g.shapes[x][0], 1, 1))


def _normalised(g: Graph) -> None:
    x = g.pick(3)
    if x is None:
        return
    channels = g.shapes[x][0]
    scale, bias, mean = (g.weight(channels, scale=0.5) for _ in range(3))
    if g.chance(0.6):
        spread = g.constant(g.random.uniform(0.5, 2, channels).astype("float32"))
        g.emit("BatchNormalization", [x, scale, bias, mean, spread], g.shapes[x])
    elif np.prod(g.shapes[x][1:]) > 3:
        g.emit("InstanceNormalization", [x, scale, bias], g.shapes[x], epsilon=0.01)


def _layer_norm(g: Graph) -> None:
    x = g.pick()
    if x is not None and g.shapes[x] and g.shapes[x][-1] > 3:
        size = g.shapes[x][-1]
        operands = [x, g.weight(size, scale=1), g.weight(size, scale=0.3)]
        g.emit("LayerNormalization", operands, g.shapes[x], axis=-1, epsilon=0.01)


def _activation(g: Graph) -> None:
    x = g.pick()
    if x is not None:
        g.emit(g.one_of(_ACTIVATIONS), [x], g.shapes[x])


def _clip(g: Graph) -> None:
    x = g.pick()
    if x is not None:
        bounds = [g.constant(np.float32(bound)) for bound in (-0.5, 0.7)]
        g.emit("Clip", [x, *bounds], g.shapes[x])


def _binary(g: Graph) -> None:
    x = g.pick()
    if x is None:
        return
    op = g.one_of(["Add", "Add", "Sub", "Mul", "Max", "Min", "Div"])
    shape = g.shapes[x]
    same = [name for name, other in g.shapes.items() if other == shape]
    if op == "Div":
        divisor = g.constant(g.random.uniform(0.5, 2, shape[-1:]).astype("float32"))
        g.emit("Div", [x, divisor], shape)
    elif g.chance(0.7):
        g.emit(op, [x, g.one_of(same)], shape)
    else:
        other = [1 if g.chance(0.5) else size for size in shape]
        operands = [x, g.weight(1, *other, scale=1)]
        g.emit(op, operands if g.chance(0.7) else operands[::-1], shape)


def _dense(g: Graph) -> None:
    x = g.pick()
    if x is None or not g.shapes[x]:
        return
    out = 1 + g.below(20)
    product = g.emit(
        "MatMul", [x, g.weight(g.shapes[x][-1], out, scale=g.shapes[x][-1] ** -0.5)], None
    )
    shape = (*g.shapes[x][:-1], out)
    if g.chance(0.6):
        g.emit("Add", [product, g.weight(out, scale=0.3)], shape)
    else:
        g.shapes[product] = shape


def _attention(g: Graph) -> None:
    x = g.pick(2)
    if x is None:
        return
    rows, width = g.shapes[x]
    turned = g.emit("Transpose", [x], None, perm=[0, 2, 1])
    scores = g.emit("MatMul", [x, turned], None)
    scale = g.constant(np.float32(g.one_of([width**-0.5, 0.25])))
    scaled = g.emit(g.one_of(["Mul", "Div"]), [scores, scale], None)
    shares = g.emit("Softmax", [scaled], (rows, rows), axis=-1)
    g.emit("MatMul", [shares, x], (rows, width))


def _joined(g: Graph) -> None:
    x = g.pick()
    if x is None or not g.shapes[x]:
        return
    shape, axis = g.shapes[x], g.below(len(g.shapes[x]))
    fitting = [
        name
        for name, other in g.shapes.items()
        if len(other) == len(shape)
        and all(a == b for i, (a, b) in enumerate(zip(other, shape, strict=True)) if i != axis)
    ]
    others = [g.one_of(fitting) for _ in range(1 + g.below(2))]
    size = shape[axis] + sum(g.shapes[name][axis] for name in others)
    if size < 40:
        joined = (*shape[:axis], size, *shape[axis + 1 :])
        g.emit("Concat", [x, *others], joined, axis=axis + 1)


def _parts(g: Graph) -> None:
    x = g.pick()
    if x is None or not g.shapes[x]:
        return
    axis = g.below(len(g.shapes[x]))
    size = g.shapes[x][axis]
    if size < 2:
        return
    begin = g.below(size - 1)
    end, step = begin + 1 + g.below(size - begin), g.one_of([1, 1, 1, 2])
    bounds = [g.constant(np.array([v], "int64")) for v in (begin, end, axis + 1, step)]
    length = -(-(min(end, size) - begin) // step)
    g.emit("Slice", [x, *bounds], (*g.shapes[x][:axis], length, *g.shapes[x][axis + 1 :]))


def _moved(g: Graph) -> None:
    x = g.pick()
    if x is None or not g.shapes[x]:
        return
    shape = g.shapes[x]
    if g.chance(0.5):
        order = [int(i) for i in g.random.permutation(len(shape))]
        g.emit("Transpose", [x], tuple(shape[i] for i in order), perm=[0, *(i + 1 for i in order)])
        return
    total = int(np.prod(shape))
    factor = g.one_of([d for d in range(1, total + 1) if total % d == 0])
    wanted = g.one_of([(total,), (factor, total // factor), (factor, 1, total // factor)])
    target = g.constant(np.array([0, *wanted], "int64"))
    g.emit("Reshape", [x, target], wanted)


def _padded(g: Graph) -> None:
    x = g.pick(3)
    if x is None or min(g.shapes[x][1:]) < 3 or max(g.shapes[x]) > 20:
        return
    channels, height, width = g.shapes[x]
    top, left, bottom, right = (g.below(3) for _ in range(4))
    pads = g.constant(np.array([0, 0, top, left, 0, 0, bottom, right], "int64"))
    shape = (channels, height + top + bottom, width + left + right)
    g.emit("Pad", [x, pads], shape, mode=g.one_of(["constant", "reflect", "edge"]))


def _resized(g: Graph) -> None:
    x = g.pick(3)
    if x is None or max(g.shapes[x][1:]) > 10:
        return
    channels, height, width = g.shapes[x]
    sizes = g.constant(np.array([1, 1, 2, 2], "float32"))
    mode = g.one_of(["nearest", "linear"])
    where = g.one_of(["asymmetric", "half_pixel"])
    attrs = {"mode": mode, "coordinate_transformation_mode": where, "nearest_mode": "floor"}
    g.emit("Resize", [x, "", sizes], (channels, 2 * height, 2 * width), **attrs)


def _reduced(g: Graph) -> None:
    x = g.pick()
    if x is None or not g.shapes[x]:
        return
    axis = g.below(len(g.shapes[x]))
    op = g.one_of(["ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "Softmax", "CumSum"])
    axes = g.constant(np.array([axis + 1], "int64"))
    shape = g.shapes[x]
    if op == "Softmax":
        g.emit(op, [x], shape, axis=axis + 1)
    elif op == "CumSum":
        g.emit(op, [x, g.constant(np.array(axis + 1, "int64"))], shape)
    else:
        g.emit(op, [x, axes], (*shape[:axis], 1, *shape[axis + 1 :]), keepdims=1)


def _chosen(g: Graph) -> None:
    x = g.pick()
    if x is None or not g.shapes[x]:
        return
    axis = g.below(len(g.shapes[x]))
    places = g.random.integers(0, g.shapes[x][axis], 1 + g.below(4))
    shape = (*g.shapes[x][:axis], len(places), *g.shapes[x][axis + 1 :])
    g.emit("Gather", [x, g.constant(places.astype("int64"))], shape, axis=axis + 1)


def _recurrent(g: Graph) -> None:
    x = g.pick(2)
    if x is None or g.shapes[x][0] > 8:
        return
    steps, width = g.shapes[x]
    hidden, op = 1 + g.below(6), g.one_of(["LSTM", "GRU"])
    gates = {"LSTM": 4, "GRU": 3}[op] * hidden
    first = g.emit("Transpose", [x], None, perm=[1, 0, 2])
    weights = [g.weight(1, gates, width, scale=0.4), g.weight(1, gates, hidden, scale=0.4)]
    y = g.emit(op, [first, *weights], None, hidden_size=hidden)
    flat = g.emit("Squeeze", [y, g.constant(np.array([1], "int64"))], None)
    g.emit("Transpose", [flat], (steps, hidden), perm=[1, 0, 2])


def _in_integers(g: Graph) -> None:
    """Counts are exact in any type: floats are cast from them, never to them."""
    x = g.pick()
    if x is None or not g.shapes[x]:
        return
    limit = g.constant(np.float32(0))
    sign = g.emit("Greater", [x, limit], None)
    kind = g.one_of([TensorProto.INT32, TensorProto.INT64])
    whole = g.emit("Cast", [sign], None, to=kind)
    axis = g.constant(np.array([1], "int64"))
    count = g.emit("ReduceSum", [whole, axis], None, keepdims=1)
    g.emit("Cast", [count], None, to=TensorProto.FLOAT)  # not read again: a step is no rounding


def _eight_bits(g: Graph) -> None:
    """Quantise, a layer with weights of 8 bits, quantise."""
    x = g.pick(3)
    if x is None:
        return
    channels, height, width = g.shapes[x]
    out, kernel = 1 + g.below(16), g.one_of([1, 3])
    quantised = _steps(g, x, 0.05)
    weight = g.constant(
        g.random.integers(-127, 128, (out, channels, kernel, kernel)).astype("int8")
    )
    scale = g.constant(g.random.uniform(0.002, 0.01, out).astype("float32"))
    zero = g.constant(np.zeros(out, "int8"))
    real = g.emit("DequantizeLinear", [weight, scale, zero], None, axis=0)
    y = g.emit("Conv", [quantised, real], None, pads=[kernel // 2] * 4)
    g.shapes[_steps(g, y, 0.1)] = (out, height, width)


def _steps(g: Graph, x: str, scale: float) -> str:
    step, zero = g.constant(np.float32(scale)), g.constant(np.uint8(100 + g.below(50)))
    integers = g.emit("QuantizeLinear", [x, step, zero], None)
    return g.emit("DequantizeLinear", [integers, step, zero], None)


LAYERS: tuple[Callable[[Graph], None], ...] = (
    *(_conv, _conv, _conv, _conv_transpose, _pool, _global_pool, _normalised, _layer_norm),
    *(_activation, _activation, _activation, _clip, _binary, _binary, _binary, _dense, _dense),
    *(_attention, _joined, _parts, _moved, _padded, _resized, _reduced, _chosen, _recurrent),
    _in_integers,
)


@dataclass
class Case:
    """A network, and how it is compiled and run."""

    graph: Graph
    results: tuple[str, ...]
    options: dict[str, Any]
    batches: tuple[int, ...]
    has_bits: bool
    state: tuple[str, str] | None = None

    def model(self) -> ModelProto:
        return self.graph.model(self.results, len(self.batches) > 1)


def draw(seed: int) -> Case:
    """The network of a seed."""
    random = np.random.default_rng(seed)
    g = Graph(random, batch=g_batch(random))
    for number in range(1 + g.below(2)):
        g.inputs[f"x{number}"] = g.one_of(
            [(1 + g.below(9), 3 + g.below(10), 3 + g.below(10)), (1 + g.below(9), 4 + g.below(20))]
        )
    g.shapes.update(g.inputs)
    has_bits = g.chance(0.15)
    for _ in range(2 + g.below(9)):
        g.one_of((*LAYERS, *(_eight_bits,) * (8 * has_bits)))(g)
    if not g.nodes:
        g.emit("Relu", ["x0"], g.shapes["x0"])
    read = {name for node in g.nodes for name in node.input}
    made = [node.output[0] for node in g.nodes]
    ends = [name for name in made if name not in read]
    case = Case(g, tuple(ends), {"cpu_threads": g.one_of([1, 1, 2])}, (g.batch,), has_bits)
    if g.chance(0.15) and not has_bits:
        case.batches = (1, 2 + g.below(2))
        case.options["lengths"] = {"n": list(case.batches)}
    elif g.chance(0.15) and not has_bits:
        fitting = [(x, y) for x, s in g.inputs.items() for y in ends if g.shapes.get(y) == s]
        if fitting and len(ends) > 1:
            case.state = fitting[0]
            case.options["states"] = dict([case.state])
    return case


def g_batch(random: np.random.Generator) -> int:
    """Mostly one."""
    return int(random.choice([1, 1, 1, 2, 3]))


def feeds_of(case: Case, batch: int, seed: int) -> Feeds:
    random = np.random.default_rng(seed)
    shapes = case.graph.inputs.items()
    return {n: random.standard_normal((batch, *s)).astype("float32") for n, s in shapes}


def _session(model: ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    # its rewriting of two quantisations in a row is 6 steps off, and 8 bits saturate without VNNI
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    content = model.SerializeToString()
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def random_plan(model: ModelProto, seed: int, second: str) -> Plan:
    """The operators in their order, cut anywhere, on any of two processors."""
    random = np.random.default_rng(seed + 1)
    plan = ts.plan_for(model, [QUICK])
    names = [name for region in plan.regions for name in region.operators]
    processors = ("cpu", second)
    regions: list[tuple[str, list[str]]] = []
    for name in names:
        if not regions or random.random() < 0.4:
            regions.append((processors[int(random.integers(2))], []))
        regions[-1][1].append(name)
    planned = [PlannedRegion(f"r{i}", p, tuple(n)) for i, (p, n) in enumerate(regions)]
    return Plan(processors, tuple(planned))


def check(seed: int, second: str = "") -> dict[str, Any]:
    """The verdict about one seed: right, refused (with the reason) or wrong (with how far)."""
    case = draw(seed)
    model = case.model()
    session = _session(model)
    targets: list[Any] = [QUICK]
    verdict: dict[str, Any] = {"seed": seed, "nodes": len(case.graph.nodes)}
    try:
        if second and case.state is None and len(case.batches) == 1 and seed % 4 == 0:
            targets.append(second)
            case.options["plan"] = random_plan(model, seed, second)
            verdict["second"] = second
        compiled = ts.compile(model, targets, **case.options)
    except ts.StretchError as error:
        return {**verdict, "verdict": "refused", "reason": str(error)[:300]}
    for batch in case.batches:
        wrong = _wrong(case, compiled, session, batch, seed)
        if wrong:
            part = smallest(case, batch, seed) if len(targets) == 1 else ""
            return {**verdict, "verdict": "wrong", "got": wrong, "part": part}
    kinds = [k for k in ("lengths", "states", "plan") if k in case.options]
    return {**verdict, "verdict": "right", "kinds": [*kinds, *["8 bits"] * case.has_bits]}


def _wrong(case: Case, compiled: Any, session: Any, batch: int, seed: int) -> str:
    """How an answer differs; nothing if it is right. States are stepped three times."""
    feeds = feeds_of(case, batch, seed)
    if case.state is None:
        answers = compiled(**feeds)
        answers = answers if isinstance(answers, tuple) else (answers,)
        return _apart(case.results, answers, session, feeds, case.has_bits)
    given, result = case.state
    state = np.zeros_like(feeds.pop(given))
    kept = [name for name in case.results if name != result]
    for _ in range(3):
        whole = {**feeds, given: state}
        answers = compiled(**feeds)
        answers = answers if isinstance(answers, tuple) else (answers,)
        wanted = dict(zip(case.results, session.run(None, whole), strict=True))
        wrong = _apart(kept, answers, session, whole, case.has_bits, given)
        if wrong:
            return wrong
        state = wanted[result]
    return ""


def _apart(
    names: Sequence[str],
    answers: Sequence[np.ndarray],
    session: Any,
    feeds: Feeds,
    has_bits: bool,
    noisy: str = "",
) -> str:
    """How far answers are off; ``noisy`` is a state, which may be the rounding of what it was."""
    random = np.random.default_rng(0)
    moved = [
        {n: _moved_by_rounding(x, n == noisy, random) for n, x in feeds.items()} for _ in range(2)
    ]
    runs = [session.run(list(names), given) for given in (feeds, *moved)]
    for place, (name, answer) in enumerate(zip(names, answers, strict=True)):
        right, *others = (run[place].astype("float64") for run in runs)
        if answer.shape != right.shape:
            return f"{name}: shape {answer.shape}, not {right.shape}"
        if right.size == 0:
            continue
        largest = float(np.abs(right[np.isfinite(right)]).max(initial=1e-3))
        spread = max(float(np.nanmax(np.abs(other - right), initial=0)) for other in others)
        allowed = 3e-5 * largest + 64 * spread + (0.25 if has_bits else 0)
        apart = np.abs(answer - right)
        bad = ~((apart <= allowed) | (answer == right) | (np.isnan(answer) & np.isnan(right)))
        few = 0.05 * bad.size if has_bits or spread > 1e-3 else 0
        if bad.sum() > max(few, int(has_bits)):  # a count may flip with a step of 8 bits
            return f"{name}: {float(np.nanmax(apart)):.3g} apart, {allowed:.3g} allowed"
    return ""


def _moved_by_rounding(x: np.ndarray, is_noisy: bool, random: np.random.Generator) -> np.ndarray:
    noise = random.uniform(-4e-7, 4e-7, x.shape)
    return (x * (1 + noise) + noise * is_noisy).astype("float32")


def smallest(case: Case, batch: int, seed: int) -> str:
    """The first node whose result is wrong, with its operands as inputs if it is wrong alone."""
    g = case.graph
    feeds = feeds_of(case, batch, seed)
    floats = [node.output[0] for node in g.nodes if node.output[0] in g.shapes]
    for name in floats:
        case_of_one = Case(g, (name,), {"cpu_threads": 1}, (batch,), case.has_bits)
        g.batch = batch
        model = case_of_one.model()
        try:
            compiled = ts.compile(model, [QUICK], cpu_threads=1)
            wrong = _apart([name], [compiled(**feeds)], _session(model), feeds, case.has_bits)
        except Exception as error:  # the network as a whole compiled
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            [node] = [node for node in g.nodes if node.output[0] == name]
            shapes = [g.shapes.get(operand, "constant") for operand in node.input]
            attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            return f"{node.op_type} of {shapes} {attrs}, node {name}: {wrong}"[:400]
    return "only all outputs together"


def main() -> int:
    parser = campaign.parser(__doc__.splitlines()[0])
    parser.add_argument("--second", default="", help="a target for random plans, such as opencl")
    args = parser.parse_args()
    return campaign.run(args, lambda seed: [check(seed, args.second)])


if __name__ == "__main__":
    sys.exit(main())
