"""Long work shows itself: to a callback, on a terminal, to the logger, and to nobody else."""

from __future__ import annotations

import io
import logging
import os
import pty
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
import tvm
from helpers.cpu_targets import TARGET
from helpers.relax_helpers import module, random_const
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.base import progress
from tvm_stretch.base.progress import count, ended, quiet, reporting, say
from tvm_stretch.make.code.generate import generate
from tvm_stretch.targets.cpu.cpu import cpu_processor


def network() -> tvm.IRModule:
    weight = random_const(4, 4, 3, 3)
    return module(lambda x: relax.op.nn.relu(relax.op.nn.conv2d(x, weight)), (1, 4, 8, 8))


def compiled(**options: object) -> ts.Model:
    return ts.compile(network(), [TARGET], cpu_threads=1, **options)


def test_compile_counts_kernels(caplog: pytest.LogCaptureFixture) -> None:
    lines: list[str] = []
    with caplog.at_level(logging.DEBUG, "tvm_stretch"):
        model = compiled(progress=lines.append)
    assert lines[0] == "reading the network"
    counted = [line for line in lines if line.startswith("kernel ")]
    total = len(counted)
    assert total >= len({node.kernel for node in model.graph.nodes})
    assert counted == [f"kernel {n} of {total}" for n in range(1, total + 1)]
    assert [record.getMessage() for record in caplog.records] == lines


def test_probe_names_what_it_tries_and_hides_the_details(tmp_path: Path) -> None:
    lines: list[str] = []
    host = cpu_processor(TARGET, 1)
    ts.tune.probe(network(), host, cache=tmp_path / "v", cpu_threads=1, progress=lines.append)
    assert lines[:2] == ["reading the network", "simplifying the network"]
    assert lines[2:] == ["nn.conv2d 1 of 2", "nn.relu 2 of 2"]


def test_a_terminal_has_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    cleared = "\r\x1b[K"
    expected = f"{cleared}kernel 17 of 63{cleared}a line that is longer t{cleared}"
    shown, end = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "24")
    with open(end, "w") as terminal:  # noqa: PTH123 - it has no path
        monkeypatch.setattr(sys, "stderr", terminal)
        with reporting(None):
            count("kernel", 17, 63)
            say("a line that is longer than the terminal is wide")
        text = ""
        while len(text) < len(expected):  # it comes in pieces
            text += os.read(shown, 1000).decode()
    os.close(shown)
    assert text == expected


def test_a_terminal_says_that_ctrl_c_was_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, and once: the step may take a while."""
    shown, end = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with open(end, "w") as terminal:  # noqa: PTH123 - it has no path
        monkeypatch.setattr(sys, "stderr", terminal)
        with pytest.raises(KeyboardInterrupt), reporting(print):
            signal.raise_signal(signal.SIGINT)
            text = os.read(shown, 1000).decode()
    os.close(shown)
    assert text.startswith("\r\x1b[KCtrl-C: ends after this step")


def test_ctrl_c_while_a_thread_works() -> None:
    goes_on = threading.Event()
    thread = threading.Thread(target=goes_on.wait, args=[60])
    thread.start()
    with pytest.raises(KeyboardInterrupt), reporting(print):
        signal.raise_signal(signal.SIGINT)
        ended(thread)
    assert thread.is_alive()
    goes_on.set()
    assert ended(thread)


@pytest.mark.parametrize("stream", [io.StringIO(), None])
def test_nothing_is_shown_elsewhere(
    stream: io.StringIO | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    with reporting(None):
        say("nobody hears this")
    assert stream is None or stream.getvalue() == ""


def test_a_pipe_gets_the_present_phase_from_time_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, wanted = io.StringIO(), "building cpu alone, kernel 17 of 63 (0 s)\n"
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "_PERIOD", 0.02)
    with reporting(None):
        say("building cpu alone")
        count("kernel", 17, 63)
        with reporting(None):  # a part of the work has no lines of its own
            say("a detail")
            end = time.monotonic() + 60
            while stream.getvalue().count(wanted) < 3 and time.monotonic() < end:
                time.sleep(0.02)
    assert "detail" not in stream.getvalue()
    assert stream.getvalue().count(wanted) >= 3
    time.sleep(0.1)
    ended_with = stream.getvalue()
    time.sleep(0.1)
    assert stream.getvalue() == ended_with


def test_every_thread_has_its_own_listener() -> None:
    heard: dict[str, list[str]] = {"left": [], "right": []}
    both_listen = threading.Barrier(2, timeout=60)

    def work(name: str) -> None:
        with reporting(heard[name].append):
            both_listen.wait()
            say(name)
            with quiet():
                say("a detail")
            both_listen.wait()

    threads = [threading.Thread(target=work, args=[name]) for name in heard]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    say("nobody listens any more")
    assert heard == {"left": ["left"], "right": ["right"]}


def test_a_failed_kernel_ends_the_work() -> None:
    """What waits is not begun any more."""
    begun = []

    def code_of(function: tvm.tirx.PrimFunc) -> bytes:
        begun.append(function)
        if len(begun) > 1:
            time.sleep(0.2)  # while the failure is noticed
        raise ts.UnsupportedError("expected less")

    kernel = next(
        function
        for function in relax.transform.LegalizeOps()(network()).functions.values()
        if isinstance(function, tvm.tirx.PrimFunc)
    )
    with pytest.raises(ts.UnsupportedError, match="expected less"):
        generate({f"k{i}": kernel for i in range(1000)}, None, TARGET, code_of)
    assert len(begun) < 1000


@pytest.mark.parametrize("more", [False, True])
def test_ctrl_c_is_answered_between_steps(more: bool) -> None:
    """Not in between, where C++ may have called; pressed again, it is."""
    usual, begun = signal.getsignal(signal.SIGINT), []
    with pytest.raises(KeyboardInterrupt), reporting(begun.append):
        say("reading")
        signal.raise_signal(signal.SIGINT)
        begun.append("went on")
        if more:
            signal.raise_signal(signal.SIGINT)
            begun.append("not here")
        say("searching")
    assert begun == ["reading", "went on"]
    assert signal.getsignal(signal.SIGINT) is usual


def test_ctrl_c_is_answered_after_the_last_step() -> None:
    with pytest.raises(KeyboardInterrupt), reporting(print):
        signal.raise_signal(signal.SIGINT)
        with reporting(print):
            pass  # it is not the inner one's to answer


def test_pressed_again_while_the_handler_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is answered once, and what was there before is there again."""
    usual, real = signal.getsignal(signal.SIGINT), signal.signal

    def pressed_meanwhile(number: int, handler: object) -> object:
        if handler is usual:
            signal.raise_signal(signal.SIGINT)
        return real(number, handler)

    with pytest.raises(KeyboardInterrupt), reporting(print):
        signal.raise_signal(signal.SIGINT)
        monkeypatch.setattr(signal, "signal", pressed_meanwhile)
    assert signal.getsignal(signal.SIGINT) is usual
