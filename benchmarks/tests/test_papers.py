"""The papers' tables and figures: every part has a command that exists, or says what it lacks."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.commands import Rows, markdown
from benchmarks.papers.__main__ import PAGE, RESULTS, listed, main, run, write
from benchmarks.papers.catalogue import DRAWINGS, PAPERS, PARTS, Part, parts
from benchmarks.papers.pictures import PICTURES, Bars, draw

ROOT = Path(__file__).resolve().parents[2]

HOWS = ("measured", "trained", "emulated", "predicted", "counted")
NUMBERED = {"nn-stretch": (13, 9), "hope": (7, 0), "pitfalls": (5, 4)}  # figures, tables
BEYOND = ("ablations", "granularities", "several networks")
OWN = Part("hope", "table 9", "nothing", "nothing", "measured", ("platform", "--terse"))


def test_every_part_has_a_command_or_lacks_something() -> None:
    assert len({part.key for part in PARTS}) == len(PARTS)
    for part in PARTS:
        assert part.paper in PAPERS
        assert bool(part.command) != bool(part.lacks), part.key
        assert bool(part.command) == (part.how in HOWS)
        assert 0 <= part.minutes <= 20
        if part.command:
            assert importlib.util.find_spec(part.command[0]) is not None, part.key


def test_every_table_and_figure_is_a_part_or_shows_no_results() -> None:
    for paper, (figures, tables) in NUMBERED.items():
        known = [*(part.number for part in parts(paper)), *DRAWINGS[paper]]
        wanted = [f"figure {n + 1}" for n in range(figures)]
        wanted += [f"table {n + 1}" for n in range(tables)]
        beyond = [number for number in known if number in BEYOND]
        assert sorted(known) == sorted([*wanted, *beyond])


def test_parts_are_found_by_paper_and_number() -> None:
    assert [part.shows for part in parts("pitfalls", "table", "2")] == [
        "levels of optimisation, each alone and combined"
    ]
    assert {part.paper for part in parts("hope")} == {"hope"}
    assert not [*parts("hope", "table", "77")]
    assert len([*listed(PARTS)]) == len([*parts()]) + len(PAPERS) == len(PARTS) + len(PAPERS)


TABLE = ["| a | 17 |", "", "| name | number |", "| --- | --- |", "| a | 17 |"]
ROW = {"date": "today", "machine": "here", "minutes": 1.0, "output": ["a line", *TABLE]}


def test_the_page_has_results_and_gaps(tmp_path: Path) -> None:
    part = next(part for part in PARTS if part.command)
    write(tmp_path / "papers.md", Rows(None, {part.key: ROW}))
    text = (tmp_path / "papers.md").read_text(encoding="utf-8")
    assert text.count("\n| a | 17 |\n") == 1 and "```\na line\n```" in text
    assert f"`python -m {' '.join(part.command)}`" in text
    for other in PARTS:
        assert other.shows in text
        assert (other.lacks in text) if other.lacks else (" ".join(other.command) in text)
    assert "Not run yet" in text
    assert all(number in text for numbers in DRAWINGS.values() for number in numbers)


def test_pictures_of_tables(tmp_path: Path) -> None:
    for key, bars in PICTURES.items():
        assert key in {part.key for part in PARTS}
        heads = [*bars.labels, "other", *bars.values]
        rows = [["a < b", "x", *(f"{i + 1}.5 ± 2 %" for i in range(len(bars.values)))]]
        output = [*markdown(heads, [[*(["n"] * (len(bars.labels) - 1)), *rows[0]]])]
        write(tmp_path / "papers.md", Rows(None, {key: {**ROW, "output": output}}))
        svg = (tmp_path / "papers" / f"{key}.svg").read_text(encoding="utf-8")
        drawing = ElementTree.fromstring(svg)
        widths = [float(r.get("width", 0)) for r in drawing if r.get("height") == "10"]
        assert len(widths) == len(bars.values) and widths == sorted(widths)
        assert f"papers/{key}.svg" in (tmp_path / "papers.md").read_text(encoding="utf-8")
    assert draw(Bars(("a",), ("none",), "ms"), "| a | b |\n| --- | --- |\n| 1 | 2 |") is None


def test_the_page_in_the_repository_is_that_of_the_kept_figures(tmp_path: Path) -> None:
    kept = Rows(ROOT / RESULTS)
    assert set(kept.of) <= {part.key for part in PARTS}
    write(tmp_path / "papers.md", kept)
    for path in (PAGE, *(PAGE.with_suffix("") / f"{key}.svg" for key in PICTURES)):
        assert (ROOT / path).exists() == (tmp_path / path.relative_to("benchmarks")).exists()
        if (ROOT / path).exists():
            made = (tmp_path / path.relative_to("benchmarks")).read_text(encoding="utf-8")
            assert (ROOT / path).read_text(encoding="utf-8") == made, "write the page again"


def test_a_part_keeps_its_output_and_a_failure_keeps_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = Rows(tmp_path / "results.json")
    assert run(OWN, kept)
    row = Rows(tmp_path / "results.json").of["hope.table9"]
    assert "cores" in row["machine"] and "Linux" in row["output"][0]
    wrong = Part("hope", "table 8", "", "", "measured", ("benchmarks.no_such_module",))
    assert not run(wrong, kept)
    assert [*kept.of] == ["hope.table9"]
    assert "no_such_module" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("hope ablations", ["hope.ablations"]),
        ("pitfalls table", ["pitfalls.table2", "pitfalls.table3", "pitfalls.table4"]),
        ("hope table", []),
    ],
)
def test_a_kind_without_a_number(
    words: str, found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs all parts of the kind, if there are any."""
    ran: list[str] = []
    monkeypatch.setattr("benchmarks.papers.__main__.run", lambda part, _: not ran.append(part.key))
    at = ["--page", str(tmp_path / "papers.md"), "--results", str(tmp_path / "results.json")]
    monkeypatch.setattr("sys.argv", ["papers", *words.split(), *at])
    if not found:
        with pytest.raises(SystemExit):
            main()
    else:
        main()
    assert ran == found
