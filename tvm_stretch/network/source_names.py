"""Names of bindings that record which operator of the frontend they come from."""

from __future__ import annotations

import re

from tvm import relax

_MADE_UP = re.compile(r"([lg]v|::)\d*")
SOURCE = re.compile(r"(?s:(?P<source>.+))::\d*")
_DOT = "\N{ONE DOT LEADER}"


def from_source(name: str) -> str:
    """The hint for a binding that comes from the operator ``name`` of the frontend."""
    return hide_dots(f"{name}::")


def source_of(name: str) -> str:
    """The operator of the frontend from which a binding called ``name`` comes, else ``name``."""
    found = SOURCE.fullmatch(name)
    return show_dots(found["source"] if found else name)


def same_source(expr: relax.Expr) -> str:
    """The hint for a binding that replaces the variable ``expr``."""
    return expr.name if isinstance(expr, relax.Var) and SOURCE.fullmatch(expr.name) else ""


def hide_dots(name: str) -> str:
    """A hint that TVM's builder keeps: it replaces dots by underscores."""
    return name.replace(".", _DOT)


def show_dots(name: str) -> str:
    """The name that `hide_dots` was given."""
    return name.replace(_DOT, ".")


def is_made_up(name: str) -> bool:
    """Whether TVM's builder chose the name."""
    return _MADE_UP.fullmatch(name) is not None
