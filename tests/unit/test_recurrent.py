"""LSTM, GRU and RNN against ONNX's equations and ONNX Runtime, in vectors of every width."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
import tvm
from helpers.cpu_targets import TARGET, built
from helpers.gpu_checks import needs_cpu_device
from helpers.onnx_models import run_onnxruntime
from helpers.recurrent_networks import Layer, Rounded, layer_of, layers, reference
from helpers.relax_helpers import run
from hypothesis import given

import tvm_stretch as ts
from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.network.codec import from_text, to_text
from tvm_stretch.network.operators import Operators
from tvm_stretch.network.steps import UNITS, Recurrence, recurrence_of
from tvm_stretch.passes.expand_math import ExpandMath
from tvm_stretch.passes.keep_nan import KeepNan
from tvm_stretch.read import load_network
from tvm_stretch.targets.cpu.kernels.recurrent import recurrent_kernel
from tvm_stretch.targets.cpu.kernels.recurrent_nest import tile_of
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.schedule import schedule_kernel

MACHINES = {
    "sse": VectorMachine(4, 16, broadcast_operand=False, l2_bytes=2**18, threads=1),
    "neon": VectorMachine(4, 32, broadcast_operand=True, l2_bytes=2**19, threads=1),
    "avx2": VectorMachine(8, 16, broadcast_operand=False, l2_bytes=2**19, threads=1),
    "avx512": VectorMachine(16, 32, broadcast_operand=False, l2_bytes=2**20, threads=2),
}


def assert_within(want: Sequence[Rounded], got: Sequence[np.ndarray]) -> None:
    """Every number is as near to the reference as float32 arithmetic has to be."""
    assert len(want) == len(got)
    for expected, found in zip(want, got, strict=True):
        assert found.shape == expected.value.shape
        difference = np.abs(found - expected.value)
        assert (difference <= expected.error + 1e-37).all(), (difference / expected.error).max()


def compiled(layer: Layer, targets: Sequence[object] = (TARGET,)) -> list[np.ndarray]:
    model, inputs = layer.model()
    return list(ts.compile(model, list(targets), cpu_threads=1)(**inputs))


@given(layers())
def test_any_layer_is_what_onnx_says(layer: Layer) -> None:
    want = reference(layer)
    assert_within(want, run_onnxruntime(*layer.model()))
    assert_within(want, compiled(layer))


EACH = {
    "lstm": layer_of("LSTM", 20, given=("B", "P", "initial_c", "sequence_lens"), batch=3),
    "gru": layer_of("GRU", 20, direction="bidirectional", batch=2),
    "gru, reset behind": layer_of("GRU", 16, direction="reverse", linear_before_reset=1),
    "rnn": layer_of("RNN", 5, given=("initial_h",), computed=("initial_h", "W", "R")),
}


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_stock_tvm_runs_the_canonical_network(name: str) -> None:
    model, inputs = EACH[name].model()
    mod = load_network(model)
    assert_within(reference(EACH[name]), run(mod, *(inputs[p.name] for p in mod["main"].params)))


@pytest.mark.parametrize("name", EACH)
@needs_cpu_device
def test_a_device_that_is_a_cpu_runs_them(name: str) -> None:
    assert_within(reference(EACH[name]), compiled(EACH[name], ["opencl"]))


def numbers_for(layer: Recurrence) -> list[np.ndarray]:
    """Operands of a kernel; a length of each that there can be."""
    dice = np.random.default_rng(0)
    found = []
    for shape, dtype in layer.operands("float32").values():
        uniform = dice.uniform(-0.3, 0.3, shape).astype("float32")
        found.append(np.arange(shape[0], dtype=dtype) + 1 if dtype == "int32" else uniform)
    return found


KERNELS = {
    "lstm": Recurrence("lstm", 3, 3, 40, (True,), (("sigmoid", "tanh", "tanh"),), lengths=True),
    "gru": Recurrence("gru", 3, 1, 33, (False, True), (("sigmoid", "tanh"),) * 2),
    "rnn": Recurrence("rnn", 2, 5, 7, (False,), (("relu",),)),
}


@pytest.mark.variants(2)
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", KERNELS)
def test_vectors_compute_what_the_plain_loops_say(name: str, machine: str) -> None:
    """The same sums in the same order: only the activations are polynomials."""
    layer = KERNELS[name]
    plain = recurrent_kernel(layer, "float32")
    module = ExpandMath()(KeepNan()(tvm.IRModule({"main": plain})))
    scheduled = schedule_kernel(module["main"], MACHINES[machine])
    results = []
    for kernel in (plain, scheduled):
        out = tvm.runtime.tensor(np.full(layer.result, np.nan, "float32"))
        inputs = [tvm.runtime.tensor(value) for value in numbers_for(layer)]
        built(kernel)["kernel"](*inputs, out)
        results.append(out.numpy()[..., : layer.hidden])
    # all numbers are below 3 (three steps); a step adds hidden + 2 roundings, and its activations'
    bound = layer.steps * 3 * (layer.hidden + 2 + 16) * 2.0**-23
    np.testing.assert_allclose(*results, rtol=0, atol=bound)


def operators_of(model: onnx.ModelProto) -> list[str]:
    return [operator.kind for operator in Operators(load_network(model)["main"])]


@pytest.mark.variants(2)
@pytest.mark.parametrize("gates", [1, 3, 4])
@pytest.mark.parametrize("name", MACHINES)
def test_tiles_end_where_blocks_of_weights_do(name: str, gates: int) -> None:
    machine = MACHINES[name]
    for sequences in (1, 2, 7):
        rows, vectors = tile_of(sequences, 256 // machine.lanes, gates, 256, machine)
        units = vectors * min(machine.lanes, UNITS)
        assert rows >= 1 and (UNITS % units == 0 or units % UNITS == 0)


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_operators_do_not_multiply_with_steps(op: str) -> None:
    few, many = (
        operators_of(layer_of(op, 8, steps=steps, direction="bidirectional").model()[0])
        for steps in (2, 5_000)
    )
    assert few == many
    assert few.count("matmul") == few.count(f"recurrent.{op.lower()}") == 1


def test_work_is_counted() -> None:
    main = load_network(layer_of("GRU", 8, steps=10, batch=2, features=3).model()[0])["main"]
    counted = {o.kind: o.multiply_adds for o in Operators(main) if o.multiply_adds}
    assert counted == {"matmul": 10 * 2 * 3 * 3 * 16, "recurrent.gru": 10 * 2 * 3 * 8 * 8}


def test_layouts_differ_only_in_axes() -> None:
    layer = layer_of("LSTM", 6, batch=3, given=("B", "initial_h", "initial_c"))
    first = {**layer.inputs}
    for name in ("X", "initial_h", "initial_c"):
        first[name] = layer.inputs[name].swapaxes(0, 1).copy()
    swapped = Layer("LSTM", 6, first, attributes={"layout": 1})
    every, *states = compiled(layer)
    again, *others = compiled(swapped)
    np.testing.assert_array_equal(again, every.transpose(2, 0, 1, 3))
    for state, other in zip(states, others, strict=True):
        np.testing.assert_array_equal(other, state.swapaxes(0, 1))


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_types(dtype: str) -> None:
    layer = layer_of("GRU", 5, batch=2)
    cast = {name: value.astype(dtype) for name, value in layer.inputs.items()}
    got = compiled(Layer("GRU", 5, cast))
    want = reference(Layer("GRU", 5, {n: v.astype("float64") for n, v in cast.items()}))
    for expected, found in zip(want, got, strict=True):
        assert found.dtype == dtype  # float16 is computed in float32 and rounded once, below 1
        bound = expected.error + (np.finfo(dtype).eps / 2 if dtype == "float16" else 0)
        assert (np.abs(found.astype("float64") - expected.value) <= bound).all()


def test_gpus_leave_it_to_the_cpu() -> None:
    """One item of a GPU takes all steps: it can, but the plan knows that a core is faster."""
    gpu = {"kind": "opencl", "device": "adreno"}
    model, _ = layer_of("LSTM", 8).model()
    alone = ts.compile(model, [gpu]).plan
    assert "opencl" in alone.processor_of().values()
    assert {*ts.compile(model, [TARGET, gpu]).plan.processor_of().values()} == {"cpu"}


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"activations": ["Sigmoid", "Elu", "Tanh"]}, "3 activations for each direction, of"),
        (
            {"activations": ["HardSigmoid", "Tanh", "Tanh"], "activation_alpha": [0.25]},
            "activation_alpha 0.2 of HardSigmoid",
        ),
        ({"direction": "sideways"}, "expected"),
    ],
)
def test_what_is_refused(attributes: dict[str, object], said: str) -> None:
    layer = layer_of("LSTM", 8)
    layer = Layer("LSTM", 8, layer.inputs, attributes={**layer.attributes, **attributes})
    with pytest.raises(ts.StretchError, match=said):
        load_network(layer.model()[0])


def test_lengths_beyond_the_sequence_are_refused() -> None:
    layer = layer_of("RNN", 4, steps=3, given=())
    layer.inputs["sequence_lens"] = np.array([4], np.int32)
    with pytest.raises(UnsupportedError, match="at most 3, the number of steps"):
        load_network(layer.model()[0])


def test_a_kernel_says_what_it_is() -> None:
    layer = KERNELS["gru"]
    assert from_text(Recurrence, to_text(layer)) == layer
    assert recurrence_of(None) is None
