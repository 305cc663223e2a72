"""Table 2: the levels that can be switched off, and what the table says of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from helpers.cpu_targets import QUICK

from benchmarks.papers import table2
from benchmarks.papers.table2 import BASELINE, ROWS, Figures, Row, table
from benchmarks.papers.table2_accuracy import BOTH_8, FORMS, GIVEN, PRUNED, in_8_bits
from tutorials.zoo.builder import Builder
from tvm_stretch.read import load_network

IMAGE = np.random.default_rng(0).standard_normal((1, 3, 24, 24)).astype("float32")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(table2, "TARGETS", [QUICK])
    return


def network() -> onnx.ModelProto:
    b = Builder(0)
    x = b.input("x", IMAGE.shape)
    for _ in range(4):
        x = b.conv_bn(x, 16, 3, act="relu")
    return b.finish("chain", b.classifier(x, 10))


def test_levels_that_are_switched_off_change_kernels_and_memory_but_not_answers() -> None:
    rows = (Row(), Row(is_fused=True), Row(is_planned=True), Row(is_fused=True, is_planned=True))
    models = {row: table2._built(row, network(), None) for row in rows}
    answers = [np.asarray(model(IMAGE)) for model in models.values()]
    for answer in answers[1:]:
        np.testing.assert_allclose(answer, answers[0], rtol=1e-4, atol=1e-5)
    kernels = {row: len(model.graph.nodes) for row, model in models.items()}
    arenas = {row: model.graph.arena_bytes for row, model in models.items()}
    assert kernels[rows[0]] == kernels[rows[2]] > kernels[rows[1]] == kernels[rows[3]]
    assert arenas[rows[0]] > arenas[rows[1]] > arenas[rows[3]]
    assert arenas[rows[0]] > arenas[rows[2]]
    # of eight maps of 16 x 24 x 24 pixels, only two are needed at the same time
    assert arenas[rows[0]] >= 8 * 16 * 24 * 24 * 4
    assert arenas[rows[2]] <= 3 * 16 * 24 * 24 * 4


def test_forms_in_8_bits_answer_nearly_the_same() -> None:
    given = load_network(network())
    quantised = in_8_bits(given, np.repeat(IMAGE, 4, axis=0))
    assert any(node.op_type == "QuantizeLinear" for node in quantised.graph.node)
    floats = np.asarray(table2._built(Row(is_fused=True), given, None)(IMAGE))
    whole = np.asarray(table2._built(Row(is_fused=True), quantised, None)(IMAGE))
    assert 0 < np.abs(whole - floats).max() < 0.2 * np.abs(floats).max()


def test_the_phone_prices_floats_as_floats() -> None:
    """Its DSP has none; 8 bits gain on the CPU."""
    floats = network()
    small = in_8_bits(load_network(floats), np.repeat(IMAGE, 4, axis=0))
    made = {form: small if form.is_quantised else floats for form in FORMS}
    _, _, *rows = table2.on_the_phone(made)
    cells = [row.strip("| ").split(" | ") for row in rows]
    assert [cell[3] == "-" for cell in cells] == [not form.is_quantised for form in FORMS]
    times = {form: float(cell[1]) for form, cell in zip(FORMS, cells, strict=True)}
    eight = [time for form, time in times.items() if form.is_quantised]
    assert max(eight) <= min(time for form, time in times.items() if not form.is_quantised)


def test_rows_have_names_of_their_own_and_all_levels() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert BASELINE in ROWS and {row.form for row in ROWS} == set(FORMS)
    assert Row().name == "none"
    assert Row(BOTH_8, "ours", True, True).name == (
        "ours, pruning, low rank, 8 bits, fusion, memory plan"
    )


def test_the_best_combination_loses_at_most_three_points_if_one_does() -> None:
    def figures(percent: float, ratio: float) -> Figures:
        return Figures({task: (percent, percent) for task in table2.TASKS}, 9, 9, 8, ratio, ratio)

    pruned, all_levels = Row(PRUNED, "ours", True, True), Row(BOTH_8, "ours", True, True)
    found = {BASELINE: figures(90, 1), pruned: figures(88, 0.5), all_levels: figures(80, 0.2)}
    lines = [*table(found)]
    assert (
        f"The best combination: {pruned.name}, 0.50 of {BASELINE.name}, 2.0 points lost." in lines
    )
    lossless = {**found, all_levels: figures(89, 0.2)}
    assert any(f"{all_levels.name}, 0.20 of" in line for line in table(lossless))
    assert any(line.startswith(f"| {Row(GIVEN, 'CoDL', True, True).name} |") for line in lines)
