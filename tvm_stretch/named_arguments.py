"""Refuses unknown keyword arguments, and suggests a similar one.

    ts.compile(network, target="llvm")
        ->   InputError: expected an argument of compile, got target=; did you mean targets=?

Python's own TypeError suggests nothing.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from tvm_stretch.errors import InputError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def named_arguments(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The function with a check of its keyword arguments; see the module docstring."""
    names = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def checked(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        unknown = next((name for name in kwargs if name not in names), None)
        if unknown is not None:
            alike = difflib.get_close_matches(unknown.lower(), names, 1)
            hint = f"did you mean {alike[0]}=?" if alike else f"there are {', '.join(names)}"
            raise InputError(f"expected an argument of {function.__name__}, got {unknown}=; {hint}")
        return function(*args, **kwargs)

    return checked
