"""The page of a model: every operator in it, nothing in a name can break it, nothing is loaded."""

from __future__ import annotations

import dataclasses
import html
import json
import re
import shutil
import struct
import subprocess
import zlib
from pathlib import Path
from typing import Any

import pytest
from helpers.cpu_targets import TARGET
from helpers.small_models import scaled_model

import tvm_stretch as ts
from tutorials import zoo
from tvm_stretch.base.errors import ArtifactError, InputError
from tvm_stretch.make.lowering.executor_graph import (
    CPU,
    Graph,
    Node,
    Port,
    ProcessorSpec,
    Region,
    Tensor,
)
from tvm_stretch.network.provenance import Provenance
from tvm_stretch.plan.plan import Plan, PlannedRegion, Refusal
from tvm_stretch.run.advice import CoreSpeed, limit_of, measure_core
from tvm_stretch.run.model import Model
from tvm_stretch.run.report import TEMPLATE, arena_use, collect, find_edges, render
from tvm_stretch.run.timeline import RegionTime, Span, Timeline

HOSTILE = "</script><script>alert('1')</script><!-- &amp; \u2028 \u2029 \" ` ${x} \\"


def tensor(kind: str, offset: int, *shape: int, strides: tuple[int, ...] = ()) -> Tensor:
    steps = strides or (1,)
    span = 1 + sum((n - 1) * s for n, s in zip(shape, steps, strict=True))
    return Tensor(shape, "float32", kind, 0, offset, 4 * span, strides)


# arena [a       |b       |c ...        ]   n0: x -> a, n1: x -> b, n2: a and b as one -> c,
# bytes 0        64       128         256   n3: c -> a once more, n4: a -> y
TENSORS = (
    tensor("input", 0, 16),
    tensor("arena", 0, 16),
    tensor("arena", 64, 16),
    tensor("arena", 0, 32),
    tensor("arena", 128, 32),
    tensor("output", 0, 16),
)
NODES = (
    Node("fused_conv2d_add_0123456789ab", "a", (0,), (1,), Provenance((HOSTILE, "a.add"))),
    Node("relu", "b", (0,), (2,)),
    Node("relu", "c", (3,), (4,)),
    Node("relu", "d", (4,), (1,)),
    Node("relu", "e", (1,), (5,)),
)
REGIONS = (
    Region("r0", 0, (0,), (), (), ()),
    Region("r1", 1, (1,), (), (), ()),
    Region("r2", 0, (2, 3, 4), (1,), (), ()),
)
GRAPH = Graph(
    (Port("x", 0),),
    (Port("y", 5),),
    TENSORS,
    (),
    NODES,
    (CPU, ProcessorSpec("fake", "fake")),
    REGIONS,
    256,
    0,
    0,
)
PLAN = Plan(
    ("cpu", "fake"),
    (
        PlannedRegion("r0", "cpu", (HOSTILE, "a.add"), (0, 1_000), HOSTILE),
        PlannedRegion("r1", "fake", ("b",), (0, 2_000), "faster there"),
        PlannedRegion("r2", "cpu", ("c", "d", "e"), (2_000, 5_000)),
    ),
    (Refusal("fake", "c", HOSTILE),),
    reason="against the best single processor",
)
RUN = Timeline(
    6_000,
    ("cpu", "fake"),
    (
        RegionTime("r0", "cpu", (), (Span("kernel", HOSTILE, 0, 900),)),
        RegionTime("r1", "fake", (), (Span("kernel", "b", 100, 2_500), Span("send", "t", 2500, 9))),
        RegionTime("r2", "cpu", ("r1",), (Span("wait", "r1", 900, 2_500),)),
    ),
)


def data_in(page: str) -> dict[str, Any]:
    found = re.findall(r'<script id="data" type="application/json">(.*)</script>', page)
    assert len(found) == 1
    return json.loads(found[0])


def test_edges_follow_the_bytes() -> None:
    assert find_edges(GRAPH) == {0: [], 1: [], 2: [0, 1], 3: [2], 4: [3]}


def test_edges_of_rows_of_a_feature_map() -> None:
    """Two bands of rows lie between each other; each reader finds its own."""
    halves = [tensor("arena", o, 2, 2, strides=(4, 1)) for o in (0, 8)]
    nodes = (
        Node("k", "top", (), (0,)),
        Node("k", "bottom", (), (1,)),
        Node("k", "of top", (0,), ()),
        Node("k", "of bottom", (1,), ()),
    )
    regions = (Region("r0", 0, (0, 1, 2, 3), (), (), ()),)
    graph = dataclasses.replace(GRAPH, tensors=tuple(halves), nodes=nodes, regions=regions)
    assert find_edges(graph) == {0: [], 1: [], 2: [0], 3: [1]}


