"""What a phone says of itself that is not here: four big cores, four little ones, a GPU."""

from __future__ import annotations

import json
from typing import Any

from tvm_stretch.phone.description import Description

BIG = {"part": "0x41:0xd0b", "mhz": 2840, "capacity": 1024, "l1": 65536, "l2": 524288}
LITTLE = {"part": "0x41:0xd05", "mhz": 1785, "capacity": 300, "l1": 32768, "l2": 131072}
GPU = {
    "type": "gpu",
    "name": "QUALCOMM Adreno(TM)",
    "fp16": True,
    "fp64": False,
    "driver": "2.1",
    "max_group_size": 1024,
    "local_bytes": 32768,
    "local_is_fast": True,
    "compute_units": 2,
    "max_buffer_bytes": 1 << 30,
    "has_images": True,
    "max_image_pixels": 1 << 27,
    "memory": "mapped",
}
DSP = {
    "node": "/dev/adsprpc-smd",
    "domains": "adsp cdsp",
    "soc": 339,
    "chip": "SM8150",
    "emulator": "",
}
PHONE: dict[str, Any] = {
    "version": 2,
    "triple": "aarch64-linux-android",
    "name": "",
    "features": ["crc", "dotprod", "fullfp16", "lse", "neon", "rcpc", "rdm"],
    "cores": [{"number": n, **(LITTLE if n < 4 else BIG)} for n in range(8)],
    "memory": 6 << 30,
    "free": 2 << 30,
    "opencl": [GPU],
    "why_no_opencl": "",
    "dsp": DSP,
}


def described(**changes: Any) -> Description:
    return Description.read(json.dumps({**PHONE, **changes}), "pixel")
