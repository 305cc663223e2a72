"""The loop nest of Winograd's weight transform, which runs once when an artifact is loaded.

for part, register tile, input channel:
    out[a*a] = G g G^T        # a vector of output channels at a time, a = m + 2
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm import tirx
from tvm.ir import Expr

from tvm_stretch.targets.kernels.loops import block, f32, lanes, load, loop, store, vectors, within

from .winograd_sums import WEIGHT, combine

if TYPE_CHECKING:
    from .winograd import WinogradConfig


def write_weight_transform(cfg: WinogradConfig, weight: tirx.Buffer, out: tirx.Buffer) -> tirx.Stmt:
    """The weight transform, a vector of output channels at a time."""
    width = cfg.oc_blocks * cfg.lanes
    taps, half = vectors("taps", 9, width), vectors("half", cfg.alpha * 3, width)

    def channel(q: Expr, g: Expr, b: Expr, i: Expr) -> tirx.Stmt:
        def tap(k: int, v: Expr) -> tirx.Stmt:
            o, c, exists = cfg.weight_place(q, g, b, i, v)
            value = tirx.if_then_else(exists, load(weight, o, c, k // 3, k % 3), f32(0.0))
            return store(taps[k], value, v)

        matrix = WEIGHT[cfg.tile]
        return block(
            [
                *(loop(width, lambda v, k=k: tap(k, v), "v") for k in range(9)),
                *(
                    lanes(
                        width,
                        lambda v, r=r, x=x: store(
                            half[r * 3 + x],
                            combine(matrix[r], [load(taps[y * 3 + x], v) for y in range(3)]),
                            v,
                        ),
                    )
                    for r in range(cfg.alpha)
                    for x in range(3)
                ),
                *(
                    lanes(
                        width,
                        lambda v, r=r, s=s: store(
                            out,
                            combine(matrix[s], [load(half[r * 3 + x], v) for x in range(3)]),
                            q,
                            r * cfg.alpha + s,
                            g,
                            b,
                            i,
                            v,
                        ),
                    )
                    for r in range(cfg.alpha)
                    for s in range(cfg.alpha)
                ),
            ]
        )

    nest = loop(
        cfg.parts,
        lambda q: loop(
            cfg.out_groups,
            lambda g: loop(
                cfg.in_blocks, lambda b: loop(cfg.lanes, lambda i: channel(q, g, b, i), "i"), "b"
            ),
            "g",
        ),
        "q",
    )
    return within([*taps, *half], [nest])
