"""Kinds of JSON files of ours: their format and version, and dataclasses whose types check them.

PLANS = Format("tvm_stretch.plan", 1, "the plan", PlanError, "write the plan again")
write_whole(path, json.dumps({**PLANS.head, "reason": "..."}))
data = PLANS.read(path)           # {"reason": "..."}, or a PlanError that says what is wrong
PLANS.build(Plan, data, "it")     # expected a string for reason of it, got 3; write the plan again
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from tvm_stretch.base.errors import StretchError
from tvm_stretch.base.files import (
    as_path,
    is_finite,
    is_whole,
    make_folder,
    read_whole,
    reason_of,
    sealed,
    write_whole,
    writing,
)

Kind = TypeVar("Kind")

_MOST = 1e12
"""The largest number of `within`, so that sums and products stay finite."""

_PLAIN = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}


@cache
def own_version() -> str:
    """The version of this package; reading it takes milliseconds, and every network asks."""
    return version("tvm-stretch")


@dataclass(frozen=True)
class Format:
    """A kind of JSON file of ours, with its checks."""

    name: str  # the format's name in its files
    version: int  # the version of this package; files of other versions are refused
    what: str  # the name of such a file in messages
    error: type[StretchError]  # the class of errors
    again: str  # a hint for messages: how to get a new file
    is_sealed: bool = False  # whether `read` accepts only files that `sealed` made

    @property
    def head(self) -> dict[str, Any]:
        """The first fields of each file."""
        return {"format": self.name, "version": self.version}

    def read(self, path: Path) -> dict[str, Any]:
        """The fields of a file without its head.

        Raises:
            StretchError: `error`, if the file cannot be read or has another format or version.
        """
        try:
            content = read_whole(path)
        except OSError as error:
            raise self.error(
                f"expected a readable file for {self.what}, got {reason_of(error)}; "
                f"check the path, or {self.again}"
            ) from error
        where = f"{self.what} in {path}"
        data = self.parse(content, where)
        if self.is_sealed and not is_whole(content):
            raise self.error(
                f"expected the content that was written for {where}, got damaged or edited "
                f"content; {self.again}"
            )
        return data

    def write(self, path: Path, data: Mapping[str, Any], indent: int | None = None) -> None:
        """Write a sealed file and the folder that it lies in; it appears complete or not at all."""
        with writing(self.what, self.error):
            make_folder(path.parent)
            write_whole(path, sealed(json.dumps({**self.head, **data}, indent=indent) + "\n"))

    def read_any(self, source: object, kind: str) -> tuple[dict[str, Any], str]:
        """Like `read`, for the path of a file or a dict; and a text for messages that names it.

        Args:
            kind: the class that the argument could have had, too.
        """
        if isinstance(source, Mapping):
            return self.body(dict(source), self.what), self.what
        if not isinstance(source, str | os.PathLike):
            raise self.error(
                f"expected a {kind}, the path of its file or a dict for {kind.lower()}, got "
                f"{type(source).__name__}; give one of these"
            )
        return self.read(as_path(source, self.what)), f"{self.what} in {source}"

    def parse(self, content: str | bytes, where: str) -> dict[str, Any]:
        """Like `read`, for a text."""
        return self.body(self.load(content, where), where)

    def load(self, content: str | bytes, where: str) -> dict[str, Any]:
        """Parse a JSON object without checking its head."""
        try:
            data = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise self.error(
                f"expected JSON for {where}, got {error}; correct the file, or {self.again}"
            ) from error
        if not isinstance(data, dict):
            raise self.error(
                f"expected an object for {where}, got {type(data).__name__}; {self.again}"
            )
        return data

    def body(self, data: dict[str, Any], where: str) -> dict[str, Any]:
        """Like `read`, for parsed JSON."""
        header = (data.get("format"), data.get("version"))
        if header != (self.name, self.version):
            raise self.error(
                f"expected {(self.name, self.version)} for the format and version of {where}, got "
                f"{header}; {self.again} with this version of tvm_stretch"
            )
        head = {*self.head, "fingerprint"} if self.is_sealed else self.head
        return {key: value for key, value in data.items() if key not in head}

    def build(self, kind: type[Kind], data: Any, where: str) -> Kind:
        """Build a dataclass from an object of the file, with values of the types of its fields.

        Lists become tuples, and fields with defaults may be missing. Fields that comparisons leave
        out are not part of files.

        Raises:
            StretchError: `error`, if the object has other fields, or a value another type.
        """
        types, needed = _fields(kind)  # type: ignore[arg-type]
        if not isinstance(data, Mapping) or not needed <= set(data) <= set(types):
            read = [name for name in types if name in needed]
            more = [name for name in types if name not in needed]
            words = " and perhaps ".join(filter(None, (_listed(read), _listed(more))))
            got = f"{data!r:.200}"
            if isinstance(data, Mapping):
                missing = (f"no {name}" for name in read if name not in data)
                got = ", ".join([*missing, *(f"{n!r} too" for n in data if n not in types)])
            raise self.error(f"expected the fields {words} for {where}, got {got}; {self.again}")
        return kind(**{key: self.value(types[key], v, key, where) for key, v in data.items()})

    def within(
        self,
        record: Kind,
        where: str,
        least: float = 0.0,
        most: float = _MOST,
        /,
        **limits: tuple[float, float],  # ranges of single fields
    ) -> Kind:
        """Refuse a dataclass with a number outside of a range, also in its lists and mappings."""
        for name, value in vars(record).items():
            low, high = limits.get(name, (least, most))
            parts = value if isinstance(value, tuple) else (value,)
            numbers = [(name, part) for part in parts]
            if isinstance(value, Mapping):
                numbers = [(f"{key} of {name}", part) for key, part in value.items()]
            for key, number in numbers:
                if isinstance(number, int | float) and not low <= number <= high:
                    raise self._refusal(f"a number from {low:g} to {high:g}", number, key, where)
        return record

    def value(self, kind: Any, data: Any, key: str, where: str) -> Any:
        """A value of a type, from the field ``key`` of parsed JSON."""
        if kind in (Any, object) or (kind in _PLAIN and _is_plain(kind, data)):
            return data
        if is_dataclass(kind):
            return data if isinstance(data, kind) else self.build(kind, data, f"{key} of {where}")  # type: ignore[arg-type]
        origin, inner = _generic(kind)
        if origin is UnionType:
            return self._choice(inner, data, key, where)
        if origin is tuple and isinstance(data, list | tuple):
            kinds = inner[:1] * len(data) if inner[-1] is ... else inner
            if len(kinds) == len(data):
                items = enumerate(zip(kinds, data, strict=True))
                return tuple(self.value(k, v, f"{key}[{i}]", where) for i, (k, v) in items)
        if origin in (dict, Mapping) and isinstance(data, Mapping):
            return {
                str(name): self.value(inner[1], v, f"{name!r} in {key}", where)
                for name, v in data.items()
            }
        if origin is Literal and data in inner:
            return data
        raise self._refusal(_words(kind), data, key, where)

    def _choice(self, kinds: Sequence[Any], data: Any, key: str, where: str) -> Any:
        """A value that may be None, or one of dataclasses that differ in ``by``."""
        if not all(map(is_dataclass, kinds)):
            return None if data is None else self.value(kinds[0], data, key, where)
        kind_of = {kind.by: kind for kind in kinds}
        values = dict(data) if isinstance(data, Mapping) else {}
        if (kind := kind_of.get(str(values.pop("by", None)))) is None:
            raise self._refusal(f"an object with by = {' or '.join(kind_of)}", data, key, where)
        return self.build(kind, values, f"{key} of {where}")

    def _refusal(self, words: str, data: Any, key: str, where: str) -> StretchError:
        return self.error(f"expected {words} for {key} of {where}, got {data!r:.200}; {self.again}")


@cache
def _fields(kind: Any) -> tuple[dict[str, Any], set[str]]:
    """The types of the fields that files have, and the names of those without defaults."""
    types = get_type_hints(kind)
    compared = [field for field in fields(kind) if field.compare]
    needed = (f.name for f in compared if f.default is MISSING and f.default_factory is MISSING)
    return {field.name: types[field.name] for field in compared}, set(needed)


@cache
def _generic(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    return get_origin(kind), get_args(kind)


def _is_plain(kind: type, data: Any) -> bool:
    """Whether it is of the type itself: no bool is an int, but a name may be TVM's string."""
    if kind is float:
        return is_finite(data)
    if kind is str:  # no lone surrogates, which no file could hold
        return isinstance(data, str) and data.encode("utf-8", "ignore").decode() == data
    if kind is int:
        return type(data) is int and abs(data) < 2**63
    return type(data) is kind


def _words(kind: Any) -> str:
    """What a type looks like in a file."""
    inner = get_args(kind)
    if get_origin(kind) is Literal:
        return " or ".join(map(str, inner))
    if get_origin(kind) is tuple:
        return "a list" if inner[-1] is ... else f"a list of {len(inner)}"
    return _PLAIN.get(kind, "an object")


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
