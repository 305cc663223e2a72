"""Take a torch.export program as a Relax module; buffers that it changes become states.

    self.k[p] = x; return self.k.sum(0)
        ->  main(x, p, k):  next_k = ..; return sum(next_k), next_k      k begins as the buffer

`passes/carry_states.py` then keeps them from run to run, as it does with the states of callers.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax

from tvm_stretch.base.errors import ModelError, StretchError, UnsupportedError, last_line
from tvm_stretch.base.progress import say
from tvm_stretch.network.states import CARRIED, next_name
from tvm_stretch.read.torch.archive import safe_archive
from tvm_stretch.read.torch.importer import import_program
from tvm_stretch.read.torch.operators import converters, decomposed, needed
from tvm_stretch.read.torch.quantised import (
    quantised_converters,
    recurrent_converters,
    register_quantised,
)

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

_SWITCHES = {"train": True, "training": False, "p": None, "dropout_p": 0.0, "dropout": None}
"""Arguments without which an operator is not random, and torch's own values of them."""


def refuse_random(program: ExportedProgram) -> None:
    """Refuse dropout and random numbers, which differ from run to run."""
    import torch

    for node in reversed(needed(program.graph)):
        tags = getattr(node.target, "tags", ()) if node.op == "call_function" else ()
        if torch.Tag.nondeterministic_seeded in tags and _is_random(node):
            raise UnsupportedError(
                f"expected a network without random numbers, got {node.name!r} (torch's "
                f"{node.target}); export it in eval mode, or make the random numbers an input"
            )


def _is_random(node: Any) -> bool:
    """Whether no argument says that a dropout is off."""
    names = [argument.name for argument in node.target._schema.arguments]
    given = {**_SWITCHES, **dict(zip(names, node.args, strict=False)), **node.kwargs}
    return all(given[name] is None or given[name] for name in names if name in _SWITCHES)


def expose_states(program: ExportedProgram) -> dict[str, torch.Tensor]:
    """Make inputs and last outputs of the changed buffers; returns their first values by name."""
    from torch.export.graph_signature import InputKind, OutputKind

    signature, (ended,) = program.graph_signature, program.graph.find_nodes(op="output")
    for spec in signature.output_specs:
        if spec.kind is OutputKind.USER_INPUT_MUTATION:
            raise UnsupportedError(
                f"expected a network that leaves its inputs as they are, got one that writes to "
                f"{spec.target!r}; return the new value, or make a buffer of the input"
            )
    pairs = list(zip(signature.output_specs, ended.args[0], strict=True))
    kinds = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)
    changed = [pair for pair in pairs if pair[0].kind in kinds]
    if not changed:
        return {}
    pairs = [pair for pair in pairs if pair[0].kind not in kinds]
    targets = [spec.target for spec, _ in changed]
    first = {**program.state_dict, **program.constants}
    values = {target: first[target] for target in targets}
    taken = {spec.arg.name for spec in signature.input_specs if spec.kind is InputKind.USER_INPUT}
    names = {}
    placeholders = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    for place, spec in enumerate(signature.input_specs):
        if spec.target in values:
            name = spec.target if spec.target not in taken else spec.arg.name
            names[spec.target] = placeholders[spec.arg.name].name = name
            own = replace(spec, kind=InputKind.USER_INPUT, arg=replace(spec.arg, name=name))
            signature.input_specs[place] = replace(own, target=None)
    signature.output_specs[:] = [
        *(spec for spec, _ in pairs),
        *(replace(spec, kind=OutputKind.USER_OUTPUT, target=None) for spec, _ in changed),
    ]
    ended.args = ((*(value for _, value in pairs), *(value for _, value in changed)),)
    program._constants = {n: x for n, x in program.constants.items() if n not in values}
    return {names[target]: value for target, value in values.items()}


def carry(mod: tvm.IRModule, values: Mapping[str, torch.Tensor]) -> tvm.IRModule:
    """Say in attributes of ``main`` which parameters are states, and their first values."""
    if not values:
        return mod
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    convert, main = ExportedProgramImporter._convert_pytorch_tensor_to_tvm, mod["main"]
    kind = main.ret_ty
    count = len(kind.fields) if isinstance(kind, relax.TupleType) else 1
    names = [f"output{place}" for place in range(count - len(values))]
    attrs = {
        CARRIED: {name: convert(value.clone()) for name, value in values.items()},
        "output_names": [*names, *map(next_name, values)],
    }
    carried = mod.clone()
    carried["main"] = main.with_attrs(attrs)
    return carried


if TYPE_CHECKING:
    from torch.export import ExportedProgram

_CONTROL_FLOW = ("cond", "while_loop", "scan", "associative_scan", "map_impl")
"""What torch calls graphs with that run or not, or several times."""


def load_torch(path: Path) -> ExportedProgram:
    """Read what ``torch.export.save`` wrote; nothing in it is run."""
    try:
        register_quantised()
        archive = safe_archive(path)
        import torch

        return torch.export.load(archive)
    except StretchError:
        raise
    except Exception as error:  # whatever its parts raise
        raise ModelError(
            f"expected a file of torch.export.save, got {path} ({last_line(error)}); save the "
            "ExportedProgram with torch.export.save and this version of torch"
        ) from error


def read_torch(program: ExportedProgram) -> tvm.IRModule:
    """Translate an exported program with TVM's own importer.

    Raises:
        ModelError: It has scales that are not above zero.
        UnsupportedError: The importer cannot take it.
    """
    _refuse_control_flow(program)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            refuse_random(program)
            say("decomposing torch's operators")
            program = decomposed(program)
            refuse_random(program)
            say("importing operators")
            first = expose_states(program)
            own = {
                **converters(),
                **recurrent_converters(program),
                **quantised_converters(program),
            }
            return carry(import_program(program, own), first)
    except StretchError:
        raise
    except Exception as error:  # the importer raises many kinds
        raise UnsupportedError(
            f"expected an ExportedProgram of supported operators, got: {last_line(error)}; "
            "export in eval mode with torch.export.export, or through torch.onnx.export"
        ) from error


def _refuse_control_flow(program: ExportedProgram) -> None:
    """The importer fails somewhere within them, of something else."""
    for node in program.graph.nodes:
        if node.op == "call_function" and str(node.target) in _CONTROL_FLOW:
            raise UnsupportedError(
                f"expected a network without control flow, got {node.name!r} (torch's "
                f"{node.target}), which chooses or repeats a part of it; export that part by itself"
            )
