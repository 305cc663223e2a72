"""Counts the lines of the package that the corpora of the fuzzers reach.

    python tests/fuzz/lines.py /tmp/fuzzers        a line of JSON for each fuzzer

For C++ it needs llvm-profdata and llvm-cov of the clang that built the fuzzers (LLVM=-14, say).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import FrameType
from typing import Any

from readers import READERS, take
from run import NATIVE

ROOT = Path(__file__).resolve().parents[2]
OURS = tuple(f"{ROOT}/{part}/" for part in ("tvm_stretch", "passes", "targets"))
MOST = 300
"""Inputs of a corpus of Python that are read again: tracing is slow."""


def inputs(folder: Path, name: str) -> list[Path]:
    """The seeds, and what the fuzzer added."""
    return [
        path
        for corpus in (folder / f"{name}_seed_corpus", folder / "corpora" / name)
        for path in sorted(corpus.glob("*"))
    ]


def native(folder: Path, name: str) -> dict[str, Any]:
    """Lines of each file of ours, by the coverage that clang compiled in."""
    version = os.environ.get("LLVM", "")
    raw, merged = folder / f"{name}.profraw", folder / f"{name}.profdata"
    subprocess.run(
        [folder / name, "-runs=0", *{path.parent for path in inputs(folder, name)}],
        env={**os.environ, "LLVM_PROFILE_FILE": str(raw)},
        capture_output=True,
        check=False,
    )
    subprocess.run([f"llvm-profdata{version}", "merge", raw, "-o", merged], check=True)
    report = subprocess.run(
        [
            f"llvm-cov{version}",
            "export",
            "-summary-only",
            f"-instr-profile={merged}",
            folder / name,
        ],
        capture_output=True,
        check=True,
    )
    (data,) = json.loads(report.stdout)["data"]
    files = {
        one["filename"].rpartition("tvm_stretch/run/")[2]: one["summary"]["lines"]
        for one in data["files"]
        if "tvm_stretch/run/" in one["filename"]
    }
    covered = {file: lines["covered"] for file, lines in files.items() if lines["covered"]}
    return {"lines": sum(covered.values()), "files": covered}


def python(folder: Path, name: str) -> dict[str, Any]:
    """Lines of the package that the reader runs."""
    seen: set[tuple[str, int]] = set()

    def traced(frame: FrameType, event: str, _argument: object) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(OURS):
            return None
        if event == "line":
            seen.add((file, frame.f_lineno))
        return traced

    warnings.simplefilter("ignore")
    for path in inputs(folder, name)[:MOST]:
        sys.settrace(traced)
        try:
            with contextlib.suppress(Exception):
                take(name, path.read_bytes())
        finally:
            sys.settrace(None)
    files: dict[str, int] = {}
    for file, _line in seen:
        short = str(Path(file).relative_to(ROOT))
        files[short] = files.get(short, 0) + 1
    return {"lines": len(seen), "files": files}


def main(words: list[str]) -> None:
    """Count for all, or for those that are named behind the folder."""
    folder, names = Path(words[0]), words[1:] or [*NATIVE, *READERS]
    for name in names:
        count = native if name in NATIVE else python
        print(json.dumps({"fuzzer": name, **count(folder, name)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
