"""Memory during lowering: buffers, the tensors on them, and their final places."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from tvm_stretch.make.lowering.executor_graph import COPY_KERNEL, Node, Tensor, TensorKind
from tvm_stretch.make.lowering.memory_plan import find_lifetimes, plan_apart, plan_memory
from tvm_stretch.network.expressions import ALIGNMENT, dtype_bytes
from tvm_stretch.network.provenance import Provenance


@dataclass(eq=False)
class Buffer:
    """Memory that is placed as one piece, or (with a `parent`) a part of such a piece.

    `offset` counts from the start of the parent or, without one, of the memory `kind`.
    With `run` the part is no single piece of its parent, but `run` bytes of every `pitch`:

        parent    |........####....|........####....|........####....|     # this buffer
                           <run>    <----- pitch ----->
    """

    bytes: int
    kind: TensorKind
    index: int = 0
    offset: int = 0
    parent: Buffer | None = None
    run: int = 0
    pitch: int = 0

    @property
    def root(self) -> Buffer:
        """The placed piece that contains this buffer."""
        return self if self.parent is None else self.parent.root

    @property
    def is_constant(self) -> bool:
        """Whether the bytes are known once the artifact is loaded."""
        return self.kind in ("constant", "prepared")


@dataclass(frozen=True)
class Layout:
    """Where the elements of a tensor lie in the root of its buffer, in bytes."""

    start: int  # of the first element
    strides: tuple[int, ...]  # from one element to the next in each dimension
    shape: tuple[int, ...]  # extents
    item: int  # bytes of an element

    @property
    def span(self) -> int:
        """Bytes from the first element to the end of the last one."""
        if 0 in self.shape:
            return 0
        return self.item + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))

    @property
    def is_dense(self) -> bool:
        """Whether the elements are contiguous."""
        return self.span == math.prod(self.shape) * self.item

    def runs(self) -> list[tuple[int, int]]:
        """Begin and end of each contiguous piece, in the order of the elements."""
        if self.is_dense:
            return [(self.start, self.start + self.span)]
        size, axis = self.item, len(self.shape)
        while axis and (self.shape[axis - 1] == 1 or self.strides[axis - 1] == size):
            axis -= 1
            size *= self.shape[axis]
        outer = [
            range(0, n * s, s) for n, s in zip(self.shape[:axis], self.strides[:axis], strict=True)
        ]
        starts = (self.start + sum(steps) for steps in itertools.product(*outer))
        return [(start, start + size) for start in starts]

    def inside(self, part: Buffer) -> Layout | None:
        """This layout in `part`, as a layout in its parent; None if no strides describe it."""
        start, strides = self.start, self.strides
        if part.run:
            run, pitch = part.run, part.pitch
            axes = [(n, s) for n, s in zip(self.shape, strides, strict=True) if n > 1]
            inner = self.item + sum((n - 1) * s for n, s in axes if s < run)
            if any(s >= run and s % run for _, s in axes) or start % run + inner > run:
                return None
            strides = tuple(s if s < run else s // run * pitch for s in strides)
            start = start // run * pitch + start % run
        return Layout(part.offset + start, strides, self.shape, self.item)


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

    @property
    def layout(self) -> Layout:
        """The layout of a view that `find_layout` accepted."""
        layout = self.find_layout()
        assert layout is not None, "walk.py only records views that have a layout"
        return layout

    def find_layout(self) -> Layout | None:
        """Where the elements lie in the root; None if no strides describe it."""
        item = dtype_bytes(self.dtype)
        strides = tuple(math.prod(self.shape[i + 1 :]) * item for i in range(len(self.shape)))
        layout: Layout | None = Layout(self.offset, strides, self.shape, item)
        buffer = self.buffer
        while buffer.parent is not None and layout is not None:
            layout = layout.inside(buffer)
            buffer = buffer.parent
        return layout


@dataclass(frozen=True, eq=False)
class DraftNode:
    """A node whose tensors have no numbers yet."""

    kernel: str
    name: str
    provenance: Provenance
    inputs: tuple[View, ...]
    outputs: tuple[View, ...]
    # the result that has to be true, or false, for anything to read the outputs
    when: tuple[View, bool] | None = None


def new_view(kind: TensorKind, shape: tuple[int, ...], dtype: str, index: int = 0) -> View:
    """A tensor with memory of its own."""
    size = math.prod(shape) * dtype_bytes(dtype)
    return View(Buffer(size, kind, index), shape, dtype)


def place_buffers(
    # the nodes, in an order in which they could run one after the other
    steps: Sequence[DraftNode],
    kind: TensorKind,  # which buffers to place
    *,
    # for each step, the steps (bits) that happen before it; by default all that are listed before
    # it
    earlier: Sequence[int] | None = None,
    kept: Iterable[View] = (),  # tensors that are read after the last step
    alignment: int = ALIGNMENT,  # buffers begin at multiples of this number of bytes
    shared: bool = True,  # whether buffers may have the same bytes at different times
) -> int:
    """Set the offsets of all buffers of this kind; returns the memory that they need."""
    numbers: dict[Buffer, int] = {}

    def touched(views: Iterable[View]) -> list[int]:
        roots = (view.buffer.root for view in views)
        return [numbers.setdefault(root, len(numbers)) for root in roots if root.kind == kind]

    accesses = [touched((*step.inputs, *step.outputs)) for step in steps]
    accesses.append(touched(kept))
    if earlier is not None:
        earlier = [*earlier, (1 << len(steps)) - 1]
    lifetimes = find_lifetimes([buffer.bytes for buffer in numbers], accesses, earlier)
    plan = (plan_memory if shared else plan_apart)(lifetimes, alignment)
    for buffer, offset in zip(numbers, plan.offsets, strict=True):
        buffer.offset = offset
    return plan.total


@dataclass
class TensorTable:
    """Numbers tensors; tensors with the same bytes and layout get the same number."""

    ids: dict[Tensor, int] = field(default_factory=dict)
    _windows: dict[tuple[str, int, int, int], int] = field(default_factory=dict)

    def add(self, view: View) -> int:
        """Number of a view's tensor."""
        root, layout = view.buffer.root, view.layout
        start = root.offset + layout.start
        strides = () if layout.is_dense else tuple(s // layout.item for s in layout.strides)
        tensor = Tensor(view.shape, view.dtype, root.kind, root.index, start, layout.span, strides)
        number = self.ids.setdefault(tensor, len(self.ids))
        if layout.is_dense:
            self._windows.setdefault((root.kind, root.index, start, view.bytes), number)
        return number

    def add_step(self, step: DraftNode) -> Node:
        """The node of a step."""
        inputs, outputs = (tuple(map(self.add, views)) for views in (step.inputs, step.outputs))
        when = () if step.when is None else (self.add(step.when[0]), int(step.when[1]))
        return Node(step.kernel, step.name, inputs, outputs, step.provenance, when=when)

    def add_window(self, view: View) -> int:
        """Number of any tensor on the same bytes, whatever its shape and type."""
        root = view.buffer.root
        start = root.offset + view.layout.start
        window = self._windows.get((root.kind, root.index, start, view.bytes))
        return self.add(view) if window is None else window


def is_readable(view: View) -> bool:
    """Whether kernels may access the tensor where it lies."""
    layout = view.find_layout()
    return layout is not None and layout.start % ALIGNMENT == 0


def band(source: View, shape: tuple[int, ...], axis: int, offset: int) -> View:
    """The part of `source` that starts at `offset` bytes, cut along one axis."""
    outer = math.prod(shape[:axis])
    if outer == 1:
        return View(source.buffer, shape, source.dtype, source.offset + offset)
    size = math.prod(shape) * dtype_bytes(source.dtype)
    band = Buffer(
        size,
        source.buffer.kind,
        offset=source.offset + offset,
        parent=source.buffer,
        run=size // outer,
        pitch=source.bytes // outer,
    )
    return View(band, shape, source.dtype)


def in_pieces(steps: Iterable[DraftNode]) -> Iterator[DraftNode]:
    """The steps, each copy as one for every contiguous piece of its tensors.

    To be called when all buffers have their parents: a copied tensor that later becomes a part of a
    concat has gaps from then on.
    """
    for step in steps:
        if step.kernel != COPY_KERNEL:
            yield step
            continue
        pieces = list(_gapless_pieces(*step.inputs, *step.outputs))
        for index, (read, written) in enumerate(pieces):
            name = step.name if len(pieces) == 1 else f"{step.name}.{index}"
            yield replace(step, name=name, inputs=(read,), outputs=(written,))


def _gapless_pieces(source: View, target: View) -> Iterator[tuple[View, View]]:
    """Contiguous pieces that make up `source` and `target`, which have the same size."""
    if source.layout.is_dense and target.layout.is_dense:
        yield source, target
        return
    runs = [view.layout.runs() for view in (source, target)]
    ends = [set(itertools.accumulate(stop - start for start, stop in run)) for run in runs]
    cuts = sorted({0, *ends[0], *ends[1]})
    for start, stop in itertools.pairwise(cuts):
        read, written = (
            View(view.buffer, (stop - start,), "uint8", view.offset + start)
            for view in (source, target)
        )
        yield read, written


def ancestors(buffer: Buffer) -> list[Buffer]:
    """The buffer and all buffers that contain it."""
    return [buffer, *(ancestors(buffer.parent) if buffer.parent is not None else ())]
