"""Profiles of devices as files that people can write.

    format = "tvm_stretch.profile"
    version = 1
    device = "snapdragon-855"
    source = "where the numbers come from"
    together = 1.0                          # how much longer kernels take while others work

    [processors.cpu]                        # named as in plans: cpu, opencl, hexagon, ..
    target = { kind = "llvm", mtriple = "aarch64-linux-gnu", mcpu = "cortex-a76" }
    threads = 4
    precision = "int8"                      # or float16, float32: what its kernels compute in
    kernel_us = 19.0                        # overhead of a kernel
    group_us = 48.0                         # of each small convolution of a grouped one
    activation_bytes_per_ns = 10.0
    weight_bytes_per_ns = 8.0
    refuses = { "nn.softmax" = "the DSP has no exp" }

    [processors.cpu.multiply_adds_per_ns]
    image = 80.0                            # of up to 4 channels: see Work.families
    dense = 210.0
    pointwise = 220.0
    grouped = 250.0
    depthwise = 27.0

    [[transfers]]                           # time for which the receiver is busy before it reads
    from = "cpu"
    to = "opencl"
    us = 650.0
    bytes_per_ns = 6.0                      # in the wider precision of the two

There is a transfer from the CPU to each other processor and one back; two other processors without
their own exchange data through the CPU. Only `threads`, `refuses`, `together`, and the `target` of
processors other than the CPU may be left out: this version plans for a processor without a target,
but makes no kernels for it.
"""

from __future__ import annotations

import difflib
import importlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from tvm.ir import Op

from tvm_stretch.cost.profile import BYTES, ProcessorProfile, Profile, Transfer
from tvm_stretch.errors import CostModelError, InstallError
from tvm_stretch.files import as_path, is_finite, read_text, write_whole, writing
from tvm_stretch.targets.kernels.features import Work

_HEAD = {"format": "tvm_stretch.profile", "version": 1}
_LEAST = 1e-6  # of divisors
_LARGEST = 1e9  # nanoseconds, factors or bytes of them; sums of such numbers stay finite
_MOST = 1024  # cores
_RELAX = "relax."


def profiles() -> list[str]:
    """Names of the devices whose profiles come with tvm_stretch."""
    return sorted(path.stem for path in _folder().glob("*.toml"))


def load_profile(device: str | os.PathLike[str]) -> Profile:
    """The profile of a device.

    Args:
        device: one of `profiles()`, or the path of a file.

    Raises:
        CostModelError: there is no such profile, or the file contains none.
        InputError: it is neither a name nor a path.
        InstallError: this Python has no TOML reader.
    """
    path = as_path(device, "a profile, or the name of a known device, for device")
    if path.suffix != ".toml":
        if str(device) not in profiles():
            raise CostModelError(
                f"expected a known device ({', '.join(profiles())}) or the path of a profile "
                f"(.toml) for device, got {str(device)!r}; calibrate a profile of your own"
            )
        path = _folder() / f"{device}.toml"
    text = read_text(path, f"a readable file for the profile {path}", CostModelError)
    return parse_profile(text, f"the profile {path.name}")


def parse_profile(text: str, where: str = "the profile") -> Profile:
    """The profile in a text."""
    toml = _toml()
    try:
        top = _Table(toml.loads(text), where)
    except (toml.TOMLDecodeError, RecursionError) as error:
        raise CostModelError(f"expected TOML for {where}, got {error}; correct the file") from error
    for name, expected in _HEAD.items():
        found = top.left.pop(name, None)
        if found != expected:
            raise CostModelError(
                f"expected {expected!r} for {name} of {where}, got {found!r}; write it for this "
                "version of tvm_stretch"
            )
    profile = Profile(
        device=top.take("device", _TEXT),
        source=top.take("source", _TEXT),
        processors=MappingProxyType(
            {name: _processor(name, table) for name, table in top.tables("processors").items()}
        ),
        transfers=tuple(_transfer(table) for table in top.list_of_tables("transfers")),
        together=top.take("together", _AT_LEAST_ONE, 1.0),
    )
    top.finish()
    _check_pairs(profile, where)
    return profile


