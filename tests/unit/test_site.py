"""The documentation as a site: no dead link, every public name, and nothing of other sites."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import tvm_stretch as ts

ROOT = Path(__file__).parents[2]


@pytest.mark.full
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", tmp_path],
        cwd=ROOT,
        env={**os.environ, "RUN": "0", "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    foreign = re.compile(
        r'<script[^>]* src="https?:|<link[^>]* rel="stylesheet"[^>]* href="https?:'
    )
    assert not [page for page in tmp_path.rglob("*.html") if foreign.search(page.read_text())]
    assert 'src="iframe-worker.js"' in (tmp_path / "index.html").read_text()
    modules = [name for name in ts.__all__ if name in ts._MODULES]
    reference = (tmp_path / "reference/tvm_stretch.html").read_text()
    missing = [name for name in ts.__all__ if name not in modules and f">{name}<" not in reference]
    assert not missing
    assert all((tmp_path / f"reference/{name}.html").exists() for name in modules)


def test_pictures_are_those_of_their_program() -> None:
    program = runpy.run_path(str(ROOT / "docs/pictures.py"))
    assert program["picture"]() == (ROOT / "docs/concepts.svg").read_text(encoding="utf-8")


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    missing = [p.name for p in (ROOT / "docs").glob("*.md") if f": {p.name}\n" not in navigation]
    assert not missing
