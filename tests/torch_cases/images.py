"""Pools, resizes, samplers, edges and windows."""

from __future__ import annotations

import torch

from torch_cases.inputs import Case

F = torch.nn.functional
_X = "1x2x7x9"

_POOLS = {
    "max_pool1d": (lambda x: F.max_pool1d(x, 3, 2, 1), "2x3x10"),
    "max_pool1d unbatched": (lambda x: F.max_pool1d(x, 2), "3x10"),
    "max_pool2d": (lambda x: F.max_pool2d(x, 3, 2, 1), _X),
    "max_pool2d default": (lambda x: F.max_pool2d(x, (2, 3)), _X),
    "max_pool2d ceil": (lambda x: F.max_pool2d(x, 2, 2, ceil_mode=True), _X),
    "max_pool2d ceil pad": (lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True), "1x2x8x10"),
    "max_pool2d ceil without last": (
        lambda x: F.max_pool2d(x, 2, 3, 1, ceil_mode=True),
        "1x2x8x10",
    ),
    "max_pool2d dilated": (lambda x: F.max_pool2d(x, 3, 1, 1, dilation=2), _X),
    "max_pool2d of negatives": (lambda x: F.max_pool2d(x - 9, 3, 2, 1), _X),
    "max_pool2d unbatched": (lambda x: F.max_pool2d(x, 2), "2x7x9"),
    "max_pool2d half": (lambda x: F.max_pool2d(x, 3, 2, 1), "f16:1x2x7x9"),
    "max_pool2d of ints": (lambda x: F.max_pool2d(x, 3, 2, 1), "i32:1x2x7x9~-9,-1"),
    "max_pool2d places": (lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), _X),
    "max_pool3d": (lambda x: F.max_pool3d(x, (1, 3, 3), (1, 2, 2), (0, 1, 1)), "1x2x4x7x9"),
    "max_pool3d ceil": (lambda x: F.max_pool3d(x, 2, ceil_mode=True), "1x2x5x7x9"),
    "max_unpool2d": (
        lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
        "1x2x8x6",
    ),
    "avg_pool1d": (lambda x: F.avg_pool1d(x, 3, 2, 1), "2x3x10"),
    "avg_pool1d ceil": (lambda x: F.avg_pool1d(x, 3, 2, 1, True, False), "2x3x10"),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 3, 2, 1), _X),
    "avg_pool2d exclude": (lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False), _X),
    "avg_pool2d ceil": (lambda x: F.avg_pool2d(x, 2, 2, ceil_mode=True), _X),
    "avg_pool2d ceil pad": (lambda x: F.avg_pool2d(x, 3, 2, 1, True), "1x2x8x10"),
    "avg_pool2d ceil exclude": (lambda x: F.avg_pool2d(x, 3, 2, 1, True, False), "1x2x8x10"),
    "avg_pool2d divisor": (lambda x: F.avg_pool2d(x, 3, 2, divisor_override=4), _X),
    "avg_pool2d unbatched": (lambda x: F.avg_pool2d(x, (2, 3)), "2x7x9"),
    "avg_pool2d half": (lambda x: F.avg_pool2d(x, 3, 2, 1), "f16:1x2x7x9"),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 2, 2, 1, False, False), "1x2x4x6x8"),
    "avg_pool3d ceil": (lambda x: F.avg_pool3d(x, 3, 2, ceil_mode=True), "1x2x4x6x8"),
    "lp_pool2d": (lambda x: F.lp_pool2d(x, 2, 3, 2), _X),
    "adaptive_avg_pool1d": (lambda x: F.adaptive_avg_pool1d(x, 4), "2x3x10"),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, (3, 4)), _X),
    "adaptive_avg_pool2d of one": (lambda x: F.adaptive_avg_pool2d(x, 1), _X),
    "adaptive_avg_pool2d larger": (lambda x: F.adaptive_avg_pool2d(x, 10), "1x2x3x4"),
    "adaptive_avg_pool2d None": (lambda x: F.adaptive_avg_pool2d(x, (None, 2)), _X),
    "adaptive_avg_pool2d unbatched": (lambda x: F.adaptive_avg_pool2d(x, 3), "2x7x9"),
    "adaptive_avg_pool2d half": (lambda x: F.adaptive_avg_pool2d(x, 3), "f16:1x2x7x9"),
    "adaptive_avg_pool3d": (lambda x: F.adaptive_avg_pool3d(x, (2, 3, 4)), "1x2x5x7x9"),
    "adaptive_max_pool1d": (lambda x: F.adaptive_max_pool1d(x, 4), "2x3x10"),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, (3, 4)), _X),
    "adaptive_max_pool2d of one": (lambda x: F.adaptive_max_pool2d(x, 1), _X),
    "adaptive_max_pool2d divides": (lambda x: F.adaptive_max_pool2d(x, 2), "1x2x8x4"),
    "adaptive_max_pool3d": (lambda x: F.adaptive_max_pool3d(x, 2), "1x2x4x6x8"),
}


