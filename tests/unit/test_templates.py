"""A template is one class in one file; families of features change one at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from helpers.cost_kernels import DEVICE, MACHINE, pretended, some_convs
from helpers.cpu_targets import TARGET
from helpers.gpu_checks import H100
from helpers.integer_networks import TABLE
from helpers.relax_helpers import module, random_const, random_inputs, run
from tvm import relax, te, tirx
from tvm.ir import Expr

import tvm_stretch as ts
from tvm_stretch.base.progress import reporting
from tvm_stretch.make.kernels import kernels_alone
from tvm_stretch.network.codec import to_text
from tvm_stretch.network.integer_kernels import integer_call
from tvm_stretch.network.integers import Integer, Rounding
from tvm_stretch.plan.cost.describe import describe
from tvm_stretch.plan.cost.generic_features import (
    GenericFeatures,
    MeanFeatures,
    RunFeatures,
    families,
)
from tvm_stretch.plan.cost.measured_model import load_cost_model, train
from tvm_stretch.plan.measuring.dataset import Dataset, Row
from tvm_stretch.plan.measuring.scenes import scene
from tvm_stretch.plan.search.priced_kernels import half_of
from tvm_stretch.read import load_network
from tvm_stretch.targets.cpu.cpu import CORE, cpu_processor
from tvm_stretch.targets.cpu.kernels.conv import ConvConfig
from tvm_stretch.targets.cpu.kernels.nibble_words import Words
from tvm_stretch.targets.cpu.kernels.nibbles import Nibbles
from tvm_stretch.targets.cpu.kernels.recurrent_nest import Steps
from tvm_stretch.targets.kernels import template as templates
from tvm_stretch.targets.kernels.conv_features import ConvFeatures
from tvm_stretch.targets.kernels.features import FAMILIES, EpilogueWork, Features, Phases
from tvm_stretch.targets.kernels.fused import FusedKernel
from tvm_stretch.targets.kernels.layers import Along, ConvShape, WindowShape, taken
from tvm_stretch.targets.kernels.loops import block, lanes, load, loop, scratch, store, within
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import (
    Template,
    choose,
    configurations,
    kernel_call,
    read_template,
)


@pytest.fixture
def simple() -> Iterator[type[Template]]:
    """A template for 1x1 convolutions that believes to be the fastest."""

    @dataclass(frozen=True)
    class SimpleFeatures(Features):
        family: ClassVar[str] = "simple"
        out_channels: int

        def own_phases(self) -> Phases:
            return {"multiply": self.flops / 10}

    @dataclass(frozen=True, kw_only=True)
    class Simple(Template, ConvShape):
        template: ClassVar[str] = "simple"
        layers: ClassVar[tuple[type, ...]] = (ConvShape,)
        lanes: int

        @property
        def out_shape(self) -> tuple[int, ...]:
            return (self.batch, self.out_channels // self.lanes, *self.out_size, self.lanes)

        @classmethod
        def configure(
            cls, layer: ConvShape, machine: VectorMachine, block: int
        ) -> Iterable[Template]:
            whole = layer.in_channels % block == layer.out_channels % block == 0
            fits = layer.pointwise and layer.groups == 1 and block == machine.lanes and whole
            return [taken(cls, layer, lanes=machine.lanes)] if fits else []

        def cycles(self, machine: VectorMachine) -> float:
            return 1.0

        def call(
            self, bb: relax.BlockBuilder, *operands: Expr, name: str = "", sums: str = ""
        ) -> relax.Var:
            data, weight = operands
            packed = bb.emit(kernel_call(bb, "transposed", self, self._transposed, weight))
            return super().call(bb, data, packed, name=name)

        def _transposed(self, weight: te.Tensor) -> te.Tensor:
            size = (self.in_channels, self.out_channels)
            return te.compute(size, lambda i, o: weight[o, i, 0, 0])

        def meaning(self, *operands: te.Tensor) -> te.Tensor:
            x, w = operands
            c, width = te.reduce_axis((0, self.in_channels)), self.lanes
            return te.compute(
                self.out_shape,
                lambda n, b, i, j, v: te.sum(
                    x[n, c // width, i, j, c % width] * w[c, b * width + v], axis=c
                ),
                name="simple",
                attrs=self.annotation,
            )

        def write(self, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
            x, w = fused.operands[:2]
            acc, (n, blocks, height, width, _) = scratch("acc", self.lanes), self.out_shape
            assert n == 1

            def pixel(b: Expr, i: Expr, j: Expr) -> tirx.Stmt:
                def add(c: Expr) -> tirx.Stmt:
                    value = load(x, 0, c // self.lanes, i, j, c % self.lanes)
                    return lanes(
                        self.lanes,
                        lambda v: store(
                            acc, load(acc, v) + value * load(w, c, b * self.lanes + v), v
                        ),
                    )

                place = (0, b, i, j)
                return block(
                    lanes(self.lanes, lambda v: store(acc, tirx.const(0.0, "float32"), v)),
                    loop(self.in_channels, add, "channel"),
                    lanes(self.lanes, lambda v: fused.epilogue.store((*place, v), load(acc, v))),
                )

            rows = loop(
                blocks,
                lambda b: loop(
                    height, lambda i: loop(width, lambda j: pixel(b, i, j), "simple_x"), "y"
                ),
                "b",
            )
            return within([acc], rows)

        def work(self, epilogue: EpilogueWork, machine: VectorMachine, item: int) -> SimpleFeatures:
            read, made = self.batch * np.prod(self.in_size), np.prod(self.out_shape)
            return SimpleFeatures(
                2.0 * self.multiply_adds,
                item * int(read) * self.in_channels + epilogue.bytes,
                item * self.weights,
                epilogue.out_bytes or item * int(made),
                epilogue.flops,
                self.cycles(machine),
                self.out_channels,
                vector_lanes=self.lanes,
                item_bytes=item,
            )

        def part(self, along: Along, extent: int, machine: VectorMachine) -> Template | None:
            found: Template = choose(taken(ConvShape, self).cut(along, extent), machine)
            return found

    yield Simple
    del templates._REGISTERED["simple"], FAMILIES["simple"]
    templates._TABLES.clear()
    configurations.cache_clear()


def layers(x: relax.Expr) -> relax.Expr:
    y = relax.op.nn.relu(relax.op.nn.conv2d(x, random_const(64, 32, 1, 1)))
    return relax.op.nn.conv2d(y, random_const(16, 64, 3, 3), padding=1)


def test_a_template_in_one_file_is_chosen_costed_split_and_run(simple: type[Template]) -> None:
    mod = load_network(module(layers, (1, 32, 9, 7)))
    host = cpu_processor(TARGET, 1)
    level = kernels_alone(mod, host)
    (group,) = (g for g in level.graph.groups if g.anchor.arg_shapes[1][2:] == (1, 1))
    (kernel,) = (k for k in level.kernels[group.name] if k.anchored)
    assert kernel.anchored is not None
    assert isinstance(kernel.anchored.template, simple)
    assert (kernel.features.family, kernel.features.flops) == ("simple", 2.0 * 32 * 64 * 63)
    halved = half_of(group, [kernel], "outputs", host.machine)
    assert halved is not None
    assert [half.flops for half in halved[0]] == [kernel.features.flops / 2]
    assert {"simple", "conv"} <= set(families())
    model = ts.compile(mod, [host])
    assert "simple" in " ".join(node.kernel for node in model.graph.nodes)
    inputs = random_inputs(mod)
    np.testing.assert_allclose(model(*inputs), run(mod, *inputs)[0], rtol=1e-4, atol=1e-4)


def test_annotations_are_read_back() -> None:
    pool = WindowShape("max", 1, 24, (9, 9), (3, 3), (2, 2))
    for layer in (ConvShape(1, 64, (14, 14), 64, (3, 3), padding=(1, 1, 1, 1)), pool):
        config = choose(layer, MACHINE)
        (mark,) = config.annotation.values()
        assert read_template(mark) == config


def test_operators_with_a_primfunc_of_their_own_have_templates() -> None:
    """Nothing is fused into their kernels, and each kind of machine has its own nest, or none."""
    gpu = VectorMachine(4, 32, False, 2**20, 1, gpu=H100)
    dsp = VectorMachine(32, 32, False, 2**20, 1, dsp=True)
    table = read_template(f"integer {to_text(TABLE)}")
    for config, names in {
        Nibbles(1, 32, 16, 32): ["nibbles", "nibbles", "group_nibbles"],
        Words(1, 32, 16, 32): ["words", "words", "group_words"],
        Steps(16): ["steps", "steps", None],
        table: [None, "integer", None],
    }.items():
        (mark,) = config.annotation.values()
        assert read_template(mark) == config
        nests = [config.on(machine) for machine in (MACHINE, dsp, gpu)]
        assert [nest and nest.template for nest in nests] == names
        assert config is table or not config.takes_epilogue


def test_machines_have_tables_of_their_own() -> None:
    dsp = VectorMachine(32, 32, False, 2**20, 1, dsp=True)
    names = {
        machine.kind: {t.template for t in templates.templates_for(WindowShape, machine)}
        for machine in (MACHINE, dsp)
    }
    assert names == {"core": {"window"}, "dsp": {"hvx_window"}}
    assert isinstance(choose(ConvShape(1, 64, (7, 7), 64, (1, 1)), MACHINE), ConvConfig)


def test_campaigns_measure_attention_and_concatenations() -> None:
    host, found = cpu_processor(TARGET, 1), set()
    for seed in (1, 2):
        level = kernels_alone(load_network(scene(seed)), host)
        found |= {k.features.family for kernels in level.kernels.values() for k in kernels}
    assert {"concat", "conv", "dense", "generic", "matmul", "softmax"} <= found


def test_unmeasured_means_and_tables_are_predicted_as_other_kernels() -> None:
    shape = {name: 64 for name in GenericFeatures.names()}
    others = [GenericFeatures(**{**shape, "steps": 64 * n, "loads": 64 * n}) for n in range(1, 60)]
    model = train(others, [2000.0 + 3 * kernel.steps for kernel in others], DEVICE, CORE)
    mean = MeanFeatures(**vars(others[20]))
    (first, second) = model.predict_all([others[20], mean])
    assert (first.source, first.nanoseconds) == (second.source, second.nanoseconds)
    assert first.source == "measured"


def test_means_and_tables_of_integers_are_families() -> None:
    bb, rounding = relax.BlockBuilder(), Rounding("uint8", 0, 0, 255)
    x = relax.Var("x", relax.TensorType((1, 8, 7, 7, 4), "uint8"))
    table = relax.const(np.arange(256, dtype="uint8"))
    with bb.function("main", [x]):
        with bb.dataflow():
            y = bb.emit(integer_call(bb, TABLE, x, table))
            mean = Integer("mean", rounding, (0,), (1 / 49,))
            out = bb.emit_output(integer_call(bb, mean, y))
        bb.emit_func_output(out)
    kernels = [f for f in bb.get().functions.values() if isinstance(f, tirx.PrimFunc)]
    found = {describe(kernel, MACHINE).family for kernel in kernels}
    assert found == {"table", "integer_mean"}


# --- families change one at a time ----------------------------------------------------------------


def test_other_families_keep_their_measurements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = Dataset.create(tmp_path / "cpu.jsonl", DEVICE)
    kernels = [*some_convs(3), RunFeatures.make(7)]
    dataset.append(*(Row(kernel, 1000, 0.01, 15) for kernel in kernels))
    monkeypatch.setattr(ConvFeatures, "version", 2)
    lines: list[str] = []
    with reporting(lines.append):
        again = Dataset.open(dataset.path, DEVICE)
    assert "3 of 4 measurements" in lines[0]
    assert [row.features for row in again.rows] == [RunFeatures.make(7)]
    again.append(Row(kernels[0], 900, 0.01, 15))  # measured anew
    assert [row.nanoseconds for row in Dataset.open(dataset.path, DEVICE).rows] == [1000, 900]
    monkeypatch.undo()
    assert len(Dataset.open(dataset.path, DEVICE).rows) == 4


def test_other_families_keep_their_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convs, runs = some_convs(40), [RunFeatures.make(count) for count in range(10, 50)]
    times = [*pretended(convs), *(50_000.0 + 700 * run.launches for run in runs)]
    train([*convs, *runs], times, DEVICE, CORE).save(tmp_path / "cpu.json")
    assert set(load_cost_model(tmp_path / "cpu.json").families) == {"conv", "run"}
    monkeypatch.setattr(ConvFeatures, "version", 2)
    lines: list[str] = []
    with reporting(lines.append):
        model = load_cost_model(tmp_path / "cpu.json")
    assert "cost families conv have changed" in lines[0]
    assert set(model.families) == {"run"}
    first, second = model.predict_all([convs[0], runs[0]])
    assert (first.source, second.source) == ("analytic", "measured")


def test_a_family_of_another_package_is_left_out(tmp_path: Path) -> None:
    dataset = Dataset.create(tmp_path / "cpu.jsonl", DEVICE)
    dataset.append(*(Row(kernel, 1000, 0.01, 15) for kernel in some_convs(2)))
    lines = dataset.path.read_text(encoding="utf-8").splitlines()
    row = json.loads(lines[1])
    row["features"] = {"family": "theirs", "version": 1, "anything": 3}
    dataset.path.write_text("\n".join([*lines, json.dumps(row), ""]), encoding="utf-8")
    assert len(Dataset.open(dataset.path, DEVICE).rows) == 2
