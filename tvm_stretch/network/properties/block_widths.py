"""Compute how many channels every tensor of a block has when the block is made narrower.

    x: 64 -> conv 3x3: 64 -> conv 3x3: 64 -> add -> y: 64         a block of ResNet
    x: 96 -> conv 3x3: 32 -> conv 3x3: 32 -> add -> y: 32         width 32, input of 96 channels
      `------> 1x1: 32 ---------------------^                     x no longer fits

Tensors whose channels correspond have one size: those before and after elementwise operators,
depthwise convolutions and pools, and the summands of a sum. The block's result has the requested
width; a concatenation divides its width among its parts. The tensors inside follow: a tensor that
is wider than both ends (MBConv), or a gate, in proportion to the block's input, others in
proportion to its result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd, lcm

from tvm.ir import GenericConst

from tvm_stretch.base.errors import PlanError, StretchError, UnsupportedError
from tvm_stretch.network.expressions import axes_of
from tvm_stretch.network.operators import BINARY, UNARY, Operator, Operators
from tvm_stretch.network.properties.meeting_points import SHUFFLE

_SAME_CHANNELS = UNARY | {"mean", "nn.batch_norm", "nn.max_pool2d", "nn.avg_pool2d"}
_SHUFFLE = {"reshape", "permute_dims"}


class UnequalWidthsError(StretchError):
    """The block passes channels of its input on, so its result must be as wide as its input."""


@dataclass(frozen=True)
class Piece:
    """One result of a split: the tensor that is split, the result's index, and all sizes."""

    source: str
    index: int
    sizes: tuple[int, ...]


