"""Runs tests as another x86 machine would.

`make test-full` runs all of these, `make changed` those that a changed kernel or pass can break.

```
python tests/another_machine.py avx2        # 8 lanes, no AVX-512, no VNNI; ONNX Runtime too
python tests/another_machine.py 16-lanes    # plans and loop nests of AVX-512, run by AVX2
python tests/another_machine.py avx2 --changed
```

Both give the same results on every x86 machine with AVX2, so a test that knows its machine fails
where it is written and not where it is used. Two things make a process believe it:

- `conftest.py` calls `pretend`: the compiler is told another processor than this one, and tests
  of "this machine" (`cpu_targets.TARGET`) follow.
- ONNX Runtime asks the processor itself. `benchmarks/only_avx2.py` makes a copy of it that asks
  us instead, and the tests' comparisons then meet its kernels for AVX2.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

VARIABLE = "TVM_STRETCH_TEST_MACHINE"
AVX2, WIDE = "avx2", "16-lanes"

CPUS = {AVX2: "haswell", WIDE: "core-avx2"}
"""What LLVM calls them. The second is another name of the first, so that targets of tests that
name haswell keep its 8 lanes."""

TESTS = (
    # integers: sums that saturate, and products by VNNI, vpmaddwd or plain arithmetic
    "unit/test_integer_kernels.py",
    "unit/test_quantise.py",
    "unit/test_requantisation.py",
    "unit/test_split_integers.py",
    # plans: other tiles, Winograd where another processor sums directly
    "fake/test_random_placements.py",
    "fake/test_row_bands.py",
    "fake/test_spare.py",
    # loop nests and their code
    "unit/test_block_channels.py",
    "unit/test_concat_kernels.py",
    "unit/test_kernel_passes.py",
    "unit/test_lowering.py",
    "unit/test_memory_plan.py",
)

COMPARED = (
    "fake/test_plans.py",
    "unit/test_form_integers.py",
    "unit/test_join_tables.py",
    "device/test_hexagon.py::test_quantised_convolutions_of_onnx",
    "device/test_tutorials.py::test_integers",
)
"""For AVX2 alone: they meet ONNX Runtime's kernels, or wait for scripted devices, and their loop
nests are among those of the other tests."""

ROOMS = ("passes/", "targets/")
"""Where kernels and passes lie, whose answers depend on lanes and instructions."""


def pretend() -> None:
    """Tell the compiler that this process runs on the machine that the variable names, if any.

    In any case it learns of a CPU whose plans have 16 lanes and whose code AVX2 runs.
    """
    from tvm.target import codegen

    from tvm_stretch.targets.cpu import cpu

    if machine := os.environ.get(VARIABLE):
        codegen.llvm_get_system_cpu = lambda: CPUS[machine]
    known = cpu.vector_machine

    def vector_machine(target, threads):
        found = known(target, threads)
        if target.attrs.get("mcpu") != CPUS[WIDE]:
            return found
        # LLVM makes two vectors of each; the instructions for bytes have one width
        return replace(found, lanes=16, registers=32, dot="")

    cpu.vector_machine = vector_machine


def main(machine: str, *options: str) -> int:
    """Run the tests as that machine; the exit code is pytest's."""
    is_short = options[:1] == ("--changed",)
    options = options[is_short:]
    features = {*Path("/proc/cpuinfo").read_text().split()}
    if "avx2" not in features:
        print(f"{machine}: skipped, this machine has no AVX2")
        return 0
    own = WIDE if "avx512f" in features else None if "avx_vnni" in features else AVX2
    if machine == own:
        print(f"{machine}: skipped, this machine is of that kind")
        return 0
    root = Path(__file__).resolve().parents[1]
    sys.path.insert(0, str(root))
    from changed import differing, files_for

    from benchmarks import only_avx2
    from benchmarks.engines import REFERENCE

    environment = {**os.environ, VARIABLE: machine, **only_avx2.environment(REFERENCE)}
    # faulthandler would take the signal by which the copy asks
    command = [sys.executable, "-m", "pytest", "-p", "no:faulthandler", *options]
    files = [f"tests/{name}" for name in TESTS + (COMPARED if machine == AVX2 else ())]
    if is_short:
        picked = files_for([path for path in differing() if path.startswith(ROOMS)])
        files = [name for name in files if name.partition("::")[0] in picked]
        if not files:
            print(f"{machine}: skipped, no kernel and no pass differs from main")
            return 0
    print(f"as a machine of the kind {machine}:", flush=True)
    return subprocess.run([*command, *files], env=environment, cwd=root, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
