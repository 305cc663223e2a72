"""Words of messages: ``1 layer``, ``9 layers``."""

from __future__ import annotations


def counted(count: int, thing: str, rest: str = "") -> str:
    """``counted(9, "layer", " in shares")`` -> ``9 layers in shares``."""
    return f"{count} {thing}{'' if count == 1 else 's'}{rest}"
