"""Profiles of devices as files that people can write.

    format = "tvm_stretch.profile"
    version = 1
    device = "snapdragon-855"
    source = "where the numbers come from"
    together = 1.0                          # how much longer kernels take while others work
    idle_watts = 0.6                        # of the device while no processor is busy
    copied_pj_per_byte = 40.0               # of memory, for each byte that is handed over
    memory_bytes_per_ns = 34.1              # that all processors together can read and write

    [processors.cpu]                        # named as in plans: cpu, opencl, hexagon, ..
    target = { kind = "llvm", mtriple = "aarch64-linux-android", mcpu = "cortex-a76" }
    threads = 4
    mhz = [2419, 1805, 1286, 710]           # clocks; the numbers here hold at the first
    watts = 5.2                             # beyond idle_watts, while it is busy
    precision = "int8"                      # or float16, float32: what its kernels compute in
    float32_slowdown = 8.0                  # time of a multiply-add in float32 by that in it
    kernel_us = 19.0                        # overhead of a kernel
    group_us = 48.0                         # of each small convolution of a grouped one
    region_us = 0.0                         # of each region, where a runtime runs it as a whole
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
their own exchange data through the CPU. ``snapdragon-855@cpu=1286`` is a device at another clock.
Only `threads`, `mhz`, `refuses`, `region_us`, `together`, `memory_bytes_per_ns`, what says powers,
`float32_slowdown`, and the `target` of processors other than the CPU may be left out: this version
plans for a processor without a target, but makes no kernels for it.
"""

from __future__ import annotations

import difflib
import importlib
import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from tvm.ir import Op

from tvm_stretch.base.errors import CostModelError, InstallError
from tvm_stretch.base.files import as_path, read_text, write_whole, writing
from tvm_stretch.base.formats import Format
from tvm_stretch.plan.cost.profile import ProcessorProfile, Profile
from tvm_stretch.targets.kernels.features import Work

FORMAT = Format("tvm_stretch.profile", 1, "the profile", CostModelError, "correct the file")
_MOST = 1e9  # nanoseconds, factors or bytes of them; sums of such numbers stay finite
_ANY, _DIVISOR = (-math.inf, math.inf), (1e-6, _MOST)
_RANGES = {
    **dict.fromkeys(("activation_bytes_per_ns", "weight_bytes_per_ns"), _DIVISOR),
    **{"multiply_adds_per_ns": _DIVISOR, "bytes_per_ns": _DIVISOR, "together": (1.0, _MOST)},
    **{
        "float32_slowdown": _DIVISOR,
        "crowding": (1.0, 1.0),
        "mhz": (1.0, _MOST),
        "threads": (1, 1024),
        "watts": (0.0, 1e5),
        "target": _ANY,
    },
}
"""The least and the largest values of fields that may not be from 0 to `_MOST`."""

_OPTIONS = {"cl-opt", "llvm-options", "jit", "libs"}
_RELAX = "relax."
_NAMES = {"from": "sender", "to": "receiver"}  # of fields, where files have other ones


def profiles() -> list[str]:
    """Names of the devices whose profiles come with tvm_stretch."""
    return sorted(path.stem for path in _folder().glob("*.toml"))


def load_profile(device: str | os.PathLike[str]) -> Profile:
    """The profile of a device.

    Args:
        device: one of `profiles()`, or the path of a file; clocks of processors may follow,
            as in ``snapdragon-855@cpu=1286,opencl=427``.

    Raises:
        CostModelError: there is no such profile, or the file contains none.
        InputError: it is neither a name nor a path.
        InstallError: this Python has no TOML reader.
    """
    path = as_path(device, "a profile, or the name of a known device, for device")
    name, at, clocks = path.name.rpartition("@")
    if at and "=" in clocks:
        return load_profile(path.with_name(name)).clocked(_clocks(clocks, path.name))
    if path.suffix != ".toml":
        if str(device) not in profiles():
            raise CostModelError(
                f"expected a known device ({', '.join(profiles())}) or the path of a profile "
                f"(.toml) for device, got {str(device)!r}; calibrate a profile of your own"
            )
        path = _folder() / f"{device}.toml"
    text = read_text(path, f"a readable file for the profile {path}", CostModelError)
    return parse_profile(text, f"the profile {path.name}")


def _clocks(text: str, device: str) -> dict[str, float]:
    """MHz by processor."""
    clocks = {}
    for item in text.split(","):
        name, _, mhz = item.partition("=")
        if not name or not mhz.isdecimal() or name in clocks:
            raise CostModelError(
                f"expected clocks in MHz like cpu=1286,opencl=427 after @ of device {device!r}, "
                f"got {item!r}; correct it"
            )
        clocks[name] = float(mhz)
    return clocks


