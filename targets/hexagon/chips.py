"""Find the Hexagon of a phone from what its system reports and a table of Qualcomm's chips.

Chip(node="/dev/fastrpc-cdsp", domains="adsp cdsp", soc=339, chip="SM8150", emulator="").version
    ->    "v66"
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_SOCS: Mapping[int, tuple[str, str]] = {
    321: ("SDM845", "v65"),
    339: ("SM8150", "v66"),
    356: ("SM8250", "v66"),
    439: ("SM8350", "v68"),
    457: ("SM8450", "v69"),
    480: ("SM8450", "v69"),
    482: ("SM8450", "v69"),
    530: ("SM8475", "v69"),
    531: ("SM8475", "v69"),
    540: ("SM8475", "v69"),
    519: ("SM8550", "v73"),
    557: ("SM8650", "v75"),
    577: ("SM8650", "v75"),
}
"""Chips by the number in /sys/devices/soc0/soc_id, as Linux lists them
(dt-bindings/arm/qcom,ids.h), with the version of their DSP for computing (cdsp) according to
Qualcomm: from v68 on in ExecuTorch's table of chips, Hexagon 685, 690 and 698 in Qualcomm's
developer pages."""

_COMPUTING = "cdsp"
"""The DSP with vectors; DSPs for sound and sensors have none on most chips."""


@dataclass(frozen=True)
class Chip:
    """What a device reports of its Hexagon (native/machine.cc)."""

    node: str  # the file through which programs call it; empty without one
    domains: str  # the DSPs that the system has started, by the system's names: ``"adsp cdsp"``
    soc: int  # number of the chip; 0 if the system does not report it
    chip: str  # its name; empty if the system does not report it
    emulator: str  # path of an emulator of Hexagon; empty without one
    why_no_library: str = "not asked"  # why libcdsprpc.so, which calls it, cannot be opened

    @property
    def can_be_called(self) -> bool:
        """Whether programs of this machine reach the Hexagon by FastRPC."""
        return not self.why_no_library

    @property
    def is_there(self) -> bool:
        """Whether the device has a Hexagon to compute on, and not only an emulator."""
        return bool(self.node) or _COMPUTING in self.domains.split()

    @property
    def version(self) -> str:
        """``"v66"``; empty if there is no Hexagon or the chip is unknown."""
        return _SOCS.get(self.soc, ("", ""))[1] if self.is_there else ""

    @property
    def has_tensor_unit(self) -> bool:
        """Whether it has the unit for matrices (HTP) that version 68 brought."""
        return self.version >= "v68"

    def __str__(self) -> str:
        """One line for people."""
        if not self.is_there:
            text = (
                "none found (no /dev/fastrpc-cdsp, no /dev/adsprpc-smd, no cdsp that was started)"
            )
        else:
            chip = self.chip or _SOCS.get(self.soc, ("",))[0] or "a chip that does not say which"
            number = f", soc_id {self.soc}" if self.soc else ""
            text = f"Hexagon {self.version or 'of unknown version'} of {chip}{number}"
            text += f", {self.node or 'no file to call it by'}"
        return text + (f"; emulated by {self.emulator}" if self.emulator else "")
