"""A program that draws a picture 60 times a second by an OpenCL kernel, as an app's window does.

    python -m benchmarks.papers.drawing_app calibrate 5      the rounds of a picture that takes 5 ms
    python -m benchmarks.papers.drawing_app draw 20 10       draws for 10 s, prints what was dropped

A picture is begun at a tick and must be complete at the next one; if it is not, the ticks until it
is complete show the picture before, and are counted as dropped. Some pixels of every tenth picture
are computed again afterwards and compared. The program knows nothing of tvm_stretch: it calls the
driver's C functions, and on PoCL its kernels run on one thread on the last core.
"""

from __future__ import annotations

import ctypes
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.commands import options

WIDTH, HEIGHT = 640, 360
TICK_S = 1 / 60
_LEAST, _CHECKED = 4, 1009
_MEASURABLE_S = 2e-3
_SOURCE = b"""
__kernel void draw(__global uint* out, uint frame, uint rounds) {
  uint i = get_global_id(0), value = i ^ (frame * 2654435761u);
  for (uint r = 0; r < rounds; ++r) value = (value ^ (value >> 15)) * 747796405u + r;
  out[i] = value;
}
"""

_LIBRARIES = ("libOpenCL.so.1", "libnvidia-opencl.so.1", "libpocl.so.2")
_PLACES = {
    "GetDeviceIDs": 2,
    "CreateContext": 4,
    "CreateCommandQueue": 9,
    "CreateBuffer": 14,
    "CreateProgramWithSource": 26,
    "BuildProgram": 30,
    "CreateKernel": 34,
    "SetKernelArg": 38,
    "EnqueueReadBuffer": 48,
    "EnqueueNDRangeKernel": 59,
}
"""Places of functions in the table with which each object of a driver begins (cl_icd.h)."""

_ALL_DEVICES, _GPUS, _WRITE_ONLY = 0xFFFFFFFF, 4, 2


def first_device() -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
    """A platform and its device: the first GPU of all libraries that are here, else any.

    Raises:
        OSError: no library is here, or it has no platform.
    """
    found: list[ctypes.c_void_p] = []
    for name in _LIBRARIES:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        get = getattr(library, "clGetPlatformIDs", None)
        if get is None:  # of a driver that only a loader is meant to open
            find = library.clGetExtensionFunctionAddress
            find.restype = ctypes.c_void_p
            get = ctypes.CFUNCTYPE(ctypes.c_int32)(find(b"clIcdGetPlatformIDsKHR"))
        platforms, count = (ctypes.c_void_p * 8)(), ctypes.c_uint32()
        if get(8, platforms, ctypes.byref(count)) == 0 and count.value:
            found += [ctypes.c_void_p(one) for one in platforms[: count.value]]
    for kind in (_GPUS, _ALL_DEVICES):
        for platform in found:
            device, wanted = ctypes.c_void_p(), ctypes.c_uint64(kind)
            ask = ctypes.CFUNCTYPE(ctypes.c_int32)(_table(platform)[_PLACES["GetDeviceIDs"]])
            if ask(platform, wanted, 1, ctypes.byref(device), None) == 0:
                return platform, device
    raise OSError(f"expected a driver for OpenCL, got none of {_LIBRARIES}; docs/install.md")


def _table(platform: ctypes.c_void_p) -> Any:
    """The functions of a platform's driver."""
    return ctypes.cast(platform, ctypes.POINTER(ctypes.POINTER(ctypes.c_void_p)))[0]


class Window:
    """A picture of integers, and the OpenCL objects that draw it."""

    def __init__(self) -> None:
        # PoCL starts a thread for each core that it may use, with the affinity of this one
        cores = os.sched_getaffinity(0)
        os.environ.setdefault("POCL_MAX_PTHREAD_COUNT", "1")
        os.sched_setaffinity(0, {max(cores)})
        platform, device = first_device()
        self._table = _table(platform)
        context = self._made("CreateContext", None, 1, ctypes.byref(device), None, None)
        self._queue = self._made("CreateCommandQueue", context, device, ctypes.c_uint64(0))
        source = ctypes.c_char_p(_SOURCE)
        program = self._made("CreateProgramWithSource", context, 1, ctypes.byref(source), None)
        self._call("BuildProgram", program, 1, ctypes.byref(device), None, None, None)
        self._kernel = self._made("CreateKernel", program, ctypes.c_char_p(b"draw"))
        self.picture = np.zeros(WIDTH * HEIGHT, np.uint32)
        size = ctypes.c_size_t(self.picture.nbytes)
        flags = ctypes.c_uint64(_WRITE_ONLY)
        self._buffer = self._made("CreateBuffer", context, flags, size, None)
        self.draw(0, 1)  # threads and kernels exist
        os.sched_setaffinity(0, cores)

    def draw(self, frame: int, rounds: int) -> float:
        """Draw a picture and read it, as a compositor would; returns the seconds."""
        began = time.perf_counter()
        words = (self._buffer, ctypes.c_uint32(frame), ctypes.c_uint32(rounds))
        for place, word in enumerate(words):
            size = ctypes.c_size_t(ctypes.sizeof(word))
            self._call("SetKernelArg", self._kernel, place, size, ctypes.byref(word))
        extent = ctypes.c_size_t(len(self.picture))
        group = ctypes.c_size_t(64)
        launch = (1, None, ctypes.byref(extent), ctypes.byref(group), 0, None, None)
        self._call("EnqueueNDRangeKernel", self._queue, self._kernel, *launch)
        size = ctypes.c_size_t(self.picture.nbytes)
        pixels = ctypes.c_void_p(self.picture.ctypes.data)
        read = (1, ctypes.c_size_t(0), size, pixels, 0, None, None)
        self._call("EnqueueReadBuffer", self._queue, self._buffer, *read)
        return time.perf_counter() - began

    def sampled(self) -> np.ndarray:
        """The pixels of the picture that `check` compares."""
        return self.picture[::_CHECKED].copy()

    def _call(self, name: str, *words: Any) -> None:
        address = self._table[_PLACES[name]]
        code = ctypes.CFUNCTYPE(ctypes.c_int32)(address)(*words)
        if code:
            raise OSError(f"expected {name} of OpenCL to succeed, got {code}; try another driver")

    def _made(self, name: str, *words: Any) -> ctypes.c_void_p:
        address, code = self._table[_PLACES[name]], ctypes.c_int32()
        function = ctypes.CFUNCTYPE(ctypes.c_void_p)(address)
        made = function(*words, ctypes.byref(code))
        if code.value:
            raise OSError(f"expected {name} of OpenCL to succeed, got {code.value}; try another")
        return ctypes.c_void_p(made)


