"""The code of an engine: which provider of ONNX Runtime runs which models.

    Engine("QNNExecutionProvider", ..) + one ONNX model a region
        --the provider's compiler, where it has one-->  the executor's module

The executor gives it to `tvm_stretch_engine`, a program of this package that runs the models in a
process of its own (engines/native/runtime.h says how the file looks): a vendor's library that
crashes or hangs costs a run and not this process, which keeps its signal handlers and threads.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import onnx
import tvm
import tvm_ffi

from tvm_stretch.base.errors import InstallError, UnsupportedError
from tvm_stretch.base.files import writing
from tvm_stretch.make.code.kernel_cache import cache_of, digest, kernel_cache

PROGRAM = "tvm_stretch_engine"
_VERDICT = "verdict "
"""Begins the lines with the program's answers, among which libraries print theirs."""
_LONGEST_S = 600.0
"""Longest time that a vendor's compiler may take for a network."""


@dataclass(frozen=True)
class Engine:
    """A provider of ONNX Runtime on a device."""

    provider: str  # its name in ONNX Runtime
    device: str  # description for messages
    program: str = ""  # the path of `tvm_stretch_engine` on this machine
    package: str = ""  # the folder beside this package in which a Python package has its libraries
    library: str = ""  # the file of the provider; empty if ONNX Runtime itself has it
    # which of the provider's devices: ``cpu``, ``gpu``, ``npu``; empty: the first one
    hardware: str = ""
    files: tuple[tuple[str, str], ...] = ()  # options of the provider that name libraries
    options: tuple[tuple[str, str], ...] = ()  # other options of the provider
    # memory that the device maps too: its name, the option that offers it, the driver's library
    memory: tuple[str, str, str] | tuple[()] = ()
    threads: int = 1  # of ONNX Runtime's own kernels
    contexts: bool = False  # whether the provider compiles models ahead
    runs_here: bool = True  # whether it is an engine of this machine
    spin_us: int = 50  # how long executor and engine spin for each other before they sleep
    deadline_ms: int = 60_000  # an engine that takes longer for a region is given up

    @property
    def is_built_in(self) -> bool:
        """Whether ONNX Runtime has the provider; its own CPU provider takes all operators."""
        return not self.library

    def code(self, models: Sequence[bytes] = (), made_with: str = "") -> bytes:
        """What `tvm_stretch_engine` reads; for models compiled ahead, it says with what."""
        lines = ["tvm_stretch.engine 1", f"provider {self.provider}"]
        lines += [f"package {self.package}"] if self.package else []
        lines += [f"library {self.library}"] if self.library else []
        lines += [f"hardware {self.hardware}"] if self.hardware else []
        lines += [f"threads {self.threads}"]
        lines += [f"compiled {made_with}"] if made_with else []
        lines += [f"file {key} {value}" for key, value in self.files]
        lines += [f"option {key} {value}" for key, value in self.options]
        lines += [f"memory {' '.join(self.memory)}"] if self.memory else []
        for model in models:
            inputs, outputs = _ports(model)
            lines.append(f"model {len(model)} {inputs} {outputs}")
        return "\n".join([*lines, "end", ""]).encode() + b"".join(models)


def _ports(model: bytes) -> tuple[int, int]:
    """Numbers of a model's inputs and outputs."""
    graph = onnx.load_model_from_string(model).graph
    return len(graph.input), len(graph.output)


def engine_module(engine: Engine, models: Mapping[str, bytes]) -> tvm.runtime.Module:
    """The executor's module for kernels that are models, by their names.

    Raises:
        UnsupportedError: the provider refuses a model.
    """
    names = sorted(models)
    listed, made_with = [models[name] for name in names], ""
    if engine.contexts and listed:
        listed = [compiled(engine, model) for model in listed]
        made_with = f"{describe(engine)} ({_versions(listed[0])})"
    description = {
        "kernels": names,
        "emulator": [],
        "server": PROGRAM,
        "runs_here": engine.runs_here,
        "device": engine.device,
        "spin_us": engine.spin_us,
        "deadline_ms": engine.deadline_ms,
    }
    create = tvm_ffi.get_global_func("tvm_stretch.create_dsp_code")
    return cast(tvm.runtime.Module, create(json.dumps(description), engine.code(listed, made_with)))


def _versions(model: bytes) -> str:
    """What a provider says of a model that it compiled: versions of its libraries and of the chip.

    A context of ``v2:6:2.51.0:5.51.0:73:0:0:0`` was made by version 2.51.0 of QNN for HTP v73.
    """
    properties = onnx.load_model_from_string(model).metadata_props
    tags = [entry.value for entry in properties if entry.key.startswith("ep_compatibility_info.")]
    return " ".join(" ".join(tags).split()) or "no version of its libraries"


