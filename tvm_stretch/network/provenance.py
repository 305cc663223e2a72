"""Record where operators and kernels come from as data; names are only for people.

    conv2d.p1 in `main`    Provenance(("conv2d",), part=1, owner=1)       a part of an operator
    conv2d.p1 + relu.p1    Provenance(("conv2d.p1", "relu.p1"), (), 1, 1)     a kernel
    conv2d.p1.pack_weight  Provenance((), ("conv2d.p1",), 1, 1)      a kernel that helps it

Relax cannot attach this to an operator, and TVM's passes drop attributes of calls. Therefore it is
kept in tables by names of variables, which are attributes of functions: `SOURCES` and `PARTS` of
``main``, `KERNELS` of each function that calls kernels. Names of
bindings record which operator of the frontend they come from: ``layer1.conv::``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from tvm_stretch.network.codec import from_text, to_text

if TYPE_CHECKING:  # a phone reads provenance without the compiler
    from tvm import relax


@dataclass(frozen=True)
class Provenance:
    """See the module docstring."""

    operators: tuple[str, ...] = ()  # the operators that it computes completely or in part
    # the operators that it only helps, such as by packing their weights
    helpers: tuple[str, ...] = ()
    part: int | None = None  # index of its part if they were split; otherwise None
    owner: int | None = None  # index of the processor to which a plan gave the part

    @property
    def served(self) -> tuple[str, ...]:
        """The operators that it computes or, if there are none, helps."""
        return self.operators or self.helpers

    def in_part(self, parts: Mapping[str, Provenance]) -> Provenance:
        """The same with part and owner of its operators, if they are parts."""
        part = next((parts[name] for name in self.served if name in parts), None)
        return self if part is None else replace(self, part=part.part, owner=part.owner)


def with_table(
    function: relax.Function, key: str, table: Mapping[str, Provenance]
) -> relax.Function:
    """The function with a table in one of its attributes."""
    return function.with_attr(key, to_text({name: to_data(p) for name, p in table.items()}))


def table_of(function: relax.Function, key: str) -> dict[str, Provenance]:
    """The table that `with_table` wrote; empty if there is none."""
    text = (function.attrs or {}).get(key)
    return {} if text is None else from_text(dict[str, Provenance], str(text))


def to_data(provenance: Provenance) -> dict[str, Any]:
    """A JSON object of all fields that are not empty."""
    return {key: value for key, value in asdict(provenance).items() if value not in ((), None)}


def free_name(wanted: str, taken: set[str]) -> str:
    """The name, or the first free one with a number appended; it is added to ``taken``."""
    name, number = wanted, 1
    while name in taken:
        number += 1
        name = f"{wanted}.{number}"
    taken.add(name)
    return name


_MADE_UP = re.compile(r"([lg]v|::)\d*")
SOURCE = re.compile(r"(?s:(?P<source>.+))::\d*")
_DOT = "\N{ONE DOT LEADER}"


def from_source(name: str) -> str:
    """The hint for a binding that comes from the operator ``name`` of the frontend."""
    return hide_dots(f"{name}::")


def source_of(name: str) -> str:
    """The operator of the frontend from which a binding called ``name`` comes, else ``name``."""
    match = SOURCE.fullmatch(name)
    return show_dots(match["source"] if match else name)


def same_source(expr: relax.Expr) -> str:
    """The hint for a binding that replaces the variable ``expr``."""
    name = getattr(expr, "name", "")
    return name if isinstance(name, str) and SOURCE.fullmatch(name) else ""


def hide_dots(name: str) -> str:
    """A hint that TVM's builder keeps: it replaces dots by underscores."""
    return name.replace(".", _DOT)


def show_dots(name: str) -> str:
    """The name that `hide_dots` was given."""
    return name.replace(_DOT, ".")


def is_made_up(name: str) -> bool:
    """Whether TVM's builder chose the name."""
    return _MADE_UP.fullmatch(name) is not None
