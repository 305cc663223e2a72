"""What the two kernels of a shared Winograd convolution compute (`passes/share_winograd.py`)."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx

from tvm_stretch.ir.codec import from_text
from tvm_stretch.targets.kernels.choose import ConvShape, winograd_of_tile
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.winograd import WinogradConfig

STAGE = "tvm_stretch.winograd"
"""Attribute of the plain kernels: text of a `WinogradStage`."""


@dataclass(frozen=True)
class WinogradStage:
    """One of the two kernels of a convolution.

    Attributes:
        name: ``input`` or ``product``.
        shape: the convolution; for ``input`` it has any number of output channels.
        tile: side of a tile of outputs.
    """

    name: str
    shape: ConvShape
    tile: int

    def config(self, machine: VectorMachine) -> WinogradConfig:
        """The template's configuration."""
        if self.name == "product":
            return winograd_of_tile(self.shape, machine, self.tile)
        return stage_config(self.shape, machine.lanes, self.tile)


def stage_of(func: tirx.PrimFunc) -> WinogradStage | None:
    """The stage that a kernel of this pass computes; None for other kernels."""
    text = (func.attrs or {}).get(STAGE)
    if text is None:
        return None
    return from_text(WinogradStage, str(text))


def stage_config(shape: ConvShape, lanes: int, tile: int) -> WinogradConfig:
    """The configuration that the first stage needs; with one lane every channel is a block."""
    return WinogradConfig(
        shape.batch,
        shape.in_channels,
        shape.in_size,
        shape.out_channels,
        shape.padding,
        lanes,
        tile,
        oc_blocks=1,
        pixels=1,
    )
