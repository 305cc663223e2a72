"""The description that a device gives of itself: cores, features, memory, accelerators.

found = Description.read(text, "pixel-8")        # text of `tvm_stretch.describe_machine` there
found.target()                                   # {"kind": "llvm", "mtriple": ..., "mcpu": ...}
found.big_cores                                  # the cores that share a kernel
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import tvm
from tvm.target import Target, codegen

from tvm_stretch.base.errors import DeviceError
from tvm_stretch.base.files import sealed
from tvm_stretch.base.formats import Format
from tvm_stretch.run.autoload import load_native_library
from tvm_stretch.targets.cpu.cpu import CHECKED_CPU_FEATURES, checked_features
from tvm_stretch.targets.cpu.little import WORTH_WAITING
from tvm_stretch.targets.hexagon.chips import Chip

_VERSION = 2
_MACHINES = ("aarch64", "x86_64")

FORMAT = Format(
    "tvm_stretch.device",
    2,
    "the description of a device",
    DeviceError,
    "delete the file and connect to the device again",
    is_sealed=True,
)

_ARM_CORES: Mapping[str, str] = {
    "0x41:0xd03": "cortex-a53",
    "0x41:0xd04": "cortex-a35",
    "0x41:0xd05": "cortex-a55",
    "0x41:0xd07": "cortex-a57",
    "0x41:0xd08": "cortex-a72",
    "0x41:0xd09": "cortex-a73",
    "0x41:0xd0a": "cortex-a75",
    "0x41:0xd0b": "cortex-a76",
    "0x41:0xd0c": "neoverse-n1",
    "0x41:0xd0d": "cortex-a77",
    "0x41:0xd40": "neoverse-v1",
    "0x41:0xd41": "cortex-a78",
    "0x41:0xd44": "cortex-x1",
    "0x41:0xd46": "cortex-a510",
    "0x41:0xd47": "cortex-a710",
    "0x41:0xd48": "cortex-x2",
    "0x41:0xd49": "neoverse-n2",
    "0x41:0xd4b": "cortex-a78c",
    "0x41:0xd4d": "cortex-a715",
    "0x41:0xd4e": "cortex-x3",
    "0x41:0xd80": "cortex-a520",
    "0x41:0xd81": "cortex-a720",
    "0x41:0xd82": "cortex-x4",
    "0x51:0x802": "cortex-a75",  # Qualcomm's Kryo are Arm's cores, named by Qualcomm
    "0x51:0x803": "cortex-a55",
    "0x51:0x804": "cortex-a76",
    "0x51:0x805": "cortex-a55",
}
"""LLVM's names of cores by implementer and part number of MIDR_EL1."""


@dataclass(frozen=True)
class Core:
    """One core; values that the system does not report are 0."""

    number: int  # its number in the system
    part: str  # implementer and part number of an Arm core
    mhz: int  # its highest clock
    capacity: int  # its capacity for the system's scheduler; the biggest cores have 1024
    l1: int  # bytes of the L1 data cache
    l2: int  # bytes of the L2 cache

    @property
    def size(self) -> int:
        """The measure by which cores are compared."""
        return self.capacity or self.mhz or 1

    @property
    def name(self) -> str:
        """LLVM's name, empty if it is unknown."""
        return _ARM_CORES.get(self.part, "")


