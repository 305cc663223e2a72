"""Frames of a video: what did not change is not computed, and answers stay equal bit by bit."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import tvm
from helpers.cpu_targets import QUICK, TARGET
from helpers.fake_targets import fake_processor
from helpers.relax_helpers import module
from helpers.stream_frames import (
    NETWORKS,
    SIDE,
    Body,
    frame,
    network,
    patched,
    plain,
    tiles,
    windows,
)
from tvm import relax, tirx

import tvm_stretch as ts
from tvm_stretch.base.errors import DeviceError, InputError
from tvm_stretch.run.stream import FrameRun, Worth
from tvm_stretch.targets.cpu.cpu import cpu_processor


def compiled(body: Body, threads: int = 1) -> ts.Model:
    return ts.compile(network(body), targets=[QUICK], cpu_threads=threads, streams=True)


@pytest.fixture(scope="module")
def images() -> ts.Model:
    return compiled(plain)


@pytest.mark.parametrize("body", NETWORKS)
def test_answers_are_equal_bit_by_bit(body: Body) -> None:
    model = compiled(body, threads=2 if body is windows else 1)
    stream = model.stream(measured=False)
    frames = [frame(), *(patched(5 * k, 40 - 7 * k, 4 + k, k) for k in range(6)), frame()]
    frames[3][0, 1, 47, 0] = np.nan
    for number, each in enumerate(frames):
        np.testing.assert_array_equal(stream(each), model(each), err_msg=f"frame {number}")
        assert stream.last is not None
        assert (stream.last.computed == 1) == (number == 0)


def test_winograds_tiles_round_together() -> None:
    """A pixel's last bits depend on its whole tile, also in frames that are not compared."""
    model = compiled(tiles)
    assert any("winograd" in node.kernel for node in model.graph.nodes)
    stream = model.stream(measured=False)
    for number in range(8):
        image = patched(20, 17 + number, 7, number + 1)
        np.testing.assert_array_equal(stream(image), model(image), err_msg=f"frame {number}")


def test_only_what_a_change_reaches_is_computed(images: ts.Model) -> None:
    stream = images.stream(measured=False)
    first = stream(frame())
    assert stream.last == FrameRun(1.0, 1.0)
    np.testing.assert_array_equal(stream(frame()), first)
    assert stream.last == FrameRun(0.0, 0.0)
    stream(patched(0, 0, 8))
    assert stream.last.changed == pytest.approx(64 / SIDE**2, abs=1e-6)
    assert 64 / SIDE**2 < stream.last.computed < 0.6
    stream(frame(7))
    assert stream.last == FrameRun(1.0, 1.0), "a new scene"


def test_little_changes_are_left_out_and_do_not_add_up(images: ts.Model) -> None:
    stream, first = images.stream(measured=False, noise=0.1), images(frame())
    stream(frame())
    for step, is_change in ((0.04, False), (0.08, False), (0.12, True), (0.2, False)):
        answer = stream(frame() + np.float32(step))
        assert stream.last is not None
        assert (stream.last.changed > 0) == is_change
        wanted = first if step < 0.1 else images(frame() + np.float32(0.12))
        np.testing.assert_array_equal(answer, wanted)


def test_feature_maps_within_a_bound_are_kept(images: ts.Model) -> None:
    """A change of one pixel ends in the first layer, and counts from the map that was kept."""
    exact, bounded = images.stream(measured=False), images.stream(measured=False, bound=0.5)
    first = bounded(frame())
    exact(frame())
    for step in (0.01, 0.02, 0.03):
        changed = frame()
        changed[:, :, 20, 20] += np.float32(step)
        assert not np.array_equal(exact(changed), first)
        np.testing.assert_array_equal(bounded(changed), first)
        assert exact.last is not None and bounded.last is not None
        assert 0 < bounded.last.computed < exact.last.computed
    far = patched(16, 16, 16) * np.float32(3)
    far[:, :, :16] = frame()[:, :, :16]
    assert not np.array_equal(bounded(far), first)


def test_keyframes_are_computed_completely(images: ts.Model) -> None:
    stream = images.stream(measured=False, keyframes=3)
    done = []
    for _ in range(7):
        stream(frame())
        assert stream.last is not None
        done.append(stream.last.computed)
    assert done == [1, 0, 0, 1, 0, 0, 1]
    stream.reset()
    stream(frame())
    assert stream.last.computed == 1


