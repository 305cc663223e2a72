"""Cut a segment into cells that each read the two cells before them, as in NASNet.

    x -> cell -> cell -> cell -> y        no tensor but x and y separates the network,
      `-----^-----^-----^                 yet the pieces between the joins are alike

A cut follows a concatenation or sum after which at most two tensors are still to be read.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

from tvm_stretch.ir.expressions import shape_of
from tvm_stretch.ir.operators import Operator, Operators

_JOINS = {"add", "concat"}


def split_into_cells(operators: Operators, members: Sequence[Operator]) -> list[list[Operator]]:
    """The cells of a segment; the whole segment if cutting gives no three that repeat."""
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
