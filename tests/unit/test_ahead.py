"""What is made on a thread of its own, before somebody asks for it."""

from __future__ import annotations

import threading

import pytest

from tvm_stretch.plan.measuring.trial import Ahead


def test_so_many_are_made_before_they_are_asked_for() -> None:
    made: list[int] = []
    ready = threading.Semaphore(0)

    def make(number: int) -> str:
        made.append(number)
        ready.release()
        return f"number {number}"

    with Ahead(make, first=7, most=2) as ahead:
        assert ahead.take(7) == "number 7"
        for _ in range(3):
            assert ready.acquire(timeout=20)
        assert made == [7, 8, 9], "and no more: nobody has asked for 8"
        assert ahead.take(8) == "number 8" and ahead.take(9) == "number 9"
        assert ahead.take(3) == "number 3", "one that was given back; those behind it are done"
        assert ahead.take(8) == "number 8", "made again"
    assert sorted(made) == [3, 7, 8, 8, 9, 10, 11]


def test_what_making_raises_is_raised_to_who_asks() -> None:
    def make(number: int) -> int:
        return 1 // number

    with Ahead(make, first=0, most=1) as ahead:
        with pytest.raises(ZeroDivisionError):
            ahead.take(0)
        assert ahead.take(1) == 1


def test_nothing_is_made_on_a_thread_where_nobody_is_to_be_disturbed() -> None:
    with Ahead(lambda _number: threading.current_thread(), first=0, most=0) as ahead:
        assert ahead.take(0) is threading.current_thread()
    with Ahead(lambda _number: threading.current_thread(), first=0, most=1) as ahead:
        assert ahead.take(0) is not threading.current_thread()
        assert ahead.take(0) is ahead.take(1)