def pixels_of(places: np.ndarray, frame: int | np.ndarray, rounds: int) -> np.ndarray:
    """The kernel in NumPy."""
    value = places.astype(np.uint32) ^ (np.asarray(frame) * 2654435761 % 2**32).astype(np.uint32)
    for number in range(rounds):
        value = (value ^ (value >> np.uint32(15))) * np.uint32(747796405) + np.uint32(number)
    return value


def check(pictures: dict[int, np.ndarray], rounds: int) -> None:
    """Compare some pixels of pictures, by their frames, with what the kernel's arithmetic gives."""
    places = np.arange(0, WIDTH * HEIGHT, _CHECKED, dtype=np.uint32)
    wanted = pixels_of(places, np.array([*pictures], np.int64)[:, None], rounds)
    for (frame, found), right in zip(pictures.items(), wanted, strict=True):
        assert np.array_equal(found, right), f"picture {frame} is wrong"


@dataclass(frozen=True)
class Drawn:
    """What was drawn."""

    ticks: int
    dropped: int  # ticks at which no new picture was complete
    median_ms: float  # of a picture
    largest_ms: float

    @property
    def percent(self) -> float:
        """Dropped, of all."""
        return 100 * self.dropped / self.ticks


def drawn(
    draw: Callable[[int], float],
    ticks: int,
    now: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> Drawn:
    """Draw at each tick that finds the picture before it complete.

    Args:
        draw: draws the picture of a tick and returns the seconds.
        ticks: how many.
        now: the clock in seconds.
        sleep: waits for some seconds.
    """
    began, taken, shown, tick = now(), [], 0, 0
    while tick < ticks:
        wait = began + tick * TICK_S - now()
        if wait > 0:
            sleep(wait)
        taken.append(draw(tick))
        complete = int((now() - began) / TICK_S) + 1  # the tick that shows it
        shown += complete <= ticks
        tick = max(tick + 1, complete)
    return Drawn(ticks, ticks - shown, 1e3 * statistics.median(taken), 1e3 * max(taken))


def calibrated(window: Window, milliseconds: float) -> int:
    """The rounds with which a picture takes so long; the least of several, for quiet moments."""

    def seconds(rounds: int) -> float:
        return min(window.draw(frame, rounds) for frame in range(10))

    few, many = seconds(_LEAST), 8 * _LEAST
    while (taken := seconds(many)) < _MEASURABLE_S:  # a large GPU needs many
        many *= 2
    check({9: window.sampled()}, many)
    each = max(taken - few, 1e-6) / (many - _LEAST)
    return max(1, round(_LEAST + (milliseconds / 1e3 - few) / each))


def main() -> None:
    """Run from the command line."""
    arguments = options(
        *(__doc__, None, ("what", str), ("amount", float, "milliseconds of a picture, or rounds")),
        ("seconds?", 10.0),
        what=("calibrate", "draw"),
    )
    window = Window()
    if arguments.what == "calibrate":
        print(calibrated(window, arguments.amount))
        return
    rounds = int(arguments.amount)
    ticks = int(arguments.seconds / TICK_S)
    pictures: dict[int, np.ndarray] = {}

    def draw(tick: int) -> float:
        taken = window.draw(tick, rounds)
        if len(pictures) * 10 <= tick:
            pictures[tick] = window.sampled()
        return taken

    outcome = drawn(draw, ticks)
    check(pictures, rounds)
    print(json.dumps(asdict(outcome)))


if __name__ == "__main__":
    main()
