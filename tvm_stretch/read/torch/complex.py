"""Networks with complex numbers, written again in pairs of real numbers.

    y: complex64[4] = view_as_complex(x)     ->   real = x[:, 0], imaginary = x[:, 1]
    z = y * weight                           ->   two products and a difference, two and a sum
    return z                                 ->   stack([real, imaginary], -1)

No kernel here computes complex numbers. A network's complex inputs, weights and results become
floats with a last axis of two, as `torch.view_as_real` shows them. Torch's own `ComplexTensor`
knows the arithmetic; Fourier transforms become ONNX's (`own.py`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.complex_tensor import ComplexTensor
from torch._subclasses.complex_tensor._ops.common import lookup_complex
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.read.torch.own import OWN

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_ARITHMETIC = {getattr(torch.ops.aten, name).Tensor for name in ("add", "sub", "mul")}
_POWERS = {0: 0.0, 1: -0.5, 2: -1.0}
"""The power of a transform's length that torch's code of a normalisation stands for."""


def in_real_numbers(program: ExportedProgram) -> ExportedProgram:
    """The program with a pair of numbers for each complex one; itself if it has none.

    Raises:
        UnsupportedError: An operator has no meaning in pairs.
    """
    if not any(_is_complex(node.meta.get("val")) for node in program.graph.nodes):
        return program
    runner = _Pairs(program.graph_module)
    runner.extra_traceback = False  # it would change the text of errors
    inputs = program.graph.find_nodes(op="placeholder")
    values = [node.meta["val"] for node in inputs]
    mode = next((v.fake_mode for v in values if hasattr(v, "fake_mode")), FakeTensorMode())
    with mode, torch.no_grad():
        pairs = [_paired(v) if _is_complex(v) else v for v in values]
        traced = make_fx(runner.results)(*pairs)
    for node, old in zip(traced.graph.find_nodes(op="placeholder"), inputs, strict=True):
        node.name = node.target = old.name
    traced.graph.eliminate_dead_code()  # among it questions about memory, which have no value
    traced.recompile()
    signature = copy.deepcopy(program.graph_signature)
    results: Any = traced.graph.output_node().args[0]
    for spec, node in zip(signature.output_specs, results, strict=True):
        if hasattr(node, "name"):
            spec.arg.name = node.name
    kept = [
        {name: _paired(v) if _is_complex(v) else v for name, v in values.items()}
        for values in (program.state_dict, program.constants)
    ]
    return program._update(traced, signature, state_dict=kept[0], constants=kept[1])


def _is_complex(value: Any) -> bool:
    values = value if isinstance(value, list | tuple) else (value,)
    return any(isinstance(v, torch.Tensor) and v.is_complex() for v in values)


def _paired(value: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(value.detach().resolve_conj()).clone()


class _Pairs(torch.fx.Interpreter):
    """Runs a graph with `ComplexTensor` for complex numbers, so that a trace sees real ones."""

    def results(self, *pairs: torch.Tensor) -> Any:
        """The results of the graph for inputs in pairs, in pairs."""
        inputs = self.graph.find_nodes(op="placeholder")
        given = [
            _complex(x) if _is_complex(node.meta["val"]) else x
            for node, x in zip(inputs, pairs, strict=True)
        ]
        results = self.run(*given, enable_io_processing=False)
        return tuple(_stacked(x) if isinstance(x, ComplexTensor) else x for x in results)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """A complex function in pairs; other functions as they are."""
        args, kwargs = torch.utils._pytree.tree_map(_scalar, (args, kwargs))
        values = torch.utils._pytree.tree_leaves((args, kwargs))
        if target in _FUNCTIONS:
            return _FUNCTIONS[target](*args, **kwargs)
        kind = kwargs.get("dtype")
        if (kind is not None and kind.is_complex) or any(
            isinstance(x, ComplexTensor) for x in values
        ):
            if target in _ARITHMETIC:  # which would keep a number as a complex constant
                args = [_scalar(complex(x)) if isinstance(x, int | float) else x for x in args]
            try:
                function = lookup_complex(target, *args, **kwargs)
                return (function or target)(*args, **kwargs)
            except (NotImplementedError, TypeError) as error:
                raise UnsupportedError(
                    f"expected real numbers for torch's {target}, got complex ones; "
                    "apply torch.view_as_real before"
                ) from error
        return super().call_function(target, args, kwargs)


def _scalar(value: Any) -> Any:
    if not isinstance(value, complex):
        return value
    return ComplexTensor(*(torch.full((), part) for part in (value.real, value.imag)))


def _stacked(x: ComplexTensor) -> torch.Tensor:
    return torch.stack([x.re, x.im], -1)


def _complex(pairs: torch.Tensor) -> ComplexTensor:
    return ComplexTensor(pairs[..., 0], pairs[..., 1])


def _transform(
    x: torch.Tensor, axis: int, length: int, *, inverse: bool, onesided: bool = False
) -> torch.Tensor:
    """A transform of pairs, or of single numbers, along an axis of ``x`` before the last."""
    moved = OWN.dft(x.movedim(axis, -2), length, inverse, onesided)
    return moved.movedim(-2, axis)


def _c2c(x: ComplexTensor, axes: Sequence[int], norm: int, forward: bool) -> ComplexTensor:
    axes, pairs = [axis % x.dim() for axis in axes], _stacked(x)
    for axis in axes:
        pairs = _transform(pairs, axis, x.shape[axis], inverse=not forward)
    return _complex(_scaled(pairs, x.shape, axes, norm, inverse=not forward))


def _r2c(x: torch.Tensor, axes: Sequence[int], norm: int, onesided: bool) -> ComplexTensor:
    *others, last = [axis % x.dim() for axis in axes]
    pairs = _transform(x[..., None], last, x.shape[last], inverse=False, onesided=onesided)
    for axis in others:
        pairs = _transform(pairs, axis, x.shape[axis], inverse=False)
    return _complex(_scaled(pairs, x.shape, [*others, last], norm, inverse=False))


def _c2r(x: ComplexTensor, axes: Sequence[int], norm: int, size: int) -> torch.Tensor:
    *others, last = [axis % x.dim() for axis in axes]
    pairs, sizes = _stacked(x), [*x.shape]
    sizes[last] = size
    for axis in others:
        pairs = _transform(pairs, axis, x.shape[axis], inverse=True)
    numbers = _transform(pairs, last, size, inverse=True, onesided=True)
    return _scaled(numbers, sizes, [*others, last], norm, inverse=True)[..., 0]


def _scaled(
    x: torch.Tensor, sizes: Sequence[int], axes: Sequence[int], norm: int, *, inverse: bool
) -> torch.Tensor:
    """Our transforms divide by the length if they are inverse; torch's as ``norm`` says."""
    factor = prod(sizes[axis] for axis in axes) ** (_POWERS[norm] + int(inverse))
    return x if factor == 1 else x * factor


def _full(size: Sequence[int], value: Any, **kwargs: Any) -> Any:
    if not isinstance(value, ComplexTensor):
        kind = kwargs.get("dtype")
        if kind is None or not kind.is_complex:
            return torch.ops.aten.full.default(size, value, **kwargs)
        value = _scalar(complex(value))
    return value.expand(size)


def _polar(size: torch.Tensor, angle: torch.Tensor) -> ComplexTensor:
    return ComplexTensor(size * angle.cos(), size * angle.sin())


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten._fft_c2c.default: _c2c,
    torch.ops.aten._fft_r2c.default: _r2c,
    torch.ops.aten._fft_c2r.default: _c2r,
    torch.ops.aten.view_as_complex.default: _complex,
    torch.ops.aten.complex.default: lambda *parts: ComplexTensor(*torch.broadcast_tensors(*parts)),
    torch.ops.aten.polar.default: _polar,
    torch.ops.aten.full.default: _full,
    torch.ops.aten._assert_tensor_metadata.default: lambda *_, **__: None,
}