def _processor(name: str, table: _Table) -> ProcessorProfile:
    speeds = table.table("multiply_adds_per_ns")
    target: dict[str, Any] = table.take("target", _TARGET, {})
    refuses: dict[str, str] = table.take("refuses", _REASONS, {})
    _check_operators(refuses, table.where)
    found = ProcessorProfile(
        name=name,
        precision=table.take("precision", _PRECISION),
        multiply_adds_per_ns=MappingProxyType(
            {f: speeds.take(f, _POSITIVE) for f in Work.families}
        ),
        activation_bytes_per_ns=table.take("activation_bytes_per_ns", _POSITIVE),
        weight_bytes_per_ns=table.take("weight_bytes_per_ns", _POSITIVE),
        kernel_us=table.take("kernel_us", _NOT_NEGATIVE),
        group_us=table.take("group_us", _NOT_NEGATIVE),
        threads=table.take("threads", _COUNT, 1),
        target=target or None,
        refuses=MappingProxyType(refuses),
    )
    speeds.finish()
    table.finish()
    return found


def _check_operators(names: Iterable[str], where: str) -> None:
    """Check that Relax has operators of these names, given without ``relax.``."""
    known = {
        str(name)[len(_RELAX) :] for name in Op.list_op_names() if str(name).startswith(_RELAX)
    }
    for name in names:
        if name not in known:
            alike = difflib.get_close_matches(name, sorted(known), 3)
            raise CostModelError(
                f"expected names of Relax's operators for refuses of {where}, got {name!r}; write "
                f"{' or '.join(alike) or 'one such as nn.softmax'}"
            )


def _transfer(table: _Table) -> Transfer:
    found = Transfer(
        sender=table.take("from", _TEXT),
        receiver=table.take("to", _TEXT),
        us=table.take("us", _NOT_NEGATIVE),
        bytes_per_ns=table.take("bytes_per_ns", _POSITIVE),
    )
    table.finish()
    return found


def _check_pairs(profile: Profile, where: str) -> None:
    """Check that there is a CPU, pairs are unique, and each processor exchanges with the CPU."""
    names = ", ".join(profile.processors) or "none"
    if "cpu" not in profile.processors:
        raise CostModelError(
            f"expected a processor cpu in {where}, got {names}; the CPU starts all others: add "
            "[processors.cpu]"
        )
    if profile.processors["cpu"].target is None:
        raise CostModelError(
            f"expected target in processors of {where} for the cpu, got none; add it, such as "
            '{ kind = "llvm", mtriple = "aarch64-linux-gnu", mcpu = "cortex-a76" }'
        )
    pairs = [(transfer.sender, transfer.receiver) for transfer in profile.transfers]
    for pair in pairs:
        unknown = [name for name in pair if name not in profile.processors]
        if unknown or pairs.count(pair) > 1 or pair[0] == pair[1]:
            fault = f"{unknown[0]!r}" if unknown else f"from {pair[0]} to {pair[1]}"
            fault += " twice" if pairs.count(pair) > 1 else ""
            raise CostModelError(
                f"expected different ones of {names} for from and to of transfers in {where}, each "
                f"pair once, got {fault}; correct it"
            )
    for name in profile.processors:
        for pair in (("cpu", name), (name, "cpu")):
            if name != "cpu" and pair not in pairs:
                raise CostModelError(
                    f"expected a transfer from {pair[0]} to {pair[1]} in {where}, got none; add "
                    "it to [[transfers]]"
                )


class _Check(NamedTuple):
    """The valid content of a field in words, and a function that returns None for anything else."""

    words: str
    take: Callable[[Any], Any]


class _Table:
    """A table of the file, whose fields are taken one by one until none is left."""

    def __init__(self, data: Any, where: str) -> None:
        if not isinstance(data, dict):
            raise CostModelError(f"expected a table for {where}, got {data!r}; correct it")
        self.left, self.where = dict(data), where

    def take(self, name: str, check: _Check, default: object = None) -> Any:
        """A field, which must exist unless there is a default."""
        if name not in self.left and default is not None:
            return default
        value = self._pop(name)
        found = check.take(value)
        if found is None:
            raise CostModelError(
                f"expected {check.words} for {name} of {self.where}, got {value!r}; correct it"
            )
        return found

    def table(self, name: str) -> _Table:
        """A field that is a table."""
        return _Table(self._pop(name), f"{name} of {self.where}")

    def tables(self, name: str) -> dict[str, _Table]:
        """A field that is a table of tables."""
        inner = self.table(name)
        return {key: _Table(inner._pop(key), f"{key} in {self.where}") for key in list(inner.left)}

    def list_of_tables(self, name: str) -> list[_Table]:
        """A field that is a list of tables; it may be absent."""
        items = self.left.pop(name, [])
        if not isinstance(items, list):
            raise CostModelError(
                f"expected tables [[{name}]] in {self.where}, got {items!r}; correct it"
            )
        return [_Table(item, f"{name} {i} of {self.where}") for i, item in enumerate(items, 1)]

    def finish(self) -> None:
        """Refuse fields that were not taken."""
        if self.left:
            raise CostModelError(
                f"expected no other fields in {self.where}, got {sorted(self.left)[0]!r} too; "
                "correct its name, or remove it"
            )

    def _pop(self, name: str) -> Any:
        if name not in self.left:
            raise CostModelError(
                f"expected {name} in {self.where}, got none; add it, as in the profiles that come "
                f"with tvm_stretch ({', '.join(profiles())})"
            )
        return self.left.pop(name)


