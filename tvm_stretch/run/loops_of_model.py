"""Runs of a model one after the other: prompts, steps, tokens, frames."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import tvm

from tvm_stretch.base.errors import InputError
from tvm_stretch.run.drafting import Drafting
from tvm_stretch.run.states_of_model import changed_sampling, chosen_type, fed_values, stop_values
from tvm_stretch.run.stream import Stream
from tvm_stretch.run.values import Answer, like

if TYPE_CHECKING:
    from tvm_stretch.run.model import Model


class LoopsOfModel:
    """A model's ways to run many times; the model has them as methods."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def reset(self) -> None:
        """Set all states to what they were before the first run: zeros, or values of buffers."""
        self._model._load()
        self._model.module["reset"]()

    def feed(self, values: object) -> Answer:
        """Run with given values of the state that `Greedy` or `Sample` chooses: a prompt.

        Any number of values is read in pieces, the longest lengths of the model first. The next
        value is chosen once, after the last piece.

        Args:
            values: an array or a list of indices, of one sequence.

        Returns:
            The outputs of the last piece, as of a call.

        Raises:
            InputError: no state is chosen, the lengths do not add up to this number of values, or
                a value is none of the network; the states are those of the last piece that
                succeeded.
        """
        outputs = self._fed(fed_values(values, self._model.graph))
        given = [] if isinstance(values, list | tuple) else [values]
        present = like(given)
        return self._model.interface.presented(lambda found: [*map(present, found)], outputs)

    def _fed(self, values: tvm.runtime.Tensor) -> list[tvm.runtime.Tensor]:
        """The outputs of the last piece."""
        self._model._load()
        module, count = self._model.module, len(self._model.graph.outputs)
        module["feed"](values)
        return [module["get_output"](place) for place in range(count)]

    def set_sampling(self, **changes: float) -> None:
        """Change how states of a `Sample` are drawn from now on, and begin with the seed again.

        Args:
            changes: numbers of a `Sample` by name, such as ``temperature=0.5``; others stay.

        Raises:
            InputError: a number is out of its range, or the model has no `Sample`.
        """
        self._model.sampling = changed_sampling(self._model.graph, self._model.sampling, changes)
        self._model._set("set_sampling", *self._model.sampling.values())

    def run_steps(
        self, count: int, /, *args: object, stop: Iterable[int] = (), **kwargs: object
    ) -> Answer:
        """Run the network several times, without Python in between.

        Args:
            count: how many times.
            args: inputs by position, as for a call; an input that differs from step to step has
                one more dimension, the first, with a part for each step.
            stop: the last step is the first one at which all values that `Greedy` or `Sample` chose
                are among these: tokens that end a text.
            kwargs: inputs by name.

        Returns:
            The outputs as of a call, with one more dimension, the first: that of the steps.

        Raises:
            InputError: as for a call; the states are those of the last step that succeeded.
        """
        _check_count(count)
        present, inputs = self._model._bind(args, kwargs, steps=count)
        graph = self._model.lengths.graph_for(inputs, count, self._model.plans.number)
        stops = ",".join(map(str, stop_values(stop)))
        steps, outputs = self._model._run_steps(count, inputs, graph, stops)
        results = [result[:steps] for result in present(outputs)]
        return self._model.interface.named(results)

    def steps(
        self, count: int, /, *args: object, stop: Iterable[int] = (), **kwargs: object
    ) -> Iterator[Answer]:
        """Run the network several times; yields the outputs of each step as soon as it is done.

        Args:
            count: how many times at most; who reads may end it before, too.
            args: inputs by position, as for a call.
            stop: as for `run_steps`.
            kwargs: inputs by name.

        Raises:
            InputError: as for a call.
        """
        _check_count(count)
        ends = set(stop_values(stop))
        places = [state.output for state in self._model.graph.states]
        chosen = [place for place in places if place < len(self._model.graph.outputs)]
        self._model._bind(args, kwargs)

        def each() -> Iterator[Any]:
            for _ in range(count):
                outputs = self._model(*args, **kwargs)
                yield outputs
                values = {int(value) for place in chosen for value in outputs[place].ravel()}
                if ends and values <= ends:
                    return

        return each()

    def tokens(
        self, count: int, /, *, stop: Iterable[int] = (), draft: Model | None = None
    ) -> Generator[int, None, None]:
        """Run until `count` values are chosen; yields each one, as `steps` would choose them.

        A text that repeats itself is written several tokens at a time: what followed before is
        guessed, and read in one run with the last token. Which guesses come true is decided by the
        scores, greedily or by the same draws. Guesses that cost more time than they save end. For
        this, some length of the model must give scores of each of its positions, and its states
        must be counters and caches at whose places runs write rows.

        Args:
            count: how many values at most; who reads may end it before, too.
            stop: the last value is the first one of these.
            draft: a smaller model of the same vocabulary that has read the same text, and makes the
                guesses instead, on its processors while this model verifies the last ones
                (`run/drafting.py`). It reads along, so that it can go on afterwards.

        Raises:
            InputError: no state is chosen, the network forbids a value, or a draft does not fit.
        """
        _check_count(count)
        ends = stop_values(stop)
        stops = ",".join(map(str, ends))
        chosen_type(self._model.graph)
        if draft is not None:
            chosen_type(draft.graph)
        drafting = None if draft is None else Drafting(self._model, draft, stops)

        def each() -> Generator[int, None, None]:
            self._model._load()
            left, last, untold = count, None, deque[int]()
            try:
                while left > 0:
                    values = drafting.values(left) if drafting else self._guess(left, stops)
                    left -= len(values)
                    untold = deque(values)
                    while untold:
                        last = untold.popleft()
                        yield last
                    if values[-1] in ends:
                        return
            finally:  # who reads may stop before
                if untold:
                    self._model.module["take_back"](len(untold))
                if drafting:
                    drafting.end(len(untold), last)

        return each()

    def _guess(self, most: int, stops: str) -> list[int]:
        values: list[int] = self._model.module["guess"](most, stops).numpy().tolist()
        return values

    def stream(
        self,
        *,
        noise: float = 0.0,
        bound: float = 0.0,
        keyframes: int = 0,
        cut: float = 0.9,
        measured: bool = True,
    ) -> Stream:
        """A stream of frames that resemble each other: only what changed is computed.

        With ``noise`` and ``bound`` of 0, answers are equal to those of a call, bit by bit.

        Args:
            noise: the largest difference of a pixel from the frame before that is no change.
            bound: the largest difference of a feature map that is no change, relative to the
                map's largest number. Changes that are left out do not add up over frames.
            keyframes: with 30, every thirtieth frame is computed completely; 0 for never.
            cut: if a larger share of the pixels changed, everything is computed; 0 reuses whole
                frames alone.
            measured: with ``noise`` and ``bound`` of 0, frames are computed completely where that
                took less time; the answers are the same.

        Raises:
            InputError: the model was compiled without ``streams=True``.
        """
        return Stream(self._model, noise, bound, keyframes, cut, measured)


def _check_count(count: object) -> None:
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count < 2**63:
        raise InputError(f"expected 1 to 2**63 - 1 for count, got {count!r}; run at least one step")
