"""What the kernel templates need to know of a processor: its vectors, registers and caches."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class VectorMachine:
    """The vector side of one core, and how many cores share the work.

    Attributes:
        lanes: float32 lanes of one vector register; also the channel block of the blocked layout.
        registers: architectural vector registers.
        broadcast_operand: a multiply-add can take one lane of a register as operand (as in NEON's
            ``fmla`` by element). Of AVX-512's ``{1to16}`` LLVM makes no use in these nests.
        l2_bytes: private second-level cache of one core.
        threads: cores a kernel may use.
        group_items: work-items of a work-group on a GPU; 1 for a core that runs loops.
        max_group_items: the most work-items that a group may have, on a GPU.
        local_bytes: memory that the work-items of a group share, on a GPU.
    """

    lanes: int
    registers: int
    broadcast_operand: bool
    l2_bytes: int
    threads: int
    group_items: int = 1
    max_group_items: int = 1
    local_bytes: int = 0
