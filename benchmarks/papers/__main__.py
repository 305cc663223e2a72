"""The command: lists parts, runs them, writes the page."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.commands import Rows, markdown, options
from benchmarks.papers.catalogue import DRAWINGS, PAPERS, PARTS, Part, parts
from benchmarks.papers.pictures import PICTURES, draw
from tvm_stretch.base.files import write_whole
from tvm_stretch.plan.cost.fingerprint import local_machine

PAGE = Path("benchmarks/papers.md")
RESULTS = Path("benchmarks/papers/results.json")
_PATIENCE = 3
"""No part takes so much longer than expected, unless the machine does much else."""
_LEAST_MINUTES = 20


def run(part: Part, kept: Rows) -> bool:
    """Run a part and keep its output. Returns whether it succeeded."""
    began = time.monotonic()
    limit = max(_LEAST_MINUTES, _PATIENCE * part.minutes)
    command = [sys.executable, "-m", *part.command]
    environment = {**os.environ, "TVM_BIND_THREADS": "0"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, env=environment, start_new_session=True, **pipes)
    try:
        printed, errors = process.communicate(timeout=60 * limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with its workers
        print(f"{part.key}: stopped after {limit} minutes", flush=True)
        return False
    minutes = (time.monotonic() - began) / 60
    if process.returncode:
        print(f"{part.key}: failed\n{errors[-2000:]}", flush=True)
        return False
    lines = printed.strip("\n").splitlines()
    row = {"date": date.today().isoformat(), "machine": machine(), "minutes": round(minutes, 1)}
    kept.record(part.key, {**row, "command": " ".join(part.command), "output": lines})
    print(f"{part.key}: done in {minutes:.1f} minutes", flush=True)
    return True


def machine() -> str:
    """The processor of this machine, and how many cores this process may use."""
    return f"{local_machine()}, {len(os.sched_getaffinity(0))} cores"


def write(page_at: Path, kept: Rows) -> None:
    """Write the page, and its pictures into a folder beside it."""
    pictures = page_at.with_suffix("")
    pictures.mkdir(parents=True, exist_ok=True)
    drawn = set()
    for key, bars in PICTURES.items():
        if key in kept.of and (svg := draw(bars, "\n".join(kept.of[key]["output"]))):
            write_whole(pictures / f"{key}.svg", svg)
            drawn.add(key)
    write_whole(page_at, "\n".join(_page(kept, drawn, pictures.name)) + "\n")


def _page(kept: Rows, drawn: Collection[str], pictures: str) -> Iterator[str]:
    yield "# The papers' tables and figures, ours beside theirs"
    yield ""
    yield "`make papers` runs what has no results yet and writes this page; " + _HOWS
    yield ""
    rows = (_summary(part, kept) for part in PARTS)
    yield from markdown(("paper", "part", "shows", "ours"), rows)
    for paper, title in PAPERS.items():
        yield from ("", f"## {title}")
        for part in parts(paper):
            yield from ("", f"### {_title(part)}: {part.shows}", "", f"Theirs: {part.theirs}.", "")
            yield from _ours(part, kept.of.get(part.key))
            if part.key in drawn:
                yield from ("", f"![{_title(part)}]({pictures}/{part.key}.svg)")
        yield from ("", f"Without results of its own: {', '.join(DRAWINGS[paper])}.")


_SOLVER = "HighsMipSolverData"  # a line that HiGHS prints whatever it is told
_HOWS = (
    "the figures are *measured* by this machine's clock, *trained* (accuracies of small networks "
    "that were trained here), *predicted* from the profile of a phone, or *counted* from networks "
    "and plans alone. A part that is not to be had says why."
)


def _title(part: Part) -> str:
    return f"{part.number[0].upper()}{part.number[1:]}"


def _summary(part: Part, kept: Rows) -> tuple[str, ...]:
    row = kept.of.get(part.key)
    told = f"not to be had: {part.lacks}" if part.lacks else part.how
    told += "" if part.lacks else f", {row['date']}" if row else ", not run yet"
    return part.paper, part.number, part.shows, told


def _ours(part: Part, row: Mapping[str, Any] | None) -> Iterator[str]:
    """The output of a run: tables as they are, other lines as they were printed."""
    if part.lacks:
        yield f"Ours lacks {part.lacks}."
        return
    yield f"Ours, {part.how}: `python -m {' '.join(part.command)}`"
    yield ""
    if row is None:
        yield f"Not run yet; it takes about {part.minutes} minutes."
        return
    yield f"{row['date']}, {row['machine']}, {row['minutes']} minutes."
    printed = (line for line in row["output"] if not line.startswith(_SOLVER))
    for is_table, lines in groupby(printed, lambda line: line.startswith("|")):
        shown = [*lines]
        if not is_table and any(shown):
            yield from ("", "```", *"\n".join(shown).strip("\n").splitlines(), "```")
        elif shown[1:] and shown[1].startswith("| ---"):  # others are rows of a table that follows
            yield from ("", *shown)


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
        ("--page", PAGE, "which is written; its folder has the pictures"),
        ("--results", RESULTS, "the figures that runs gave, which are kept"),
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
    kept = Rows(arguments.results)
    failed = []
    for part in chosen:
        if part.lacks:
            print(f"{part.key}: lacks {part.lacks}")
        elif arguments.again or part.key not in kept.of:
            print(f"{part.key}: about {part.minutes} minutes", flush=True)
            failed += [] if run(part, kept) else [part.key]
        write(arguments.page, kept)
    print(f"the page: {arguments.page}")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
