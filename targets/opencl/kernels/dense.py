"""A dense layer of one row on a GPU: its time is that of reading the weights once.

for each work-group:                          # a few output channels
  for row of weights, one for each line of items:       # neighbours read neighbours
    acc += data[row] * weight[row][channels]
  acc of all lines are added in local memory
  out = epilogue(acc)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tvm import tirx
from tvm.ir import Expr

from tvm_stretch.targets.cpu.kernels.conv import ConvConfig
from tvm_stretch.targets.kernels.conv_features import ConvFeatures
from tvm_stretch.targets.kernels.features import EpilogueWork
from tvm_stretch.targets.kernels.fused import Epilogue, FusedKernel
from tvm_stretch.targets.kernels.layers import taken
from tvm_stretch.targets.kernels.loops import (
    as_type,
    block,
    const,
    load,
    loop,
    store,
    unravelled,
    within,
)
from tvm_stretch.targets.kernels.machine import VectorMachine

from .base import GpuConvConfig
from .group_features import GroupRowFeatures
from .groups import QUAD, barrier, finish_quad, launch, load_quad, quads, splat, when, zeros
from .machine import GpuMachine

_ROW_BLOCKS = 4  # the most of a group
_AHEAD = 4  # rows that an item asks for at once


@dataclass(frozen=True, kw_only=True)
class RowConfig(GpuConvConfig):
    """A product of one row with a matrix; ``oc_blocks`` are those of a group."""

    lines: int = 32  # work-items of a group that add up the same outputs

    template: ClassVar[str] = "group_row"

    @property
    def width(self) -> int:
        """Output channels of a group."""
        return self.oc_blocks * self.lanes

    @property
    def group_items(self) -> int:
        """Work-items of a group."""
        return self.lines * self.width // QUAD

    @property
    def rows(self) -> int:
        """Numbers that a sum adds up."""
        return self.reduce_blocks * self.data_block

    def work(self, epilogue: EpilogueWork, machine: VectorMachine, item: int) -> ConvFeatures:
        """Features for cost models; cores that take over compute it in loops."""
        plain = super().work(epilogue, machine, item)
        if machine.gpu is None:
            return plain
        return GroupRowFeatures(
            **vars(plain), work_groups=self.out_groups, group_items=self.group_items
        )

    def write(self, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
        return write_row(self, fused.operands, fused.epilogue)


def write_row(cfg: RowConfig, operands: tuple[tirx.Buffer, ...], epilogue: Epilogue) -> tirx.Stmt:
    """The kernel of a dense layer of one row."""
    data, weight = operands[:2]
    sums = str(epilogue.anchor.dtype)
    across = cfg.width // QUAD
    acc = quads("acc", 1, dtype=sums)
    parts = quads("parts", cfg.lines, across, dtype=sums, scope="shared")

    def product(row: Expr, column: Expr, group: Expr) -> tirx.Stmt:
        lane = (row % cfg.data_block,) if cfg.data_block > 1 else ()
        pixel = as_type(load(data, 0, row // cfg.data_block, 0, 0, *lane), sums)
        factor = load_quad(weight, group, 0, 0, 0, row, column * QUAD)
        return store(acc, load(acc, 0) + splat(pixel) * factor, 0)

    def body(group: Expr, item: Expr) -> tirx.Stmt:
        line, column = unravelled(item, (cfg.lines, across))
        turns, rest = divmod(cfg.rows, cfg.lines)
        rounds, left = divmod(turns, _AHEAD)

        def ahead(first: Expr, count: int) -> tirx.Stmt:
            rows = [line + (first + i) * cfg.lines for i in range(count)]
            return block(*(product(row, column, group) for row in rows))

        steps = [loop(rounds, lambda i: ahead(i * _AHEAD, _AHEAD), "round")] if rounds else []
        steps += [ahead(const(rounds * _AHEAD), left)] if left else []
        if rest:
            last = line + turns * cfg.lines
            steps.append(when(last < cfg.rows, product(last, column, group)))
        return within(
            [acc, parts],
            store(acc, zeros(sums), 0),
            *steps,
            store(parts, load(acc, 0), line, column),
            barrier(),
            when(line < 1, finish(group, column)),
        )

    def finish(group: Expr, column: Expr) -> tirx.Stmt:
        added = [
            store(acc, load(acc, 0) + load(parts, line, column), 0) for line in range(1, cfg.lines)
        ]
        quad, each = group * across + column, cfg.lanes // QUAD
        place = [const(0), quad // each, const(0), const(0), quad % each * QUAD]
        stores = block(*finish_quad(epilogue, place, load(acc, 0), "result"))
        fits = cfg.out_groups * cfg.oc_blocks == cfg.out_blocks
        return block(*added, when(None if fits else place[1] < cfg.out_blocks, stores))

    return launch(cfg.out_groups, cfg.group_items, body)


def is_row(layer: ConvConfig) -> bool:
    """Whether a layer is the product of one row with a matrix."""
    single = (layer.batch, *layer.out_size, *layer.kernel) == (1,) * 5
    return single and layer.groups == 1 and not any(layer.padding)


def row_candidates(layer: ConvConfig, gpu: GpuMachine) -> list[ConvConfig]:
    """Few outputs a group, so that all units read weights, and as many lines as fill it, first."""
    first = max(1, min(_ROW_BLOCKS, layer.out_blocks // gpu.units))
    others = [blocks for blocks in (1, 2, _ROW_BLOCKS) if blocks != first]
    by_blocks = [_lines(layer, gpu, blocks) for blocks in (first, *others)]
    places = ((i, j) for i, lines in enumerate(by_blocks) for j in range(len(lines)))
    return [by_blocks[i][j] for i, j in sorted(places, key=sum)]


def _lines(layer: ConvConfig, gpu: GpuMachine, blocks: int) -> list[ConvConfig]:
    """Rows with ``blocks`` blocks in a group, the most lines first."""
    across = blocks * layer.lanes // QUAD
    rows = layer.reduce_blocks * layer.data_block
    limit = min(128, gpu.max_group_items // across, gpu.local_bytes // (16 * across))
    most = 1 << (max(1, min(limit, rows // 4)).bit_length() - 1)
    counts = [most >> i for i in range(3) if 1 <= most >> i <= limit]
    return [taken(RowConfig, layer, oc_blocks=blocks, pixels=1, lines=lines) for lines in counts]
