"""Training: statistics, determinism, checkpoints, soft labels, and what goes wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.stretch_networks import regnet
from helpers.training_helpers import IMAGES, LABELS, loader, net_of

import tvm_stretch as ts
from tvm_stretch.base.errors import InputError, TrainingError
from tvm_stretch.lab.training import Training
from tvm_stretch.lab.training.loop import share_of_rate, weighted_soft_labels

ROOT = Path(__file__).resolve().parents[2]


def state(net) -> list[torch.Tensor]:
    return [value.clone() for value in net.state_dict().values()]


def assert_equal(net, other) -> None:
    assert all(torch.equal(a, b) for a, b in zip(state(net), state(other), strict=True))


def test_recalibrated_statistics_are_those_of_the_images():
    net = net_of()
    weights = [value.clone() for value in net.parameters()]
    for images in (IMAGES, IMAGES.numpy(), loader()):
        ts.training.recalibrate(net.eval(), images)
        first = net.get_submodule("tuplegetitem")
        with torch.no_grad():
            seen = torch.nn.functional.conv2d(IMAGES, net.conv2d.weight, padding=1)
        torch.testing.assert_close(first.running_mean, seen.mean((0, 2, 3)), rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(first.running_var, seen.var((0, 2, 3)), rtol=0.2, atol=0)
        assert not net.training and first.momentum == 0.1 and not first.training
    assert all(torch.equal(a, b) for a, b in zip(weights, net.parameters(), strict=True))
    with pytest.raises(InputError, match="images to recalibrate with, got none"):
        ts.training.recalibrate(net, [])


def test_recalibration_counts_every_image_alike():
    norm = torch.nn.BatchNorm2d(1)
    values = torch.tensor([0.0] * 128 + [100.0] * 2)
    ts.training.recalibrate(norm, values[:, None, None, None])
    assert norm.running_mean.item() == pytest.approx(values.mean().item())
    assert norm.running_var.item() == pytest.approx(values.var().item(), rel=1e-4)


@pytest.mark.parametrize("images", [[], [IMAGES, IMAGES[:, :, :3]], [IMAGES, IMAGES / 0]])
def test_a_recalibration_that_fails_changes_nothing(images):
    net = net_of()
    before = state(net)
    with pytest.raises((InputError, TrainingError)):
        ts.training.recalibrate(net, images)
    assert all(torch.equal(a, b) for a, b in zip(before, state(net), strict=True))


def test_layers_keep_their_modes():
    net, teacher = net_of(), net_of().train()
    net.train().tuplegetitem.eval()
    teacher.tuplegetitem.eval()
    ts.training.accuracy(net, loader())
    assert net.training and not net.tuplegetitem.training
    ts.training.distill(net, teacher, loader(), Training(epochs=1))
    assert teacher.training and not teacher.tuplegetitem.training


def test_training_learns_and_repeats():
    net, again, other = net_of(), net_of(), net_of()
    lines: list[str] = []
    losses = ts.training.fit(net, loader(), Training(epochs=4, seed=1, progress=lines.append))
    assert losses[-1] < losses[0] and not net.training
    assert lines[-1].startswith("epoch 4 of 4, loss ")
    before = torch.random.get_rng_state()
    ts.training.fit(again, loader(), Training(epochs=4, seed=1))
    assert torch.equal(torch.random.get_rng_state(), before)
    ts.training.fit(other, loader(), Training(epochs=4, seed=2))
    assert_equal(net, again)
    ts.training.recalibrate(net, IMAGES)
    assert ts.training.accuracy(net, loader()) > 0.5
    assert not torch.equal(net.conv2d.weight, other.conv2d.weight)


class KilledError(Exception):
    """In the place of a signal."""


class Dying(ts.training.Batches):
    """Ends in the middle of the third epoch."""

    epochs = 0

    def __iter__(self):
        self.epochs += 1
        for index, batch in enumerate(super().__iter__()):
            if self.epochs == 3 and index == 1:
                raise KilledError
            yield batch


def test_a_run_that_was_cut_off_goes_on(tmp_path):
    whole, first, second = net_of(), net_of(), net_of()
    path = tmp_path / "run.pt"
    ts.training.fit(whole, loader(), Training(epochs=4))
    with pytest.raises(KilledError):
        ts.training.fit(first, Dying(IMAGES, LABELS, 16), Training(epochs=4, checkpoint=path))
    assert [file.name for file in tmp_path.iterdir()] == ["run.pt"]
    assert len(ts.training.fit(second, loader(), Training(epochs=4, checkpoint=path))) == 2
    assert_equal(whole, second)
    assert ts.training.fit(net_of(), loader(), Training(epochs=4, checkpoint=path)) == []


ENDLESS = """
import sys
from helpers.training_helpers import loader, net_of
import tvm_stretch as ts
ts.training.fit(net_of(), loader(), ts.training.Training(epochs=40, checkpoint=sys.argv[1]))
"""


@pytest.mark.full
def test_a_run_that_was_killed_goes_on(tmp_path):
    """SIGKILL at any time; the file is whole or not there, and what comes out is the same."""
    whole, last = net_of(), net_of()
    path = tmp_path / "run.pt"
    ts.training.fit(whole, loader(), Training(epochs=40))
    for pause in (0.0, 0.05, 0.13):
        child = subprocess.Popen(
            [sys.executable, "-c", ENDLESS, str(path)],
            env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        )
        before = path.read_bytes() if path.exists() else b""
        while child.poll() is None and (path.read_bytes() if path.exists() else b"") == before:
            time.sleep(0.01)
        time.sleep(pause)
        child.kill()
        child.wait()
    ts.training.fit(last, loader(), Training(epochs=40, checkpoint=path))
    assert_equal(whole, last)


def test_checkpoints_that_do_not_fit(tmp_path):
    path = tmp_path / "run.pt"
    ts.training.fit(net_of(), loader(), Training(epochs=1, checkpoint=path))

    def refused(words: str, net, **settings) -> None:
        with pytest.raises(TrainingError, match=words):
            ts.training.fit(
                net, loader(), Training(**{"epochs": 1, "checkpoint": path, **settings})
            )

    refused("got one of another", net_of(regnet))
    refused("got one of another", torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(432, 5)))
    refused("got epochs=1 where this has 2", net_of(), epochs=2)
    refused("got rate=0.1 where this has 0.2", net_of(), rate=0.2)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"?")
    refused("got a damaged one", net_of())
    path.write_bytes(b"{}")
    refused("got another kind of file", net_of())
    refused("a readable checkpoint", net_of(), checkpoint=tmp_path)


def test_nan_stops(tmp_path):
    path = tmp_path / "run.pt"
    images = IMAGES.clone()
    images[3] = torch.nan
    with pytest.raises(TrainingError, match="expected a finite loss, got nan in epoch 1 of 2"):
        ts.training.fit(
            net_of(), ts.training.Batches(images, LABELS), Training(epochs=2, checkpoint=path)
        )
    assert not path.exists()


def test_soft_labels():
    """Against the formula, written out."""
    rng = np.random.default_rng(0)
    own, its = rng.standard_normal((2, 4, 5))
    labels = np.array([0, 1, 2, 4])

    def logs(values: np.ndarray) -> np.ndarray:
        return values - np.log(np.exp(values).sum(1, keepdims=True))

    rows = np.arange(4)
    weight = 1 - np.exp(-(logs(own)[rows, labels] / logs(its)[rows, labels]))
    soft = -(np.exp(logs(its / 2)) * logs(own / 2)).sum(1)
    given = [torch.tensor(values) for values in (own, its, labels)]
    found = weighted_soft_labels(*given, temperature=2)
    assert float(found) == pytest.approx(4 * (weight * soft).mean(), rel=1e-5)


def test_distillation():
    teacher, net, alone = net_of(), net_of(), net_of()
    ts.training.fit(teacher, loader(), Training(epochs=3))
    taught = state(teacher.train())
    ts.training.distill(net, teacher, loader(), Training(epochs=2))
    ts.training.fit(alone, loader(), Training(epochs=2))
    assert teacher.training
    assert all(torch.equal(a, b) for a, b in zip(taught, state(teacher), strict=True))
    assert not torch.equal(net.conv2d.weight, alone.conv2d.weight)
    with pytest.raises(InputError, match="positive number for temperature"):
        ts.training.distill(net, teacher, loader(), Training(epochs=1), temperature=0)


def test_the_rate_rises_and_falls():
    shares = [share_of_rate(done) for done in np.linspace(0, 1, 101)]
    top = shares.index(max(shares))
    assert shares[:top] == sorted(shares[:top]) and shares[top:] == sorted(shares[top:])[::-1]
    assert max(shares) == 1 and shares[-1] == 0


def test_wrong_calls():
    net = net_of()
    for words, given in (
        ("pairs of images and labels", {"loader": [IMAGES]}),
        ("a loader that gives batches", {"loader": iter(())}),
        ("positive number for epochs", {"epochs": 0}),
        ("for rate, got -1", {"rate": -1}),
        ("for rate, got 'x'", {"rate": "x"}),
        ("for momentum, got 1", {"momentum": 1}),
        ("for weight_decay, got -1", {"weight_decay": -1}),
        ("whole number for seed, got 1.5", {"seed": 1.5}),
        ("for seed, got 1000", {"seed": 10**20}),
        ("loader of images and labels, got NoneType", {"loader": None}),
        ("whole number as label", {"loader": [(IMAGES, torch.eye(48))]}),
        ("labels below the network's number", {"loader": [(IMAGES, LABELS + 1000)]}),
        ("existing folder for checkpoint", {"checkpoint": "/nowhere/x.pt"}),
        ("a device that torch has", {"device": "abacus"}),
    ):
        given = {"loader": loader(), "epochs": 1, **given}
        with pytest.raises(InputError, match=words):
            ts.training.fit(net, given.pop("loader"), Training(**given))
    with pytest.raises(InputError, match="a torch module for net, got str"):
        ts.training.fit("net", loader(), Training(epochs=1))
    with pytest.raises(InputError, match="float32 weights in net"):
        ts.training.accuracy(net_of().half(), loader())
    with pytest.raises(InputError, match="a teacher of the same classes"):
        ts.training.distill(net, torch.nn.Flatten(), loader(), Training(epochs=1))
    with pytest.raises(InputError, match="positive number for size, got 0"):
        ts.training.Batches(IMAGES, LABELS, 0)
    with pytest.raises(InputError, match="as many labels as images"):
        ts.training.Batches(IMAGES, LABELS[:3])