def parse_profile(text: str, where: str = FORMAT.what) -> Profile:
    """The profile in a text."""
    toml = _toml()
    try:
        data = FORMAT.body(toml.loads(text), where)
    except (toml.TOMLDecodeError, RecursionError) as error:
        raise CostModelError(f"expected TOML for {where}, got {error}; correct the file") from error
    processors, transfers = data.get("processors"), data.get("transfers", [])
    if isinstance(processors, dict):
        named = {name: _renamed(table, name=name) for name, table in processors.items()}
        data["processors"] = named
    if isinstance(transfers, list):
        data["transfers"] = [_renamed(table) for table in transfers]
    profile = FORMAT.build(Profile, data, where)
    for name, value in [
        (where, profile),
        *((f"{name} in {where}", one) for name, one in profile.processors.items()),
        *((f"transfers of {where}", one) for one in profile.transfers),
    ]:
        if isinstance(value, ProcessorProfile):
            _check_processor(value, name)
        FORMAT.within(value, name, 0.0, _MOST, **_RANGES)
    _check_pairs(profile, where)
    return profile


def _renamed(table: Any, **more: str) -> Any:
    """A table with names that Python allows for fields, and with more fields."""
    if not isinstance(table, dict):
        return table
    return {_NAMES.get(key, key): value for key, value in table.items()} | more


def _check_processor(profile: ProcessorProfile, where: str) -> None:
    """Check what the types of fields do not say."""
    if set(profile.multiply_adds_per_ns) != set(Work.families):
        raise CostModelError(
            f"expected {', '.join(Work.families)} for multiply_adds_per_ns of {where}, got "
            f"{', '.join(profile.multiply_adds_per_ns) or 'none'}; correct the file"
        )
    _check_operators(profile.refuses, where)
    target = profile.target
    if target is not None and not (isinstance(target.get("kind"), str) and _is_data(target)):
        raise CostModelError(
            f"expected a TVM target as a table, without options for LLVM, for target of {where}, "
            f"got {target!r}; correct it"
        )


def _check_operators(names: Iterable[str], where: str) -> None:
    """Check that Relax has operators of these names, given without ``relax.``."""
    operators = {
        str(name)[len(_RELAX) :] for name in Op.list_op_names() if str(name).startswith(_RELAX)
    }
    for name in names:
        if name not in operators:
            alike = difflib.get_close_matches(name, sorted(operators), 3)
            raise CostModelError(
                f"expected names of Relax's operators for refuses of {where}, got {name!r}; write "
                f"{' or '.join(alike) or 'one such as nn.softmax'}"
            )


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
            '{ kind = "llvm", mtriple = "aarch64-linux-android", mcpu = "cortex-a76" }'
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


def _is_data(target: Mapping[str, Any]) -> bool:
    """Whether it only describes a processor: options of LLVM may name files to write."""
    hosts = [value for value in target.values() if isinstance(value, dict)]
    return not _OPTIONS & set(target) and all(map(_is_data, hosts))


# --- writing --------------------------------------------------------------------------------------


def write_profile(profile: Profile, path: str | os.PathLike[str]) -> None:
    """Write a file that `load_profile` reads; it appears complete or not at all."""
    with writing("the profile", CostModelError):
        write_whole(as_path(path, "the profile"), profile_text(profile))


def profile_text(profile: Profile) -> str:
    """The text of the profile's file."""
    lines = [f"{name} = {json.dumps(value)}" for name, value in FORMAT.head.items()]
    lines += _table(profile, "processors", "transfers")
    for name, processor in profile.processors.items():
        lines += ["", f"[processors.{_key(name)}]"]
        lines += _table(processor, "name", "multiply_adds_per_ns", "crowding")
        lines.append(f"[processors.{_key(name)}.multiply_adds_per_ns]")
        speeds = processor.multiply_adds_per_ns
        lines += [f"{family} = {speeds[family]:.4g}" for family in Work.families]
    for transfer in profile.transfers:
        lines += ["", "[[transfers]]", *_table(transfer)]
    return "\n".join(lines) + "\n"


def _table(record: Any, *elsewhere: str) -> list[str]:
    """The fields of a dataclass but those that are written elsewhere, or that may be left out."""
    files = {name: key for key, name in _NAMES.items()}
    return [
        f"{files.get(name, name)} = {value:.4g}"
        if isinstance(value, float)
        else f"{files.get(name, name)} = {_inline(value)}"
        for name, value in vars(record).items()
        if name not in elsewhere and value != {} and (value or not hasattr(type(record), name))
    ]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _key(name: str) -> str:
    """A key, quoted if necessary."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)


def _inline(value: Any) -> str:
    """A value on one line; TOML's tables differ from JSON's."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_key(key)} = {_inline(item)}' for key, item in value.items())} }}"
    if isinstance(value, list | tuple):
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
