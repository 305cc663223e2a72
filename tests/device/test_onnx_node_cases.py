"""ONNX's own node cases through tvm_stretch: what is accepted is right, the rest is refused.

The checked-in listing says which; a change shows in its diff. A few cases run by default, all of
them with `make test-full`. To renew the listing:

    python tests/device/onnx_node_cases.py --update
"""

from __future__ import annotations

import zlib

import pytest
from device.onnx_node_cases import cases, read_listing, run_batch

LISTING = read_listing()
PARTS = 12
"""A process for each: making ONNX's cases takes longer than a hundred compiles."""


def digest(name: str) -> int:
    """Cases of one operator have neighbouring names: digests spread them over the parts."""
    return zlib.crc32(name.encode())


QUICK = [name for name in LISTING if digest(name) % 192 == 124]
"""Cases from few files of ONNX, which take a second to import."""


@pytest.mark.full
def test_the_listing_has_every_case_sorted() -> None:
    assert list(LISTING) == sorted(cases())


def test_the_listing_holds_nothing_wrong() -> None:
    allowed = ("ok", "refused: ")
    assert [name for name, text in LISTING.items() if not text.startswith(allowed)] == []
    assert sum(text.startswith("ok") for text in LISTING.values()) >= 1600


def changed(names: list[str]) -> dict[str, str]:
    """Cases whose verdict is not the listed one."""
    verdicts = run_batch(names)
    return {
        name: f"{verdicts[name]}   (listed: {LISTING[name]})"
        for name in names
        if verdicts[name] != LISTING[name]
    }


def test_some_verdicts_are_as_listed() -> None:
    assert not changed(QUICK)


@pytest.mark.full
@pytest.mark.parametrize("part", range(PARTS))
def test_verdicts_are_as_listed(part: int) -> None:
    assert not changed([name for name in LISTING if digest(name) % PARTS == part])
