"""Runs all fuzzers for some seconds each, several at a time, and prints a line of JSON for each.

    python tests/fuzz/run.py --seconds 60 --jobs 2 --folder /tmp/fuzzers
    python tests/fuzz/run.py --only graph --only plan --seconds 600

The folder is what build.sh wrote, on this machine or on another: fuzzers of C++ need no clang
there. Those of Python run where atheris is installed. Findings stay in FOLDER/findings/NAME.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
NATIVE = ("graph", "network_data", "artifact", "frames", "dsp_program", "c_interface")
READERS = ("onnx", "tflite", "pt2", "gguf", "plan", "design", "profile")
_GRACE = 120
"""Seconds beyond its time after which a fuzzer is ended: it hangs."""


def command(name: str, folder: Path) -> list[str]:
    """What runs this fuzzer, without libFuzzer's options."""
    if name in NATIVE:
        return [str(folder / name)]
    return [sys.executable, str(HERE / "fuzz_readers.py"), name]


def run(name: str, folder: Path, seconds: int) -> dict[str, Any]:
    """One fuzzer; what it found and how much it tried."""
    corpus, findings = folder / "corpora" / name, folder / "findings" / name
    for made in (corpus, findings):
        made.mkdir(parents=True, exist_ok=True)
    options = [f"-max_total_time={seconds}", f"-artifact_prefix={findings}/", "-timeout=25"]
    options += ["-rss_limit_mb=4096", "-print_final_stats=1", "-detect_leaks=1"]
    dictionary = HERE / "dictionaries" / f"{name}.dict"
    if dictionary.exists():
        options.append(f"-dict={dictionary}")
    places = [str(corpus), str(folder / f"{name}_seed_corpus")]
    environment = {**os.environ, "LLVM_PROFILE_FILE": str(folder / "profiles" / f"{name}.profraw")}
    environment["TVM_BIND_THREADS"] = "0"
    begun = time.monotonic()
    done = subprocess.run(
        [*command(name, folder), *places, *options],
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=seconds + _GRACE,
    )
    return {"fuzzer": name, "seconds": round(time.monotonic() - begun), **told(done, findings)}


def told(done: subprocess.CompletedProcess[str], findings: Path) -> dict[str, Any]:
    """Executions, coverage and findings, from what libFuzzer prints."""
    text = done.stderr + done.stdout
    counts = [int(number) for number in re.findall(r"^#(\d+)\t", text, re.M)]
    covered = [int(number) for number in re.findall(r"cov: (\d+)", text)]
    inputs = [int(number) for number in re.findall(r"corp: (\d+)", text)]
    names = sorted(path.name for path in findings.iterdir())
    found = [name for name in names if not name.startswith("slow-unit")]
    return {
        "executions": max(counts, default=0),
        "edges": max(covered, default=0),
        "corpus": max(inputs, default=0),
        "findings": found,
        **({"status": done.returncode, "said": text[-1500:]} if done.returncode else {}),
    }


def main(words: list[str]) -> int:
    """Run what is asked for; 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=60, help="of each fuzzer")
    parser.add_argument("--jobs", type=int, default=1, help="fuzzers that run at the same time")
    parser.add_argument("--folder", type=Path, default=Path("build/fuzzers"), help="of build.sh")
    parser.add_argument("--only", action="append", help="a fuzzer's name")
    given = parser.parse_args(words)
    folder = given.folder.resolve()
    names = [name for name in NATIVE if (folder / name).exists()]
    if importlib.util.find_spec("atheris") is not None:
        names += READERS
    names = [name for name in names if given.only is None or name in given.only]
    bad = not names
    with ThreadPoolExecutor(given.jobs) as pool:
        for outcome in pool.map(lambda name: run(name, folder, given.seconds), names):
            print(json.dumps(outcome), flush=True)
            bad = bad or bool(outcome["findings"]) or "status" in outcome
    return int(bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