def test_a_stream_outlives_other_runs_and_the_artifact(images: ts.Model, tmp_path: Path) -> None:
    images.export(tmp_path / "images.so")
    model = ts.load(tmp_path / "images.so")
    stream = model.stream(measured=False)
    stream(frame())
    other = model(frame(3))
    np.testing.assert_array_equal(stream(patched(30, 30, 9)), images(patched(30, 30, 9)))
    np.testing.assert_array_equal(model(frame(3)), other)


def test_feature_maps_have_bytes_of_their_own(images: ts.Model) -> None:
    places = sorted({(t.offset, t.bytes) for t in images.graph.tensors if t.kind == "arena"})
    assert all(a + n <= b for (a, n), (b, _) in pairwise(places))


def test_what_no_stream_can_be_is_refused(images: ts.Model) -> None:
    stream = images.stream(measured=False)
    stream(frame())
    with pytest.raises(InputError, match="shape"):
        stream(frame()[:, :, :40])
    np.testing.assert_array_equal(stream(frame()), images(frame()), "the stream goes on")
    with pytest.raises(InputError, match="keyframes"):
        images.stream(measured=False, keyframes=-1)
    with pytest.raises(InputError, match="bound"):
        images.stream(measured=False, bound=2)
    other = ts.compile(module(relax.op.nn.relu, (1, 3, 8, 8)), targets=[QUICK])
    with pytest.raises(InputError, match="streams=True"):
        other.stream(measured=False)
    with pytest.raises(InputError, match="one plan"):
        ts.compile(network(plain), targets=[QUICK], plans=True, streams=True)


@tvm.transform.module_pass(opt_level=0, name="Idle")
class Idle:
    """Kernels that take no areas, so the CPU computes all of them."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        nothing = tirx.Evaluate(tirx.const(0, "int32"))
        return tvm.IRModule({v: f.with_body(nothing) for v, f in mod.functions.items()})


def beside_fake(spare: bool, **script: object) -> ts.Model:
    """The network on the CPU and a processor that shares its memory."""
    fake = fake_processor(mirrored=False, **script)
    fake = replace(fake, code=replace(fake.code, areas=Idle()))
    targets = [cpu_processor(TARGET, 1), fake]
    return ts.compile(network(plain), targets=targets, streams=True, spare=spare)


@pytest.mark.parametrize("spare", [False, True])
def test_a_processor_that_fails_is_an_error_unless_the_cpu_takes_over(spare: bool) -> None:
    names = [r.name for r in beside_fake(spare).graph.regions if r.processor == 1]
    model = beside_fake(spare, regions={names[1]: {"fails": "device lost", "failures": 1}})
    stream = model.stream(measured=False)
    if spare:
        with pytest.warns(
            RuntimeWarning, match=f"{re.escape(names[1])}.*lost; the CPU runs everything"
        ):
            answer = stream(frame())
        np.testing.assert_array_equal(answer, model(frame()))
    else:
        with pytest.raises(
            DeviceError, match=r"'fake' to compute areas of .*device lost; run it again"
        ):
            stream(frame())
    for each in (patched(3, 4, 9), patched(20, 30, 5)):
        np.testing.assert_array_equal(stream(each), model(each))


def test_whole_frames_where_parts_take_longer() -> None:
    """By what frames took, in eighths of what changed; parts are tried again now and then."""
    worth = Worth()
    assert not worth.prefers_whole(0.2), "nothing is known"
    worth.ran(1.0, 0.010, whole=True)
    worth.ran(0.2, 0.012, whole=False)
    worth.ran(0.05, 0.002, whole=False)
    choices = [worth.prefers_whole(0.2) for _ in range(32)]
    assert choices.count(False) == 2 and not choices[15] and not choices[31]
    assert not worth.prefers_whole(0.05) and not worth.prefers_whole(0.5)
    worth.ran(0.2, 0.009, whole=False)
    assert not worth.prefers_whole(0.2)
    for _ in range(200):
        worth.ran(1.0, 0.005, whole=True)
    assert worth.prefers_whole(0.2)


def test_whatever_is_computed_answers_are_equal_and_whole_frames_may_be_all_that_is_reused(
    images: ts.Model,
) -> None:
    measured, frames = images.stream(), images.stream(cut=0, measured=False)
    for number in range(6):
        image = patched(3 * number, 5, 9, number + 1)
        want = images(image)
        np.testing.assert_array_equal(measured(image), want)
        np.testing.assert_array_equal(frames(image), want)
        assert frames.last is not None and frames.last.computed == 1
        np.testing.assert_array_equal(frames(image), want)
        assert frames.last.computed == 0, "the same frame"
