"""Two reports: what changed, exactly; and pages that are none."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from helpers.small_models import scaled_model

from tvm_stretch.api.cli import main
from tvm_stretch.base.errors import InputError
from tvm_stretch.run.placed_graph import model_explorer_graph, model_explorer_times, netron_network
from tvm_stretch.run.report import render
from tvm_stretch.run.report_difference import compare_reports, read_report


def node(name: str, region: int, ns: int | None, after: tuple[int, ...] = ()) -> dict[str, Any]:
    return {
        "name": name,
        "operators": name.split(" + "),
        "kernel": f"k_{name[:4]}",
        "kind": "conv2d",
        "inputs": ["float32[1]"],
        "weights": [],
        "outputs": ["float32[1]"],
        "flops": None,
        "limit": ["memory", 5.0],
        "region": region,
        "after": list(after),
        "ns": ns,
    }


BEFORE: dict[str, Any] = {
    "title": "net/1",
    "machine": "here (znver4, 1 core for the CPU)",
    "processors": ["cpu", "opencl"],
    "regions": [{"name": "r0", "processor": 0}, {"name": "r1", "processor": 1}],
    "nodes": [node("a", 0, 100), node("b + relu", 0, 300, (0,)), node("c", 1, 50, (1,))],
    "run": {"duration": 450, "overlap": 0.25},
    "plan": {"predicted": 400, "refusals": []},
    "memory": {"arena": 2_000_000},
}


def changed() -> dict[str, Any]:
    after = copy.deepcopy(BEFORE)
    after["nodes"] = [node("a", 1, 80), node("b", 0, 200, (0,)), node("c", 1, 50, (1,))]
    after["run"]["duration"] = 330
    after["machine"] = "there"
    return after


def test_what_changed() -> None:
    difference = compare_reports(BEFORE, changed())
    facts = {name: (before, after) for name, before, after in difference.facts}
    assert facts["measured_ns"] == (450, 330) and facts["kernels"] == (3, 3)
    assert difference.moved == (("a", "cpu", "opencl"),)
    assert difference.changed == (("a", 100, 80), ("c", 50, 50))
    assert difference.only_before == (("b + relu", 300),)
    assert difference.only_after == (("b", 200),)
    assert difference.remarks == ("other machines: here (znver4, 1 core for the CPU) and there",)
    text = str(difference)
    assert "x0.73" in text and "a: cpu -> opencl" in text and "2.00 MB" in text


def test_a_report_and_itself() -> None:
    difference = compare_reports(BEFORE, BEFORE)
    assert not difference.moved and not difference.only_before and not difference.only_after
    assert all(before == after for _, before, after in (*difference.facts, *difference.changed))


def test_without_runs() -> None:
    before = copy.deepcopy(BEFORE)
    before.update(run=None, plan=None, nodes=[node("a", 0, None)], machine="")
    difference = compare_reports(before, BEFORE)
    assert "other machines: not measured and here" in str(difference)
    assert difference.changed == ()


def test_command_on_real_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pages = [tmp_path / "a.html", tmp_path / "b.html"]
    for page in pages:
        scaled_model().report(page)
    assert main(["diff", *map(str, pages)]) == 0
    assert "other networks: a and b" in capsys.readouterr().out
    assert main(["diff", "--json", *map(str, pages)]) == 0
    assert json.loads(capsys.readouterr().out)["moved"] == []


@pytest.mark.parametrize(
    "content",
    [
        "",
        "<html>",
        render({}),
        render({**BEFORE, "regions": [{"name": "r", "processor": 7}]}),
        render({**BEFORE, "nodes": [{"operators": 3}]}),
        render({**BEFORE, "nodes": [{**BEFORE["nodes"][0], "ns": "long"}]}),
        render({**BEFORE, "run": []}),
        render(BEFORE)[:-4000].replace("</script>", ""),
        '<script id="data" type="application/json">' + "[" * 100_000 + "</script>",
    ],
)
def test_no_page_of_ours(tmp_path: Path, content: str) -> None:
    page = tmp_path / "page.html"
    page.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=r"a page that model\.report"):
        read_report(page)
    with pytest.raises(InputError, match=r"a page that model\.report"):
        read_report(tmp_path / "missing.html")


def test_graph_for_model_explorer() -> None:
    graph = json.loads(model_explorer_graph(BEFORE))
    (shown,) = graph["graphs"]
    assert graph["label"] == shown["id"] == "net/1"
    assert [n["namespace"] for n in shown["nodes"]] == ["r0 on cpu"] * 2 + ["r1 on opencl"]
    assert shown["nodes"][1]["incomingEdges"] == [{"sourceNodeId": "0"}]
    assert shown["nodes"][0]["style"] != shown["nodes"][2]["style"]
    times = json.loads(model_explorer_times(BEFORE))["net/1"]["results"]
    assert times == {"0": {"value": 0.1}, "1": {"value": 0.3}, "2": {"value": 0.05}}


def test_graph_for_netron(tmp_path: Path) -> None:
    network = netron_network(BEFORE)
    assert [(n.domain, n.name) for n in network.graph.node] == [
        ("cpu", "a"),
        ("cpu", "b + relu"),
        ("opencl", "c"),
    ]
    assert [output.name for output in network.graph.output] == ["network's output 0"]
    scaled_model().report(tmp_path / "net.onnx")
    read = onnx.load(tmp_path / "net.onnx")
    assert len(read.graph.node) == len(scaled_model().graph.nodes)
    scaled_model().report(tmp_path / "net.json")
    assert json.loads((tmp_path / "net.times.json").read_text(encoding="utf-8"))
