"""The command; the docstring of the package says what it prints."""

from __future__ import annotations

import json
import threading
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from benchmarks.commands import options
from benchmarks.conformance.page import page, summary
from benchmarks.conformance.workers import Line, run, suite_of

SUITES = ("op_db", "module_db", "onnx", "architectures")
PAGE = Path("docs/conformance.md")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a suite, or write the page of what was run before."""
    args = options(
        *(__doc__, arguments, ("suite", str, "`page` runs nothing: it writes a page of all files")),
        *(("--target", "llvm"), ("--only", (), "groups, such as operators' names")),
        ("--part", "1/1", "3/16: the third of 16 parts of all groups"),
        *(("--samples", 0, "the most of a group"), ("--jobs", 1, "processes")),
        ("--seconds", 300.0, "a process is dead after those"),
        ("--json+", Path, "files of lines; new ones go to the first, known cases are not run"),
        ("--page", PAGE, "where `page` writes"),
        suite=(*SUITES, "page"),
        target=("llvm", "opencl"),
    )
    args.json = args.json or []
    lines = [line for path in args.json for line in _read(path)]
    if args.suite != "page":
        _run(args, lines)
    print(summary(lines))
    if args.suite == "page":
        before = args.page.read_text(encoding="utf-8") if args.page.exists() else ""
        args.page.write_text(page(lines, before), encoding="utf-8")


def _read(path: Path) -> list[Line]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _run(args: Namespace, lines: list[Line]) -> None:
    part, parts = map(int, args.part.split("/"))
    groups = suite_of(args.suite).groups()[part - 1 :: parts]
    known = [x for x in lines if (x["suite"], x["target"]) == (args.suite, args.target)]
    ended = {line["group"] for line in known if line["verdict"] == "done"}
    left = [g for g in groups if g not in ended and (not args.only or g in args.only)]
    cases = {g: {x["case"] for x in known if x["group"] == g and x["case"]} for g in left}
    lock = threading.Lock()

    def write(line: Line) -> None:
        with lock:
            lines.append(line)
            text = json.dumps(line)
            if line["case"]:
                print(text, flush=True)
            if args.json:
                with args.json[0].open("a", encoding="utf-8") as file:
                    file.write(text + "\n")

    run(args.suite, args.target, cases, write, args.jobs, args.samples, args.seconds)


if __name__ == "__main__":
    main()
