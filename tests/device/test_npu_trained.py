"""Trained networks in 8 bits on the emulated HTP, and the rule by which it rounds.

`tests/helpers/trained_networks.py` says which packages ship the weights.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from helpers.engine_regions import on_the_tensor_unit, step_of
from helpers.engine_targets import compiled, needs_npu
from helpers.quantised_models import qdq_conv
from helpers.trained_networks import HELD_OUT, NAMES, photograph, trained, typical_inputs, views
from onnx import numpy_helper

import tvm_stretch as ts

pytestmark = [needs_npu, pytest.mark.full, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("name", NAMES)
def test_answers(name: str) -> None:
    """One region, the classes of the float network, and no further off than the bare engine is.

    What the HTP's rounding adds is less than what 8 bits alone make of a network.
    """
    network = trained(name, 224)
    quantised = ts.quantize(network, typical_inputs(name, 224))
    model, ours = compiled("npu", quantised, "npu"), ts.compile(quantised, "llvm", cpu_threads=1)
    assert [region.processor for region in model.plan.regions] == ["cpu", "npu", "cpu"]
    exact = onnxruntime.InferenceSession(network.SerializeToString())
    for photo in HELD_OUT:
        x = photograph(name, photo, 224)
        answers = {
            "npu": model(**x),
            "ours": ours(**x),
            "float": exact.run(None, x)[0],
            "peer": next(iter(on_the_tensor_unit(quantised, x).values())),
        }
        classes = {key: int(y.argmax()) for key, y in answers.items()}
        steps = {
            f"{a} to {b}": float(np.abs(answers[a] - answers[b]).max() / step_of(quantised))
            for a, b in (("npu", "ours"), ("npu", "float"), ("peer", "ours"), ("peer", "float"))
        }
        own = float(np.abs(answers["ours"] - answers["float"]).max() / step_of(quantised))
        print(name, photo, *(f"{k} {v:.1f}," for k, v in steps.items()), f"{own:.1f}", classes)
        least = min(steps["npu to ours"], steps["npu to float"])
        others = min(steps["peer to ours"], steps["peer to float"])
        assert least <= max(2, 1.2 * others + 1), "the largest of a thousand differences varies"
        assert steps["npu to ours"] <= max(2, own)
        assert classes["npu"] in (classes["ours"], classes["float"])


@pytest.mark.parametrize("name", NAMES)
def test_classes_of_photographs(name: str) -> None:
    """The HTP finds float's class about as often as our CPU does, whatever the steps are."""
    network = trained(name, 224)
    quantised = ts.quantize(network, typical_inputs(name, 224))
    model, ours = compiled("npu", quantised, "npu"), ts.compile(quantised, "llvm", cpu_threads=1)
    exact = onnxruntime.InferenceSession(network.SerializeToString())
    rows = [(model(**x), ours(**x), exact.run(None, x)[0]) for x in views(name, 224)]
    npu, own, right = np.array([[int(y.argmax()) for y in row] for row in rows]).T
    pairs = {"NPU to ours": (0, 1), "ours to float": (1, 2), "NPU to float": (0, 2)}
    for what, (a, b) in pairs.items():
        steps = [np.abs(row[a] - row[b]).max() / step_of(quantised) for row in rows]
        print(f"{name}, {what}: {np.median(steps):.1f} steps, at most {max(steps):.1f}")
    same = [int((a == b).sum()) for a, b in ((npu, right), (own, right), (npu, own))]
    print(f"{name}: float's class by NPU {same[0]}, by ours {same[1]}, same in both {same[2]}")
    assert len(rows) == 24 and same[0] >= same[1] - 2 and same[0] >= 18


def test_sums_are_cut() -> None:
    """The HTP keeps three bits of a sum below the last one of the result, or four.

    It cuts the rest off and takes the middle of what was lost, so that results near the middle
    between two integers may be one more or less: a quarter of the last bit's worth of them.
    """
    model, x = qdq_conv(64, 16, 1, 48, zero=113)
    values = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    got = on_the_tensor_unit(model, {"x0": x})["y"]
    weight, bias = (values[name].astype("int64") for name in ("x1", "x2"))
    sums = np.einsum("oi,nihw->nohw", weight[:, :, 0, 0], x.astype("int64") - 113)
    sums += bias[:, None, None]
    factor = (values["s2"].astype("float64") / values["s"])[:, None, None]
    unit = 2 ** np.floor(np.log2(1 / 8 / factor))
    cut = (np.floor(sums / unit) + 0.5) * unit

    inside = (got > 0) & (got < 255)

    def off(numbers: np.ndarray) -> float:
        return float((np.floor(numbers * factor + 7.5) != got)[inside].mean())

    assert off(cut) < 0.005 < 0.015 < off(sums) < 0.03
    np.testing.assert_allclose(off(sums), (unit * factor / 4).mean(), rtol=0.2)


@pytest.mark.parametrize("name", NAMES)
def test_any_other_rounding_moves_answers_as_far(name: str) -> None:
    """One result in 5,000 that our own CPU rounds otherwise moves the answer as far as the HTP.

    Every sum grows by that part of its result's last bit. So no engine that rounds otherwise at all
    stays within two steps, whatever the scales.
    """
    quantised = ts.quantize(trained(name, 224), typical_inputs(name, 224))
    ours = ts.compile(quantised, "llvm", cpu_threads=1)
    other = ts.compile(nudged(quantised, 1 / 5000), "llvm", cpu_threads=1)
    inputs = [photograph(name, photo, 224) for photo in HELD_OUT]
    steps = [float(np.abs(ours(**x) - other(**x)).max() / step_of(quantised)) for x in inputs]
    print(name, *(f"{n:.1f}" for n in steps))
    assert max(steps) > 2


def nudged(model: onnx.ModelProto, part: float) -> onnx.ModelProto:
    """The network whose sums are larger by a part of the last bit of their results."""
    other = onnx.ModelProto()
    other.CopyFrom(model)
    held = {tensor.name: tensor for tensor in other.graph.initializer}
    makes = {node.output[0]: node for node in other.graph.node}
    reads = {name: node for node in other.graph.node for name in node.input}
    for node in other.graph.node:
        if node.op_type not in ("Conv", "Gemm"):
            continue
        last = reads[node.output[0]]
        while last.op_type != "QuantizeLinear":
            last = reads[last.output[0]]
        bias, scale = makes[node.input[2]].input[:2]
        last_bit = numpy_helper.to_array(held[last.input[1]]) / numpy_helper.to_array(held[scale])
        larger = numpy_helper.to_array(held[bias]) + np.round(part * last_bit).astype("int32")
        held[bias].CopyFrom(numpy_helper.from_array(larger, bias))
    return other
