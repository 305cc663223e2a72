"""What the two kernels of a shared Winograd convolution compute (`passes/share_winograd.py`)."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx

from tvm_stretch.network.attributes import STAGE
from tvm_stretch.network.codec import from_text
from tvm_stretch.targets.cpu.kernels.winograd import (
    WinogradConfig,
    WinogradInput,
    WinogradProduct,
    winograd_of_tile,
)
from tvm_stretch.targets.kernels.layers import ConvShape, taken
from tvm_stretch.targets.kernels.machine import VectorMachine


@dataclass(frozen=True)
class WinogradStage:
    """One of the two kernels of a convolution."""

    name: str  # ``input`` or ``product``
    shape: ConvShape  # the convolution; for ``input`` it has any number of output channels
    tile: int  # side of a tile of outputs

    def config(self, machine: VectorMachine) -> WinogradConfig:
        """The template's configuration."""
        if self.name == "product":
            return taken(WinogradProduct, winograd_of_tile(self.shape, machine, self.tile))
        return taken(WinogradInput, self.shape, lanes=machine.lanes, tile=self.tile)


def stage_of(func: tirx.PrimFunc) -> WinogradStage | None:
    """The stage that a kernel of this pass computes; None for other kernels."""
    text = (func.attrs or {}).get(STAGE)
    if text is None:
        return None
    return from_text(WinogradStage, str(text))