class BlockWidths:
    """Which tensors of one block have equal numbers of channels.

    Args:
        operators: of the network, batch normalisations not folded.
        members: operators of the block in program order; the last one computes its result.
    """

    def __init__(self, operators: Operators, members: Sequence[Operator]) -> None:
        self.operators, self.members = operators, tuple(members)
        self.end = members[-1].name
        names = {member.name for member in members}
        starts = dict.fromkeys(n for m in members for n in m.inputs if n not in names)
        if len(starts) != 1:
            raise UnsupportedError(
                f"expected blocks that read one tensor, got {self.end!r}, which reads "
                f"{', '.join(starts)}; stretch other segments"
            )
        (self.start,) = starts
        self.parts: dict[str, tuple[str, ...]] = {}
        self.pieces: dict[str, Piece] = {}
        self.skips: dict[str, str] = {}
        self._parent: dict[str, str] = {}
        self._groups: dict[str, int] = {}  # channels of a group of grouped convolutions
        self._shuffled: dict[str, int] = {}  # groups of shuffles
        for member in members:
            self._tie(member)
        self._tie_sums()

    # --- which tensors belong together ---

    def root(self, name: str) -> str:
        """The tensor that represents all tensors with as many channels as this one."""
        while self._parent.get(name, name) != name:
            name = self._parent[name]
        return name

    def channels(self, name: str) -> int:
        """Channels in the original network."""
        shape = self.operators.shape(name)
        if not shape:  # the tuple of a batch normalisation has as many channels as its input
            return self.channels(self.operators[name].inputs[0])
        return shape[1] * shape[2] if len(shape) == 5 else shape[1]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result in the original network; it tells stages apart."""
        return self.operators.shape(self.end)

    @property
    def width(self) -> int:
        """Channels of the result in the original network."""
        return self.channels(self.end)

    def _join(self, one: str, other: str) -> None:
        self._parent[self.root(one)] = self.root(other)

    def _tie(self, member: Operator) -> None:
        """Join the result of an operator with tensors that have the same channels."""
        kind, name, inputs = member.kind, member.name, member.inputs
        if kind == "nn.conv2d":
            self._tie_conv(member)
        elif kind == "mean" and [int(axis) for axis in member.call.attrs.axis] != [2, 3]:
            raise self._not_understood(member, "it is not a mean over pixels")
        elif kind in _SAME_CHANNELS or (kind in BINARY and len(inputs) == 1):
            self._join(name, inputs[0])
        elif kind in BINARY and len(inputs) == 2:
            pass  # tied last, by `_tie_sums`
        elif kind == "concat" and int(member.call.attrs.axis) in (1, 1 - len(member.shape)):
            self.parts[name] = inputs
        elif kind == "split" and int(member.call.attrs.axis) in (1, -3):
            pass
        elif kind == "TupleGetItem":
            self._tie_item(member)
        elif kind in _SHUFFLE and self._is_shuffle(member):
            self._join(name, inputs[0])
            if kind == "reshape" and len(member.shape) == 5:
                self._shuffled[name] = member.shape[1]
        else:
            raise self._not_understood(member, "its channels are not known to follow its input's")

    def _tie_conv(self, conv: Operator) -> None:
        inside, outside = conv.arg_shapes[0][1], conv.shape[1]
        attrs = conv.call.attrs
        if str(attrs.data_layout) != "NCHW" or str(attrs.kernel_layout) != "OIHW":
            raise self._not_understood(conv, f"it is in the layout {attrs.data_layout}")
        if not isinstance(conv.call.args[1], GenericConst):
            raise self._not_understood(conv, "its weights are computed")
        if conv.groups == 1:
            return
        if inside != outside:
            raise self._not_understood(conv, "it is grouped, and wider or narrower than its input")
        self._join(conv.name, conv.inputs[0])
        if conv.groups != inside:
            self._groups[conv.name] = inside // conv.groups

    def _tie_item(self, item: Operator) -> None:
        source = self.operators[item.inputs[0]]
        index = int(item.binding.value.index)
        if source.kind == "nn.batch_norm":
            self._join(item.name, source.name)
        elif source.kind == "split":
            sizes = tuple(int(field.shape.values[1]) for field in source.call.ty.fields)
            self.pieces[item.name] = Piece(source.inputs[0], index, sizes)
        else:
            raise self._not_understood(item, f"it is a part of {source.kind}")

    def _is_shuffle(self, member: Operator) -> bool:
        """Whether channels are grouped or ungrouped, or both axes swapped: a channel shuffle."""
        before, after = self.operators.shape(member.inputs[0]), member.shape
        if member.kind == "permute_dims":
            return axes_of(member.call) == SHUFFLE
        longer, shorter = max(before, after, key=len), min(before, after, key=len)
        return len(longer) == 5 and (longer[0], longer[1] * longer[2], *longer[3:]) == shorter

    def _tie_sums(self) -> None:
        """Tie operators of two tensors; one of them may be the block's input, which may not fit."""
        for member in self.members:
            if member.kind not in BINARY or len(member.inputs) != 2:
                continue
            skips = [n for n in member.inputs if self.root(n) == self.root(self.start)]
            others = [n for n in member.inputs if n not in skips]
            if member.kind == "add" and len(skips) == len(others) == 1:
                self.skips[member.name] = skips[0]
                self._join(member.name, others[0])
                continue
            sizes = {self.channels(name) for name in member.inputs}
            if sizes != {self.channels(member.name)}:
                raise self._not_understood(member, "it reads tensors of different widths")
            for name in member.inputs:
                self._join(name, member.name)
        for name, parts in self.parts.items():
            if any(self.root(part) == self.root(self.start) for part in parts):
                why = "what the block reads is a part of it"
                raise self._not_understood(self.operators[name], why)

    def _not_understood(self, member: Operator, why: str) -> UnsupportedError:
        return UnsupportedError(
            f"expected operators whose channels can be scaled in blocks, got {member.name!r} "
            f"({member.kind}): {why}; stretch other segments"
        )

    # --- sizes ---

    @property
    def unit(self) -> int:
        """Widths are multiples of this: convolutions and shuffles have whole groups."""
        units = [1]
        for name, width in (self._groups | self._shuffled).items():
            inside = self.channels(name)
            units.append(self.width * width // gcd(inside, self.width * width))
        return lcm(*units)

    @property
    def expands(self) -> bool:
        """Whether something inside is wider than both ends."""
        ends = max(self.channels(self.start), self.width)
        return any(self.channels(self.root(m.name)) > ends for m in self.members)

    def is_inside(self, root: str) -> bool:
        """Whether no such tensor is the block's input, its result, a part or a piece."""
        parts = [n for names in self.parts.values() for n in names]
        fixed = [self.start, self.end, *self.parts, *parts, *self.pieces]
        return root not in {self.root(name) for name in fixed}

    def unit_of(self, root: str) -> int:
        """Channels of a group in this class of tensors; 1 without grouped convolutions."""
        return lcm(*(g for name, g in self._groups.items() if self.root(name) == root))

    def sizes(self, read: int, width: int) -> dict[str, int]:
        """Channels of every class of tensors, by its root.

        Args:
            read: channels of the block's input.
            width: channels of its result.

        Raises:
            UnequalWidthsError: the block only exists for ``read == width``.
            PlanError: a grouped convolution or a shuffle cannot have this width.
        """
        start, end = self.root(self.start), self.root(self.end)
        if start == end and read != width:
            raise UnequalWidthsError
        sizes = {start: read, end: width}
        self._size_pieces(sizes)
        for name in reversed(self.parts):
            self._size_parts(name, sizes)
        for member in self.members:
            if member.name not in self.parts:
                root = self.root(member.name)
                sizes.setdefault(root, self._inside(root, read, width))
        self._size_pieces(sizes)
        for name in self.parts:
            total = sum(sizes[self.root(part)] for part in self.parts[name])
            if sizes.setdefault(self.root(name), total) != total:
                raise UnequalWidthsError
        self._check_groups(sizes, width)
        return sizes

    def _size_pieces(self, widths: dict[str, int]) -> None:
        for name, piece in self.pieces.items():
            whole = widths.get(self.root(piece.source))
            if whole is not None:
                widths.setdefault(self.root(name), _portions(whole, piece.sizes)[piece.index])

    def _size_parts(self, name: str, widths: dict[str, int]) -> None:
        """Divide the width of a concatenation among its parts."""
        total = widths.get(self.root(name))
        if total is None:
            return
        parts = self.parts[name]
        shares = _portions(total, [self.channels(part) for part in parts])
        for part, share in zip(parts, shares, strict=True):
            if widths.setdefault(self.root(part), share) != share:
                raise UnequalWidthsError

    def _inside(self, root: str, read: int, width: int) -> int:
        """Channels of a tensor that is neither the block's input nor its result."""
        own = self.channels(root)
        before, after = self.channels(self.start), self.width
        is_gate = self.operators.shape(root)[2:] == (1, 1) != self.operators.shape(self.end)[2:]
        if is_gate or own > max(before, after):
            return max(1, round(own * read / before))
        return max(1, round(own * width / after))

    def _check_groups(self, widths: Mapping[str, int], width: int) -> None:
        told = {name: f"whose groups have {size} channels" for name, size in self._groups.items()}
        told |= {name: f"which shuffles {n} groups" for name, n in self._shuffled.items()}
        for name, unit in (self._groups | self._shuffled).items():
            if widths[self.root(name)] % unit:
                raise PlanError(
                    f"expected a multiple of {self.unit} for the width of a branch with "
                    f"{name!r}, {told[name]}, got {width}; correct the design"
                )


def _portions(total: int, sizes: Sequence[int]) -> list[int]:
    """``total`` in the proportions of ``sizes``; the last number absorbs the rounding."""
    whole, cuts, done = sum(sizes), [], 0
    for size in sizes:
        done += size
        cuts.append(round(total * done / whole))
    return [end - begin for begin, end in zip([0, *cuts], cuts, strict=False)]
