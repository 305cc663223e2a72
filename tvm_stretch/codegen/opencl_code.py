"""OpenCL C of the kernels, with what is needed to launch them.

    @T.prim_func                                {"sources": ["__kernel … scale_kernel …"],
    def scale(A, B):                             "kernels": {"scale": [{
        for i in T.thread_binding(16):     ->     "entry": "scale_kernel", "source": 0,
            B[i] = A[i] * 2                       "groups": [16, 1, 1], "group_size": [1, 1, 1],
                                                  "args": [["buffer", 0], ["offset", 0], …]}]}}

``work_groups.py`` makes launches of a kernel's loop nest; this file writes their text.

All kernels of a network are one program: drivers load that several times faster than many.

Every buffer arrives as memory and a first element, so that a tensor may start anywhere in the
executor's arena: devices only let buffers themselves start at multiples of up to 512 bytes.

Kernels for the host's own CPU have bells (``bells.py``): a first argument more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import IRModule
from tvm.target import Target

from tvm_stretch.errors import UnsupportedError

from .bells import BELL_ARGUMENT, BELL_PRELUDE, DOORBELL, doorbell_launch, with_bell
from .generate import generate
from .work_groups import PREFETCH, DeviceCall, device_calls

_STACK_BYTES = 2**16
"""What a kernel may keep in private memory; drivers for CPUs run it on an ordinary stack."""

_C_FUNCTIONS = (
    *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "erf", "exp10"),
    *("expm1", "fmod", "hypot", "log10", "log1p", "nextafter", "pow", "rint", "round", "sin"),
    *("sinh", "tan", "tanh", "trunc"),
)
"""TVM calls some of them by their names in C, for float32: ``acoshf``."""

_PRELUDE = f"""\
#if defined(__clang__) && (defined(__x86_64__) || defined(__aarch64__))
#define {PREFETCH}(p) __builtin_prefetch((const void*)(size_t)(p), 0, 2)
#else
#define {PREFETCH}(p)
#endif
{"".join(f"#define {name}f {name}" + chr(10) for name in _C_FUNCTIONS)}#define nearbyintf rint
"""


@dataclass(frozen=True)
class Launch:
    """One kernel in the driver's queue; see native/opencl for the kinds of arguments."""

    entry: str
    text: str
    groups: tuple[int, int, int]
    group_size: tuple[int, int, int]
    args: tuple[tuple[str, int], ...]

    def to_data(self) -> dict[str, Any]:
        """What stands in the JSON, with the text as the first source."""
        data = asdict(self)
        del data["text"]
        return {**data, "source": 0}


def compile_opencl(
    kernels: Mapping[str, tirx.PrimFunc],
    target: Target,
    *,
    on_cpu: bool,
    schedule: tvm.transform.Pass | None = None,
) -> str:
    """Generate the JSON of the module docstring for every function of ``kernels``.

    Args:
        kernels: PrimFuncs by name; what is not bound to work-items runs in one.
        target: an OpenCL target.
        schedule: gives the kernels their loop nests; None where they have them.
        on_cpu: the device is a host's CPU. Its kernels have bells, and 64-bit arithmetic for
            indices, which is slow on GPUs.
    """

    def code_of(function: tirx.PrimFunc) -> bytes:
        name = str(function.attrs["global_symbol"])
        found = _launches(name, function, target, on_cpu)
        return json.dumps([asdict(launch) for launch in found]).encode()

    codes = generate(kernels, schedule, target, code_of, options=f"on_cpu={on_cpu}")
    launches = {name: [Launch(**data) for data in json.loads(code)] for name, code in codes.items()}
    data = {name: [entry.to_data() for entry in found] for name, found in launches.items()}
    texts = [launch.text for listed in launches.values() for launch in listed]
    if on_cpu:
        data[DOORBELL] = [doorbell_launch()]
        texts = [BELL_PRELUDE, *texts]
    code = {"sources": [_PRELUDE + "".join(texts)], "kernels": data, "options": ""}
    return json.dumps(code, separators=(",", ":"))


def _launches(name: str, function: tirx.PrimFunc, target: Target, on_cpu: bool) -> list[Launch]:
    calls = device_calls(name, function, target, wide_indices=on_cpu)
    if not calls:
        raise UnsupportedError(f"expected work for kernel {name}, got none; remove the operator")
    found = [_launch(call, _source(call.function, target)) for call in calls]
    if not on_cpu:
        return found
    return [
        replace(launch, text=with_bell(launch.text), args=(BELL_ARGUMENT, *launch.args))
        for launch in found
    ]


def _source(device: IRModule, target: Target) -> str:
    t = tirx.transform
    lowered = tvm.transform.Sequential([t.LowerWarpMemory(), t.StmtSimplify(), t.LowerIntrin()])
    build = tvm.get_global_func("target.build.opencl")
    return str(build(lowered(device), target).inspect_source())


