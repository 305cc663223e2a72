"""Frames of a video through a model: only what changed is computed.

model = ts.compile("denoiser.onnx", streams=True)
stream = model.stream()
y = stream(frame)  # equal to model(frame), bit by bit
stream.last.computed  # the share of the work
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tvm

from tvm_stretch.base.errors import InputError
from tvm_stretch.base.named_arguments import is_count, is_number
from tvm_stretch.run.values import Answer

if TYPE_CHECKING:
    from tvm_stretch.run.model import Model


@dataclass(frozen=True)
class FrameRun:
    """What the run of a frame did.

    Attributes:
        changed: the share of the inputs' pixels that differ from the frame before.
        computed: the share of the pixels of all results that were computed, weighted by bytes.
    """

    changed: float
    computed: float


class Worth:
    """Whether the parts of a frame that changed take less time than the whole frame.

    Small layers lose more by being called for areas than they save. Times of whole frames stand
    beside those of parts, by eighths of the pixels that changed; each is the least one, which
    grows by a fiftieth with every frame, as machines change.
    """

    def __init__(self) -> None:
        self._whole = math.inf
        self._parts: dict[int, float] = {}
        self._left = 0

    def ran(self, changed: float, seconds: float, *, whole: bool) -> None:
        """Record what a frame took."""
        if whole:
            self._whole = min(1.02 * self._whole, seconds)
        else:
            least = self._parts.get(int(8 * changed), math.inf)
            self._parts[int(8 * changed)] = min(1.02 * least, seconds)

    def prefers_whole(self, changed: float) -> bool:
        """Whether to compute the whole next frame, of which as much may have changed.

        Parts are tried again once in `_AGAIN` frames.
        """
        if self._parts.get(int(8 * changed), 0.0) <= self._whole:
            return False
        self._left = (self._left or _AGAIN) - 1
        return self._left > 0


_AGAIN = 16
_WARM_UP = 2
"""Whole frames at first: the first one takes longer."""


class Stream:
    """Runs the frames of a video in order; ``Model.stream`` makes it.

    Attributes:
        last: what the run of the last frame did; None before the first.
    """

    def __init__(
        self,
        model: Model,
        noise: float,
        bound: float,
        keyframes: int,
        cut: float,
        measured: bool,
    ) -> None:
        """See `Model.stream`."""
        for name, value, most in (
            ("noise", noise, float("inf")),
            ("bound", bound, 1.0),
            ("cut", cut, 1.0),
        ):
            if not is_number(value, 0, most):
                raise InputError(
                    f"expected a number from 0 to {most:g} for {name}, got {value!r}; correct it"
                )
        if not is_count(keyframes, low=0):
            raise InputError(
                f"expected a number of frames for keyframes, got {keyframes!r}; 0 is never"
            )
        if not isinstance(measured, bool):
            raise InputError(
                f"expected True or False for measured, got {measured!r:.80}; give one of them"
            )
        if not model.graph.streams:
            raise InputError(
                "expected a model that was compiled with streams=True for a stream, got another "
                "one; compile it again"
            )
        self.last: FrameRun | None = None
        self._model = model.create_instance()
        self._options = float(noise), float(bound), float(cut)
        self._keyframes = keyframes
        self._frames = 0
        self._worth = Worth() if measured and noise == bound == 0 else None

    def __call__(self, /, *args: object, **kwargs: object) -> Answer:
        """The network's outputs for the next frame; arguments as for a call of the model.

        Raises:
            InputError: a frame has another size than the network, or a wrong type.
            DeviceError: a processor beside the CPU failed, and the model has no spare. The next
                frame is computed completely.
        """
        present, inputs = self._model._bind(args, kwargs)
        outputs = [tvm.runtime.empty(info.shape, info.dtype) for info in self._model.outputs]
        due = bool(self._keyframes) and self._frames % self._keyframes == 0
        if self._worth is not None and self.last is not None:
            due = due or self._frames < _WARM_UP or self._worth.prefers_whole(self.last.changed)
        began = time.perf_counter()
        told = self._model.module["run_frame"](*self._options, due, *inputs, *outputs)
        seconds = time.perf_counter() - began
        self._model._warn_once()
        self._frames += 1
        self.last = FrameRun(*map(float, str(told).split(",")))
        if self._worth is not None:
            self._worth.ran(self.last.changed, seconds, whole=self.last.computed == 1)
        return self._model.interface.presented(present, outputs)

    def reset(self) -> None:
        """Forget the last frame: the next one is computed completely."""
        self._model = self._model.create_instance()
        self._frames = 0