@dataclass(frozen=True)
class Description:
    """A device: its cores and their features, its memory, and its other processors.

    Attributes:
        name: the key under which a tracker lends it.
        triple: the target triple of its system.
        cpu: the system's name of its CPU.
        features: features of its instruction set, by LLVM's names.
        cores: the cores that its server may use.
        memory: bytes of memory.
        free: bytes that were free when it described itself.
        opencl: properties of its OpenCL devices.
        why_no_opencl: why it has no OpenCL device.
        dsp: the properties of its Hexagon.
    """

    name: str
    triple: str
    cpu: str
    features: tuple[str, ...]
    cores: tuple[Core, ...]
    memory: int
    free: int
    opencl: tuple[dict[str, object], ...]
    why_no_opencl: str
    dsp: Chip

    @staticmethod
    def read(text: object, name: str) -> Description:
        """Parse the answer of a device."""
        where = f"what {name} says of itself"
        data = FORMAT.load(str(text), where)
        if data.pop("version", None) != _VERSION:
            raise DeviceError(
                f"expected version {_VERSION} for {where}, got another; install the same version "
                "of tvm_stretch there"
            )
        data["cpu"] = data.pop("name", "")
        return Description.build({**data, "name": name}, where)

    @staticmethod
    def build(data: dict[str, object], where: str) -> Description:
        """Like `read`, for plain data."""
        description = FORMAT.build(Description, data, where)
        _require_numbers(description, where)
        _require_known(description, where)
        return description

    def to_file(self) -> str:
        """The content of a file that `build` reads."""
        return sealed(json.dumps({**FORMAT.head, **asdict(self)}, indent=1) + "\n")

    @property
    def big_cores(self) -> tuple[Core, ...]:
        """The cores that should share a kernel; they would only wait for a little core."""
        biggest = max(core.size for core in self.cores)
        return tuple(core for core in self.cores if core.size >= WORTH_WAITING * biggest)

    @property
    def is_like_this_machine(self) -> bool:
        """Whether it may be the machine that this process runs on."""
        return (self.triple, self.cpu, self.features) == _this_machine()

    def target(self) -> dict[str, object]:
        """TVM's target of its CPU, with the features that programs can really use.

        LLVM assumes that a named core has all features of its kind. If the system hides some, or
        the name is unknown, the target lists the features instead.
        """
        plain = {"kind": "llvm", "mtriple": self.triple}
        name = self._core_name()
        if name:
            return {**plain, "mcpu": name}
        there = [f"+{feature}" for feature in self.features]
        # LLVM infers some features from others; a hypervisor may hide exactly those.
        implied = checked_features(Target({**plain, "mattr": there}))
        return {**plain, "mattr": there + [f"-{feature}" for feature in self.lacks(implied)]}

    def _core_name(self) -> str:
        if self.is_like_this_machine:
            return str(codegen.llvm_get_system_cpu())
        name = self.big_cores[0].name
        if not name:
            return ""
        target = Target({"kind": "llvm", "mtriple": self.triple, "mcpu": name})
        return name if self.lacks(checked_features(target)) == () else ""

    def lacks(self, features: Sequence[str]) -> tuple[str, ...]:
        """The features among these that the device does not have."""
        return tuple(sorted(set(features) - set(self.features)))

    def __str__(self) -> str:
        """A description of a few lines."""
        groups: dict[tuple[str, int], list[int]] = {}
        for core in self.cores:
            groups.setdefault((core.name or self.cpu or "core", core.mhz), []).append(core.number)
        big = {core.number for core in self.big_cores}
        lines = [f"{self.name}: {self.triple}, {self.memory / 2**30:.1f} GiB memory"]
        for (name, mhz), numbers in groups.items():
            size = "big" if numbers[0] in big else "little"
            clock = f", {mhz} MHz" if mhz else ""
            first = next(core for core in self.cores if core.number == numbers[0])
            caches = f", caches {first.l1 >> 10} and {first.l2 >> 10} KiB" if first.l1 else ""
            lines.append(f"  cores {','.join(map(str, numbers))}: {name}, {size}{clock}{caches}")
        lines.append(f"  features: {' '.join(self.features) or 'none that kernels use'}")
        for device in self.opencl:
            limit = int(str(device.get("max_buffer_bytes", 0))) / 2**20
            lines.append(
                f"  opencl: {device.get('name')}, {device.get('compute_units')} units, "
                f"{device.get('memory')} memory, tensors up to {limit:.0f} MiB"
            )
        if not self.opencl:
            lines.append(f"  opencl: none ({self.why_no_opencl})")
        lines.append(f"  dsp: {self.dsp}")
        return "\n".join(lines)


def _require_numbers(phone: Description, where: str) -> None:
    """Refuse negative numbers, and a device without cores; a device's answer is not trusted."""
    numbers: list[object] = [phone.memory, phone.free, phone.dsp.soc]
    for core in phone.cores:
        numbers += (core.number, core.mhz, core.capacity, core.l1, core.l2)
    numbers += (device.get("max_buffer_bytes", 0) for device in phone.opencl)
    if not phone.cores or not all(isinstance(n, int) and n >= 0 for n in numbers):
        raise DeviceError(f"expected cores and sizes for {where}, got others; {FORMAT.again}")


def _require_known(phone: Description, where: str) -> None:
    """Refuse a device that the compiler has no kernels for."""
    if phone.triple.partition("-")[0] not in _MACHINES:
        raise DeviceError(
            f"expected a machine of {' or '.join(_MACHINES)} for {where}, got {phone.triple!r}; "
            "kernels are made for no other"
        )
    unknown = set(phone.features) - CHECKED_CPU_FEATURES
    if unknown:
        raise DeviceError(
            f"expected features that kernels may use for {where}, got {sorted(unknown)[0]!r}; "
            "install the same version of tvm_stretch there"
        )


@functools.cache
def _this_machine() -> tuple[str, str, tuple[str, ...]]:
    load_native_library()
    text = str(tvm.get_global_func("tvm_stretch.describe_machine")())
    description = Description.read(text, "this machine")
    return description.triple, description.cpu, description.features
