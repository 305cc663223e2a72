"""Type checkers of users see types: the package says that it is typed, and `Any` stands nowhere."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tvm_stretch as ts

ROOT = Path(__file__).parents[2]

DYNAMIC = {
    "ts.Device.call": "a function of the device returns whatever it returns",
    "ts.results.Stretching.compile_untrained": "options of `compile` pass through",
    "ts.training.TrainableNetwork.forward": "torch decides",
    "ts.training.TrainableNetwork.compute": "torch decides",
    "ts.training.TrainableNetwork.bound": "torch decides",
}
"""What has no better type, and why. Answers of models are `Answer` (`run/values.py`)."""
PROGRAM = """
from pathlib import Path
import numpy as np
import torch
import tvm_stretch as ts

model = ts.compile("net.onnx", targets=["llvm", {"kind": "opencl", "device": "adreno"}])
x = np.ones((1, 3), "float32")
best: np.ndarray = model(x).argmax(axis=1)
tensor: torch.Tensor = torch.softmax(model(torch.ones(1, 3)), dim=1)
boxes, scores = model(x)
kept = boxes[np.asarray(model(input=x).scores) > 0.5]
tokens: list[int] = model.run_steps(4, stop=[2]).next_token.ravel().tolist()
for step in model.steps(4):
    print(step.next_token)
future = model.run_async(x)
print(future.result().shape, model.benchmark(repeat=3), model.plan.explain())
for port in (*model.inputs, *model.outputs):
    print(port.name, port.shape, port.dtype)
model.export(Path("net.so"))
images: list[np.ndarray] = [x]
pinned = ts.compile(ts.quantize("net.onnx", images), plan={"version": 1}, cpu_threads=2)
batches = ts.training.Batches(torch.ones(4, 3), torch.ones(4, dtype=torch.int64), 2)
losses: list[float] = ts.training.fit(torch.nn.Linear(3, 2), batches, ts.training.Training())
phone: ts.Device = ts.connect("192.0.2.7:9190", "pixel-8")
print(phone.load(model)(x).sum(), ts.Plan.read("plan.json").regions[0].processor)
# what is wrong is found; the checker complains of a comment that ignores nothing
count: int = model(x)  # type: ignore[assignment]
ts.compile("net.onnx", cpu_threads="two")  # type: ignore[arg-type]
model.benchmark(repeats=3)  # type: ignore[call-arg]
"""
"""What a user may write, with types as strict as they get."""


def functions(name: str, value: object) -> Iterator[tuple[str, object]]:
    """The functions behind a public name: itself, or the public methods of a class."""
    if inspect.ismodule(value):
        for own in getattr(value, "__all__", vars(value)):
            if not own.startswith("_"):
                yield from functions(f"{name}.{own}", getattr(value, own))
    elif inspect.isclass(value):
        for own, member in inspect.getmembers(value):
            if own in ("__init__", "__call__") or not own.startswith("_"):
                found = member.fget if isinstance(member, property) else member
                yield f"{name}.{own}", inspect.unwrap(found) if callable(found) else None
    elif callable(value):
        yield name, inspect.unwrap(value)


def dynamic() -> set[str]:
    """Public functions of ours whose signature says `Any`."""
    found = set()
    for name in ts.__all__:
        for where, function in functions(f"ts.{name}", getattr(ts, name)):
            annotations = getattr(function, "__annotations__", {}).values()
            ours = str(getattr(function, "__module__", "")).startswith("tvm_stretch")
            if ours and any(re.search(r"\bAny\b", str(text)) for text in annotations):
                found.add(where)
    return found


def test_no_public_signature_says_any() -> None:
    assert dynamic() == set(DYNAMIC)


def test_no_public_signature_has_another_name_for_any() -> None:
    """An alias of `Any` would hide it; arrays of any kind of numbers are arrays."""
    sources = [
        path
        for room in ("tvm_stretch", "passes", "targets")
        for path in ROOT.glob(f"{room}/**/*.py")
    ]
    alias = re.compile(r"^([A-Z]\w+)(?:: TypeAlias)? = (.*\bAny\b.*)$", re.MULTILINE)
    pairs = {pair for path in sources for pair in alias.findall(path.read_text(encoding="utf-8"))}
    hidden = {name for name, meaning in pairs if not re.search("ndarray|NDArray|TypeVar", meaning)}
    said = " ".join(
        str(text)
        for name in ts.__all__
        for _, function in functions(name, getattr(ts, name))
        for text in getattr(function, "__annotations__", {}).values()
    )
    assert "Answer" in said and len(hidden) > 3
    assert not hidden & set(re.findall(r"\w+", said))


@pytest.mark.full
def test_a_strict_program_of_a_user(tmp_path: Path) -> None:
    """As the wheel installs it, with passes/ and targets/ inside."""
    pytest.importorskip("mypy")
    package = shutil.copytree(ROOT / "tvm_stretch", tmp_path / "site/tvm_stretch")
    for room in ("passes", "targets"):
        shutil.copytree(ROOT / room, Path(package, room))
    (tmp_path / "program.py").write_text(PROGRAM)
    words = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "program.py"]
    environment = {**os.environ, "MYPYPATH": str(tmp_path / "site")}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_says_that_it_is_typed() -> None:
    assert Path(ts.__file__).with_name("py.typed").is_file()
