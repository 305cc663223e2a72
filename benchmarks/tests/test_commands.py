"""What commands share: who begins a round, words of the command line, figures that are kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.commands import Rows, Samples, Table, beside, campaign, options, turns
from benchmarks.harness import check, difference, load, model_of, race


def test_another_run_begins_each_round_and_warm_ups_do_not_count():
    began: list[str] = []
    runs = {name: (lambda name=name: began.append(name)) for name in "abc"}
    samples = turns(runs, 2, warm_up=1, times=2)
    assert "".join(began) == "aaabbbccc" + "bbbcccaaa"
    assert [len(own) for own in samples.of.values()] == [4, 4, 4]


def test_ratios_are_those_of_neighbours():
    samples = Samples({"a": [1.0, 20.0, 3.0], "b": [2.0, 40.0, 3.0]})
    assert samples.ratio("a", "b") == 0.5 and samples.least_ratio("a", "b") == 0.5
    assert samples.median("a") == 3.0


def test_defaults_give_types():
    wanted = (("names*", ("x",)), ("--size", 224), ("--json", Path), ("--again", False))
    given = options("doc", ["a", "--size", "7"], *wanted, ("--threads", (1, 2)), ("--also", ()))
    assert (given.names, given.size, given.json, given.again) == (["a"], 7, None, False)
    assert (given.threads, given.also) == ((1, 2), ())
    given = options("doc", ["--threads", "3", "--also", "y", "--again"], *wanted[3:],
                    ("--threads", (1, 2)), ("--also", ()))  # fmt: skip
    assert (given.threads, given.also, given.again) == ([3], ["y"], True)


@pytest.mark.parametrize("words", [["other"], []])
def test_words_of_a_list_and_musts(words: list[str]):
    with pytest.raises(SystemExit):
        options("doc", words, ("kind", str), ("--folder!", Path), kind=("one", "two"))


def test_rows_stay_in_the_file(tmp_path: Path):
    Rows(tmp_path / "rows.json").record("net", {"ms": 1.0})
    again = Rows(tmp_path / "rows.json")
    again.record("other", {"ms": 2.0})
    assert Rows(tmp_path / "rows.json").of == {"net": {"ms": 1.0}, "other": {"ms": 2.0}}


def test_a_table_is_printed_row_by_row(capsys: pytest.CaptureFixture[str]):
    Table("a", "b").row("x", 1.234)
    assert capsys.readouterr().out.splitlines() == ["| a | b |", "| --- | --- |", "| x | 1.23 |"]


def test_a_wrong_answer_ends_the_program_before_anything_is_timed():
    with pytest.raises(SystemExit, match=r"expected an error of at most 0.001, got 1.0e\+00"):
        check("net", np.array([2.0]), [np.array([1.0])])
    assert difference(np.zeros(2), [np.zeros(3)]) == float("inf")


def test_engines_are_compared_and_take_turns():
    model = model_of("squeezenet1_1", 64)
    runs = {name: load(name, model) for name in ("ours", "ort")}
    errors, samples = race("net", runs, model.expected, rounds=2)
    assert errors["ort"] == 0 < errors["ours"] < 1e-4
    assert {name: len(own) for name, own in samples.of.items()} == {"ours": 2, "ort": 2}


def test_short_runs_are_repeated_and_others_count_by_themselves():
    called: list[int] = []
    samples = turns({"short": lambda: called.append(0)}, 2, warm_up=0, least=1e-3)
    assert len(called) > 100 and 0 < samples.median("short") < 0.1
    assert turns({"own": lambda: [3.0, 4.0]}, 2, warm_up=0, clock=None).of == {"own": [3, 4] * 2}


def test_cases_are_measured_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    kept, heads = tmp_path / "rows.json", ("case", "number")
    one = campaign(["a", "none"], {"a": 1, "none": None}.get, heads, lambda n: [n], kept)
    two = campaign(["a", "b"], {"b": 2}.get, heads, lambda n: [n], kept)
    assert (one, two) == ({"a": 1}, {"a": 1, "b": 2})
    assert capsys.readouterr().out.splitlines()[-2:] == ["| a | 1 |", "| b | 2 |"]


def test_a_program_beside_has_begun():
    code = "import sys, time; print(sys.argv[1], flush=True); time.sleep(60)"
    with beside("-c", code, "begun", until="begun", seconds=0.0) as process:
        assert process.poll() is None
    assert process.returncode == -9
    other = beside("-c", code, "failed", until="begun", seconds=0.0)
    with pytest.raises(RuntimeError, match=r"expected 'begun' of .*, got 'failed'"), other:
        pass
