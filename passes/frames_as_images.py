"""Compute layers of videos and volumes (N, C, T, H, W) as layers of their frames (N * T, C, H, W).

    y = conv3d(x, w: (O, C, 3, 3, 3))
        ->   x1 = concat([frames from 0, frames from 1, frames from 2], axis=channels)
             y1 = conv2d(x1, w1: (O, 3 * C, 3, 3))

Kernel templates know images only. A convolution reads the frames below its kernel as channels, so
all its sums are those of one 2-D layer. A transposed convolution of stride 2 along time computes
two frames of the result for each place, as channels of transposed 2-D layers. Operators between two
layers are computed on frames, too; the transposes that are left are those of inputs and results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_stretch.network.expressions import axes_of, constant, is_float, rewrite_functions, shape_of
from tvm_stretch.network.operators import POINTWISE, Column, kind_of
from tvm_stretch.network.properties.integer_summary import calls_of
from tvm_stretch.network.rewriting import SourceRewriter

_LAYERS = ("nn.conv3d", "nn.conv3d_transpose")
_VIDEO = [0, 2, 1, 3, 4]
"""Exchanges channels and time."""


@tvm.transform.module_pass(opt_level=0, name="FramesAsImages")
class FramesAsImages:
    """See the module docstring. A network without 3-D convolutions stays as it is."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        if not any(kind_of(binding.value) in _LAYERS for _, binding in calls_of(mod["main"])):
            return mod
        return rewrite_functions(mod, lambda mod, function: _Writer(mod).visit_expr(function))


@dataclass(frozen=True)
class _Time:
    """How a layer slides along the frames of a video."""

    kernel: int
    stride: int
    dilation: int
    before: int  # frames of padding
    results: int  # frames of the result

    @property
    def is_one_to_one(self) -> bool:
        """Whether each frame of the result is made of the frame at the same place."""
        return self.kernel == self.stride == 1 and self.before == 0

    def after(self, frames: int) -> int:
        """Frames of padding after the last one."""
        last = (self.results - 1) * self.stride + (self.kernel - 1) * self.dilation
        return max(last + 1 - frames - self.before, 0)


_RULES = Column()  # (writer, call) -> the call on frames


