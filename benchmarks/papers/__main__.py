"""The command: lists parts, runs them, writes the page."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path

from benchmarks.commands import options
from benchmarks.papers.catalogue import DRAWINGS, PAPERS, PARTS, Part, parts
from tvm_stretch.base.files import write_whole
from tvm_stretch.plan.cost.fingerprint import local_machine

_LIMIT_S = 20 * 60
"""No part takes so long, unless the machine does much else."""


def run(part: Part, folder: Path) -> bool:
    """Run a part; its output goes to the folder. Returns whether it succeeded."""
    began = time.monotonic()
    command = [sys.executable, "-m", *part.command]
    environment = {**os.environ, "TVM_BIND_THREADS": "0"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_LIMIT_S, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        print(f"{part.key}: stopped after {_LIMIT_S // 60} minutes", flush=True)
        return False
    minutes = (time.monotonic() - began) / 60
    if done.returncode:
        print(f"{part.key}: failed\n{done.stderr[-2000:]}", flush=True)
        return False
    head = f"{date.today().isoformat()}, {machine()}, {minutes:.1f} minutes\n"
    write_whole(folder / f"{part.key}.txt", head + done.stdout)
    print(f"{part.key}: done in {minutes:.1f} minutes", flush=True)
    return True


def machine() -> str:
    """The processor of this machine, and how many cores this process may use."""
    return f"{local_machine()}, {len(os.sched_getaffinity(0))} cores"


def page(folder: Path) -> str:
    """Markdown: every part, ours beside theirs, or what ours lacks."""
    return "\n".join(_page(folder)) + "\n"


def _page(folder: Path) -> Iterator[str]:
    yield "# The papers' tables and figures, ours beside theirs"
    for paper, title in PAPERS.items():
        yield from ("", f"## {title}")
        for part in parts(paper):
            yield from ("", f"### {part.number[0].upper()}{part.number[1:]}: {part.shows}", "")
            yield f"Theirs: {part.theirs}."
            if part.lacks:
                yield from ("", f"Ours lacks {part.lacks}.")
                continue
            yield from ("", f"Ours, {part.how}: `python -m {' '.join(part.command)}`")
            found = folder / f"{part.key}.txt"
            if not found.exists():
                yield from ("", f"Not run yet; it takes about {part.minutes} minutes.")
                continue
            head, _, output = found.read_text(encoding="utf-8").partition("\n")
            yield from ("", head + ".", "", "```", output.strip("\n"), "```")
        yield from ("", f"Without results of its own: {', '.join(DRAWINGS[paper])}.")


def listed(chosen: Sequence[Part]) -> Iterator[str]:
    """A line for each part."""
    for part in chosen:
        told = f"lacks {part.lacks}" if part.lacks else f"{part.how}, {part.minutes} minutes"
        yield f"{part.paper:12}{part.number:11}{part.shows} ({told})"
    for paper in dict.fromkeys(part.paper for part in chosen):
        yield f"{paper:12}{', '.join(DRAWINGS[paper])} show no results"


def main() -> None:
    """Run from the command line."""
    kinds = list(dict.fromkeys(part.number.partition(" ")[0] for part in PARTS))
    arguments = options(
        *(__doc__, None, ("paper?", str), ("kind?", str)),
        ("number?", str, "of the table or figure; without it all"),
        ("--folder", Path("build/papers"), "of the page"),
        ("--again", False, "run what was run before, too"),
        paper=[*PAPERS, "all"],
        kind=kinds,
    )
    if arguments.paper is None:
        print("\n".join(listed(PARTS)))
        return
    paper = "" if arguments.paper == "all" else arguments.paper
    chosen = list(parts(paper, arguments.kind or "", arguments.number or ""))
    if not chosen:
        sys.exit("expected a table or figure of the list, got another one; run it without any")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    failed = []
    for part in chosen:
        if part.lacks:
            print(f"{part.key}: lacks {part.lacks}")
        elif arguments.again or not (arguments.folder / f"{part.key}.txt").exists():
            print(f"{part.key}: about {part.minutes} minutes", flush=True)
            failed += [] if run(part, arguments.folder) else [part.key]
        write_whole(arguments.folder / "papers.md", page(arguments.folder))
    print(f"the page: {arguments.folder / 'papers.md'}")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