def _number(value: Any, least: float) -> float | None:
    return float(value) if is_finite(value) and least <= value <= _LARGEST else None


def _is_data(target: dict[str, Any]) -> bool:
    """Whether it only describes a processor: options of LLVM may name files to write."""
    hosts = [value for value in target.values() if isinstance(value, dict)]
    return not _OPTIONS & set(target) and all(map(_is_data, hosts))


_OPTIONS = {"cl-opt", "llvm-options", "jit", "libs"}


def _reasons(value: Any) -> dict[str, str] | None:
    is_one = isinstance(value, dict) and all(isinstance(text, str) for text in value.values())
    return value if is_one else None


_POSITIVE = _Check("a positive number", lambda value: _number(value, _LEAST))
_NOT_NEGATIVE = _Check("a number that is not negative", lambda value: _number(value, 0.0))
_AT_LEAST_ONE = _Check("a number of at least 1", lambda value: _number(value, 1.0))
_COUNT = _Check(
    "a whole number of at least 1", lambda v: v if type(v) is int and 1 <= v <= _MOST else None
)
_TEXT = _Check("a text", lambda value: value if isinstance(value, str) and value else None)
_PRECISION = _Check(
    f"one of {', '.join(BYTES)}", lambda v: v if isinstance(v, str) and v in BYTES else None
)
_TARGET = _Check(
    "a TVM target as a table, without options for LLVM,",
    lambda v: v if isinstance(v, dict) and isinstance(v.get("kind"), str) and _is_data(v) else None,
)
_REASONS = _Check("a table of operators with reasons", _reasons)


# --- writing --------------------------------------------------------------------------------------


def write_profile(profile: Profile, path: str | os.PathLike[str]) -> None:
    """Write a file that `load_profile` reads; it appears complete or not at all."""
    with writing("the profile", CostModelError):
        write_whole(as_path(path, "the profile"), profile_text(profile))


def profile_text(profile: Profile) -> str:
    """The text of the profile's file."""
    lines = [f"{name} = {json.dumps(value)}" for name, value in _HEAD.items()]
    lines += [f"device = {_quoted(profile.device)}", f"source = {_quoted(profile.source)}"]
    lines += [f"together = {profile.together:.4g}"]
    for name, processor in profile.processors.items():
        lines += ["", f"[processors.{_key(name)}]"]
        if processor.target is not None:
            lines.append(f"target = {_inline(processor.target)}")
        lines += [f"threads = {processor.threads}", f"precision = {_quoted(processor.precision)}"]
        numbers = ("kernel_us", "group_us", "activation_bytes_per_ns", "weight_bytes_per_ns")
        lines += [f"{field} = {getattr(processor, field):.4g}" for field in numbers]
        if processor.refuses:
            lines.append(f"refuses = {_inline(processor.refuses)}")
        lines.append(f"[processors.{_key(name)}.multiply_adds_per_ns]")
        speeds = processor.multiply_adds_per_ns
        lines += [f"{family} = {speeds[family]:.4g}" for family in Work.families]
    for transfer in profile.transfers:
        lines += ["", "[[transfers]]", f"from = {_quoted(transfer.sender)}"]
        lines += [f"to = {_quoted(transfer.receiver)}"]
        lines += [f"us = {transfer.us:.4g}", f"bytes_per_ns = {transfer.bytes_per_ns:.4g}"]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _key(name: str) -> str:
    """A key, quoted if necessary."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)


def _inline(value: Any) -> str:
    """A value on one line; TOML's tables differ from JSON's."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_key(key)} = {_inline(item)}' for key, item in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_inline, value))}]"
    return _quoted(value) if isinstance(value, str) else str(value).lower()


def _folder() -> Path:
    return Path(str(resources.files("tvm_stretch.targets"))) / "profiles"


def _toml() -> Any:
    for name in ("tomllib", "tomli"):  # Python has the first since 3.11
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise InstallError("expected a reader of TOML, got Python 3.10 without one; pip install tomli")
