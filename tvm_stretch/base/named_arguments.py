"""Checks arguments: refuses unknown keyword arguments, and suggests a similar one.

    ts.compile(network, target="llvm")
        ->   InputError: expected an argument of compile, got target=; did you mean targets=?

Python's own TypeError suggests nothing.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection
from typing import ParamSpec, TypeVar

from tvm_stretch.base.errors import InputError
from tvm_stretch.base.files import is_finite

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


def is_number(value: object, low: float, high: float) -> bool:
    """Whether an argument is a number of this range; integers of Python have no largest one."""
    return isinstance(value, int | float) and is_finite(value) and low <= value <= high


def is_one_of(value: object, names: Collection[str]) -> bool:
    """Whether an argument is one of these words; arrays and dictionaries cannot be looked up."""
    return isinstance(value, str) and value in names


def is_count(value: object, low: int = 1) -> bool:
    """Whether an argument is an integer from ``low`` on that the executor can count to."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value < 2**31
