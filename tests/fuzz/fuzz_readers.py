"""Fuzzes a reader of the package with atheris, which libFuzzer drives.

    python tests/fuzz/fuzz_readers.py onnx CORPUS -max_total_time=60

Readers: onnx, tflite, pt2, gguf, plan, design, profile. An input is read, or refused by one error
of ours. Anything else is a finding: another error, no end, more memory than libFuzzer's limit.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import types
import warnings
from collections.abc import Iterator

import atheris
from readers import take

import tvm_stretch.read


def _functions() -> Iterator[types.FunctionType]:
    """All of the package's functions and methods that are imported."""
    modules = [module for name, module in sys.modules.items() if name.startswith("tvm_stretch")]
    for module in modules:
        owners = [module, *(one for one in vars(module).values() if isinstance(one, type))]
        for owner in owners:
            for found in list(vars(owner).values()):
                function = getattr(found, "__func__", getattr(found, "fget", found))
                function = getattr(function, "func", function)  # of a cached property
                is_own = getattr(function, "__module__", None) == module.__name__
                if is_own and isinstance(function, types.FunctionType):
                    yield function


def _instrument() -> None:
    """Count edges; the import hook of atheris does not see packages that are installed editable."""
    for module in pkgutil.walk_packages(tvm_stretch.read.__path__, "tvm_stretch.read."):
        importlib.import_module(module.name)
    seen: set[int] = set()
    for function in _functions():
        if id(function) not in seen:
            seen.add(id(function))
            atheris.instrument_func(function)


def main() -> None:
    """Fuzz the reader that is named first."""
    name = sys.argv.pop(1)
    warnings.simplefilter("ignore")
    _instrument()
    atheris.Setup(sys.argv, lambda content: take(name, content))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
