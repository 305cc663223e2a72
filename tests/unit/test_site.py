"""The documentation as a site: no dead link, every public name, and nothing of other sites."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import tvm_stretch as ts
from tutorials import zoo

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site, without the output of tutorials."""
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "RUN": "0", "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.full
def test_the_site_is_built_without_a_warning(site: Path) -> None:
    foreign = re.compile(
        r'<script[^>]* src="https?:|<link[^>]* rel="stylesheet"[^>]* href="https?:'
    )
    assert not [page for page in site.rglob("*.html") if foreign.search(page.read_text())]
    assert 'src="iframe-worker.js"' in (site / "index.html").read_text()
    modules = [name for name in ts.__all__ if name in ts._MODULES]
    reference = (site / "reference/tvm_stretch.html").read_text()
    missing = [name for name in ts.__all__ if name not in modules and f">{name}<" not in reference]
    assert not missing
    assert all((site / f"reference/{name}.html").exists() for name in modules)


PHONE = 400
"""Width of a small phone's screen in pixels."""
WIDTHS = """<!doctype html><script>onload = async () => {
  const found = [];
  for (const page of PAGES) {
    const frame = document.createElement("iframe");
    frame.style = "width: WIDTHpx; height: 800px; border: 0";
    frame.src = page;
    document.body.append(frame);
    await new Promise((done) => { frame.onload = done; });
    found.push(page + " " + frame.contentDocument.documentElement.scrollWidth);
    frame.remove();
  }
  document.body.innerHTML = "<pre id='widths'>" + found.join("\\n") + "</pre>";
}</script><body></body>"""


def widths(folder: Path, chromium: str) -> dict[str, int]:
    """How wide a browser of a phone's width lays out each page of a folder."""
    pages = sorted(page.relative_to(folder).as_posix() for page in folder.rglob("*.html"))
    program = folder / "widths.html"
    text = WIDTHS.replace("PAGES", json.dumps(pages)).replace("WIDTH", str(PHONE))
    program.write_text(text, encoding="utf-8")
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=120000"]
    options += ["--allow-file-access-from-files", "--dump-dom", program.as_uri()]
    done = subprocess.run([chromium, *options], capture_output=True, text=True, timeout=600)
    program.unlink()
    listed = re.search('<pre id="widths">(.*?)</pre>', done.stdout, re.DOTALL)
    assert listed is not None, done.stderr
    return {name: int(wide) for name, wide in (row.split() for row in listed[1].splitlines())}


@pytest.mark.full
def test_no_page_scrolls_sideways_on_a_phone(site: Path) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs Chromium")
    (site / "too_wide.html").write_text("<!doctype html><p style='width: 500px'>wide</p>")
    show = ts.compile(zoo.build("squeezenet1_1", size=32), ["llvm"]).report
    show(site / "report.html")
    found = widths(site, chromium)
    assert found.pop("too_wide.html") > PHONE and len(found) > 40
    assert {name: wide for name, wide in found.items() if wide > PHONE} == {}


TYPICAL = (
    "index.html",
    "processors.html",
    "conformance.html",
    "messages.html",
    "tutorials/01_from_onnx_to_artifact.html",
    "reference/tvm_stretch.html",
    "report.html",
)
"""A page of each kind: start, guide, wide table, generated tables, tutorial, reference, report."""


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a line for each."""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def served(site: Path) -> Iterator[str]:
    """The address of the site and a report, since Lighthouse opens no files."""
    ts.compile(zoo.build("squeezenet1_1", size=32), ["llvm"]).report(site / "report.html")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.full
@pytest.mark.parametrize("page", TYPICAL)
def test_lighthouse_finds_pages_accessible(page: str, served: str) -> None:
    program = ROOT / "build/node/node_modules/.bin/lighthouse"
    chromium = shutil.which("chromium")
    if chromium is None or not program.exists():
        pytest.skip("needs Chromium and Lighthouse: make lighthouse")
    words = ["--quiet", "--only-categories=accessibility", "--output=json"]
    words += ["--chrome-flags=--headless=new --no-sandbox --disable-gpu", f"{served}/{page}"]
    environment = {**os.environ, "CHROME_PATH": chromium}
    done = subprocess.run(
        [program, *words], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    faults = [audit["title"] for audit in found["audits"].values() if audit["score"] == 0]
    assert found["categories"]["accessibility"]["score"] >= 0.95, faults


def test_pictures_are_those_of_their_program() -> None:
    program = runpy.run_path(str(ROOT / "docs/pictures.py"))
    assert program["picture"]() == (ROOT / "docs/concepts.svg").read_text(encoding="utf-8")


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    missing = [p.name for p in (ROOT / "docs").glob("*.md") if f": {p.name}\n" not in navigation]
    assert not missing
