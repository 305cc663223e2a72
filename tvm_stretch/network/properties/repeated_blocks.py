"""Find the repeated blocks of a network, and the stages that they form, from structure alone.

    conv, pool, [1x1 3x3 1x1 +] x 3, [1x1 3x3 1x1 +] x 4, .. -> 16 blocks in 4 stages

A block is, in this order of preference:

* a segment whose paths fork and join: residual blocks, Inception modules; also each cell of NASNet,
  which reads the two cells before it, so that all cells lie in one segment;
* a chain that looks like the inside of a residual block, with or without its first layer and a
  squeeze-excite gate: the strided blocks of MobileNet, which have no residual;
* a chain of different layers that repeats: depthwise and pointwise convolution of MobileNetV1, the
  squeeze layer and the fork of SqueezeNet;
* in a network without any of these, each convolution: VGG.

A stage is a run of blocks whose results have one shape.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import tvm
from tvm import relax

from tvm_stretch.network.expressions import shape_of
from tvm_stretch.network.operators import Operator, Operators
from tvm_stretch.network.properties.meeting_points import (
    MeetingPoints,
    as_operators,
    detect_meeting_points,
)

# The letter of each layer in patterns of chains.
_POINT, _DEPTH, _GROUP, _DENSE, _FORK, _GATE, _OTHER = "PDGCFSx"
_CONVS = _POINT + _DEPTH + _GROUP + _DENSE
_JOINS = {"add", "concat"}


@dataclass(frozen=True)
class Block:
    """A repeated piece of the network."""

    # tensors that it reads; one, unless blocks read the two blocks before them
    inputs: tuple[str, ...]
    output: str  # the tensor that it computes
    operators: tuple[str, ...]  # names in program order
    layers: str  # its convolutions along the longest path, such as ``1x1 dw3x3 1x1``
    shape: tuple[int, ...]  # of ``output``

    def __str__(self) -> str:
        return f"[{self.layers}] {', '.join(self.inputs)} -> {self.output}"


@dataclass(frozen=True)
class Stage:
    """A run of blocks whose results have one shape."""

    blocks: tuple[Block, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of every block's result."""
        return self.blocks[0].shape

    def __str__(self) -> str:
        size = "x".join(str(dim) for dim in self.shape[1:])
        return f"{size}: " + ", ".join(str(block) for block in self.blocks)


def detect_stages(mod: tvm.IRModule | relax.Function | Operators) -> tuple[Stage, ...]:
    """The blocks of canonical ``main``, grouped into stages."""
    runs = groupby(detect_blocks(mod), key=lambda block: block.shape)
    return tuple(Stage(tuple(blocks)) for _, blocks in runs)


def detect_blocks(mod: tvm.IRModule | relax.Function | Operators) -> tuple[Block, ...]:
    """The blocks of canonical ``main``, in program order."""
    operators = as_operators(mod)
    units = list(_units(operators, detect_meeting_points(operators)))
    spans = _spans(units)
    blocks = []
    for begin, end in spans:
        members = [member for unit in units[begin:end] for member in unit.members]
        blocks.append(_block(operators, members))
    return tuple(blocks)


@dataclass(frozen=True)
class _Unit:
    """A segment, or one cell of a segment, with its letter in patterns."""

    members: tuple[Operator, ...]
    letter: str
    body: str = ""  # letters along the longest path of a residual fork


def _units(operators: Operators, points: MeetingPoints) -> Iterator[_Unit]:
    for segment in points.segments:
        members = [operators[name] for name in segment.operators]
        core = members[: segment.core]
        cells = _split_into_cells(operators, core)
        if len(cells) > 1:
            cells[-1] += members[segment.core :]
            yield from (_Unit(tuple(cell), _FORK) for cell in cells)
        else:
            letter = _letter(core)
            body = _longest_path(core) if letter == _FORK and core[-1].kind == "add" else []
            yield _Unit(tuple(members), letter, "".join(_layer_letter(o) for o in body))


def _letter(core: Sequence[Operator]) -> str:
    """The letter of the kind of layer that a segment is."""
    forks = any(len(operator.inputs) > 1 for operator in core)
    if not forks:
        convs = [operator for operator in core if operator.kind == "nn.conv2d"]
        return _layer_letter(convs[0]) if len(convs) == 1 else _OTHER
    if {len(operator.shape) for operator in (core[0], core[-1]) if operator.shape} != {4}:
        return _OTHER  # a split, whose result is a tuple, may be the first operator
    pooled = any(operator.kind == "mean" for operator in core)
    return _GATE if core[-1].kind == "multiply" and pooled else _FORK


def _layer_letter(conv: Operator) -> str:
    groups, kernel = int(conv.call.attrs.groups), shape_of(conv.call.args[1])
    if groups > 1:
        return _DEPTH if kernel[1] == 1 else _GROUP
    return _POINT if kernel[2:] == [1, 1] else _DENSE