def _resized(mode: str, spec: str, **options: object) -> Case:
    return (lambda x: F.interpolate(x, mode=mode, **options), spec)  # type: ignore[arg-type]


_RESIZES = {
    **{
        f"{mode} {name}": _resized(mode, _X, **options)
        for mode in ("nearest", "bilinear", "bicubic", "nearest-exact", "area")
        for name, options in {
            "twice": {"scale_factor": 2},
            "1.3": {"scale_factor": 1.3},
            "0.7": {"scale_factor": 0.7},
            "1.05": {"scale_factor": 1.05},
            "factors": {"scale_factor": (2.5, 0.4)},
            "size": {"size": (10, 5)},
            "recomputed": {"scale_factor": 1.3, "recompute_scale_factor": True},
        }.items()
    },
    **{
        f"{mode} aligned {name}": _resized(mode, _X, align_corners=True, **options)
        for mode in ("bilinear", "bicubic")
        for name, options in {
            "twice": {"scale_factor": 2},
            "1.3": {"scale_factor": 1.3},
            "size": {"size": (10, 5)},
            "of one": {"size": (1, 4)},
        }.items()
    },
    **{
        f"{mode} antialiased {name}": _resized(mode, _X, antialias=True, size=size)
        for mode in ("bilinear", "bicubic")
        for name, size in {"smaller": (3, 4), "larger": (11, 20)}.items()
    },
    **{
        f"{mode} {rank}d {name}": _resized(mode, spec, **options)
        for mode, rank, spec in (
            ("nearest", 1, "2x3x7"),
            ("linear", 1, "2x3x7"),
            ("nearest", 3, "1x2x3x4x5"),
            ("trilinear", 3, "1x2x3x4x5"),
            ("area", 1, "2x3x7"),
            ("area", 3, "1x2x3x4x5"),
            ("nearest-exact", 1, "2x3x7"),
            ("nearest-exact", 3, "1x2x3x4x5"),
        )
        for name, options in {
            "twice": {"scale_factor": 2},
            "1.3": {"scale_factor": 1.3},
            "size": {"size": (5, 2, 6)[:rank]},
        }.items()
    },
    "linear 1d aligned": _resized("linear", "2x3x7", size=11, align_corners=True),
    "trilinear aligned": _resized("trilinear", "1x2x3x4x5", size=(5, 2, 9), align_corners=True),
    "bilinear half": _resized("bilinear", f"f16:{_X}", scale_factor=2),
    "nearest half": _resized("nearest", f"f16:{_X}", scale_factor=2),
    "nearest uint8": _resized("nearest", f"u8:{_X}~0,255", scale_factor=2),
    "bilinear of one pixel": _resized("bilinear", "1x2x1x1", size=(4, 3)),
}


