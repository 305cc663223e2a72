"""What commands share, and what needs no TVM: turns, the command line, tables, rows that are kept.

In each round of `turns` another one begins, so that a slow moment of the machine hits all of them;
ratios are medians of the ratios of one round.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

Run = Callable[[], Any]
ROOT = Path(__file__).parents[1]


# --- turns ----------------------------------------------------------------------------------------


@dataclass
class Samples:
    """Milliseconds of each run of each engine, round by round."""

    of: dict[str, list[float]]

    def median(self, name: str) -> float:
        """The median of an engine's runs."""
        return statistics.median(self.of[name])

    def spread(self, name: str) -> float:
        """Distance between the first and the third quartile, relative to the median."""
        first, middle, third = statistics.quantiles(self.of[name], n=4)
        return (third - first) / middle

    def ratio(self, name: str, other: str) -> float:
        """The median of the ratios of neighbouring runs."""
        return statistics.median(a / b for a, b in zip(self.of[name], self.of[other], strict=True))

    def least_ratio(self, name: str, other: str) -> float:
        """The ratio of the least times, for machines that do other work."""
        return min(self.of[name]) / min(self.of[other])


def turns(
    runs: Mapping[str, Run],
    rounds: int = 5,
    *,
    seconds: float = 0.0,
    warm_up: int = 1,
    times: int = 1,
    clock: Callable[[], float] | None = time.perf_counter,
    rest: float = 0.0,
    least: float = 0.0,
) -> Samples:
    """Times of runs that take turns; another one begins each round.

    Args:
        runs: calls by name.
        rounds: the least number of rounds.
        seconds: goes on for so long.
        warm_up: runs of a turn that do not count.
        times: runs of a turn that count.
        clock: in seconds; without one, a run returns the list of its own milliseconds.
        rest: pause before each turn, so that threads of the engine before stop spinning.
        least: seconds of one measurement, for which a shorter run is repeated.
    """
    samples: dict[str, list[float]] = {name: [] for name in runs}
    counts = {name: _count(run, least, clock) for name, run in runs.items()}
    end, number, order = time.perf_counter() + seconds, 0, list(runs)
    while number < rounds or time.perf_counter() < end:
        first = number % max(len(order), 1)
        for name in order[first:] + order[:first]:
            if rest:
                time.sleep(rest)
            for _ in range(warm_up):
                runs[name]()
            for _ in range(times):
                if clock is None:
                    samples[name] += runs[name]()
                    continue
                begin = clock()
                for _ in range(counts[name]):
                    runs[name]()
                samples[name].append(1e3 * (clock() - begin) / counts[name])
        number += 1
    return Samples(samples)


def _count(run: Run, least: float, clock: Callable[[], float] | None) -> int:
    """The number of runs that take ``least`` seconds."""
    if not least or clock is None:
        return 1
    for warm in (True, False):
        begin = clock()
        for _ in range(2 if warm else 3):
            run()
    return max(1, round(3 * least / max(clock() - begin, 3e-6)))


class Child:
    """A fresh interpreter with a module that serves requests along a pipe; both sides pickle.

    It shares nothing else with its parent, and dies and hangs for itself.
    """

    def __init__(self, module: str, *words: str, python: str = sys.executable, **how: Any) -> None:
        self.pipe, theirs = Pipe()
        command = [python, "-W", "ignore", "-m", module, str(theirs.fileno()), *words]
        fds = [theirs.fileno()]
        self.process = subprocess.Popen(command, cwd=ROOT, pass_fds=fds, **how)
        theirs.close()

    def close(self) -> None:
        """Ends the process."""
        self.process.kill()
        self.process.wait()
        self.pipe.close()


