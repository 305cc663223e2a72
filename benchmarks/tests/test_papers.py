"""The papers' tables and figures: every part has a command that exists, or says what it lacks."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from benchmarks.papers.__main__ import listed, main, page, run
from benchmarks.papers.catalogue import DRAWINGS, PAPERS, PARTS, Part, parts

HOWS = ("measured", "trained", "emulated", "predicted", "counted")
NUMBERED = {"nn-stretch": (13, 9), "hope": (7, 0), "pitfalls": (5, 4)}  # figures, tables
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
        assert sorted(known) == sorted([*wanted, *(k for k in known if k == "ablations")])


def test_parts_are_found_by_paper_and_number() -> None:
    assert [part.shows for part in parts("pitfalls", "table", "2")] == [
        "levels of optimisation, each alone and combined"
    ]
    assert {part.paper for part in parts("hope")} == {"hope"}
    assert not [*parts("hope", "table", "77")]
    assert len([*listed(PARTS)]) == len([*parts()]) + len(PAPERS) == len(PARTS) + len(PAPERS)


def test_the_page_has_results_and_gaps(tmp_path: Path) -> None:
    part = next(part for part in PARTS if part.command)
    (tmp_path / f"{part.key}.txt").write_text("today, here\n| a | 17 |\n", encoding="utf-8")
    text = page(tmp_path)
    assert "| a | 17 |" in text and f"`python -m {' '.join(part.command)}`" in text
    for other in PARTS:
        assert other.shows in text
        assert (other.lacks in text) if other.lacks else (" ".join(other.command) in text)
    assert "Not run yet" in text
    assert all(number in text for numbers in DRAWINGS.values() for number in numbers)


def test_a_part_keeps_its_output_and_a_failure_keeps_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(OWN, tmp_path)
    head, _, output = (tmp_path / "hope.table9.txt").read_text(encoding="utf-8").partition("\n")
    assert "cores" in head and "Linux" in output
    wrong = Part("hope", "table 8", "", "", "measured", ("benchmarks.no_such_module",))
    assert not run(wrong, tmp_path)
    assert not (tmp_path / "hope.table8.txt").exists()
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
    monkeypatch.setattr("sys.argv", ["papers", *words.split(), "--folder", str(tmp_path)])
    if not found:
        with pytest.raises(SystemExit):
            main()
    else:
        main()
    assert ran == found
