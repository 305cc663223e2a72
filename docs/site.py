"""Adds pages to the site that are written elsewhere or made from the code: a hook of MkDocs.

    README.md, ARCHITECTURE.md ..    as they are
    tutorials/*.py                   the docstring, the code, and what it prints
    benchmarks/                      performance
    reference/                       the docstrings of all public names
    operators.md                     operators of ONNX that are converted
    messages.md                      every error, and what to do (messages.py)

Names of files in backquotes become links where there is such a page.
"""

from __future__ import annotations

import ast
import hashlib
import os
import posixpath
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

sys.path.append(str(Path(__file__).parent))
import messages

ROOT = Path(__file__).resolve().parents[1]
OUTPUTS = ROOT / "build" / "tutorials"
TOP = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
PICTURES = {".svg", ".png"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the generated pages into the navigation."""
    assert config.nav is not None
    for entry in config.nav:
        (title,) = entry
        if title == "Tutorials":
            entry[title] = [
                {_title(path).split(":")[0]: f"tutorials/{path.stem}.md"} for path in _tutorials()
            ]
            entry[title] += [f"tutorials/{p.name}" for p in sorted(ROOT.glob("tutorials/*.md"))]
        elif title == "Performance":
            first = ("README", "papers", "schedulers", "stretched", "twin")
            entry[title] = [f"benchmarks/{name}.md" for name in first]
            entry[title] += [f"benchmarks/log/{path.name}" for path in _log()]
        elif title == "Reference":
            entry[title] += [f"reference/{name}.md" for name in (*_public(), "passes")]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    pages: dict[str, str] = {"index.md": (ROOT / "README.md").read_text()}
    pages.update({name: (ROOT / name).read_text() for name in TOP})
    pages.update({f"tutorials/{path.stem}.md": _tutorial(path) for path in _tutorials()})
    for path in (*ROOT.glob("tutorials/*.md"), *ROOT.glob("benchmarks/**/*.md")):
        pages[path.relative_to(ROOT).as_posix()] = path.read_text()
    pages["java/README.md"] = (ROOT / "java/README.md").read_text()
    server = "tvm_stretch/phone/server/README.md"
    pages[server] = (ROOT / server).read_text()
    pages.update({f"reference/{name}.md": text for name, text in _public().items()})
    pages["operators.md"] = _operators()
    pages["messages.md"] = messages.page()
    pages["reference/passes.md"] = _passes()
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    for path in (*ROOT.glob("tutorials/*.*"), *ROOT.glob("benchmarks/**/*.*")):
        if path.suffix in PICTURES:
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


_NAME = re.compile(r"(?<!\[)`([\w./-]+\.(?:md|py))`(?!\])")


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Turn names of files in backquotes into links."""
    own = posixpath.dirname(page.file.src_uri)
    known = {file.src_uri for file in files.documentation_pages()}

    def link(match: re.Match[str]) -> str:
        name = match[1]
        for path in (name, name.removeprefix("docs/"), posixpath.join(own, name)):
            target = re.sub(
                r"^(tutorials/\w+)\.py$", r"\1.md", "index.md" if path == "README.md" else path
            )
            if target in known and target != page.file.src_uri:
                return f"[`{name}`]({posixpath.relpath(target, own or '.')})"
        return match[0]

    # in a block of code it would be no link
    pieces = re.split(r"(^```.*?^```)", markdown, flags=re.MULTILINE | re.DOTALL)
    pieces[::2] = [_NAME.sub(link, piece) for piece in pieces[::2]]
    text = "".join(pieces)
    return re.sub(r"\]\(docs/", "](", text) if page.file.src_uri == "index.md" else text


def on_post_page(output: str, **_: Any) -> str:
    """Name the dialog of the search for screen readers, which the theme leaves without one."""
    return output.replace('role="dialog">', 'role="dialog" aria-label="Search">')


# --- tutorials ------------------------------------------------------------------------------------


def _tutorials() -> list[Path]:
    return sorted(ROOT.glob("tutorials/[0-9]*.py"))


def _log() -> list[Path]:
    return sorted(ROOT.glob("benchmarks/log/*.md"))


def _title(path: Path) -> str:
    return (
        (ast.get_docstring(ast.parse(path.read_text())) or path.stem).partition("\n")[0].rstrip(".")
    )


def _tutorial(path: Path) -> str:
    text = path.read_text()
    title, _, words = (ast.get_docstring(ast.parse(text)) or path.stem).partition("\n")
    code = text.split('"""', 2)[2].strip()
    parts = [f"# {title.rstrip('.')}", words.strip(), f"```python\n{code}\n```"]
    printed = _printed(path)
    if printed:
        parts += ["## What it prints", f"```text\n{printed}\n```"]
    return "\n\n".join(parts) + "\n"


def _printed(path: Path) -> str:
    """Its output, remembered until it changes; `make docs RUN=0` runs none of them."""
    kept = OUTPUTS / f"{path.stem}-{hashlib.sha256(path.read_bytes()).hexdigest()[:12]}.txt"
    if not kept.exists() and os.environ.get("RUN") != "0":
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, path], env=environment, cwd=ROOT, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"{path.name} failed:\n{done.stderr[-3000:]}")
        OUTPUTS.mkdir(parents=True, exist_ok=True)
        kept.write_text(re.sub(r"/\S*/(?=[\w.-]+)", "…/", done.stdout))
    return kept.read_text().strip() if kept.exists() else ""


