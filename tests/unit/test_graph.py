"""The operator graph: kernels as the lowering makes them, and the problem that schedulers get."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from helpers.fake_targets import TARGET
from tvm.script import ir as I
from tvm.script import relax as R

from benchmarks.baselines.anneal import schedule
from benchmarks.baselines.split import layers_of
from tvm_stretch.base.errors import InputError
from tvm_stretch.make.kernels import kernels_alone
from tvm_stretch.network.operator_graph import OperatorGraph
from tvm_stretch.plan.scheduling import FREE, check_schedule
from tvm_stretch.plan.scheduling.of_network import problem_of, splittable
from tvm_stretch.targets.cpu.cpu import cpu_processor


@I.ir_module
class Branches:
    @R.function
    def main(
        x: R.Tensor((1, 4, 8, 8), "float32"),
        w: R.Tensor((4, 4, 1, 1), "float32"),
        b: R.Tensor((1, 4, 1, 1), "float32"),
    ) -> R.Tensor((1, 8, 8, 8), "float32"):
        with R.dataflow():
            conv = R.nn.conv2d(x, w)
            bias = R.add(conv, b)
            relu = R.nn.relu(bias)
            pool = R.nn.max_pool2d(x, [3, 3], padding=[1, 1, 1, 1])
            both = R.concat((relu, pool), axis=1)
            gate = R.sigmoid(both)
            out = R.multiply(both, gate)
            R.output(out)
        return out


def kernels(mod):
    return kernels_alone(mod, cpu_processor(TARGET, 1))


def groups(graph):
    return {g.name: ([op.name for op in g.operators], g.reads) for g in graph.groups}


def test_kernels_of_a_function():
    assert groups(kernels(Branches).graph) == {
        "relu": (["conv", "bias", "relu"], ("x", "w", "b")),
        "pool": (["pool"], ("x",)),
        "out": (["gate", "out"], ("relu", "pool")),  # a concat is no kernel
    }


def test_one_group_per_operator():
    found = groups(OperatorGraph(Branches["main"]))
    assert list(found) == ["conv", "bias", "relu", "pool", "gate", "out"]
    assert found["out"] == (["out"], ("relu", "pool", "gate"))


def test_figures_of_a_group():
    group = kernels(Branches).graph.by_name["relu"]
    assert group.bytes == 4 * 8 * 8 * 4
    assert group.read_bytes == 4 * 8 * 8 * 4 + 4 * 4 * 4 + 4 * 4
    assert group.multiply_adds == 4 * 8 * 8 * 4
    assert group.anchor.name == "conv"


@I.ir_module
class Residual:
    @R.function
    def main(x: R.Tensor((1, 4, 8, 8), "float32"), w: R.Tensor((4, 4, 1, 1), "float32")):
        with R.dataflow():
            conv = R.nn.conv2d(x, w)
            conv1 = R.nn.conv2d(x, w)
            total = R.add(conv, conv1)
            half = R.multiply(total, R.const(0.5))
            moved = R.add(half, R.const(3.0))
            swish = R.multiply(half, moved)
            kept = R.nn.relu(half)
            R.output(swish, kept)
        return swish, kept


def test_one_convolution_per_kernel_and_one_result():
    found = {name: members for name, (members, _) in groups(kernels(Residual).graph).items()}
    assert found == {
        "conv1": ["conv1"],
        "half": ["conv", "total", "half"],  # read by kernels that do not meet again
        "swish": ["moved", "swish"],
        "kept": ["kept"],
    }


def test_problem_of_a_graph():
    graph = kernels(Branches).graph
    costs = {"relu": (50, 20), "pool": (10, None), "out": (5, 5)}
    problem = problem_of(graph, ["cpu", "gpu"], costs, [[FREE] * 2] * 2)
    assert [op.name for op in problem.operators] == ["inputs", "relu", "pool", "out", "outputs"]
    assert [op.costs for op in problem.operators] == [(0, None), *costs.values(), (0, None)]
    assert {t.name: (t.producer, t.consumers, t.bytes) for t in problem.tensors} == {
        "x": (0, (1, 2), 1024),
        "w": (0, (1,), 64),
        "b": (0, (1,), 16),
        "relu": (1, (3,), 1024),
        "pool": (2, (3,), 1024),
        "out": (3, (4,), 2048),
    }
    result = schedule(problem)
    check_schedule(problem, result)
    assert result.makespan == 25


@I.ir_module
class Windows:
    @R.function
    def main(x: R.Tensor((1, 4, 8, 8), "float32"), y: R.Tensor((1, 16), "float32")):
        with R.dataflow():
            wide = R.nn.conv2d(x, R.const(np.ones((4, 4, 5, 5), "float32")), padding=2)
            bias = R.add(wide, R.const(np.ones((1, 4, 1, 1), "float32")))
            small = R.nn.conv2d(bias, R.const(np.ones((4, 4, 1, 1), "float32")))
            pool = R.nn.max_pool2d(small, [2, 2], strides=[2, 2])
            dense = R.matmul(y, R.const(np.ones((16, 8), "float32")))
            act = R.nn.relu(dense)
            R.output(pool, act)
        return pool, act


def test_parts_of_an_operator_know_what_they_need_of_others():
    graph = OperatorGraph(Windows["main"])
    given = splittable(problem_of(graph, ["cpu"], lambda _: (1,), [[FREE]]), graph)
    assert {op.name: (op.pointwise, op.halo) for op in given.operators if op.splittable} == {
        "wide": (False, Fraction(2, 8)),
        "bias": (True, 0),
        "small": (False, 0),
        "pool": (False, 0),
        "dense": (False, 1),
        "act": (True, 0),
    }
    layers = [[given.operators[i].name for i in layer] for layer in layers_of(given)]
    assert sorted(layers) == [["dense", "act"], ["pool"], ["small"], ["wide", "bias"]]


def test_missing_costs_are_named():
    with pytest.raises(InputError, match=r"kernel out \(sigmoid\)"):
        problem_of(kernels(Branches).graph, ["cpu"], {"relu": (1,), "pool": (1,)}, [[FREE]])
