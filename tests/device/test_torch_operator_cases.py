"""Calls of torch through torch.export: what is accepted is right, the rest is refused.

The checked-in listing says which; a change shows in its diff. One of 96 parts runs by default, all
of them with `make test-full`. To renew the listing:

    python tests/device/torch_operator_cases.py --update
"""

from __future__ import annotations

import zlib

import pytest
from device.torch_operator_cases import CASES, read_listing, verdicts

LISTING = read_listing()
PARTS = 96
QUICK_PARTS = (0,)


def part_of(name: str) -> int:
    """Neighbouring cases need the same kernels: digests spread them over the parts."""
    return zlib.crc32(name.encode()) % PARTS


def test_the_listing_has_every_case() -> None:
    assert list(LISTING) == list(CASES)


def test_the_listing_holds_nothing_wrong() -> None:
    allowed = ("ok", "refused: expected ", "no export: ")
    assert [name for name, text in LISTING.items() if not text.startswith(allowed)] == []
    assert sum(text == "ok" for text in LISTING.values()) >= 700


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "part",
    [
        pytest.param(part, marks=() if part in QUICK_PARTS else pytest.mark.full)
        for part in range(PARTS)
    ],
)
def test_accepted_calls_are_right(part: int) -> None:
    names = [name for name, text in LISTING.items() if text == "ok" and part_of(name) == part]
    assert set(verdicts(names).values()) == {"ok"}


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name, text in LISTING.items() if text != "ok"])
def test_others_are_refused_as_listed(name: str) -> None:
    assert verdicts([name]) == {name: LISTING[name]}
