"""Reads the network that is to be compiled, in the precision in which it is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tvm

from tvm_stretch.base.progress import say
from tvm_stretch.make.precision import BFLOAT, PRECISIONS, WIDE_SUMS
from tvm_stretch.make.read_before import read_once
from tvm_stretch.network.attributes import WIDENED
from tvm_stretch.network.properties.integer_summary import describe_integers, has_integers
from tvm_stretch.passes.carry_states import Rooms, States
from tvm_stretch.passes.share_constants import ShareConstants
from tvm_stretch.passes.use_half import UseHalf, describe_halves
from tvm_stretch.read.gguf.language_model import LanguageModel, read_gguf
from tvm_stretch.read.load import Shapes


@dataclass(frozen=True)
class SizedNetwork:
    """A network for inputs of one length."""

    sizes: Mapping[str, int]  # of the named dimensions
    mod: tvm.IRModule  # canonical Relax
    notes: Sequence[str]  # for people


@dataclass
class Reader:
    """Reads a network for sizes of its named dimensions, once for each; see `load_network`."""

    source: object
    shapes: Shapes = None
    precision: str = "float32"
    states: States | None = None
    widen: bool = False
    rounds: bool = False  # whether a language model rounds the inputs of its products
    rooms: Rooms | None = None  # those that the longest length needs, once it has been read
    _known: dict[tuple[tuple[str, int], ...], SizedNetwork] = field(default_factory=dict)
    _share: tvm.transform.Pass = field(default_factory=ShareConstants)
    _notes: Sequence[str] = ()
    _name: str = ""

    def __post_init__(self) -> None:
        """A language model brings its states."""
        source = self.source
        if isinstance(source, str | Path) and Path(source).suffix == ".gguf":
            source = read_gguf(source)
        if isinstance(source, LanguageModel):
            self.states = {**source.states, **(self.states or {})}
            self.source, self._name = source.network, source.name
            self._notes = [*source.notes, source.rounded(self.rounds)]

    @property
    def name(self) -> str:
        """What a network is called, for people: the name of its file, if it comes from one."""
        return Path(self.source).stem if isinstance(self.source, str | Path) else self._name

    def sized(self, sizes: Mapping[str, int]) -> SizedNetwork:
        """The network as canonical Relax.

        Raises:
            ModelError: the source is no network.
            UnsupportedError: it computes what we do not.
        """
        key = tuple(sizes.items())
        if key not in self._known:
            mod, notes = self._read(sizes)
            if sizes:  # constants are those of the other lengths
                mod = self._share(mod)
            self._known[key] = SizedNetwork(sizes, mod, notes)
        return self._known[key]

    def _read(self, sizes: Mapping[str, int]) -> tuple[tvm.IRModule, list[str]]:
        say("reading the network")
        given = self.shapes, self.states, self.widen, sizes, self.rooms
        mod = read_once(self.source, *given)
        notes = [*self._notes, describe_integers(mod["main"])]
        if self.precision == PRECISIONS[0] and WIDENED in (mod["main"].attrs or {}):
            notes.append(
                "float16 is computed in float32, as not all processors have its arithmetic"
            )
        # of a quantised network, `passes/integers_in_half.py` rewrites regions, once there are some
        if self.precision in (PRECISIONS[0], BFLOAT) or has_integers(mod["main"]):
            return mod, notes
        use_half: tvm.transform.Pass = UseHalf(wide_sums=self.precision == WIDE_SUMS)
        mod = use_half(mod)
        return mod, [*notes, describe_halves(mod["main"])]
