"""Names that a package exports and imports on first use, because they load much or stand above it.

__getattr__ = exported(__name__, {"Processor": "processor", "cpu_processor": "cpu"})

from tvm_stretch.targets import Processor, cpu_processor
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def exported(
    package: str,  # its name
    names: Mapping[str, str],  # for each name, the module below the package that holds it
) -> Callable[[str], Any]:
    """What a package has to bind to ``__getattr__``."""

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{names[name]}"), name)

    return get
