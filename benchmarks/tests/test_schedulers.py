"""The comparison of schedulers: its profiles, and what it promises of its own published table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tvm.script import ir as I
from tvm.script import relax as R

from benchmarks import published_designs, schedulers
from benchmarks.schedulers import NETWORKS, Row, shortcomings, table
from benchmarks.scheduling_profiles import PROFILES, synthetic_problem
from tutorials import zoo
from tvm_stretch.network.operator_graph import OperatorGraph

PUBLISHED = Path(schedulers.__file__).with_name("schedulers.md")


def read_table(text: str) -> Iterator[Row]:
    """The rows of such a table, as exact as it shows them."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    head, _, *body = (line.strip("| ").split(" | ") for line in lines)
    last = head.index("lower bound")
    for cells in body:
        row = dict(zip(head, cells, strict=True))
        ends = (part.split(" ") for part in row["pieces"].split(", "))
        yield {
            "network": row["network"],
            "profile": row["profile"],
            "operators": int(row["operators"]),
            "latency_ms": {name: float(row[name]) for name in head[3:last]},
            "lower_bound_ms": float(row["lower bound"]),
            "gap": float(row["gap"].rstrip("%")) / 100,
            "gap_without_transfers": float(row["gap if transfers were free"].rstrip("%")) / 100,
            "pieces": {end: int(count) for count, end in ends},
            "scheduling_cpu_s": {
                name.removesuffix(", CPU s"): float(row[name])
                for name in head
                if name.endswith(", CPU s")
            },
        }


def published() -> list[Row]:
    return list(read_table(PUBLISHED.read_text(encoding="utf-8")))


def test_the_published_table_is_whole_and_passes_the_gate():
    rows = published()
    shown = {(row["network"], row["profile"]) for row in rows}
    profiles = {profile for _, profile in shown}
    assert shown == {(network, profile) for network in NETWORKS for profile in profiles}
    assert set(PROFILES) - {"host"} <= profiles
    assert list(shortcomings(rows)) == []


def test_the_gate_refuses_what_is_not_promised():
    rows = published()
    slow, beaten, far = ({**row, "latency_ms": dict(row["latency_ms"])} for row in rows[:3])
    slow["scheduling_cpu_s"] = {**slow["scheduling_cpu_s"], "ours": 2.5}
    beaten["latency_ms"]["HOPE:LP"] = beaten["latency_ms"]["ours"] / 2
    assert [text.split()[0] for text in shortcomings([slow])] == ["ours"]
    assert "HOPE:LP takes" in next(shortcomings([beaten]))
    loose = [{**row, "gap_without_transfers": 0.04} for row in rows if row["profile"] == "1:1"]
    assert any("4.0% above the bound on 1:1" in text for text in shortcomings(loose))
    assert list(shortcomings([far])) == []


def test_a_table_can_be_read_again():
    rows = published()
    assert list(read_table("\n".join(table(rows)))) == rows


def test_fitted_speeds_of_the_phone_explain_its_latencies():
    for network, latencies in published_designs.LATENCY_MS.items():
        for processor, latency in zip(published_designs.PROCESSORS, latencies, strict=True):
            most = 0.4 if network == "regnetx_1_6gf" else 0.2
            assert published_designs.fitted_ms(network, processor) == pytest.approx(
                latency, rel=most
            )
    assert zoo.info("resnet34").macs == pytest.approx(
        sum(published_designs.MULTIPLY_ADDS_M["resnet34"]) / 1e3, 0.02
    )


@I.ir_module
class Families:
    @R.function
    def main(
        x: R.Tensor((1, 256, 56, 56), "float32"),
        dense: R.Tensor((256, 256, 3, 3), "float32"),
        small: R.Tensor((256, 256, 1, 1), "float32"),
        grouped: R.Tensor((256, 32, 3, 3), "float32"),
        deep: R.Tensor((256, 1, 3, 3), "float32"),
    ):
        with R.dataflow():
            a = R.nn.conv2d(x, dense, padding=1)
            b = R.nn.conv2d(a, small)
            c = R.nn.conv2d(b, grouped, padding=1, groups=8)
            d = R.nn.conv2d(c, deep, padding=1, groups=256)
            R.output(d)
        return d


def test_operators_prefer_processors_by_their_family():
    graph = OperatorGraph(Families["main"])
    slowed = synthetic_problem(graph, "mi9 C/1.5+G")
    layers = [i for i, op in enumerate(slowed.operators) if op.splittable]
    faster = [slowed.processors[slowed.fastest(i)] for i in layers]
    assert faster == ["cpu", "gpu", "cpu", "gpu"]
    ratio = synthetic_problem(graph, "1:3")
    assert {ratio.fastest(i) for i in layers} == {1}
