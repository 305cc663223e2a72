"""What a release needs: wheels that work in a bare environment, are the same twice, and pages.

make release-check
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
SMOKE = """
import numpy as np, onnx, sys
import tvm_stretch as ts
from onnx import TensorProto, helper
x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4]) for n in "xy")
graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "net", [x], [y])
net = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
model = ts.compile(net, ["llvm"])
value = np.array([[-1, 0, 1, 2]], "float32")
assert (model(value) == np.maximum(value, 0)).all()
model.export(sys.argv[1])
assert (ts.load(sys.argv[1])(value) == np.maximum(value, 0)).all()
"""
LINKED = {
    "libtvm_ffi.so": "Apache-2.0, the package apache-tvm-ffi",
    "libstdc++.so.6": "GPL-3.0 with the runtime library exception, of the system",
    "libgcc_s.so.1": "GPL-3.0 with the runtime library exception, of the system",
    "libc.so.6": "LGPL-2.1, of the system",
    "libm.so.6": "LGPL-2.1, of the system",
    "libdl.so.2": "LGPL-2.1, of the system",
    "libpthread.so.0": "LGPL-2.1, of the system",
    "libtvm_stretch_runtime.so": "ours",
}
"""What our libraries may be linked with."""


def run(*command: object, **options: object) -> str:
    done = subprocess.run([*map(str, command)], text=True, stdout=subprocess.PIPE, **options)
    if done.returncode:
        sys.exit(f"expected success of {' '.join(map(str, command))[:200]}, got {done.returncode}")
    return done.stdout


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def wheel_in(folder: Path) -> Path:
    (wheel,) = folder.glob("tvm_stretch-*.whl")
    return wheel


def check_reproducible() -> None:
    """The commit's time is the time of all files, so the same commit gives the same bytes."""
    first = digest(wheel_in(ROOT / "dist"))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "first.whl")
        shutil.copy(wheel_in(ROOT / "dist"), copy)
        run("make", "wheel", cwd=ROOT)
        second = digest(wheel_in(ROOT / "dist"))
        if first != second:
            differing = sorted(
                name
                for name in zipfile.ZipFile(copy).namelist()
                if zipfile.ZipFile(copy).read(name)
                != zipfile.ZipFile(wheel_in(ROOT / "dist")).read(name)
            )
            sys.exit(f"expected the same wheel twice, got others: {differing[:9] or 'metadata'}")


def check_linked() -> None:
    """No library is linked whose licence was not looked at."""
    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(wheel_in(ROOT / "dist")).extractall(folder)
        for library in sorted(Path(folder).rglob("*.so")):
            for line in run("readelf", "-d", library).splitlines():
                name = line.split("[")[-1].rstrip("]") if "(NEEDED)" in line else None
                if name and name not in LINKED and not name.startswith("ld-linux"):
                    sys.exit(f"expected known licences of what {library.name} needs, got {name}")


def check_bare(version: str) -> None:
    """Compile, run, export and load, in an environment with nothing else."""
    python = shutil.which(f"python{version}")
    # A version manager has programs of all names, which fail for versions that are not in use.
    if python is None or subprocess.run([python, "--version"], capture_output=True).returncode:
        print(f"python{version}: not there, skipped")
        return
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL"))}
    with tempfile.TemporaryDirectory() as folder:
        run(python, "-m", "venv", f"{folder}/venv")
        bare = f"{folder}/venv/bin/python"
        run(bare, "-m", "pip", "install", "--quiet", wheel_in(ROOT / "dist"), env=environment)
        run(bare, "-c", SMOKE, f"{folder}/model.so", cwd=folder, env=environment)
        said = run(f"{folder}/venv/bin/tvm-stretch", "--version", cwd=folder, env=environment)
        shutil.copy(f"{folder}/model.so", ROOT / "build/relu.so")
        bench = Path(run(f"{folder}/venv/bin/tvm-stretch", "where", env=environment).strip())
        run(bench / "bin/tvm_stretch_bench", f"{folder}/model.so", "--runs", 2)
    print(f"python{version}: {said.strip()} works")


def check_pipx() -> None:
    """`pipx run` from the wheel, as docs/install.md says."""
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-m", "venv", f"{folder}/venv")
        bare = f"{folder}/venv/bin/python"
        run(bare, "-m", "pip", "install", "--quiet", "pipx")
        own = {**os.environ, "PIPX_HOME": f"{folder}/pipx", "PIPX_BIN_DIR": f"{folder}/bin"}
        words = ["run", "--spec", wheel_in(ROOT / "dist"), "tvm-stretch", "doctor"]
        said = run(bare, "-m", "pipx", *words, env=own, cwd=folder)
    print(f"pipx run: the doctor says {len(said.splitlines())} lines")


RUN = """
import numpy as np, sys
import tvm_stretch_run as run
value = np.array([[-1, 0, 1, 2]], "float32")
assert (run.load(sys.argv[1])(value) == np.maximum(value, 0)).all()
"""


def check_run_only(artifact: str) -> None:
    """The wheel without a compiler runs an artifact, with NumPy alone beside it."""
    run("make", "run-wheel", cwd=ROOT)
    (wheel,) = (ROOT / "dist").glob(f"tvm_stretch_run-*_{platform.machine()}.whl")
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-m", "venv", f"{folder}/venv")
        bare = f"{folder}/venv/bin/python"
        run(bare, "-m", "pip", "install", "--quiet", wheel)
        run(bare, "-c", RUN, artifact, cwd=folder)
        names = run(bare, "-m", "pip", "list", "--format=freeze").split()
    installed = sorted(name.split("==")[0] for name in names)
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, works beside {installed}")


def main() -> None:
    made = run("git", "log", "-1", "--format=%ct", cwd=ROOT).strip()
    os.environ.setdefault("SOURCE_DATE_EPOCH", made)
    run("make", "wheel", cwd=ROOT)
    check_linked()
    print("linked libraries: known")
    for version in PYTHONS:
        check_bare(version)
    check_pipx()
    check_run_only(str(ROOT / "build/relu.so"))
    check_reproducible()
    print("the wheel: the same twice")
    run("make", "docs", "RUN=0", cwd=ROOT)
    print("pages: no warning")


if __name__ == "__main__":
    main()