def test_arena_use_is_what_is_still_needed() -> None:
    assert arena_use(GRAPH, find_edges(GRAPH)) == [64, 128, 256, 192, 64]


def test_every_operator_region_and_refusal_is_in_the_data() -> None:
    data = collect(GRAPH, PLAN, RUN, [1e-6, 2e-6, 3e-6, 4e-6, 5e-6])
    operators = [name for node in data["nodes"] for name in node["operators"]]
    assert operators == [HOSTILE, "a.add", "b", "c", "d", "e"]
    assert [node["ns"] for node in data["nodes"]] == [1000, 2000, 3000, 4000, 5000]
    assert [node["region"] for node in data["nodes"]] == [0, 1, 2, 2, 2]
    assert data["nodes"][2]["after"] == [0, 1]
    assert data["nodes"][0]["kind"] == "conv2d_add"
    assert [region["processor"] for region in data["regions"]] == [0, 1, 0]
    assert [region["planned"] for region in data["regions"]][1] == [0, 2_000]
    assert [region["measured"] for region in data["regions"]] == [[0, 900], [100, 2_500], None]
    assert data["regions"][0]["why"] == HOSTILE
    assert data["plan"]["refusals"] == [["fake", "c", HOSTILE]]
    assert data["run"]["spans"][1] == [1, 1, "kernel", "b", 100, 2_500]


def test_without_plan_and_run() -> None:
    data = collect(GRAPH)
    assert data["plan"] is None and data["run"] is None and len(data["nodes"]) == 5
    assert data_in(render(data)) == data


