"""Lowering: graphs are interpreted with NumPy, byte by byte, and compared with the network."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax, topi

from tvm_stretch.base.errors import ArtifactError, UnsupportedError
from tvm_stretch.make.lowering.executor_graph import COPY_KERNEL, Graph, Tensor
from tvm_stretch.make.lowering.lower import Lowered, lower
from tvm_stretch.make.lowering.weights import WeightsBlob

KERNELS: dict[str, Callable[..., np.ndarray]] = {
    COPY_KERNEL: lambda x: x,
    "T_add": np.add,
    "T_negative": np.negative,
}


class Memories:
    """The executor's memories as bytes. Scratch memory starts as garbage."""

    def __init__(self, lowered: Lowered, inputs: list[np.ndarray]) -> None:
        graph = lowered.graph
        garbage = np.random.default_rng(1)
        self.bytes: dict[str, list[np.ndarray]] = {
            "input": [np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in inputs],
            "output": [
                np.zeros(graph.tensors[port.tensor].bytes, np.uint8) for port in graph.outputs
            ],
            "arena": [garbage.integers(0, 120, graph.arena_bytes, dtype=np.uint8)],
            "constant": [np.array(lowered.weights.numpy())],
            "prepared": [garbage.integers(0, 120, graph.prepared_bytes, dtype=np.uint8)],
        }

    def read(self, tensor: Tensor) -> np.ndarray:
        """The tensor, as a writable view."""
        memory = self.bytes[tensor.kind][tensor.buffer]
        window = memory[tensor.offset : tensor.offset + tensor.bytes].view(tensor.dtype)
        if not tensor.strides:
            return window.reshape(tensor.shape)
        assert tensor.dtype == "float32"
        strides = [4 * stride for stride in tensor.strides]
        return np.lib.stride_tricks.as_strided(window, tensor.shape, strides)


