"""Reads the network that is to be compiled, in the precision in which it is computed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import tvm

from tvm_stretch.base.progress import say
from tvm_stretch.make.precision import BFLOAT, PRECISIONS, WIDE_SUMS
from tvm_stretch.network.attributes import WIDENED
from tvm_stretch.network.properties.integer_summary import describe_integers, has_integers
from tvm_stretch.passes.carry_states import Rooms, States
from tvm_stretch.passes.use_half import UseHalf, describe_halves
from tvm_stretch.read.load import Shapes, load_network


def read_network(
    source: object,
    shapes: Shapes,
    precision: str = "float32",
    states: States | None = None,
    widen: bool = False,
    sizes: Mapping[str, int] | None = None,
    rooms: Rooms | None = None,
) -> tuple[tvm.IRModule, list[str]]:
    """The network as canonical Relax, and remarks for people; see `load_network` for the rest.

    Raises:
        ModelError: the source is no network.
        UnsupportedError: it computes what we do not.
    """
    say("reading the network")
    mod = load_network(source, shapes, states, widen, sizes, rooms)
    notes = [describe_integers(mod["main"])]
    if precision == PRECISIONS[0] and WIDENED in (mod["main"].attrs or {}):
        notes.append("float16 is computed in float32, as not all processors have its arithmetic")
    # of a quantised network, `passes/integers_in_half.py` rewrites regions, once there are some
    if precision in (PRECISIONS[0], BFLOAT) or has_integers(mod["main"]):
        return mod, notes
    use_half: tvm.transform.Pass = UseHalf(wide_sums=precision == WIDE_SUMS)
    mod = use_half(mod)
    return mod, [*notes, describe_halves(mod["main"])]


def name_of(source: object) -> str:
    """What a network is called, for people: the name of its file, if it comes from one."""
    return Path(source).stem if isinstance(source, str | Path) else ""
