"""Fingerprints of artifacts and of compiled programs, computed anew."""

from __future__ import annotations

import struct


def fingerprint(data: bytes) -> int:
    """The same as `Fingerprint` in native/memory.cc."""
    mask, prime = 2**64 - 1, 0x9E3779B97F4A7C15

    def mix(lane: int, word: int) -> int:
        lane = ((lane ^ word) * prime) & mask
        return lane ^ (lane >> 29)

    lanes = [1, 2, 3, len(data)]
    whole = len(data) // 32 * 32
    for i, (word,) in enumerate(struct.iter_unpack("<Q", data[:whole])):
        lanes[i % 4] = mix(lanes[i % 4], word)
    for byte in data[whole:]:
        lanes[0] = mix(lanes[0], byte)
    result = 0
    for lane in lanes:
        result = mix(result, lane)
    return result