def _grid(mode: str, edge: str, *, aligned: bool = False) -> Case:
    def sample(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(x, grid, mode, edge, align_corners=aligned)

    return (sample, _X, "1x4x5x2~-1.4,1.4")


_SAMPLERS = {
    **{
        f"grid {mode} {edge} {aligned}": _grid(mode, edge, aligned=aligned)
        for mode in ("bilinear", "nearest", "bicubic")
        for edge in ("zeros", "border", "reflection")
        for aligned in (False, True)
    },
    "grid 3d": (
        lambda x, g: F.grid_sample(x, g, align_corners=False),
        "1x2x3x4x5",
        "1x2x3x4x3~-1.4,1.4",
    ),
    "grid half": (
        lambda x, g: F.grid_sample(x, g, align_corners=True),
        f"f16:{_X}",
        "f16:1x4x5x2~-1,1",
    ),
    "affine_grid": (lambda t: F.affine_grid(t, (2, 3, 4, 5), align_corners=False), "2x2x3"),
    "affine_grid aligned": (lambda t: F.affine_grid(t, (2, 3, 4, 5), align_corners=True), "2x2x3"),
    "affine_grid 3d": (
        lambda t: F.affine_grid(t, (2, 3, 4, 5, 6), align_corners=False),
        "2x3x4",
    ),
}

_EDGES = {
    "pad": (lambda x: F.pad(x, (1, 2, 0, 3)), _X),
    "pad value": (lambda x: F.pad(x, (1, 0), value=-2.5), _X),
    "pad negative": (lambda x: F.pad(x, (-1, 2, 1, -2)), _X),
    "pad of ints": (lambda x: F.pad(x, (1, 2), value=7), "i64:2x5~0,9"),
    "pad of bools": (lambda x: F.pad(x, (1, 2), value=True), "bool:2x5"),
    "pad half": (lambda x: F.pad(x, (1, 2), value=float("-inf")), "f16:2x5"),
    "pad reflect": (lambda x: F.pad(x, (3, 2, 1, 0), "reflect"), _X),
    "pad reflect 1d": (lambda x: F.pad(x, (3, 2), "reflect"), "3x7"),
    "pad reflect 3d": (lambda x: F.pad(x, (1, 2, 1, 0, 0, 1), "reflect"), "1x2x3x4x5"),
    "pad replicate": (lambda x: F.pad(x, (3, 2, 1, 0), "replicate"), _X),
    "pad replicate negative": (lambda x: F.pad(x, (-1, 2, 1, 0), "replicate"), _X),
    "pad circular": (lambda x: F.pad(x, (3, 2, 1, 0), "circular"), _X),
    "pad circular 1d": (lambda x: F.pad(x, (3, 2), "circular"), "1x3x7"),
    "zero pad": (torch.nn.ZeroPad2d((1, 0, 2, 1)), _X),
    "constant pad": (torch.nn.ConstantPad1d(2, 0.5), "2x3x4"),
    "unfold": (lambda x: F.unfold(x, 3, padding=1, stride=2), _X),
    "unfold dilated": (lambda x: F.unfold(x, (2, 3), dilation=(2, 1)), _X),
    "unfold unbatched": (lambda x: F.unfold(x, 2), "2x7x9"),
    "fold": (lambda x: F.fold(x, (7, 9), 3, padding=1), "1x18x63"),
    "fold strided": (lambda x: F.fold(x, (8, 8), 2, stride=2), "2x12x16"),
    "windows": (lambda x: x.unfold(-1, 4, 2), "2x3x11"),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), "2x12x3x4"),
    "pixel_shuffle unbatched": (lambda x: F.pixel_shuffle(x, 2), "12x3x4"),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2), "2x3x4x6"),
    "channel_shuffle": (lambda x: F.channel_shuffle(x, 3), "2x6x4x4"),
    "native_channel_shuffle": (torch.nn.ChannelShuffle(2), "2x6x4x4"),
}

CASES: dict[str, Case] = {**_POOLS, **_RESIZES, **_SAMPLERS, **_EDGES}
