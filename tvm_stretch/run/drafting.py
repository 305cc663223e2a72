"""Guesses of a smaller model, which drafts a text on its processor while another one verifies.

    draft    reads the last token, writes d1 .. d7     goes on: d8 .. d14      ..
    model                                              reads the last token and d1 .. d7, and keeps
                                                       what it would have chosen one by one

If all seven came true, the next ones are there already; otherwise the draft takes back what it read
of others. So answers are those of the model alone, drawn ones too. Drafts that take more time than
they save end: a race decides, because only a machine knows how fast two processors are together.
"""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import tvm

from tvm_stretch.base.errors import InputError
from tvm_stretch.make.lowering.executor_graph import Graph, Port, State

if TYPE_CHECKING:
    from tvm_stretch.run.model import Model

_PLAIN_RUNS, _ROUNDS = 3, 4
"""Runs without a draft that are timed, and rounds with one before it may end."""


class Drafting:
    """A model and its draft, which have read the same text."""

    def __init__(self, model: Model, draft: Model, stops: str) -> None:
        self._model, self._draft, self._stops = model, draft, stops
        self._guessed = _guessed_values(model.graph)
        _check_draft(model.graph, draft.graph)
        self._thread = ThreadPoolExecutor(1, "draft")
        # values that the draft wrote after the last one that the model chose; the draft has read
        # that one and all of these but the last
        self._guesses: list[int] = []
        # values that the draft has yet to read: the model chose one more after them
        self._behind: list[int] = []
        self._last = _value_of(model)
        self._plain = math.inf  # seconds of a run that chooses one value
        self._spent, self._drafted, self._rounds = 0.0, 0, 0
        self._plain_runs, self._is_full = 0, False
        self._set_last()

    def values(self, most: int) -> list[int]:
        """The next values, at most this number."""
        if self._is_full or self._is_slower():
            return self._alone(most)
        begin = time.perf_counter()
        if self._plain_runs < _PLAIN_RUNS:
            values = self._alone(1)
            self._plain = min(self._plain, time.perf_counter() - begin)
            self._plain_runs += 1
            return values
        if not self._catch_up():
            return self._alone(most)
        self._guesses = self._guesses or self._write()
        later = self._thread.submit(self._write)
        try:
            values = self._choose(most, self._guesses)
        finally:  # a run may fail, or be cancelled
            self._guesses = self._guesses + later.result()
        if values == self._guesses[: len(values)]:
            self._guesses = self._guesses[len(values) :]
            self._last = values[-1]
        else:
            self._go_back(len(self._guesses) - len(values), values[-1])
        self._rounds += 1
        self._drafted += len(values)
        self._spent += time.perf_counter() - begin
        return values

    def _alone(self, most: int) -> list[int]:
        """The next values without the draft, which will read them later."""
        if self._guesses:
            self._go_back(len(self._guesses), self._last)
        values = self._choose(most, [])
        self._behind += [self._last, *values[:-1]]
        self._last = values[-1]
        return values

    def end(self, untold: int, last: int | None) -> None:
        """Let the draft have read what the model has, whose last values were taken back.

        A draft whose cache is full has read something else; `Model.reset` lets it begin again.
        """
        self._thread.shutdown()
        if self._is_full:
            return
        kept = max(len(self._behind) - untold, 0)
        ahead = len(self._guesses) + untold - (len(self._behind) - kept)
        self._go_back(ahead, self._last if last is None else last)
        del self._behind[kept:]
        self._catch_up()

    def _is_slower(self) -> bool:
        return self._rounds >= _ROUNDS and self._spent > self._plain * self._drafted

    def _choose(self, most: int, guesses: list[int]) -> list[int]:
        offered = [tvm.runtime.tensor(np.array(guesses, "int64"))] if guesses else []
        chosen = self._model.module["guess"](most, self._stops, *offered)
        values: list[int] = chosen.numpy().tolist()
        return values

    def _write(self) -> list[int]:
        """What the draft chooses next; nothing from when its cache is full."""
        try:
            outputs = self._draft.run_steps(self._guessed)
        except InputError:
            self._is_full = True
            return []
        place = _chosen(self._draft.graph)[1].output
        values: list[int] = np.asarray(outputs[place]).ravel().tolist()
        return values

    def _catch_up(self) -> bool:
        """Let the draft read what it has not read; returns whether its cache had room."""
        if not self._behind:
            return True
        try:
            self._draft.feed(self._behind)
        except InputError:
            self._is_full = True
            return False
        self._behind = []
        self._set_last()
        return True

    def _go_back(self, count: int, last: int) -> None:
        """Take back what the draft read."""
        if self._is_full:
            return
        graph, states = self._draft.graph, self._draft.states
        for port, state in zip(graph.held, graph.states, strict=True):
            if state.rewind > 0 and count:
                states[port.name] = states[port.name] - count * state.rewind
        self._guesses, self._last = [], last
        self._set_last()

    def _set_last(self) -> None:
        port, _ = _chosen(self._draft.graph)
        spec = self._draft.graph.tensors[port.tensor]
        self._draft.states[port.name] = np.full(spec.shape, self._last, spec.dtype)


def _chosen(graph: Graph) -> tuple[Port, State]:
    """The state that is chosen from scores, of which `chosen_type` has made sure."""
    pairs = zip(graph.held, graph.states, strict=True)
    return next(pair for pair in pairs if pair[1].output < len(graph.outputs))


def _value_of(model: Model) -> int:
    port, _ = _chosen(model.graph)
    return int(np.asarray(model.states[port.name]).ravel()[-1])


def _guessed_values(graph: Graph) -> int:
    """How many guesses a run verifies: it has scores of each value that it reads."""
    port, state = _chosen(graph)
    place = graph.held.index(port)
    sizes = []
    for length in graph.lengths:
        values = math.prod(graph.tensors[length.held[place].tensor].shape)
        scores = graph.tensors[length.outputs[state.scores].tensor].shape
        if values > 1 and math.prod(scores[:-1]) == values:
            sizes.append(values)
    if state.scores < 0 or not sizes:
        raise InputError(
            "expected a model that scores each of several values for a draft, got none; compile it "
            "with ts.Sample and a length of 2 to 8 beside 1"
        )
    return min(sizes) - 1


def _check_draft(model: Graph, draft: Graph) -> None:
    (_, own), (port, other) = _chosen(model), _chosen(draft)
    words = [
        graph.tensors[graph.outputs[state.scores].tensor].shape[-1]
        for graph, state in ((model, own), (draft, other))
        if state.scores >= 0
    ]
    if len({*words}) != 1 or len(words) != 2:
        raise InputError(
            f"expected a draft that scores the {words[0]} values of the model, got another one; "
            "both have a ts.Sample of the same vocabulary"
        )
    rest = [state for state in draft.states if state is not other]
    if any(state.rewind < 0 for state in rest) or not any(state.rewind > 0 for state in rest):
        raise InputError(
            f"expected a draft whose states but {port.name!r} are counters and caches with rows at "
            "places, which can be taken back, got others; see docs/states.md"
        )
