"""`load_network`: one entry for every kind of source."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import tvm

from tvm_stretch.base.compiling import uncollected
from tvm_stretch.base.errors import InputError, ModelError, UnsupportedError
from tvm_stretch.base.files import open_regular, reason_of
from tvm_stretch.base.progress import say, step
from tvm_stretch.network.attributes import WIDENED
from tvm_stretch.network.properties.verify import blaming
from tvm_stretch.network.states import CARRIED
from tvm_stretch.passes.canonicalise import Canonicalise, CanonicaliseTrainable
from tvm_stretch.passes.carry_states import Rooms, States, carry_states
from tvm_stretch.passes.duplicate_and_scale import branch_operators
from tvm_stretch.passes.empty_tensors import EmptyTensors
from tvm_stretch.passes.guard_operators import guard_operators, settle_guards
from tvm_stretch.passes.keep_conditions import KeepConditions
from tvm_stretch.passes.name_operators import keep_names
from tvm_stretch.read.lengths import Shape, sized
from tvm_stretch.read.network_limits import check_sizes
from tvm_stretch.read.onnx.importer import import_onnx
from tvm_stretch.read.onnx.placed import with_branches
from tvm_stretch.read.onnx.reader import read_onnx
from tvm_stretch.read.onnx.shapes import fix_shapes, widen_halves
from tvm_stretch.read.relax_reader import read_relax
from tvm_stretch.read.tflite.reader import is_tflite, read_tflite
from tvm_stretch.read.torch.reader import load_torch, read_torch

if TYPE_CHECKING:
    from torch.export import ExportedProgram


Shapes = Mapping[str, Shape] | None


# mypy does not see that TVM's decorator makes a pass of the class
_empty = tvm.transform.Sequential([EmptyTensors()], name="empty_tensors")
_keep_conditions = tvm.transform.Sequential([KeepConditions()], name="keep_conditions")
_canonicalise = tvm.transform.Sequential([Canonicalise()], name="canonicalise")
_trainable = tvm.transform.Sequential([CanonicaliseTrainable()], name="canonicalise_trainable")


@uncollected()
def load_network(
    # Path of an ONNX or TensorFlow Lite file or the bytes of one, an ``onnx.ModelProto``, a Relax
    # module, a ``torch.export.ExportedProgram`` or the path of a ``.pt2`` file of one. It is not
    # changed.
    source: str | Path | bytes | onnx.ModelProto | tvm.IRModule | ExportedProgram,
    shapes: Shapes = None,  # Shapes of inputs by name; they fix dynamic dimensions
    states: States | None = None,  # inputs that hold what outputs had after the last run
    widen: bool = False,  # whether an ONNX network of float16 becomes one of float32
    sizes: Mapping[str, int] | None = None,  # of dimensions that the network or `shapes` name
    rooms: Rooms | None = None,  # of states that several sizes share
) -> tvm.IRModule:
    """Read ``source`` into an IRModule whose only function is a canonical Relax ``main``.

    Returns:
        A module with static shapes, weights as constants, parameters named like the inputs of the
        network, and the function attribute ``output_names`` where the source names its outputs.

    Raises:
        ModelError: The source cannot be read, is not valid, or leaves a dimension open.
        UnsupportedError: It uses something that is not supported.
        InputError: ``shapes`` or ``states`` do not fit the network, or ``source`` is of another
            type.
    """
    mod = _read(source, sized(shapes, sizes or {}), widen, sizes)
    say("simplifying the network")
    with blaming(mod):
        mod = _empty(mod)  # what reads a tensor without elements is constant then
        check_sizes(mod)
        if states is not None or CARRIED in (mod["main"].attrs or {}):
            mod = carry_states(mod, states or {}, rooms, sizes)
        guarded = guard_operators(mod)  # first: folding constants runs operators right here
        step()
        settled = settle_guards(_canonicalise(guarded))
        return settled if sizes else _keep_conditions(settled)  # all sizes have the same results


def require_file(source: object) -> None:
    """Refuse a path with no file, or a pipe, before the work that would be in vain."""
    if isinstance(source, str | Path):
        try:
            open_regular(Path(source)).close()
        except (OSError, ValueError) as error:
            reason = reason_of(error) if isinstance(error, OSError) else str(error)
            raise ModelError(
                f"expected a file with a network, got {reason}; check the path"
            ) from error


def load_trainable(
    source: str | Path | bytes | onnx.ModelProto | tvm.IRModule | ExportedProgram,
    shapes: Shapes = None,
) -> tvm.IRModule:
    """As `load_network`, but batch normalisations stay, so that the result can be trained.

    `load_network` makes a network for inference of the result.
    """
    mod = _read(source, shapes)
    check_sizes(mod)
    if changed := (mod["main"].attrs or {}).get(CARRIED):
        raise UnsupportedError(
            f"expected a network that changes no buffers, got one that writes to {[*changed]}; "
            "export it in eval mode"
        )
    with blaming(mod):
        return _trainable(_empty(mod))


def _read(
    source: Any, shapes: Any, widen: bool = False, sizes: Mapping[str, int] | None = None
) -> tvm.IRModule:
    """A module with static shapes."""
    require_file(source)
    if shapes is not None and not isinstance(shapes, Mapping):
        raise InputError(
            f"expected a dictionary for shapes, got {shapes!r}; give the shape of each input by "
            "its name, such as {'x': (1, 3, 224, 224)}"
        )
    if isinstance(source, tvm.IRModule):
        mod = read_relax(source, shapes, sizes)
        return keep_names(mod) if branch_operators(mod) else mod
    if isinstance(source, str | Path) and Path(source).suffix == ".pt2":
        source = load_torch(Path(source))
    if is_tflite(source):
        return read_relax(read_tflite(source), shapes, sizes)
    if isinstance(source, str | Path | bytes | onnx.ModelProto):
        network = read_onnx(source)
        fix_shapes(network, shapes, sizes)
        widened = widen and widen_halves(network)
        mod = with_branches(import_onnx(network), network.model)
        if widened:
            mod["main"] = mod["main"].with_attr(WIDENED, 1)
        return mod
    # Torch's classes are asked by name: importing torch takes seconds.
    if type(source).__name__ == "ExportedProgram":
        return read_relax(read_torch(source), shapes, sizes)
    if any(kind.__module__.startswith("torch.nn") for kind in type(source).__mro__):
        raise InputError(
            f"expected an exported network for source, got the torch module "
            f"{type(source).__name__}; pass torch.export.export(net.eval(), (x,)) with an input x"
        )
    raise InputError(
        "expected a path, the bytes of an ONNX file, onnx.ModelProto, Relax IRModule or "
        f"ExportedProgram for source, got {type(source).__name__}; see load_network"
    )