def test_what_does_not_run_here_is_shown_without_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ArtifactError("expected another processor")

    monkeypatch.setattr(Model, "timeline", refuse)
    scaled_model().report(tmp_path / "page.html")
    data = data_in((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert data["problem"] == "expected another processor" and data["run"] is None
    assert data["nodes"] and all(node["ns"] is None for node in data["nodes"])


def test_what_would_make_it_faster() -> None:
    """It lists what the limits of the CPU's kernels leave, who waits, and what refusals cost."""
    core = CoreSpeed(gflops=0, gbytes=1)  # a byte each nanosecond
    data = collect(GRAPH, PLAN, RUN, [1e-6, 2e-6, 3e-6, 4e-6, 5e-6], core)
    found = [(k["name"], k["ns"], k["by"], k["saves"]) for k in data["advice"]["kernels"]]
    assert found == [
        ("e", 5000, "memory", 5000 - 128),
        ("d", 4000, "memory", 4000 - 192),
        ("c", 3000, "memory", 3000 - 256),
        ("a", 1000, "memory", 1000 - 128),
    ]
    assert data["advice"]["waits"] == [
        {"processor": "cpu", "region": "r1", "of": "fake", "ns": 1600}
    ]
    assert data["advice"]["refused"] == [
        {"processor": "fake", "reason": HOSTILE, "operators": ["c"], "ns": 3000}
    ]
    assert data["nodes"][1]["limit"] is None  # it is on the other processor


@pytest.mark.parametrize(("points", "outputs"), [(36, 16), (16, 4)])
def test_limit_of_winograd_is_its_own_arithmetic(points: int, outputs: int) -> None:
    tensors = (
        Tensor((1, points, 2, 4, 16, 32), "float32", "prepared", 0, 0, 4),
        Tensor((1, 4, 32, 32, 16), "float32", "output", 0, 0, 4 * 64 * 1024),
    )
    node = Node("fused_winograd_conv2d", "n", (0,), (1,))
    graph = dataclasses.replace(GRAPH, tensors=tensors, nodes=(node,))
    limit = limit_of(graph, node, CoreSpeed(gflops=1, gbytes=1e9))
    assert limit == ("arithmetic", 2 * 32 * 32 * 128 * 32 * points / outputs)


def test_core_speed_is_plausible() -> None:
    """A core of the last decade; a memory that is neither a disk nor a register."""
    core = measure_core(GRAPH)
    assert 0 <= core.gflops < 1e4 and 0.1 < core.gbytes < 1e4
    assert measure_core(GRAPH, 50).gflops == 50


def test_hostile_names_stay_data() -> None:
    data = collect(GRAPH, PLAN, RUN)
    page = render(data)
    assert data_in(page) == data
    assert page.count("<script") == TEMPLATE.read_text(encoding="utf-8").count("<script") == 2
    assert "\u2028" not in page and "<!-- " not in page


def test_page_loads_nothing_and_never_reads_text_as_html() -> None:
    page = TEMPLATE.read_text(encoding="utf-8")
    assert set(re.findall(r"https?://[^\"\s]*", page)) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"\b(src|href)=|@import|url\(|innerHTML|insertAdjacent|eval\(", page)
    assert "default-src 'none'" in page


@pytest.mark.parametrize(
    ("kernel", "weights", "multiply_adds"),
    [
        ("fused_conv2d_add", (2, 3, 7, 7, 1, 32), 32 * 32 * 64 * 3 * 49),
        ("fused_winograd_conv2d_add", (1, 36, 2, 4, 16, 32), 32 * 32 * 64 * 64 * 9),
        ("conv2d_transpose", (2, 3, 7, 7, 1, 32), None),
        ("fused_add", (2, 3, 7, 7, 1, 32), None),
        ("conv2d", (64, 3, 7, 7), None),
    ],
)
def test_work_of_a_kernel(kernel: str, weights: tuple, multiply_adds: int | None) -> None:
    tensors = (
        Tensor(weights, "float32", "prepared", 0, 0, 4),
        Tensor((1, 4, 32, 32, 16), "float32", "output", 0, 0, 4 * 64 * 1024),
    )
    graph = dataclasses.replace(
        GRAPH,
        tensors=tensors,
        nodes=(Node(kernel, "n", (0,), (1,)),),
        regions=(Region("r0", 0, (0,), (), (), ()),),
    )
    (node,) = collect(graph)["nodes"]
    assert node["flops"] == (None if multiply_adds is None else 2 * multiply_adds)


def test_report_of_a_model(tmp_path: Path) -> None:
    model = scaled_model()
    picture = "<svg xmlns='http://www.w3.org/2000/svg'></svg></script>"
    model.report(tmp_path / "page.html", peak_gflops=50, picture=picture)
    data = data_in((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert [node["name"] for node in data["nodes"]] == [node.name for node in model.graph.nodes]
    assert all(node["ns"] > 0 for node in data["nodes"])
    assert data["title"] == "page" and data["core"]["gflops"] == 50 and not data["problem"]
    assert data["picture"] == picture
    with pytest.raises(InputError, match="the text of an SVG for picture, got 'front"):
        model.report(tmp_path / "other.html", picture="front.svg")
    with pytest.raises(InputError, match="positive number for peak_gflops, got 0"):
        model.report(tmp_path / "other.html", peak_gflops=0)
    with pytest.raises(ArtifactError, match="a place to write the report to"):
        model.report(tmp_path / "missing" / "page.html")


BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
needs_browser = pytest.mark.skipif(BROWSER is None, reason="needs chromium: apt install chromium")


def browse(page: Path, *options: str) -> tuple[str, str]:
    """What Chromium prints, and what it says."""
    assert BROWSER is not None
    command = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--enable-logging=stderr",
        f"--user-data-dir={page.parent / 'profile'}",
        "--window-size=1400,900",
        *options,
        page.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, done.stderr


def colours(png: Path) -> int:
    """How many values the bytes of a picture's filtered rows have."""
    content, at, packed = png.read_bytes(), 8, b""
    while at < len(content):
        size, kind = struct.unpack(">I4s", content[at : at + 8])
        packed += content[at + 8 : at + 8 + size] if kind == b"IDAT" else b""
        at += 12 + size
    return len(set(zlib.decompress(packed)))


def operators_in(dom: str) -> list[str]:
    lists = re.findall(r'data-operators="([^"]*)"', dom)
    return [name for names in lists for name in json.loads(html.unescape(names))]


@pytest.mark.full
@needs_browser
def test_hostile_names_in_a_browser(tmp_path: Path) -> None:
    data = {**collect(GRAPH, PLAN, RUN, [1e-6] * 5), "title": HOSTILE, "network": HOSTILE}
    page = tmp_path / "page.html"
    page.write_text(render(data), encoding="utf-8")
    dom, said = browse(page, "--dump-dom")
    assert "CONSOLE" not in said and 'data-milliseconds="' in dom
    assert dom.count("<script") == 2
    assert operators_in(dom) == [HOSTILE, "a.add", "b", "c", "d", "e"]


@pytest.mark.full
@needs_browser
def test_resnet50_in_a_browser(tmp_path: Path) -> None:
    model = ts.compile(zoo.build("resnet50", size=64), TARGET)
    page, picture = tmp_path / "page.html", tmp_path / "page.png"
    model.report(page)
    dom, said = browse(page, "--dump-dom")
    assert "CONSOLE" not in said
    names = set(operators_in(dom))
    known = (node.provenance.operators or (node.name,) for node in model.graph.nodes)
    assert names == {name for listed in known for name in listed}
    assert all(name in dom for region in model.plan.regions for name in region.operators)
    runs = [dom, *(browse(page, "--dump-dom")[0] for _ in range(4))]  # others may be at work
    times = re.findall(r'data-milliseconds="([\d.]+)"', "".join(runs))
    assert len(times) == len(runs) and min(map(float, times)) < 200
    browse(page, f"--screenshot={picture}")
    assert colours(picture) > 30
