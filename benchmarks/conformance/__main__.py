"""The command; the docstring of the package says what it prints."""

from __future__ import annotations

import argparse
import json
import threading
from pathlib import Path

from benchmarks.conformance.page import page, summary
from benchmarks.conformance.workers import Line, run, suite_of

SUITES = ("op_db", "module_db", "onnx", "architectures")
PAGE = Path("docs/conformance.md")


def main() -> None:
    """Run a suite, or write the page of what was run before."""
    parser = argparse.ArgumentParser(prog="benchmarks.conformance", description=__doc__)
    parser.add_argument(
        "suite",
        choices=(*SUITES, "page"),
        help="`page` runs nothing: it writes a page of all files",
    )
    parser.add_argument("--target", default="llvm", choices=("llvm", "opencl"))
    parser.add_argument("--only", action="append", help="a group, such as an operator's name")
    parser.add_argument("--part", default="1/1", help="3/16: the third of 16 parts of all groups")
    parser.add_argument("--samples", type=int, default=0, help="the most of a group")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, default=300, help="a process is dead after those")
    parser.add_argument(
        "--json",
        type=Path,
        nargs="+",
        default=[],
        help="files of lines; new ones are added to the first, and known cases are not run",
    )
    parser.add_argument("--page", type=Path, default=PAGE, help="where `page` writes")
    args = parser.parse_args()
    lines = [line for path in args.json for line in _read(path)]
    if args.suite != "page":
        _run(args, lines)
    print(summary(lines))
    if args.suite == "page":
        args.page.write_text(page(lines), encoding="utf-8")


def _read(path: Path) -> list[Line]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _run(args: argparse.Namespace, lines: list[Line]) -> None:
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
