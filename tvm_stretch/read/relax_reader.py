"""Take a Relax module as a network with static shapes.

main(x: R.Tensor((n, 3, 224, 224)))   ->   main(x: R.Tensor((1, 3, 224, 224)))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tvm
from tvm import relax

from tvm_stretch.base.errors import InputError, ModelError, UnsupportedError
from tvm_stretch.read.onnx.shapes import how_to_close, sizes_of
from tvm_stretch.read.relax_norms import expand_norms
from tvm_stretch.read.relax_ordering import expand_ordering


def read_relax(
    mod: tvm.IRModule,
    shapes: Mapping[str, Sequence[int]] | None = None,
    sizes: Mapping[str, int] | None = None,  # of dimensions that the module names
) -> tvm.IRModule:
    """Check ``mod`` and give every parameter of ``main`` a static shape.

    Raises:
        ModelError: There is no Relax ``main``, it is not well-formed, or a dimension stays open.
        InputError: ``shapes`` names an unknown parameter or does not fit.
    """
    main = mod.functions.get(mod.get_global_var("main")) if "main" in _names(mod) else None
    if not isinstance(main, relax.Function):
        raise ModelError(
            f"expected a Relax function main for the IRModule, got {sorted(_names(mod))}; name "
            "it main"
        )
    if not relax.analysis.check_well_formed(mod):
        raise ModelError(
            "expected a well-formed IRModule, got one that relax.analysis.well_formed refuses; "
            "fix it"
        )
    bindings = _bind_names(main.params, sizes or {})
    _bind_dimensions(main.params, dict(shapes or {}), bindings)
    if bindings:
        mod = relax.transform.BindSymbolicVars(bindings, "main")(mod)
    _check_static(mod["main"].params)
    return expand_ordering(expand_norms(mod))


def _names(mod: tvm.IRModule) -> set[str]:
    return {var.name_hint for var in mod.get_global_vars()}


def _bind_names(params: Sequence[relax.Var], sizes: Mapping[str, int]) -> dict[tvm.tirx.Var, int]:
    """The symbolic dimensions of ``params`` that have a size by name."""
    dims = [dim for param in params for dim in _dimensions(param) or ()]
    return {d: sizes[d.name] for d in dims if isinstance(d, tvm.ir.Var) and d.name in sizes}


def _bind_dimensions(
    params: Sequence[relax.Var],
    shapes: dict[str, Sequence[int]],
    bound: dict[tvm.tirx.Var, int],
) -> None:
    """Match the symbolic dimensions of ``params`` with the sizes in ``shapes``."""
    by_name = {param.name: param for param in params}
    for name, wanted in shapes.items():
        if name not in by_name:
            raise InputError(
                f"expected one of the inputs {sorted(by_name)} for shapes, got {name!r}; "
                "use a name of the model"
            )
        wanted = sizes_of(name, wanted)
        given = _dimensions(by_name[name])
        if given is None or len(given) != len(wanted):
            raise InputError(
                f"expected a shape like {by_name[name].ty} for shapes[{name!r}], got "
                f"{list(wanted)}; "
                "give one size per dimension"
            )
        for index, (dim, size) in enumerate(zip(given, wanted, strict=True)):
            fixed = int(dim) if isinstance(dim, tvm.tirx.IntImm) else bound.get(dim, int(size))
            if fixed != int(size) or int(size) < 0:
                raise InputError(
                    f"expected {fixed} for dimension {index} of shapes[{name!r}], got {size}; "
                    f"the model says {by_name[name].ty}"
                )
            if not isinstance(dim, tvm.tirx.IntImm):
                if not isinstance(dim, tvm.ir.Var):
                    raise ModelError(
                        f"expected sizes or names as dimensions of {name!r}, got {dim}; bind it "
                        "first"
                    )
                bound[dim] = int(size)


def _dimensions(param: relax.Var) -> list[tvm.ir.Expr] | None:
    shape = getattr(param.ty, "shape", None)
    return None if shape is None else list(shape.values)


def _check_static(params: Sequence[relax.Var]) -> None:
    for param in params:
        if not isinstance(param.ty, relax.TensorType):
            raise UnsupportedError(
                f"expected a tensor for input {param.name!r}, got {param.ty}; pass tensors one by "
                "one"
            )
    given = {param.name: _sizes(param) for param in params}
    for param in params:
        dims = given[param.name]
        if dims is None or not all(isinstance(d, int) for d in dims):
            raise ModelError(
                f"expected a static shape for input {param.name!r}, got {param.ty} with an open "
                f"dimension; pass {how_to_close(given)}"
            )


def _sizes(param: relax.Var) -> list[int | str] | None:
    """Sizes, and the names of open dimensions."""
    dims = _dimensions(param)
    return dims and [int(d) if isinstance(d, tvm.tirx.IntImm) else str(d) for d in dims]