_SIGNATURE = re.compile(r"__kernel void (?P<entry>\w+)\((?P<params>[^)]*)\) \{\n")
_PARAM = re.compile(r"(?P<type>.*\*)\s*restrict (?P<name>\w+)$")
_PRIVATE = re.compile(r"^(?P<indent>\s*)__global (?P<type>\w+) (?P<name>\w+)\[(?P<count>\d+)\];$")


def _launch(call: DeviceCall, source: str) -> Launch:
    """The source with offsets for its parameters, and how to call it."""
    entry = call.entry
    signature = list(_SIGNATURE.finditer(source))[-1]
    params: list[str] = []
    starts: list[str] = []
    args: list[tuple[str, int]] = []
    for text, (kind, number) in zip(signature["params"].split(", "), call.memory, strict=True):
        match = _PARAM.match(text)
        if match is None:
            raise UnsupportedError(
                f"expected pointers as parameters of {entry}, got {text!r}; report this kernel"
            )
        name, pointer = match["name"], match["type"]
        args.append((kind, number))
        if kind == "scratch":
            params.append(f"{pointer} restrict {name}")
            continue
        args.append(("offset", number))
        params += [f"{pointer} restrict {name}_base", f"int {name}_first"]
        starts.append(f"  {pointer} restrict {name} = {name}_base + {name}_first;\n")
    body, scratch = _local_arrays(splat(source[signature.end() :]))
    for declaration, size in scratch:
        params.append(f"__global {declaration}")
        args.append(("scratch", size))
    group_size = _three(call.extents, "threadIdx.")
    attribute = f"__attribute__((reqd_work_group_size{group_size}))"
    head = f"__kernel {attribute} void {entry}({', '.join(params)}) {{\n{''.join(starts)}"
    before = source[: signature.start()].split(f"__kernel void {entry}(")[0]
    return Launch(
        entry=entry,
        text=before + head + body,
        groups=_three(call.extents, "blockIdx."),
        group_size=group_size,
        args=tuple(args),
    )


def _three(extents: dict[str, Any], prefix: str) -> tuple[int, int, int]:
    x, y, z = (int(extents.get(prefix + axis, 1)) for axis in "xyz")
    return x, y, z


def _local_arrays(body: str) -> tuple[str, list[tuple[str, int]]]:
    """Temporary arrays go to private memory or, if they are large, become scratch arguments."""
    lines, scratch, on_stack = [], [], 0
    for line in body.split("\n"):
        match = _PRIVATE.match(line)
        if match is None:
            lines.append(line)
            continue
        size = _type_bytes(match["type"]) * int(match["count"])
        if on_stack + size > _STACK_BYTES:
            scratch.append((f"{match['type']}* restrict {match['name']}", size))
            continue
        on_stack += size
        lines.append(f"{match['indent']}{match['type']} {match['name']}[{match['count']}];")
    return "\n".join(lines), scratch


_SCALAR_BYTES = {"char": 1, "uchar": 1, "short": 2, "ushort": 2, "half": 2, "int": 4, "uint": 4}
_SCALAR_BYTES |= {"float": 4, "long": 8, "ulong": 8, "double": 8}


def _type_bytes(name: str) -> int:
    scalar = name.rstrip("0123456789")
    lanes = int(name[len(scalar) :] or 1)
    return _SCALAR_BYTES[scalar] * (4 if lanes == 3 else lanes)


_VECTOR = re.compile(r"\((?P<type>[a-z]+)(?P<lanes>\d+)\)\(")


def splat(source: str) -> str:
    """Write vectors of one value as such.

    >>> splat("a = ((float4)(x[i], x[i], x[i], x[i]));")
    'a = ((float4)(x[i]));'
    """
    parts, start = [], 0
    while (match := _VECTOR.search(source, start)) is not None:
        fields, end = _split_arguments(source, match.end())
        fields = [splat(field) for field in fields]
        same = len(fields) == int(match["lanes"]) and len(set(fields)) == 1
        parts += [source[start : match.end()], fields[0] if same else ", ".join(fields), ")"]
        start = end
    return "".join([*parts, source[start:]])


def _split_arguments(source: str, start: int) -> tuple[list[str], int]:
    """The arguments of a call whose parenthesis opened before ``start``; where it ends."""
    fields, depth, begin = [], 0, start
    for at in range(start, len(source)):
        letter = source[at]
        if letter == "(":
            depth += 1
        elif letter == ")" and depth:
            depth -= 1
        elif letter in ",)" and not depth:
            fields.append(source[begin:at].strip())
            begin = at + 1
            if letter == ")":
                return fields, at + 1
    raise UnsupportedError(
        "expected OpenCL C as TVM 0.27 writes it for a kernel, got a call that does not end; "
        "install apache-tvm==0.27.*"
    )