def interpret(lowered: Lowered, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """What the executor would return."""
    memories = Memories(lowered, inputs)
    graph = lowered.graph
    for node in (*graph.prepare, *graph.nodes):
        kernel = KERNELS[re.sub(r"\d+$", "", node.kernel)]
        values = [memories.read(graph.tensors[i]).copy() for i in node.inputs]
        for i in node.outputs:
            target = memories.read(graph.tensors[i])
            target[...] = kernel(*values).reshape(target.shape)
    return [memories.read(graph.tensors[port.tensor]) for port in graph.outputs]


def touched_cells(tensor: Tensor, places: np.ndarray) -> list[int]:
    """The cells of 64 bytes that a tensor has elements in."""
    last = tensor.offset + tensor.bytes
    if not tensor.strides:
        return list(range(tensor.offset // 64, -(-last // 64)))
    window = places[tensor.offset // 4 : last // 4]
    strides = [places.itemsize * stride for stride in tensor.strides]
    return sorted(set(np.lib.stride_tricks.as_strided(window, tensor.shape, strides).flat))


def live_bytes(graph: Graph) -> int:
    """The most arena bytes that hold something still needed, at any node.

    Derived from nothing but who writes and reads which byte; counted in cells of 64.
    """
    places = np.arange(graph.arena_bytes // 4) // 16
    cells = -(-graph.arena_bytes // 64)
    written = np.full(cells, -1)
    live = np.zeros((len(graph.nodes), cells), bool)
    for step, node in enumerate(graph.nodes):
        for ids, is_write in ((node.inputs, False), (node.outputs, True)):
            for tensor in (graph.tensors[i] for i in ids):
                if tensor.kind != "arena" or tensor.bytes == 0:
                    continue
                for cell in touched_cells(tensor, places):
                    if is_write:
                        written[cell] = step
                        live[step, cell] = True
                    else:
                        assert written[cell] >= 0, f"{node.name} reads what nobody wrote"
                        live[written[cell] : step + 1, cell] = True
    return 64 * int(live.sum(axis=1).max(initial=0))


def build(make: Callable[[relax.BlockBuilder, list[relax.Var]], object], *shapes: tuple) -> Lowered:
    """Lower the function that `make` emits; it returns what the function returns."""
    return lower(kernel_module(make, *shapes))


def kernel_module(
    make: Callable[[relax.BlockBuilder, list[relax.Var]], object], *shapes: tuple
) -> tvm.IRModule:
    """The function that `make` emits."""
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(s, "float32")) for i, s in enumerate(shapes)]
    with builder.function("main", params):
        with builder.dataflow():
            result = make(builder, params)
            if not isinstance(result, list):
                result = builder.emit_output(result)
            else:
                result = [builder.emit_output(item) for item in result]
        builder.emit_func_output(result)
    return builder.get()


def test_tensors_begin_where_a_processor_wants_them() -> None:
    def make(builder: relax.BlockBuilder, params: list[relax.Var]) -> relax.Expr:
        a, b = (negative(builder, x) for x in params)
        return add(builder, negative(builder, add(builder, a, b)), a)

    mod = kernel_module(make, (3, 5), (3, 5))
    for alignment, bytes_needed in ((64, 3 * 64), (128, 3 * 128)):
        graph = lower(mod, alignment=alignment).graph
        offsets = [tensor.offset for tensor in graph.tensors if tensor.kind == "arena"]
        assert len(offsets) > 2 and all(offset % alignment == 0 for offset in offsets)
        assert graph.arena_bytes == bytes_needed


def negative(builder: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
    """A kernel of one input."""
    return builder.emit_te(topi.negative, x, primfunc_name_hint="T_negative")


def add(builder: relax.BlockBuilder, a: relax.Expr, b: relax.Expr) -> relax.Expr:
    """A kernel of two inputs."""
    return builder.emit_te(topi.add, a, b, primfunc_name_hint="T_add")


def kernels(lowered: Lowered) -> list[str]:
    """Names of the nodes' kernels, without the numbers that make them unique."""
    return [re.sub(r"\d+$", "", node.kernel) for node in lowered.graph.nodes]


class Program:
    """A random network: emitted as Relax and evaluated with NumPy at the same time."""

    def __init__(self, draw: st.DrawFn, inner: int) -> None:
        self.draw = draw
        self.inner = inner
        self.random = np.random.default_rng(draw(st.integers(0, 1000)))
        self.pool: list[tuple[relax.Expr, np.ndarray]] = []

    def pick(self, shape: tuple[int, ...] | None = None) -> tuple[relax.Expr, np.ndarray]:
        fitting = [item for item in self.pool if shape is None or item[1].shape == shape]
        return fitting[self.draw(st.integers(0, len(fitting) - 1))]

    def step(self, builder: relax.BlockBuilder) -> None:
        expr, value = self.pick()
        kinds = ["neg", "add", "concat", "split", "slice", "bands", "flat", "const"]
        op = self.draw(st.sampled_from(kinds))
        axis = self.draw(st.integers(1, 2))
        size = value.shape[axis]
        if op == "neg":
            self.pool.append((negative(builder, expr), -value))
        elif op == "add":
            other, other_value = self.pick(value.shape)
            self.pool.append((add(builder, expr, other), value + other_value))
        elif op == "const":
            data = self.random.standard_normal(value.shape).astype("float32")
            self.pool.append((negative(builder, relax.const(data)), -data))
        elif op == "concat":
            rest = value.shape[:axis] + value.shape[axis + 1 :]
            fitting = [p for p in self.pool if p[1].shape[:axis] + p[1].shape[axis + 1 :] == rest]
            other, other_value = fitting[self.draw(st.integers(0, len(fitting) - 1))]
            parts = builder.emit(relax.op.concat([expr, other], axis=axis))
            self.pool.append((parts, np.concatenate([value, other_value], axis)))
        elif op == "split" and size > 1:
            at = self.draw(st.integers(1, size - 1))
            parts = builder.emit(relax.op.split(expr, [at], axis=axis))
            for i, piece in enumerate(np.split(value, [at], axis)):
                self.pool.append((builder.emit(relax.TupleGetItem(parts, i)), piece))
        elif op == "slice" and size > 1:
            low = self.draw(st.integers(0, size - 1))
            high = self.draw(st.integers(low + 1, size))
            piece = builder.emit(relax.op.strided_slice(expr, [axis], [low], [high]))
            self.pool.append((piece, np.take(value, range(low, high), axis)))
        elif op == "bands" and size > 1:
            at = self.draw(st.integers(1, size - 1))
            bands = [
                negative(builder, builder.emit(relax.op.strided_slice(expr, [axis], [low], [high])))
                for low, high in ((0, at), (at, size))
            ]
            self.pool.append((builder.emit(relax.op.concat(bands, axis=axis)), -value))
        elif op == "flat":
            flat = builder.emit(relax.op.flatten(expr))
            there = negative(builder, flat)
            back = builder.emit(relax.op.reshape(there, value.shape))
            self.pool.append((back, -value))

    def results(self, builder: relax.BlockBuilder) -> tuple[list[relax.Expr], list[np.ndarray]]:
        chosen = [self.pick() for _ in range(self.draw(st.integers(1, 3)))]
        chosen.append(self.pool[-1])
        return [builder.emit_output(e) for e, _ in chosen], [v for _, v in chosen]


@st.composite
def programs(draw: st.DrawFn) -> tuple[tvm.IRModule, list[np.ndarray], list[np.ndarray]]:
    """A random network, its inputs and its outputs. Inner size 5 makes slices unaligned."""
    program = Program(draw, draw(st.sampled_from([16, 5])))
    builder = relax.BlockBuilder()
    params, inputs = [], []
    for i in range(draw(st.integers(1, 2))):
        shape = (1, draw(st.integers(1, 4)), draw(st.integers(1, 4)), program.inner)
        params.append(relax.Var(f"x{i}", relax.TensorType(shape, "float32")))
        inputs.append(program.random.standard_normal(shape).astype("float32"))
    program.pool = list(zip(params, inputs, strict=True))
    with builder.function("main", params):
        with builder.dataflow():
            for _ in range(draw(st.integers(1, 12))):
                program.step(builder)
            exprs, values = program.results(builder)
        builder.emit_func_output(exprs)
    return builder.get(), inputs, values


@given(programs())
def test_random_networks_compute_the_same(
    case: tuple[tvm.IRModule, list[np.ndarray], list[np.ndarray]],
) -> None:
    mod, inputs, expected = case
    lowered = lower(mod)
    for got, want in zip(interpret(lowered, inputs), expected, strict=True):
        np.testing.assert_array_equal(got, want)
    assert Graph.from_json(lowered.graph.to_json()) == lowered.graph
    live_bytes(lowered.graph)  # asserts that nothing is read before it is written
    for node in (*lowered.graph.prepare, *lowered.graph.nodes):
        if node.kernel != COPY_KERNEL:
            assert all(lowered.graph.tensors[i].offset % 64 == 0 for i in node.inputs)


def test_reshape_is_no_node() -> None:
    lowered = build(
        lambda b, p: negative(b, b.emit(relax.op.reshape(negative(b, p[0]), (64,)))), (1, 4, 16)
    )
    assert kernels(lowered) == ["T_negative", "T_negative"]


def test_concat_is_written_by_its_producers() -> None:
    def make(b: relax.BlockBuilder, p: list[relax.Var]) -> relax.Expr:
        parts = [negative(b, p[0]), negative(b, p[1])]
        return negative(b, b.emit(relax.op.concat(parts, axis=1)))

    lowered = build(make, (1, 2, 16), (1, 3, 16))
    assert kernels(lowered) == ["T_negative"] * 3
    first, second, last = lowered.graph.nodes
    tensors = lowered.graph.tensors
    whole = tensors[last.inputs[0]]
    assert tensors[first.outputs[0]].offset == whole.offset
    assert tensors[second.outputs[0]].offset == whole.offset + 128


def test_concat_of_an_input_and_of_one_value_twice_copies() -> None:
    def make(b: relax.BlockBuilder, p: list[relax.Var]) -> relax.Expr:
        value = negative(b, p[0])
        return b.emit(relax.op.concat([p[0], value, value], axis=1))

    lowered = build(make, (1, 2, 16))
    assert sorted(kernels(lowered)) == ["T_negative", COPY_KERNEL, COPY_KERNEL]


def test_unaligned_slice_is_copied() -> None:
    def make(b: relax.BlockBuilder, p: list[relax.Var]) -> relax.Expr:
        return negative(b, b.emit(relax.op.strided_slice(p[0], [1], [1], [2])))

    assert kernels(build(make, (1, 4, 5))) == [COPY_KERNEL, "T_negative"]
    assert kernels(build(make, (1, 4, 16))) == ["T_negative"]


def test_constant_work_is_done_once_at_load() -> None:
    data = np.arange(32, dtype="float32").reshape(1, 2, 16)

    def make(b: relax.BlockBuilder, p: list[relax.Var]) -> relax.Expr:
        packed = [negative(b, relax.const(data)), negative(b, relax.const(data.copy()))]
        return add(b, add(b, p[0], packed[0]), packed[1])

    lowered = build(make, (1, 2, 16))
    assert len(lowered.graph.prepare) == 1, "the same work on the same constant is one node"
    assert kernels(lowered) == ["T_add", "T_add"]
    assert lowered.graph.weights_bytes == data.nbytes, "equal constants are stored once"


def test_unused_work_is_dropped() -> None:
    def make(b: relax.BlockBuilder, p: list[relax.Var]) -> relax.Expr:
        negative(b, negative(b, p[0]))
        return add(b, p[0], p[0])

    assert kernels(build(make, (1, 2, 16))) == ["T_add"]


def test_outputs_that_need_a_copy_get_one() -> None:
    def make(b: relax.BlockBuilder, p: list[relax.Var]) -> list[relax.Expr]:
        value = negative(b, p[0])
        half = b.emit(relax.op.strided_slice(value, [1], [0], [1]))
        return [p[0], value, value, half]

    lowered = build(make, (1, 2, 16))
    assert kernels(lowered) == ["T_negative", COPY_KERNEL, COPY_KERNEL, COPY_KERNEL]
    assert lowered.graph.arena_bytes == 0
    assert [port.name for port in lowered.graph.outputs] == [f"output{i}" for i in range(4)]


def test_arena_of_cells_is_close_to_what_is_live() -> None:
    """Cells like NASNet's: branches of the two results before, added, and concatenated."""

    def make(b: relax.BlockBuilder, p: list[relax.Var]) -> relax.Expr:
        before = last = negative(b, p[0])
        for _ in range(6):
            left, right = (
                b.emit_te(topi.strided_slice, x, [0, 0, 0], [1, 8, 16]) for x in (before, last)
            )
            sums = []
            for i in range(4):
                hidden = negative(b, left), negative(b, right if i % 2 else left)
                sums.append(add(b, negative(b, hidden[0]), hidden[1]))
            before, last = last, b.emit(relax.op.concat(sums, axis=1))
        return negative(b, last)

    graph = build(make, (1, 32, 16)).graph
    assert COPY_KERNEL not in {node.kernel for node in graph.nodes}
    assert graph.arena_bytes <= 1.25 * live_bytes(graph)


def refused(
    make: Callable[[relax.BlockBuilder, list[relax.Var]], relax.Expr], *shapes: tuple
) -> str:
    with pytest.raises(UnsupportedError, match=r"^expected .*, got .*; ") as caught:
        build(make, *shapes)
    return str(caught.value)


def test_operators_without_kernel_are_refused() -> None:
    assert "relax.nn.relu" in refused(lambda b, p: b.emit(relax.op.nn.relu(p[0])), (1, 2, 16))


def test_slices_that_are_no_views_are_refused() -> None:
    def strided(b: relax.BlockBuilder, p: list[relax.Var]) -> relax.Expr:
        return b.emit(relax.op.strided_slice(p[0], [1], [0], [2], [2]))

    def twice(b: relax.BlockBuilder, p: list[relax.Var]) -> relax.Expr:
        return b.emit(relax.op.strided_slice(p[0], [1, 2], [0, 0], [1, 8]))

    assert "strides [2]" in refused(strided, (1, 2, 16))
    assert "along axes [1, 2]" in refused(twice, (2, 2, 16))


def test_bands_of_rows_are_tensors_with_strides() -> None:
    """Each is read where the whole stands, and written where the whole will stand."""

    def make(b: relax.BlockBuilder, p: list[relax.Var]) -> relax.Expr:
        bands = [b.emit(relax.op.strided_slice(p[0], [2], [i], [i + 2])) for i in (0, 2)]
        return negative(b, b.emit(relax.op.concat([negative(b, x) for x in bands], axis=2)))

    lowered = build(make, (1, 3, 4, 16))
    assert kernels(lowered) == ["T_negative"] * 3
    nodes, tensors = lowered.graph.nodes, lowered.graph.tensors
    assert [tensors[node.inputs[0]].offset for node in nodes] == [0, 128, 0]
    assert [tensors[node.outputs[0]].offset for node in nodes] == [0, 128, 0]
    for node in nodes[:2]:
        for number in (*node.inputs, *node.outputs):
            band = tensors[number]
            assert (band.shape, band.strides) == ((1, 3, 2, 16), (192, 64, 16, 1))
            assert band.bytes == 4 * (2 * 64 + 2 * 16)
    x = np.random.default_rng(0).standard_normal((1, 3, 4, 16)).astype("float32")
    np.testing.assert_array_equal(interpret(lowered, [x])[0], x)


def test_a_band_that_is_flattened_first_is_copied() -> None:
    def make(b: relax.BlockBuilder, p: list[relax.Var]) -> relax.Expr:
        band = negative(b, p[0])
        flat = negative(b, b.emit(relax.op.flatten(band)))
        both = b.emit(relax.op.concat([band, negative(b, p[0])], axis=2))
        return [flat, negative(b, both)]

    lowered = build(make, (1, 3, 4, 16))
    assert kernels(lowered).count(COPY_KERNEL) == 3  # one in each channel
    x = np.random.default_rng(0).standard_normal((1, 3, 4, 16)).astype("float32")
    flat, both = interpret(lowered, [x])
    np.testing.assert_array_equal(flat, x.reshape(-1))
    np.testing.assert_array_equal(both, np.concatenate([x, x], 2))


def test_open_dimensions_are_refused() -> None:
    builder = relax.BlockBuilder()
    n = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n, 4), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(x)
    with pytest.raises(UnsupportedError, match="static shape"):
        lower(builder.get())


def test_wrong_number_of_output_names_is_refused() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 4), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(x)
    mod = builder.get()
    mod["main"] = mod["main"].with_attr("output_names", ["a", "b"])
    with pytest.raises(UnsupportedError, match="names"):
        lower(mod)


@pytest.mark.parametrize(
    ("field", "value"), [("version", 1), ("format", "other"), ("tensors", [{}]), ("nodes", None)]
)
def test_damaged_json_is_refused(field: str, value: object) -> None:
    data = json.loads(build(lambda b, p: negative(b, p[0]), (1, 4)).graph.to_json())
    data[field] = value
    with pytest.raises(ArtifactError, match=r"^expected .*, got .*; export"):
        Graph.from_json(json.dumps(data))


def test_text_that_is_no_json_is_refused() -> None:
    with pytest.raises(ArtifactError):
        Graph.from_json("{")


# --- weights --------------------------------------------------------------------------------------


def blob_of(*arrays: np.ndarray) -> WeightsBlob:
    """Weights that begin with those of a network that adds these arrays."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8, 256), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            value: relax.Expr = x
            for array in arrays:
                value = builder.emit(relax.op.add(value, relax.const(array)))
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    return WeightsBlob(builder.get())


def added(blob: WeightsBlob, array: np.ndarray) -> int:
    return blob.add(tvm.runtime.tensor(np.ascontiguousarray(array)))


def test_the_networks_weights_come_first_in_its_order() -> None:
    a, b = (np.random.default_rng(s).standard_normal((8, 256)).astype("float32") for s in (0, 1))
    blob = blob_of(a, b)
    assert blob.own_bytes == blob.bytes == a.nbytes + b.nbytes
    assert added(blob, b) == a.nbytes and added(blob, a) == 0
    np.testing.assert_array_equal(
        np.from_dlpack(blob.tensor()).view("float32").reshape(16, 256), np.concatenate([a, b])
    )


def test_rows_of_weights_stand_where_the_whole_does() -> None:
    a = np.random.default_rng(0).standard_normal((8, 256)).astype("float32")
    b = np.concatenate([a[3:5], a[:6]])  # begins as a part of the other one does
    blob = blob_of(a, b)
    assert added(blob, a[2:7]) == 2 * 1024
    assert added(blob, b[1:4]) == a.nbytes + 1024
    assert added(blob, a[2:7].reshape(5, 16, 4, 4)) == 2 * 1024
    assert blob.bytes == blob.own_bytes


def test_what_is_no_part_of_the_weights_stands_behind_them() -> None:
    a = np.random.default_rng(0).standard_normal((8, 250)).astype("float32")
    blob = blob_of(np.zeros((8, 256), "float32"))
    own = blob.own_bytes
    first = added(blob, a)
    assert first == own
    assert added(blob, a[1:7]) > first  # would not begin at a multiple of 64 bytes
    assert added(blob, a[:, :128]) > first  # not one piece
    assert added(blob, a[:7]) == first
    assert blob.own_bytes == own
