"""The limits of an OpenCL device that the compiler needs, and where they come from.

    {"kind": "opencl"}                         this machine's device, as its driver describes it
    {"kind": "opencl", "device": "gpu"}        any GPU of a phone
    {"kind": "opencl", "device": "adreno"}     Qualcomm's; also TVM's tag "qcom/adreno-opencl"

Attributes of a target that names a device may state larger or smaller limits than its family's:
``max_num_threads``, ``max_shared_memory_per_block``, ``texture_spatial_limit``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm.target import Target

from tvm_stretch.base.errors import TargetError
from tvm_stretch.run.autoload import load_native_library
from tvm_stretch.targets.opencl.kernels.machine import GpuMachine, describe_gpu

_HALF_PIXEL = 8  # bytes of four numbers of float16
_VIEWED_BYTES = 2**28
"""Images are used where they can view buffers of this size, or all that the device has."""


@dataclass(frozen=True)
class OpenCLDevice:
    """Limits of a device."""

    type: str  # ``gpu`` or ``cpu``
    name: str = "the device"  # in messages
    driver: str = ""  # its version
    fp16: bool = False  # half precision arithmetic
    fp64: bool = False  # double precision arithmetic
    max_group_size: int = 256  # work-items of one work-group
    local_bytes: int = 32 * 1024  # memory that the work-items of a group share
    local_on_chip: bool = True  # that memory is one of its own, not a part of the device's memory
    compute_units: int = 1  # work-groups that run at the same time
    # the largest tensor, and the largest scratch memory of a kernel
    max_buffer_bytes: int = 2**31 - 1
    # width and height of the largest image; (0, 0) without images
    image_size: tuple[int, int] = (0, 0)
    image_pixels: int = 0  # of the largest image that views a buffer; 0 without images

    @property
    def machine(self) -> GpuMachine:
        """What kernel templates need to know of it, a GPU."""
        limits = self.max_group_size, self.local_bytes, self.local_on_chip
        viewed = min(self.max_buffer_bytes, _VIEWED_BYTES)
        has_images = 0 < viewed <= self.image_pixels * _HALF_PIXEL
        return describe_gpu(self.name, self.compute_units, *limits, has_images)


PHONE_GPU = OpenCLDevice(
    "gpu", "a phone's GPU", fp16=True, compute_units=2, max_buffer_bytes=128 * 2**20
)
"""Limits that every GPU of a phone meets; they are checked again when a model is loaded."""

FAMILIES: Mapping[str, OpenCLDevice] = {
    "gpu": PHONE_GPU,
    "mali": replace(PHONE_GPU, name="a Mali GPU", local_on_chip=False, compute_units=4),
    "adreno": OpenCLDevice(
        "gpu",
        "an Adreno GPU",
        fp16=True,
        max_buffer_bytes=256 * 2**20,
        image_size=(16384, 16384),
        image_pixels=2**27,
    ),
}
"""Kinds of devices that a target may name."""


def names_device(target: Target) -> bool:
    """Whether a target is for the kind of device that it names, and not for this machine's."""
    return bool(str(target.attrs.get("device", "")))


def find_device() -> OpenCLDevice:
    """The device that this machine runs OpenCL on."""
    load_native_library()
    try:
        devices = json.loads(tvm.get_global_func("tvm_stretch.opencl_devices")())
    except (RuntimeError, ValueError) as error:
        raise TargetError(
            f"{str(error).strip().splitlines()[-1]}; to compile for another machine name its "
            "device: {'kind': 'opencl', 'device': 'gpu'}"
        ) from error
    return described_device(devices[0])


def described_device(found: Mapping[str, Any]) -> OpenCLDevice:
    """The limits that a driver reports, here or elsewhere (`tvm_stretch.opencl_devices`).

    A driver that does not answer a question reports 0: such a device has one unit, whose groups
    have one work-item. A driver that reports too much is found out when a model is loaded.
    """
    return OpenCLDevice(
        "cpu" if found["type"] == "cpu" else "gpu",
        found["name"],
        driver=found["driver"],
        fp16=found["fp16"],
        fp64=found["fp64"],
        max_group_size=max(1, found["max_group_size"]),
        local_bytes=min(found["local_bytes"], 2**31 - 1),
        local_on_chip=found["local_is_fast"],
        compute_units=max(1, found["compute_units"]),
        max_buffer_bytes=found["max_buffer_bytes"],
        image_size=(found["max_image_width"], found["max_image_height"])
        if found["has_images"]
        else (0, 0),
        image_pixels=found.get("max_image_pixels", 0) if found["has_images"] else 0,
    )


def local_device() -> OpenCLDevice | None:
    """The device on which this machine runs OpenCL, if there is one."""
    try:
        return find_device()
    except TargetError:
        return None


def device_of(target: Target) -> OpenCLDevice:
    """The kind of device that a target names, or this machine's."""
    if not names_device(target):
        return find_device()
    family = str(target.attrs["device"])
    if family not in FAMILIES:
        raise TargetError(
            f"expected one of {', '.join(FAMILIES)} for device of target opencl, got {family!r}; "
            "use 'gpu' for any other"
        )
    return FAMILIES[family]
