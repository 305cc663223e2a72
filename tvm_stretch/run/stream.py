"""Frames of a video through a model: only what changed is computed.

model = ts.compile("denoiser.onnx", streams=True)
stream = model.stream()
y = stream(frame)  # equal to model(frame), bit by bit
stream.last.computed  # the share of the work
"""

from __future__ import annotations

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


class Stream:
    """Runs the frames of a video in order; ``Model.stream`` makes it.

    Attributes:
        last: what the run of the last frame did; None before the first.
    """

    def __init__(
        self, model: Model, noise: float, bound: float, keyframes: int, cut: float
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

    def __call__(self, /, *args: object, **kwargs: object) -> Answer:
        """The network's outputs for the next frame; arguments as for a call of the model.

        Raises:
            InputError: a frame has another size than the network, or a wrong type.
        """
        present, inputs = self._model._bind(args, kwargs)
        outputs = [tvm.runtime.empty(info.shape, info.dtype) for info in self._model.outputs]
        due = self._keyframes and self._frames % self._keyframes == 0
        told = self._model.module["run_frame"](*self._options, bool(due), *inputs, *outputs)
        self._frames += 1
        self.last = FrameRun(*map(float, str(told).split(",")))
        return self._model._presented(present, outputs)

    def reset(self) -> None:
        """Forget the last frame: the next one is computed completely."""
        self._model = self._model.create_instance()
        self._frames = 0
