"""What would be published: one version, a description that stands alone, tests within."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("tvm_stretch", "passes", "targets", "tests", "tutorials", "benchmarks", "docs")
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_version(project: dict[str, Any]) -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## (\S+)$", changes, re.MULTILINE)
    assert newest is not None
    assert newest[1] == project["version"] == importlib.metadata.version("tvm-stretch")


def test_licence(project: dict[str, Any]) -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Version 2.0, January 2004" in text and "END OF TERMS AND CONDITIONS" in text
    assert project["license"] == "Apache-2.0" and project["license-files"] == ["LICENSE"]


def test_metadata_names_nobody(project: dict[str, Any]) -> None:
    assert not {"authors", "maintainers", "urls"} & project.keys()


def test_what_judges_the_code_is_pinned(project: dict[str, Any]) -> None:
    pinned = {
        line.split("==")[0] for line in project["optional-dependencies"]["dev"] if "==" in line
    }
    assert {"ruff", "mypy", "clang-format"} <= pinned


def test_the_page_on_installing_names_all_dependencies(project: dict[str, Any]) -> None:
    """For those who install them by hand, to have the small xgboost."""
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    line = re.search(r"^pip install (.*xgboost-cpu)$", page, re.MULTILINE)
    assert line is not None
    by_hand = line[1].replace('"', "").split()
    assert by_hand == [name.replace("xgboost", "xgboost-cpu") for name in project["dependencies"]]


def test_the_demo_installs_all_dependencies_by_hand_too(project: dict[str, Any]) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    lists = re.findall(r"^(?:TVM_PACKAGES|DEMO_PYTHON) := (.*)$", makefile, re.MULTILINE)
    by_hand = [name for names in lists for name in names.replace("'", "").split()]
    extras = project["optional-dependencies"]
    wanted = [name.replace("xgboost", "xgboost-cpu") for name in project["dependencies"]]
    assert by_hand == [*wanted, *extras["quantize"], *extras["hexagon"]]


def test_readme_stands_alone() -> None:
    """It is the page of the package, too, beside which there are no files."""
    text = re.sub(r"^```.*?^```$", "", README, flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\(([^)]*)\)|<(?:img|a)\b", text)
    assert [target for target in targets if not target.startswith("https://")] == []


DOCS = sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", *DOCS])
def test_pages_name_what_there_is(page: str) -> None:
    """By the path, or by the last part of it where the sentence says the folder."""
    words = re.findall(
        r"`([\w/.]+(?:\.(?:py|md|cc|h|svg|toml)|/))`", (ROOT / page).read_text("utf-8")
    )
    made = {"dist/"}  # by `make wheel`
    there = [str(path) for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    named = {word for word in set(words) - made if not (ROOT / word).exists()}
    missing = [w for w in named if not any(path.endswith(f"/{w.rstrip('/')}") for path in there)]
    assert missing == []
    assert len((ROOT / page).read_text("utf-8").splitlines()) <= 150


def test_the_readme_names_every_page() -> None:
    assert [page for page in DOCS if f"`{page}`" not in README] == []


@pytest.mark.full
def test_sdist_brings_what_tests_need(tmp_path: Path) -> None:
    pytest.importorskip("scikit_build_core")
    build = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, tmp_path], cwd=ROOT, check=True, timeout=60)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    sources = {
        str(path.relative_to(ROOT))
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".cc", ".h", ".json", ".md", ".txt", ".svg"} and path.is_file()
    }
    around = {"CMakeLists.txt", "Makefile", "LICENSE", "CHANGELOG.md", ".clang-format", ".ci/run"}
    assert (sources | around) - names == set()


def test_the_version_is_the_same_everywhere() -> None:
    root = Path(__file__).parents[2]
    files = {
        "pyproject.toml": "version =",
        "CITATION.cff": "version:",
        "cmake/tvm_stretch.pc": "Version:",
    }
    found = {
        name: line.split(start)[1].strip(' "')
        for name, start in files.items()
        for line in (root / name).read_text().splitlines()
        if line.startswith(start)
    }
    assert set(found) == set(files) and len(set(found.values())) == 1
    assert f"## {found['pyproject.toml']}" in (root / "CHANGELOG.md").read_text()