def _longest_path(members: Sequence[Operator]) -> list[Operator]:
    """The path with most convolutions; paths through a global mean (gates) do not count."""
    longest: dict[str, list[Operator]] = {}
    gates: set[str] = set()
    for operator in members:
        if operator.kind == "mean" or (operator.inputs and gates.issuperset(operator.inputs)):
            gates.add(operator.name)
            continue
        path = max((longest.get(name, []) for name in operator.inputs), key=len, default=[])
        longest[operator.name] = [*path, operator] if operator.kind == "nn.conv2d" else path
    return longest.get(members[-1].name, [])


def _spans(units: Sequence[_Unit]) -> list[tuple[int, int]]:
    """Ranges of units that form blocks."""
    letters = "".join(unit.letter for unit in units)
    bodies = {unit.body for unit in units if len(unit.body) > 1}
    patterns = bodies | {body[1:] for body in bodies if len(body) > 2}
    if not patterns:
        patterns = _repeated(letters)
    if not patterns and _FORK not in letters:
        patterns = set(_CONVS)
    spans, position = [], 0
    while position < len(letters):
        length = max((_match(letters, position, pattern) for pattern in patterns), default=0)
        if length or letters[position] == _FORK:
            spans.append((position, position + max(length, 1)))
        position += max(length, 1)
    return spans


def _match(letters: str, position: int, pattern: str) -> int:
    """How many units from ``position`` on match ``pattern``, with gates between its layers."""
    end = position
    for letter in pattern:
        while end > position and letters[end : end + 1] == _GATE:
            end += 1
        if letters[end : end + 1] != letter:
            return 0
        end += 1
    return end - position


def _repeated(letters: str) -> set[str]:
    """The shortest pattern of different layers that occurs twice in a row, if there is one."""
    for period in range(2, len(letters) // 2 + 1):
        for begin in range(len(letters) - 2 * period + 1):
            pattern = letters[begin : begin + period]
            layers_only = _OTHER not in pattern and len(set(pattern)) > 1
            if layers_only and letters.startswith(pattern, begin + period):
                return {pattern}
    return set()


def _block(operators: Operators, members: Sequence[Operator]) -> Block:
    names = {member.name for member in members}
    inputs = dict.fromkeys(n for m in members for n in m.inputs if n not in names)
    return Block(
        inputs=tuple(inputs),
        output=members[-1].name,
        operators=tuple(member.name for member in members),
        layers=" ".join(_layer_name(conv) for conv in _longest_path(members)),
        shape=operators.shape(members[-1].name),
    )


def _layer_name(conv: Operator) -> str:
    """``dw3x3`` for depthwise, ``g5x5`` for grouped, ``1x1`` for dense convolutions."""
    kernel = shape_of(conv.call.args[1])
    prefix = {_DEPTH: "dw", _GROUP: "g"}.get(_layer_letter(conv), "")
    return f"{prefix}{kernel[2]}x{kernel[3]}"


# --- cells of NASNet: each reads the two before it ------------------------------------------------


def _split_into_cells(operators: Operators, members: Sequence[Operator]) -> list[list[Operator]]:
    """The cells of a segment; the whole segment if cutting gives no three that repeat.

    A cell ends at a concatenation or sum after which at most two tensors are still to be read.
    """
    cells = _cut(operators, members)
    kinds = Counter(_structure(cell) for cell in cells)
    repeated = sum(count for count in kinds.values() if count > 1)
    return cells if len(cells) > 2 and 2 * repeated >= len(cells) else [list(members)]


def _cut(operators: Operators, members: Sequence[Operator]) -> list[list[Operator]]:
    """Pieces between the joins; sets of operators are bit sets in integers."""
    bit = {member.name: 1 << index for index, member in enumerate(members)}
    outside = 1 << len(members)
    leading, read_by = {}, {}
    for member in members:
        leading[member.name] = bit[member.name]
        for name in member.inputs:
            leading[member.name] |= leading.get(name, 0)
        read_by[member.name] = sum(bit.get(n, outside) for n in operators.readers[member.name])
    cells: list[list[Operator]] = []
    done = 0
    for join in members:
        if join.kind not in _JOINS or len(join.inputs) < 2:
            continue
        before = leading[join.name]  # everything that the join depends on
        waiting = (1 for m in members if before & bit[m.name] and read_by[m.name] & ~before)
        # Cuts are nested: a join that does not depend on the previous piece lies beside it.
        if before & done == done and sum(waiting) <= 2:
            cells.append([m for m in members if before & ~done & bit[m.name]])
            done = before
    rest = [m for m in members if not done & bit[m.name]]  # what follows the last join
    if not cells:
        return [rest]
    cells[-1] += rest
    return cells


def _structure(cell: Sequence[Operator]) -> str:
    """A digest, equal for cells that differ only in sizes, widths and strides."""
    digests: dict[str, str] = {}
    for operator in cell:
        operands = [digests.get(name, "input") for name in operator.inputs]
        parts = [operator.kind, *operands]
        if operator.kind == "nn.conv2d":
            depthwise = shape_of(operator.call.args[1])[1] == 1
            parts += [str(depthwise), *map(str, shape_of(operator.call.args[1])[2:])]
        digests[operator.name] = hashlib.sha256(" ".join(parts).encode()).hexdigest()
    return digests[cell[-1].name]
