"""An engine on any machine: ONNX Runtime's own provider for CPUs, in a process of its own."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Sequence

import pytest
from helpers.quantised_networks import IMAGES, residual
from helpers.relax_helpers import module, random_const
from onnx import ModelProto
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.plan.plan import Plan
from tvm_stretch.plan.search.costs import Costs, planning_costs
from tvm_stretch.targets.processor import Processor

ENGINE = {"kind": "engine", "provider": "CPUExecutionProvider"}
needs_engine = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime") is None, reason="needs onnxruntime"
)
needs_npu = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime_qnn") is None, reason="needs onnxruntime-qnn"
)


def network() -> object:
    """Two branches, of which one has a sine that no engine's ONNX has."""

    def body(x: relax.Expr) -> relax.Expr:
        stem = relax.op.nn.relu(relax.op.nn.conv2d(x, random_const(16, 8, 3, 3), padding=1))
        left = relax.op.nn.conv2d(stem, random_const(16, 16, 3, 3, seed=1), padding=1)
        right = relax.op.sin(relax.op.nn.conv2d(stem, random_const(16, 16, 1, 1)))
        return relax.op.sigmoid(relax.op.add(left, relax.op.multiply(right, relax.const(0.1))))

    return module(body, (1, 8, 12, 10))


def eager(name: str) -> Plan:
    """Everything that the engine takes is placed there, the rest on the CPU."""
    return Plan((name, "cpu"), ())


def free(processors: Sequence[Processor]) -> Costs:
    """Handing over and starting are free, so that small networks are shared."""
    costs = planning_costs(processors)
    return dataclasses.replace(costs, hand_over=lambda *_: 0, regions=(0,) * len(processors))


def compiled(target: object = ENGINE, source: object = None, name: str = "engine") -> ts.Model:
    """A model of which the engine runs all that it can."""
    source = network() if source is None else source
    return ts.compile(source, [target, "llvm"], plan=eager(name), cpu_threads=1)


def quantised() -> ModelProto:
    """A small quantised network."""
    return ts.quantize(residual(), [image[None] for image in IMAGES])