def silence() -> None:
    """Hides what libraries print in a child, so that the table of the parent is not torn."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)


def in_a_process(function: Callable[..., Any], *words: Any, **variables: str) -> Any:
    """What a function returns in a fresh interpreter with these environment variables."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            return pool.submit(function, *words).result()
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def beside(
    *command: object, until: str = "", seconds: float = 0.3, **how: Any
) -> Iterator[subprocess.Popen[str]]:
    """Context in which another Python runs a command, for some seconds or since it said a word."""
    words = [sys.executable, *map(str, command)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE} if until else {}
    with subprocess.Popen(words, text=True, **pipes, **how) as process:
        try:
            if until and process.stdout and (said := process.stdout.readline().strip()) != until:
                raise RuntimeError(f"expected {until!r} of {words[1:3]}, got {said!r}")
            time.sleep(seconds)
            yield process
        finally:
            process.kill()


# --- commands -------------------------------------------------------------------------------------


def options(
    doc: str | None, arguments: Sequence[str] | None, *wanted: tuple[Any, ...], **choices: Any
) -> argparse.Namespace:
    """The command line.

    Args:
        doc: the module's description.
        arguments: instead of those of the process.
        wanted: ``("networks*", SIX)``, ``("--rounds", 9, "help")``. A default gives the type;
            a type has no default; False is a flag; a tuple takes several words; ! is a must.
        choices: words that are allowed, by name.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default, *help_ in wanted:
        plain, how = name.rstrip("*?+!"), dict[str, Any](help=(help_ or [None])[0])
        how |= {"choices": choices[key]} if (key := plain.strip("-")) in choices else {}
        if name != plain:
            how |= {"required": True} if name[-1] == "!" else {"nargs": name[-1]}
        if default is False:
            how["action"] = "store_true"
        elif isinstance(default, type):
            how["type"] = default
        else:
            of = default[0] if isinstance(default, (tuple, list)) and default else default
            how |= {"default": default, "type": str if isinstance(of, (tuple, list)) else type(of)}
            if isinstance(default, (tuple, list)) and name == plain:
                how["nargs"] = "+"
        parser.add_argument(plain, **how)
    return parser.parse_args(arguments)


def line(cells: Iterable[object]) -> str:
    """A row of a table in Markdown; numbers have two digits."""
    texts = (f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in cells)
    return f"| {' | '.join(texts)} |"


def markdown(heads: Sequence[str], rows: Iterable[Iterable[object]]) -> Iterator[str]:
    """The lines of a table."""
    yield from map(line, (heads, ["---"] * len(heads)))
    yield from map(line, rows)


class Table:
    """A table in Markdown that is printed row by row."""

    def __init__(self, *heads: str) -> None:
        show(heads, ())

    def row(self, *cells: object) -> None:
        """Print a row."""
        print(line(cells), flush=True)


@dataclass
class Rows:
    """Figures by name, which a JSON file keeps, if there is one: what it holds stays."""

    path: Path | None
    of: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path and self.path.exists():
            self.of |= json.loads(self.path.read_text(encoding="utf-8"))

    def record(self, name: str, row: Any) -> Any:
        """Write a row."""
        self.of[name] = row
        if self.path:
            self.path.write_text(json.dumps(self.of, indent=1) + "\n", encoding="utf-8")
        return row


def show(heads: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
    """Print a table, each row as soon as it is known."""
    for text in markdown(heads, rows):
        print(text, flush=True)


def campaign(
    cases: Iterable[str],
    measure: Callable[[str], Any],
    heads: Sequence[str],
    cells: Callable[[Any], Iterable[object]],
    kept: Path | None = None,
) -> dict[str, Any]:
    """The row of each case: measured, unless the file has it, then kept and printed.

    Args:
        cases: their names, the first cell of a row.
        measure: makes the row of a case; none where a case cannot be had, which it says.
        heads: of the table.
        cells: of a row, after the name.
        kept: a JSON file of rows.
    """
    rows, measured = Rows(kept), {}
    table = Table(*heads)
    for name in cases:
        row = rows.of[name] if name in rows.of else measure(name)
        if row is not None:
            measured[name] = rows.record(name, row)
            table.row(name, *cells(row))
    return measured


def say(line: str) -> None:
    """Tell something that belongs to no table."""
    print(line, file=sys.stderr, flush=True)
