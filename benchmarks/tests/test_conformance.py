"""Other people's tests: how cases are judged; all of PyTorch's operators with `make test-full`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from benchmarks.conformance import architectures, workers
from benchmarks.conformance.__main__ import main
from benchmarks.conformance.page import page, scope_of, summary, verdict_of
from benchmarks.conformance.torch_cases import call, difference, verdicts

PARTS = 64


def judge(group: str, target: str, most: int, singly: bool, done: set[str]) -> Iterator[tuple]:
    """A suite of its own: one case kills its process, one hangs, two are right."""
    yield "", "scope", "in"
    for case in ("good", group, "last"):
        if case in done:
            continue
        if singly:
            yield case, "begins", ""
        if case == "dies":
            os.kill(os.getpid(), 9)
        if case == "hangs":
            time.sleep(60)
        yield case, "right", ""


@pytest.mark.full
@pytest.mark.parametrize("group", ["dies", "hangs"])
def test_a_death_counts_for_one_case_only(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    lines: list[dict[str, str]] = []
    workers.run("benchmarks.tests.test_conformance", "llvm", {group: set()}, lines.append, 1, 0, 20)
    assert {line["case"]: line["verdict"] for line in lines if line["case"]} == {
        "good": "right",
        group: "dead",
        "last": "right",
    }
    assert lines[-1]["verdict"] == "done"


def test_samples_are_judged_by_themselves_where_they_differ() -> None:
    x = torch.tensor([1.0, 2.0])
    samples = [
        call("good", torch.add, (x, x), {}),
        call("refused", torch.bernoulli, (x / 2,), {}),
        call("no export", lambda x: x.tolist()[0] > 1 and x, (x,), {}),
    ]
    found = {case: verdict for case, verdict, _ in verdicts(samples, "llvm", singly=False)}
    assert found == {"good": "right", "refused": "refused", "no export": "unsupported by export"}


def test_differences_are_said() -> None:
    one = torch.tensor([1.0, float("nan"), 3.0])
    assert difference([one], [one]) == ""
    assert difference([one.nan_to_num()], [one]).startswith("result 0: 0 instead of nan (1 of 3")
    assert "torch.int64" in difference([one.nan_to_num().long()], [one])
    assert difference([None], [one]) == "result 0 is missing"


def test_the_page_counts_operators() -> None:
    base = {"suite": "op_db", "target": "llvm", "detail": ""}
    rows = [("a", "0", "right"), ("b", "0", "right"), ("b", "1", "refused"), ("c", "0", "wrong")]
    lines = [{**base, "group": g, "case": c, "verdict": v} for g, c, v in rows]
    lines.append({**base, "group": "d", "case": "", "verdict": "scope", "detail": "random"})
    assert verdict_of(lines[1:3]) == "in part" and scope_of(lines[4:]) == "random"
    assert "of 4 groups 3 are in scope: 1 whole, 1 in part, 1 wrong: 33.3 % whole" in summary(lines)
    assert "| in part |  | `b` (1 of 2) |" in page(lines) and "`a`" not in page(lines)
    assert json.loads(json.dumps(lines)) == lines


def test_a_page_is_made_of_several_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / f"{suite}.json" for suite in ("op_db", "onnx")]
    for path in files:
        line = {"suite": path.stem, "group": "a", "case": "0", "target": "llvm"}
        path.write_text(json.dumps({**line, "verdict": "right", "detail": ""}) + "\n")
    written = tmp_path / "page.md"
    written.write_text("## module_db on llvm\n\nkept\n\n## onnx on llvm\n\nold\n")
    given = ["conformance", "page", "--page", str(written), "--json", *map(str, files)]
    monkeypatch.setattr("sys.argv", given)
    main()
    assert "op_db on llvm: 1 cases: 1 right" in capsys.readouterr().out
    text = written.read_text().splitlines()
    assert [line for line in text if line.startswith("## ") or line in ("kept", "old")] == [
        *("## module_db on llvm", "kept", "## onnx on llvm", "## op_db on llvm"),
    ]


def test_sizes_of_a_configuration_become_small() -> None:
    class Config:
        attribute_map: ClassVar = {"hidden_size": "d_model", "num_hidden_layers": "num_stages"}

        def __init__(self) -> None:
            self.d_model, self.num_stages, self.use_cache, self.vocab_size = 4096, 4, True, 0
            self.depths = [3, 3, 27, 3]

    config = Config()
    architectures._shrink(config, architectures._SIZES)
    assert vars(config) == {
        **{"d_model": 32, "num_stages": 4, "use_cache": False, "vocab_size": 0},
        "depths": [1, 1, 1, 1],
    }


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_an_architecture_of_transformers() -> None:
    pytest.importorskip("transformers")
    for group in ("llama", "vit", "t5"):
        [*_, verdict] = architectures.judge(group, "llvm", 0, False, set())
        assert verdict[:2] == (group, "right"), verdict


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("suite", ["op_db", "module_db"])
@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_is_wrong(suite: str, part: int) -> None:
    pytest.importorskip("expecttest")
    own = workers.suite_of(suite)
    for group in own.groups()[part::PARTS]:
        bad = [v for v in own.judge(group, "llvm", 6, False, set()) if v[1] in ("wrong", "raw")]
        assert not bad, group