@relax.expr_functor.mutator
class _Writer(SourceRewriter):
    """A rule returns None if the operator stays as it is."""

    rules = _RULES

    def rewrite(self, call: relax.Call) -> relax.Expr | None:
        """Compute the call on frames if there is a rule for it."""
        return super().rewrite(call) if is_float(call) else None

    def origin(self, x: relax.Expr) -> relax.Expr | None:
        """The frames from which ``x`` was made."""
        call = self.definition(x)
        if kind_of(call) != "permute_dims" or len(shape_of(x)) != len(_VIDEO):
            return None
        if axes_of(call) != _VIDEO:
            return None
        reshape = self.definition(call.args[0])
        if kind_of(reshape) != "reshape":
            return None
        batch, time, *image = shape_of(reshape)
        frames = reshape.args[0]
        return frames if shape_of(frames) == [batch * time, *image] else None

    def frames(self, video: relax.Expr) -> relax.Expr:
        """The frames of a video: (N, C, T, H, W) -> (N * T, C, H, W)."""
        images = self.origin(video)
        if images is not None:
            return images
        batch, channels, time, height, width = shape_of(video)
        moved = self.emit(relax.op.permute_dims(video, _VIDEO))
        return self.emit(relax.op.reshape(moved, (batch * time, channels, height, width)))

    def video(self, frames: relax.Expr, batch: int) -> relax.Expr:
        """The video with these frames, for readers that expect one."""
        video = self.emit(frames)
        count, *image = shape_of(video)
        apart = self.emit(relax.op.reshape(video, (batch, count // batch, *image)))
        return relax.op.permute_dims(apart, _VIDEO)

    def read(self, video: relax.Expr, time: _Time, padding: float) -> list[relax.Expr]:
        """For each place of the kernel along time, the frames that it reads."""
        frames, (batch, _, count, *_) = self.frames(video), shape_of(video)
        if time.is_one_to_one:
            return [frames]
        image = shape_of(frames)[1:]
        axis = 0 if batch == 1 else 1  # images need no axis for one video
        if axis:
            frames = self.emit(relax.op.reshape(frames, (batch, count, *image)))
        before, after = time.before, time.after(count)
        if before or after:
            widths = [0] * 2 * axis + [before, after] + [0] * 6
            frames = self.emit(relax.op.nn.pad(frames, widths, "constant", padding))
        places = []
        for place in range(time.kernel):
            first = place * time.dilation
            end = first + (time.results - 1) * time.stride + 1
            part = relax.op.strided_slice(frames, [axis], [first], [end], [time.stride])
            if axis:
                part = relax.op.reshape(self.emit(part), (batch * time.results, *image))
            places.append(self.emit(part))
        return places

    def merged(
        self, parts: Sequence[relax.Expr], merge: Callable[[relax.Expr, relax.Expr], relax.Expr]
    ) -> relax.Expr:
        """All parts in one tensor, two by two."""
        merged, *others = (self.emit(part) for part in parts)
        for other in others:
            merged = self.emit(merge(merged, other))
        return merged


@_RULES("nn.conv3d")
def convolution(s: _Writer, call: relax.Call) -> relax.Expr | None:
    """The frames below a kernel are channels; with groups, each place has a layer of its own."""
    attrs, weight = call.attrs, s.constant(call.args[1])
    layouts = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout)
    if weight is None or layouts != ("NCDHW", "OIDHW", "NCDHW"):
        return None
    time, planes = _apart(call, weight.shape[2], attrs.dilation)
    planes |= {"dilation": [int(d) for d in attrs.dilation[1:]], "groups": int(attrs.groups)}
    places = s.read(call.args[0], time, 0.0)
    if attrs.groups == 1:
        read = places[0] if len(places) == 1 else s.emit(relax.op.concat(places, axis=1))
        outputs, _, _, *kernel = weight.shape
        flat = weight.swapaxes(1, 2).reshape(outputs, -1, *kernel)
        image = relax.op.nn.conv2d(read, constant(flat), **planes)
    else:
        image = s.merged(
            [
                relax.op.nn.conv2d(frames, constant(weight[:, :, place]), **planes)
                for place, frames in enumerate(places)
            ],
            relax.op.add,
        )
    return s.video(image, shape_of(call)[0])


@_RULES("nn.conv3d_transpose")
def transposed(s: _Writer, call: relax.Call) -> relax.Expr | None:
    """Frame ``stride * q + phase`` is made of the frames ``q - m``, by taps ``stride * m + phase``.

    The taps of a phase read their frames as channels, and the phases are channels of the result.
    """
    attrs, weight = call.attrs, s.constant(call.args[1])
    layouts = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout)
    if weight is None or layouts != ("NCDHW", "IODHW", "NCDHW") or attrs.groups != 1:
        return None
    batch, outputs, results, *_ = shape_of(call)
    taps, stride, front = weight.shape[2], int(attrs.strides[0]), int(attrs.padding[0])
    first, places = front // stride, -(-taps // stride)
    count = (front + results - 1) // stride + 1 - first
    single = places == 1 and count != shape_of(call.args[0])[2]
    if single or not stride <= taps or front >= taps or any(int(d) != 1 for d in attrs.dilation):
        return None
    read = s.read(call.args[0], _Time(places, 1, 1, places - 1 - first, count), 0.0)[::-1]
    _, planes = _apart(call, taps, attrs.dilation)
    planes["output_padding"] = [int(p) for p in attrs.output_padding[1:]]

    def layer(filters: list[np.ndarray]) -> relax.Expr:
        frames = read[: len(filters)]
        data = frames[0] if len(frames) == 1 else s.emit(relax.op.concat(frames, axis=1))
        flat = constant(np.concatenate(filters))
        return s.emit(relax.op.nn.conv2d_transpose(data, flat, **planes))

    phases = [[weight[:, :, t] for t in range(p, taps, stride)] for p in range(stride)]
    if taps % stride == 0:
        video = layer([np.concatenate(each, axis=1) for each in zip(*phases, strict=True)])
    else:
        video = s.emit(relax.op.concat([layer(phase) for phase in phases], axis=1))
    image = shape_of(video)[2:]
    skip, whole = front - first * stride, (batch, count * stride, outputs, *image)
    if (skip, results) != (0, count * stride):
        video = s.emit(relax.op.reshape(video, whole))
        video = s.emit(relax.op.strided_slice(video, [1], [skip], [skip + results]))
    return s.video(relax.op.reshape(video, (batch * results, outputs, *image)), batch)


def _apart(call: relax.Call, kernel: int, dilation: Sequence[int]) -> tuple[_Time, dict[str, Any]]:
    """How a layer slides along time, and along the axes of images."""
    attrs = call.attrs
    front, top, left, _, bottom, right = (int(p) for p in attrs.padding)
    stride, *strides = (int(step) for step in attrs.strides)
    time = _Time(kernel, stride, int(dilation[0]), front, shape_of(call)[2])
    return time, {"strides": strides, "padding": [top, left, bottom, right]}


@_RULES("nn.max_pool3d", "nn.avg_pool3d")
def pool(s: _Writer, call: relax.Call) -> relax.Expr | None:
    """Pools of images, of which the largest or the mean over time is taken."""
    attrs, is_largest = call.attrs, kind_of(call) == "nn.max_pool3d"
    if attrs.layout != "NCDHW":
        return None
    kernel, *size = (int(n) for n in attrs.pool_size)
    time, planes = _apart(call, kernel, attrs.dilation)
    padded = time.before or time.after(shape_of(call.args[0])[2])
    if not is_largest and padded and not attrs.count_include_pad:
        return None  # fewer frames count at the ends
    planes |= {"dilation": [int(d) for d in attrs.dilation[1:]], "ceil_mode": attrs.ceil_mode}
    if not is_largest:
        planes["count_include_pad"] = attrs.count_include_pad
    layer = relax.op.nn.max_pool2d if is_largest else relax.op.nn.avg_pool2d
    places = s.read(call.args[0], time, -np.inf if is_largest else 0.0)
    pooled = s.merged(
        [layer(frames, size, **planes) for frames in places],
        relax.op.maximum if is_largest else relax.op.add,
    )
    if not is_largest and kernel > 1:
        pooled = relax.op.multiply(pooled, relax.const(1 / kernel, call.ty.dtype))
    return s.video(pooled, shape_of(call)[0])


@_RULES(*POINTWISE)
def pointwise(s: _Writer, call: relax.Call) -> relax.Expr | None:
    """Element by element, with operands that are broadcast."""
    shape = shape_of(call)
    if len(shape) != len(_VIDEO) or all(s.origin(x) is None for x in call.args):
        return None
    operands = [_operand(s, x, shape) for x in call.args]
    if any(operand is None for operand in operands):
        return None
    return s.video(relax.Call(call.op, operands, call.attrs, call.ty_args), shape[0])


def _operand(s: _Writer, x: relax.Expr, shape: list[int]) -> relax.Expr | None:
    """An operand as frames; None if it would have to be repeated for each frame."""
    own = shape_of(x) if isinstance(x.ty, relax.TensorType) else []
    if not own:
        return x
    full = [1] * (len(shape) - len(own)) + own
    if full[:3:2] != shape[:3:2] and (full[2] != 1 or full[0] != 1):
        return None
    value = s.constant(x)
    if value is not None:
        frames = value.reshape(full).transpose(_VIDEO)
        return constant(frames.reshape(-1, *frames.shape[2:]))
    if full != own:
        x = s.emit(relax.op.reshape(x, full))
    return s.frames(x)


@_RULES("concat")
def concat(s: _Writer, call: relax.Call) -> relax.Expr | None:
    """Along all axes but time, where several videos have their frames one after the other."""
    parts = s.definition(call.args[0])
    if not isinstance(parts, relax.Tuple) or all(s.origin(part) is None for part in parts.fields):
        return None
    batch, axis = shape_of(call)[0], int(call.attrs.axis) % len(_VIDEO)
    if axis == 0 or (axis == 2 and batch > 1):
        return None
    frames = [s.frames(part) for part in parts.fields]
    return s.video(relax.op.concat(frames, axis=_AXES[axis]), batch)


_AXES = {1: 1, 2: 0, 3: 2, 4: 3}
"""Where an axis of one video is in its frames."""


@_RULES("mean")
def mean(s: _Writer, call: relax.Call) -> relax.Expr | None:
    """The mean of a whole video is the mean of those of its frames."""
    frames, axes = s.origin(call.args[0]), call.attrs.axis
    if frames is None or axes is None or sorted(int(a) % len(_VIDEO) for a in axes) != [2, 3, 4]:
        return None
    batch, channels, *_ = shape_of(call.args[0])
    of_frames = s.emit(relax.op.mean(frames, [2, 3], keepdims=True))
    by_video = s.emit(relax.op.reshape(of_frames, (batch, -1, channels)))
    return relax.op.reshape(s.emit(relax.op.mean(by_video, [1])), shape_of(call))
