"""Inputs that fuzzers found (tests/fuzz): each is read, or refused by one clear error."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from fuzz.readers import READERS, take

FOLDER = Path(__file__).resolve().parents[1] / "fuzz" / "regressions"
FOUND = sorted(path for name in READERS for path in (FOLDER / name).glob("*"))


@pytest.mark.parametrize("path", FOUND, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_was_a_finding(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        take(path.parent.name, path.read_bytes())
