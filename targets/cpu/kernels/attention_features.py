"""What the cost models know of an attention: both products, and the exponentials in between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tvm_stretch.targets.kernels.features import GIGAHERTZ, Features, Phases, Work


@dataclass(frozen=True)
class AttentionFeatures(Features):
    """Queries, keys and values of several heads."""

    family: ClassVar[str] = "attention"
    positive: ClassVar[tuple[str, ...]] = ("matrices", "rows", "key_rows", "depth_steps", "columns")
    constant: ClassVar[tuple[str, ...]] = ("key_rows", "depth_steps", "columns")

    matrices: int  # heads
    rows: int  # queries of a head
    key_rows: int
    depth_steps: int
    columns: int  # of the values

    def own_phases(self) -> Phases:
        """Vectors of products and of exponentials, and rows."""
        lanes, rows = self.vector_lanes, self.matrices * self.rows
        vectors = rows * -(-self.key_rows // lanes)
        products = vectors * self.depth_steps + rows * self.key_rows * -(-self.columns // lanes)
        return {
            "multiply": products / 2 / GIGAHERTZ,
            "exponentials": vectors * 4.0,
            "rows": rows * 10.0,
        }

    def device_work(self) -> Work:
        """Products of matrices, whose second operands stand for weights."""
        second = self.matrices * self.key_rows * (self.depth_steps + self.columns)
        values = (self.in_bytes + self.out_bytes) / self.item_bytes
        return Work("pointwise", self.flops / 2, max(0.0, values - second), second)