# --- reference ------------------------------------------------------------------------------------


def _public() -> dict[str, str]:
    """A page for each module of the public interface, and one for the names at the top."""
    import tvm_stretch

    modules = [name for name in tvm_stretch.__all__ if name in tvm_stretch._MODULES]
    own = [name for name in tvm_stretch.__all__ if name not in modules]
    pages = {"tvm_stretch": _page("tvm_stretch", tvm_stretch, "The public names at the top.", own)}
    for name in modules:
        module = getattr(tvm_stretch, name)
        title = f"tvm_stretch.{name}"
        pages[name] = _page(title, module, module.__doc__ or "", _names(module))
    return pages


def _names(module: ModuleType) -> list[str]:
    """Its ``__all__``, or the public names that it defines."""
    own = [n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__]
    return list(getattr(module, "__all__", [name for name in own if not name.startswith("_")]))


def _page(title: str, module: ModuleType, words: str, names: list[str]) -> str:
    lines = [f"# {title}", ""]
    for paragraph in words.strip().split("\n\n"):
        is_code = paragraph.startswith(("    ", "ts."))
        lines += (
            ["```python", textwrap.dedent(paragraph), "```", ""] if is_code else [paragraph, ""]
        )
    for name in sorted(names, key=str.lower):
        value = getattr(module, name)
        place = getattr(value, "__module__", module.__name__)
        lines += [f"::: {place}.{getattr(value, '__qualname__', name)}", ""]
    return "\n".join(lines)


def _passes() -> str:
    """What the docstring of each file of `passes/` says, in the order of the package's table."""
    from tvm_stretch import passes

    table = re.findall(r"^(\w+) {3,}", passes.__doc__ or "", re.MULTILINE)
    files = dict.fromkeys(passes.PASSES[name] for name in table if name in passes.PASSES)
    lines = ["# Passes, before and after", ""]
    for file in files:
        names = [name for name, where in passes.PASSES.items() if where == file]
        words = ast.get_docstring(ast.parse((ROOT / f"passes/{file}.py").read_text())) or ""
        lines += [f"## {', '.join(names)}", ""]
        for paragraph in words.split("\n\n"):
            is_code = all(line.startswith("    ") for line in paragraph.splitlines())
            lines += [f"```\n{textwrap.dedent(paragraph)}\n```" if is_code else paragraph, ""]
    return "\n".join(lines)


# --- operators ------------------------------------------------------------------------------------


def _operators() -> str:
    import onnx

    from tvm_stretch.read.onnx import operators as onnx_ops  # noqa: F401 (registers)
    from tvm_stretch.read.onnx.node import CONVERTERS
    from tvm_stretch.read.onnx.qoperators import BODIES

    lines = [
        "# Operators",
        "",
        "Operators of ONNX that are converted. A network with another one is refused with its "
        "name. Whether a processor takes an operator is decided for each call, with its types and "
        "shapes: `tvm-stretch explain` tells it with the reason. Operator sets up to "
        f"{onnx.defs.onnx_opset_version()} of onnx {onnx.__version__} are read.",
        "",
        "| ONNX operator | since |",
        "| --- | --- |",
    ]
    schemas = {schema.name: schema for schema in onnx.defs.get_all_schemas()}
    for name in sorted({*CONVERTERS, *(f"com.microsoft.{name}" for name in BODIES)}):
        schema = schemas.get(name)
        since = "1" if name.startswith("com.") else "a function"
        lines.append(f"| {name} | {schema.since_version if schema else since} |")
    return "\n".join(lines) + "\n"
