"""Random damage, for campaigns that nothing may survive wrongly: of bytes, and of JSON.

    for dice in mutations(piece): assert_refused(damaged_bytes(dice, content))

A campaign has pieces of `EACH` mutations. One piece runs by default, all with `make test-full`.
"""

from __future__ import annotations

import copy
import json
import random
import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest

EACH = 25
"""Mutations of one piece."""

JUNK: tuple[object, ...] = (
    *(None, True, False, -1, 0, 1, 2, 3, 7, 64, 2**31, 2**62, 2**70, -(2**63), 0.5, -1e300),
    *(10**400, -(10**400), 1e-320),
    *(float("nan"), float("inf"), "", "x", "cpu", "float16", "relu", "\x00", "é" * 3),
    *([], [0], [-1, 2**40], ["x"], [[]], {}, {"name": "x"}),
)


def campaign(mutations: int) -> Any:
    """A parameter `piece` for so many mutations."""
    pieces = range(mutations // EACH)
    params = [pytest.param(n, marks=pytest.mark.full if n else ()) for n in pieces]
    return pytest.mark.parametrize("piece", params)


def interruptions(each: int = 10, by_default: int = 2) -> Any:
    """Parameters for 100 processes that are killed, and 100 that are interrupted by Ctrl-C.

    Parameters: `how`, a signal; `piece`, for the dice; `rounds`, how many processes it has.
    """
    params = []
    for how in (signal.SIGKILL, signal.SIGINT):
        params.append(pytest.param(how, 0, by_default, id=f"{how.name}-some"))
        for piece in range(1, 1 + 100 // each):
            name = f"{how.name}-{piece}"
            params.append(pytest.param(how, piece, each, marks=pytest.mark.full, id=name))
    return pytest.mark.parametrize(("how", "piece", "rounds"), params)


def dice_of(piece: int) -> Iterator[random.Random]:
    """Dice for each mutation of a piece, always the same ones."""
    return (random.Random(seed) for seed in range(piece * EACH, (piece + 1) * EACH))


def damaged_bytes(dice: random.Random, data: bytes) -> bytes:
    """The same with bits flipped, a part lost, zeroed, doubled or moved, or the end cut off."""
    start, end = sorted(dice.randrange(len(data) + 1) for _ in range(2))
    if dice.random() < 0.5:  # what disks and networks damage is small
        end = min(end, start + dice.choice([1, 8, 512]))
    part, there = data[start:end], dice.randrange(len(data))
    return dice.choice(
        [
            lambda: (
                data[:there] + bytes([data[there] ^ 1 << dice.randrange(8)]) + data[there + 1 :]
            ),
            lambda: data[:start] + data[end:],
            lambda: data[:start] + bytes(len(part)) + data[end:],
            lambda: data[:start] + dice.randbytes(len(part)) + data[end:],
            lambda: data[:end] + data[start:],
            lambda: data[:there] + part + data[there + len(part) :],
            lambda: data[:start],
        ]
    )()


def damaged_library(dice: random.Random, data: bytes) -> bytes:
    """An ELF file with such damage, or with bytes behind it, or other numbers in its headers."""
    way = dice.randrange(4)
    if way == 0:
        return damaged_bytes(dice, data)
    if way == 1:
        end = data[-dice.randrange(1, 64) :]  # its own fingerprint, too
        return data + dice.choice([bytes(1), dice.randbytes(dice.randrange(1, 5000)), end])
    headers = 64 + 56 * int.from_bytes(data[56:58], "little")  # which tell the loader everything
    changed = bytearray(data)
    for _ in range(dice.randint(1, 3)):
        size = dice.choice([1, 2, 4, 8])
        start = dice.randrange(64 if way == 2 else 0, headers) // size * size
        number = int.from_bytes(data[start : start + size], "little")
        other = dice.choice([0, 1, -1, number + 1, number - 1, number << 12, dice.getrandbits(64)])
        changed[start : start + size] = (other % (1 << 8 * size)).to_bytes(size, "little")
    return bytes(changed)


def damaged_json(dice: random.Random, data: Any) -> Any:
    """A copy of which one to three values are replaced, removed, doubled or swapped."""
    data = copy.deepcopy(data)
    for _ in range(dice.randint(1, 3)):
        owner, key = dice.choice(list(places(data)))
        other_owner, other_key = dice.choice(list(places(data)))
        change = dice.randrange(5)
        if change == 0 and isinstance(owner, list):
            owner.insert(key, copy.deepcopy(owner[key]))
        elif change <= 1:
            del owner[key]
        elif change == 2:
            owner[key] = copy.deepcopy(other_owner[other_key])
        else:
            owner[key] = _other(dice, owner[key])
        if not data:
            break
    return data


def damaged_numbers(dice: random.Random, text: str) -> str:
    """A text with one to three of its numbers, names or lines replaced by other ones."""
    for _ in range(dice.randint(1, 3)):
        places = list(re.finditer(r"[\w.+-]+", text))
        if dice.random() < 0.2:
            lines = text.splitlines(keepends=True)
            lines[dice.randrange(len(lines))] = dice.choice(["", *lines])
            text = "".join(lines)
        elif places:
            found = dice.choice(places)
            word = dice.choice([*_NUMBERS, dice.choice(places)[0], json.dumps(found[0])])
            text = text[: found.start()] + word + text[found.end() :]
    return text


_NUMBERS = (
    "0",
    "-1",
    "1e-320",
    "1e308",
    "1e999",
    "nan",
    "-inf",
    "9" * 400,
    "true",
    "[]",
    "{}",
    "''",
)


def _other(dice: random.Random, value: Any) -> Any:
    """Junk, or of the same type and near."""
    if dice.random() < 0.5:
        if type(value) in (int, float):
            return dice.choice([value + 1, value - 1, 2 * value, -value, value + 64])
        if isinstance(value, str) and value:
            there = dice.randrange(len(value))
            return value[:there] + dice.choice("aZ0. ") + value[there + 1 :]
    return copy.deepcopy(dice.choice(JUNK))  # what is damaged later must not damage these


def places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in nested lists and dicts: what holds it, and its key."""
    for key, value in list(node.items() if isinstance(node, dict) else enumerate(node)):
        yield node, key
        if isinstance(value, dict | list):
            yield from places(value)
