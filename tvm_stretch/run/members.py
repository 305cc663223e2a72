"""Methods of an object that one of its members has."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def of_member(
    member: str, method: Callable[Concatenate[Any, P], T]
) -> Callable[Concatenate[Any, P], T]:
    """The method of a member, as a method of the object that has the member."""

    @functools.wraps(method)
    def call(self: object, *given: P.args, **named: P.kwargs) -> T:
        result: T = getattr(getattr(self, member), method.__name__)(*given, **named)
        return result

    return call
