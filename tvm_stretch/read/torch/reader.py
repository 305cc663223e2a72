"""Take a torch.export program as a Relax module."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import tvm

from tvm_stretch.base.errors import ModelError, StretchError, UnsupportedError, last_line
from tvm_stretch.read.torch.archive import safe_archive
from tvm_stretch.read.torch.importer import import_program
from tvm_stretch.read.torch.operators import converters, decomposed
from tvm_stretch.read.torch.quantised import quantised_converters, register_quantised
from tvm_stretch.read.torch.recurrent import recurrent_converters
from tvm_stretch.read.torch.states import carry, expose_states, refuse_random

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
            program = decomposed(program)
            refuse_random(program)
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
