"""The page of messages has all that tell people what to do, those of C++ too."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def program() -> dict[str, Any]:
    """docs/messages.py."""
    return runpy.run_path(str(ROOT / "docs/messages.py"))


def advice(path: Path) -> list[str]:
    """What strings of a source in C++ advise after a semicolon, up to the string's end."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    lines = [line for line in text.splitlines() if '"  --' not in line]  # the help of a program
    return re.findall(r'"(?:[^"\n]*[^"\n ])?; ([a-z][^"\n]*?)\s*(?:\\n)?"', "\n".join(lines))


def test_every_advice_of_the_executor_is_on_the_page(program: dict[str, Any]) -> None:
    page = " ".join(re.sub(r"\\(.)", r"\1", program["page"]()).replace("&lt;", "<").split())
    told = [(path.name, text) for path in program["native_files"]() for text in advice(path)]
    assert len(told) > 80
    lacking = [(name, text) for name, text in told if re.sub(r"%[ds]", "…", text) not in page]
    assert not lacking


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            'TVM_FFI_THROW(ValueError) << "expected a { for " << what  // "no"; never\n'
            '  << ", got " << Name(spec, one) << "; give "\n  "one";',
            "expected a { for …, got …; give one",
        ),
        ('throw Error(kRun, "expected " + std::string("x; y") + to(n), "");', "expected x; y…"),
        ('std::fprintf(stderr, "expected %s, got %d; see --help\\n", a, b);',
         "expected …, got …; see --help"),
        ('constexpr const char* kWay = "free some";\nRefuse(std::string("expected y; ") + kWay);',
         "expected y; free some"),
    ],
)  # fmt: skip
def test_what_a_statement_says(program: dict[str, Any], source: str, expected: str) -> None:
    collected: Callable[[list[str]], set[str]] = program["native_messages"]
    assert {text.strip() for text in collected([source])} == {expected}
    assert not collected(['auto mode = open("r"); puts("  --port N  to listen; by default 1");'])
