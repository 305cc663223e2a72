"""Compiles a network of the zoo, runs it and compares it with ONNX Runtime.

```
python -m benchmarks.demo [resnet18] [--size 224] [--threads 2]
```
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import tvm_stretch as ts
from benchmarks.engines import OURS, REFERENCE
from benchmarks.models import prepare_model
from benchmarks.peers import compare_engines, print_table


def main(arguments: list[str] | None = None) -> int:
    """Prints what a newcomer wants to see first; fails if the answer is wrong."""
    parser = argparse.ArgumentParser(prog="benchmarks.demo", description=__doc__)
    parser.add_argument("model", nargs="?", default="resnet18", help="zoo name or ONNX file")
    parser.add_argument("--size", type=int, default=224, help="image height and width")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args(arguments)

    source = prepare_model(options.model, options.size)
    begin = time.perf_counter()
    model = ts.compile(source.path, targets=["llvm"], cpu_threads=options.threads)
    print(f"compiled {source.name} in {time.perf_counter() - begin:.1f} s: {model}")
    print(f"\nplan:\n{model.plan.explain()}\n")

    with tempfile.TemporaryDirectory() as folder:
        artifact = Path(folder) / f"{source.name}.so"
        model.export(artifact)
        print(f"artifact: {artifact.stat().st_size / 1e6:.1f} MB, loaded again: ", end="")
        logits = ts.load(artifact)(**source.random_inputs())
    print(f"top class {logits.argmax()}, logit {logits.max():.4f}")

    print(f"\nkernels, slowest first:\n{model.profile()}")

    cores = sorted(os.sched_getaffinity(0))[: options.threads]
    rows = compare_engines(source, [REFERENCE, OURS], options.threads, cores, rounds=6, rtol=1e-3)
    print("\nms per image, answers compared first:")
    print_table(rows, [REFERENCE, OURS])
    return 1 if any(row.failure for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
