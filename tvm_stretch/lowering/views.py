"""Memory as lowering sees it: buffers, the tensors that look at them, and where they end up."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import tvm

from tvm_stretch.lowering.graph import Node, Tensor, TensorKind
from tvm_stretch.lowering.memory_plan import find_lifetimes, plan_memory


@dataclass(eq=False)
class Buffer:
    """Memory that is placed as one piece, or (with a `parent`) a part of such a piece.

    `offset` counts from the start of the parent; without one, from the start of the memory `kind`.
    """

    bytes: int
    kind: TensorKind
    index: int = 0
    offset: int = 0
    parent: Buffer | None = None

    @property
    def root(self) -> Buffer:
        """The piece that this buffer is part of."""
        return self if self.parent is None else self.parent.root

    @property
    def start_in_root(self) -> int:
        """Where this buffer starts in `root`."""
        return 0 if self.parent is None else self.offset + self.parent.start_in_root

    @property
    def start(self) -> int:
        """Where this buffer starts in the memory `root.kind`."""
        return self.root.offset + self.start_in_root

    @property
    def is_constant(self) -> bool:
        """Whether the bytes are known when the artifact is loaded."""
        return self.kind in ("constant", "prepared")


@dataclass(frozen=True, eq=False)
class View:
    """A contiguous tensor that starts `offset` bytes into a buffer."""

    buffer: Buffer
    shape: tuple[int, ...]
    dtype: str
    offset: int = 0

    @property
    def bytes(self) -> int:
        """Size of the tensor."""
        return math.prod(self.shape) * dtype_bytes(self.dtype)

    @property
    def is_whole_buffer(self) -> bool:
        """Whether the tensor covers its buffer."""
        return self.offset == 0 and self.bytes == self.buffer.bytes


@dataclass(frozen=True, eq=False)
class Step:
    """A node whose tensors have no number yet."""

    kernel: str
    name: str
    inputs: tuple[View, ...]
    outputs: tuple[View, ...]


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element; types of less than a byte take a whole one."""
    kind = tvm.DataType(dtype)
    return -(-kind.bits // 8) * kind.lanes


def new_view(kind: TensorKind, shape: tuple[int, ...], dtype: str, index: int = 0) -> View:
    """A tensor with memory of its own."""
    size = math.prod(shape) * dtype_bytes(dtype)
    return View(Buffer(size, kind, index), shape, dtype)


def place_buffers(
    steps: Sequence[Step],
    kind: TensorKind,
    *,
    earlier: Sequence[int] | None = None,
    kept: Iterable[View] = (),
) -> int:
    """Set the offsets of all buffers of this kind; returns how much memory they need.

    Args:
        steps: the nodes, in an order in which they could run one after the other.
        kind: which buffers to place.
        earlier: for each step, the steps (bits) that happen before it; by default all the ones
            that stand before it.
        kept: what must still be there after the last step.
    """
    numbers: dict[Buffer, int] = {}

    def touched(views: Iterable[View]) -> list[int]:
        roots = (view.buffer.root for view in views)
        return [numbers.setdefault(root, len(numbers)) for root in roots if root.kind == kind]

    accesses = [touched((*step.inputs, *step.outputs)) for step in steps]
    accesses.append(touched(kept))
    if earlier is not None:
        earlier = [*earlier, (1 << len(steps)) - 1]
    lifetimes = find_lifetimes([buffer.bytes for buffer in numbers], accesses, earlier)
    plan = plan_memory(lifetimes)
    for buffer, offset in zip(numbers, plan.offsets, strict=True):
        buffer.offset = offset
    return plan.total


@dataclass
class TensorTable:
    """Numbers tensors; two that look at the same bytes in the same way get the same number."""

    ids: dict[Tensor, int] = field(default_factory=dict)
    _windows: dict[tuple[str, int, int, int], int] = field(default_factory=dict)

    def add(self, view: View) -> int:
        """Number of the tensor behind this view."""
        root = view.buffer.root
        start = view.buffer.start + view.offset
        tensor = Tensor(view.shape, view.dtype, root.kind, root.index, start, view.bytes)
        number = self.ids.setdefault(tensor, len(self.ids))
        self._windows.setdefault((root.kind, root.index, start, view.bytes), number)
        return number

    def add_step(self, step: Step) -> Node:
        """The node of a step."""
        inputs, outputs = (tuple(map(self.add, views)) for views in (step.inputs, step.outputs))
        return Node(step.kernel, step.name, inputs, outputs)

    def add_window(self, view: View) -> int:
        """Number of a tensor on the same bytes; what it takes them for does not matter."""
        root = view.buffer.root
        found = self._windows.get(
            (root.kind, root.index, view.buffer.start + view.offset, view.bytes)
        )
        return self.add(view) if found is None else found