def compiled(engine: Engine, model: bytes) -> bytes:
    """A model as the provider compiled it: an ONNX file with the provider's own code in it."""
    key = digest(b"engine context", describe(engine).encode(), engine.code([model]))
    cached = kernel_cache().find(key)
    if cached is not None:
        return cached
    with tempfile.TemporaryDirectory() as folder:
        reason = _ask(engine, "contexts", engine.code([model]), f"{folder}/context").reason
        written = Path(folder) / "context0.onnx"
        if reason or not written.is_file():
            raise UnsupportedError(
                f"expected operators that {engine.device} takes, got a region that it refuses: "
                f"{reason or 'it wrote no context'}; place its operators elsewhere"
            )
        code = written.read_bytes()
    kernel_cache().store(key, code)
    return code


@functools.lru_cache(maxsize=64)
def describe(engine: Engine) -> str:
    """The versions of ONNX Runtime and of the provider."""
    answer = _ask(engine, "describe", engine.code())
    if answer.reason:
        raise InstallError(answer.reason)
    return answer.printed.strip()


def why_refused(engine: Engine, models: Sequence[bytes]) -> list[str]:
    """Why the provider refuses each of the models; empty where it takes all of a model.

    It is asked once for each version, about all models together because its libraries take longest
    to start, and its answers are kept in the user's cache. A provider that was too slow, or was
    killed, gave no answer about one model: the next compile asks again.
    """
    kept = cache_of("engines")
    keys = [_verdict_key(engine, model) for model in models]
    reasons = {key: _REFUSED[key] for key in keys if key in _REFUSED}
    for key in keys:
        if key in reasons:
            continue
        if (cached := kept.find(key)) is not None:
            reasons[key] = cached[1:].decode()
    left = [pair for pair in dict(zip(keys, models, strict=True)).items() if pair[0] not in reasons]
    while left:
        answer = _ask(engine, "check", engine.code([model for _, model in left]))
        verdicts = [line for line in answer.printed.splitlines() if line.startswith(_VERDICT)]
        for (key, _), line in zip(left, verdicts, strict=False):
            reason = line.removeprefix(_VERDICT)
            reasons[key] = "" if reason == "takes" else reason
            kept.store(key, b"=" + reasons[key].encode())
        left = left[len(verdicts) :]
        if left:  # it ended at this model
            reasons[left.pop(0)[0]] = answer.reason or "it gave no answer"
    return [reasons[key] for key in keys]


def why_region_refused(engine: Engine, model: bytes) -> str:
    """Why the provider refuses a whole region; empty if it takes it."""
    if engine.is_built_in:
        return ""
    if not engine.contexts:
        return why_refused(engine, [model])[0]
    try:
        compiled(engine, model)
    except UnsupportedError as error:
        return str(error)
    return ""


def refuse(engine: Engine, models: Sequence[bytes], reason: str) -> None:
    """Answer `why_refused` with a reason for the rest of this process."""
    for model in models:
        _REFUSED[_verdict_key(engine, model)] = reason


_REFUSED: dict[bytes, str] = {}


def _verdict_key(engine: Engine, model: bytes) -> bytes:
    return digest(b"engine verdict", describe(engine).encode(), engine.code([model]))


@dataclass(frozen=True)
class _Answer:
    """What the program prints, and why it failed; an empty reason if it did not."""

    printed: str
    reason: str = ""


def _ask(engine: Engine, word: str, code: bytes, *more: str) -> _Answer:
    with (
        writing("the code of an engine", UnsupportedError),
        tempfile.TemporaryDirectory() as folder,
    ):
        path = Path(folder) / "code"
        path.write_bytes(code)
        command = [engine.program, word, str(path), *more]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_LONGEST_S,
                check=False,
                cwd=folder,
                env=dict(os.environ),
            )
        except subprocess.TimeoutExpired as late:
            printed = late.stdout.decode(errors="replace") if late.stdout else ""
            return _Answer(printed, f"no answer within {_LONGEST_S:.0f} s")
    if done.returncode == 0:
        return _Answer(done.stdout)
    errors = done.stderr.strip().splitlines()
    if done.returncode < 0:
        last = errors[-1] if errors else ""
        return _Answer(done.stdout, f"it was killed by signal {-done.returncode}: {last}")
    reason = errors[-1] if errors else f"it ended with code {done.returncode}"
    return _Answer(done.stdout, reason)
