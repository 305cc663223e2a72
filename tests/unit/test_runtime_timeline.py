"""Timelines: what the summary says, and what Perfetto gets to see."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tutorials.zoo.picture import draw
from tvm_stretch.run.timeline import RegionTime, Span, Timeline


def region(
    name: str, processor: str, *spans: tuple[str, int, int], after: tuple[str, ...] = ()
) -> RegionTime:
    listed = tuple(Span(kind, f"{name}.{kind}", start, end) for kind, start, end in spans)
    return RegionTime(name, processor, after, listed)


# time  0    10   20   30   40   50   60   70   80
# cpu   [a      ]      [wait   ][c        ]
# gpu        [b receive][kernel  send]
RUN = Timeline(
    80,
    ("cpu", "gpu"),
    (
        region("a", "cpu", ("kernel", 0, 15)),
        region("b", "gpu", ("receive", 10, 20), ("kernel", 20, 40), ("send", 40, 45)),
        region("c", "cpu", ("wait", 20, 45), ("kernel", 45, 50), ("kernel", 50, 70), after=("b",)),
        region("empty", "gpu"),
    ),
)


def test_usage() -> None:
    cpu, gpu = RUN.usage
    assert (cpu.kernels, cpu.transfers, cpu.waiting, cpu.idle) == (40, 0, 25, 40)
    assert (gpu.kernels, gpu.transfers, gpu.waiting, gpu.idle) == (20, 15, 0, 45)


def test_overlap_is_the_time_of_two_busy_processors() -> None:
    assert RUN.overlap == pytest.approx(5 / 80)
    assert Timeline(80, RUN.processors, RUN.regions[:1]).overlap == 0
    assert Timeline(0, ("cpu",), ()).overlap == 0


def test_waits_beside_work_of_the_same_processor_are_not_idle_time() -> None:
    ahead = region("d", "gpu", ("wait", 0, 60), ("kernel", 60, 70))
    (_, gpu) = Timeline(80, RUN.processors, (*RUN.regions, ahead)).usage
    assert gpu.waiting == 10 + 15
    assert gpu.idle == 80 - 35 - 10


def test_critical_path_goes_back_through_what_held_up() -> None:
    assert [r.name for r in RUN.critical_path] == ["b", "c"]
    without = region("c", "cpu", ("kernel", 45, 50))
    later = Timeline(80, RUN.processors, (*RUN.regions[:2], without))
    assert [r.name for r in later.critical_path] == ["a", "c"], "no longer after b"
    assert Timeline(0, ("cpu",), ()).critical_path == ()


def test_summary() -> None:
    text = repr(RUN)
    assert "several processors busy for 6% of it" in text
    assert "critical path b → c" in text
    assert "predicts" not in text
    planned = RegionTime("a", "cpu", (), RUN.regions[0].spans, planned=(0, 2_000_000))
    assert "the plan predicts 2.000 ms" in repr(Timeline(80, ("cpu",), (planned,)))


def test_trace_for_perfetto(tmp_path: Path) -> None:
    queued = Span("kernel", "k", 30, 40, queued=5)
    regions = (*RUN.regions, RegionTime("q", "gpu", ("a",), (queued,), planned=(1, 2)))
    path = tmp_path / "trace.json"
    Timeline(80, RUN.processors, regions).write(path)
    events = json.loads(path.read_text())["traceEvents"]
    assert Counter(event["ph"] for event in events) == {"M": 7, "X": 14, "s": 2, "f": 2}
    for event in events:
        assert event["ph"] == "M" or event["ts"] >= 0
        assert event["ph"] != "X" or event["dur"] >= 0
    names = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names == {"actual", "planned", "cpu", "gpu", "gpu queue"}
    (waiting,) = (event for event in events if event.get("cat") == "queued")
    assert (waiting["ts"], waiting["dur"]) == (0.005, 0.025)
    flows = [e for e in events if e["ph"] in "sf"]
    assert len({e["id"] for e in flows}) == 2


def test_picture() -> None:
    """Well-formed; a box for each span, a frame for each region, arrows from others, names."""
    short = region("at <once>", "cpu", ("kernel", 71, 72), after=("b",))
    root = ElementTree.fromstring(draw(Timeline(80, RUN.processors, (*RUN.regions, short))))
    tag = "{http://www.w3.org/2000/svg}"
    titles = [title.text for title in root.iter(f"{tag}title")]
    assert titles.count("idle") == 2
    assert {"kernel: a.kernel, 0.0 us", "c", "at <once>"} <= set(titles)
    assert len(titles) == 2 + 8 + 4
    assert len(list(root.iter(f"{tag}line"))) == 2  # b -> c, b -> at once
    names = [text.text for text in root.iter(f"{tag}text")]
    assert {"cpu", "gpu", "a", "b", "c", "at <once>"} <= set(names)
    assert "empty" not in names
    assert draw(Timeline(0, ("cpu",), ()))
    crowd = [region(f"r{i}", "cpu", ("kernel", i, i + 1)) for i in range(80)]
    assert 20 < draw(Timeline(80, ("cpu",), tuple(crowd))).count('">r') < 40  # names do not collide
