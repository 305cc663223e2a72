"""ONNX's own node cases through tvm_stretch: what is accepted is right, the rest is refused.

The checked-in listing says which; a change shows in its diff. One of 192 cases runs by default,
all of them with `make test-full`. To renew the listing:

    python tests/device/onnx_node_cases.py --update
"""

from __future__ import annotations

import zlib

import pytest
from device.onnx_node_cases import cases, read_listing, run_batch

LISTING = read_listing()
PARTS = 192
QUICK_PARTS = (124,)  # its cases come from few files of ONNX, which take a second to import


def part_of(name: str) -> int:
    """Cases of one operator have neighbouring names: digests spread them over the parts."""
    return zlib.crc32(name.encode()) % PARTS


@pytest.mark.full
def test_the_listing_has_every_case_sorted() -> None:
    assert list(LISTING) == sorted(cases())


def test_the_listing_holds_nothing_wrong() -> None:
    allowed = ("ok", "refused: ")
    assert [name for name, text in LISTING.items() if not text.startswith(allowed)] == []
    assert sum(text.startswith("ok") for text in LISTING.values()) >= 1300


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(part, marks=() if part in QUICK_PARTS else pytest.mark.full)
        for part in range(PARTS)
    ],
)
def test_verdicts_are_as_listed(part: int) -> None:
    names = [name for name in LISTING if part_of(name) == part]
    verdicts = run_batch(names)
    changed = {
        name: f"{verdicts[name]}   (listed: {LISTING[name]})"
        for name in names
        if verdicts[name] != LISTING[name]
    }
    assert not changed
