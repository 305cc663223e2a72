"""Copy a .pt2 archive without the parts that could run code; torch reads only the copy.

    evil.pt2                                        the copy in memory
      data/weights/weight_0            numbers        as it is
      data/weights/model_weights_...   JSON           refused if a tensor is pickled
      data/constants/...               likewise
      models/model.json                the graph      rewritten
      data/sample_inputs/model.pt      a pickle       left out: empty
      data/aotinductor/...             machine code   refused
      anything else                                   left out

`torch.export.load` unpickles whatever an archive declares to be pickled, and loads compiled code.
It reads ZIP files with a parser of its own, so that looking at the user's file would not do: what
Python and torch see in it may differ.

The graph, which is JSON, is checked before torch evaluates parts of it:

    {"target": "torch.ops.aten.relu.default", "metadata": {"stack_trace": ".."}, ..}
        ->  the same without metadata
    {"target": "torch.os.system", ..}                     ->   ModelError
    {"expr_str": "__import__('os').system('..')", ..}     ->   ModelError

When torch reads a graph, it resolves any attribute below `torch` as a function, evaluates shape
expressions as Python, writes tensor names into Python source and executes it, and imports modules
that input structures name. Each of these fields must therefore match what torch itself writes.
"""

from __future__ import annotations

import ast
import io
import json
import math
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tvm_stretch.base.errors import ModelError
from tvm_stretch.base.files import open_regular
from tvm_stretch.read.network_limits import MOST_ELEMENTS, Constants

_AGAIN = "save the program again with torch.export.save and this version of torch"

_NAMESPACES = "aten|prims|quantized|quantized_decomposed|torchao"
_CONTROL_FLOW = (
    "associative_scan|cond|map_impl|scan|while_loop|wrap_with_autocast|wrap_with_set_grad_enabled"
)
_ARITHMETIC = "add|and_|eq|floordiv|ge|getitem|gt|le|lt|mod|mul|ne|neg|not_|or_|pos|pow|sub|truediv"
_OPERATOR = re.compile(
    rf"torch\.ops\.(?:{_NAMESPACES})\.\w+\.\w+|torch\.ops\.higher_order\.(?:{_CONTROL_FLOW})"
    rf"|_operator\.(?:{_ARITHMETIC})|math\.(?:ceil|floor|trunc|sqrt|pow)"
    r"|torch\.(?:_sym_sqrt|sym_(?:float|int|ite|max|min|not|sqrt|sum))",
    re.ASCII,
)
_FORBIDDEN = ("torch.ops.aten.from_file.",)
"""Operators that open files."""
_NAME = re.compile(r"[A-Za-z_]\w{0,500}", re.ASCII)
_SYMBOL = re.compile(r"[A-Za-z]{1,8}\d{1,6}", re.ASCII)
_NUMBER = re.compile(r"-?\d{1,40}(\.\d{0,40})?(e[+-]?\d{1,3})?", re.ASCII)

_FUNCTIONS = {
    *("Add", "Mul", "Max", "Min", "Pow", "PowByNatural", "Mod", "PythonMod", "Abs"),
    *("FloorDiv", "CeilDiv", "CleanDiv", "IntTrueDiv", "FloatTrueDiv", "ModularIndexing"),
    *("Integer", "Rational", "Float", "Symbol", "ToFloat", "CeilToInt", "FloorToInt"),
    *("TruncToInt", "RoundToInt", "Identity", "Where", "And", "Or", "Not"),
    *("Equality", "Unequality", "Eq", "Ne", "GreaterThan", "LessThan"),
    *("StrictGreaterThan", "StrictLessThan", "Ge", "Gt", "Le", "Lt"),
}
"""The sympy functions that torch writes for dynamic shapes."""

_POWERS = ("Pow", "PowByNatural")
_MOST_NODES, _LARGEST_POWER = 200, 8
"""Limits of one expression."""

_STRUCTURES = {
    *(None, "builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict"),
    *("torch.return_types.max", "torch.return_types.min", "torch.return_types.topk"),
    "torch.return_types.sort",
}


def safe_program(program: dict[str, Any]) -> dict[str, Any]:
    """The program without metadata and guards, safe for torch to read.

    Raises:
        ModelError: it holds something that torch writes for no network.
        UnsupportedError: it calls a function that belongs to no network.
    """
    kept = {**program, "guards_code": []}  # Python that checks inputs
    for symbol in kept["range_constraints"]:  # torch counts up to their numbers
        _check(not re.search(r"\d{7}", symbol), "the name of a size", symbol)
    module = {**kept["graph_module"], "treespec_namedtuple_fields": {}}
    return {**kept, "graph_module": _cleaned(module)}


def _cleaned(value: Any, key: str = "") -> Any:
    """A copy of a part of the graph, checked; `key` is the field that holds it."""
    if key in _RULES and value is not None:
        what, is_safe = _RULES[key]
        _check(is_safe(value), what, value)
    if isinstance(value, list):
        return [_cleaned(item, key) for item in value]
    if not isinstance(value, dict):
        return value
    if key in _BY_NAME:
        for name in value:
            _check(_is(_NAME, name), "the name of a tensor", name)
        return {name: _cleaned(item) for name, item in value.items()}
    return {name: {} if name == "metadata" else _cleaned(v, name) for name, v in value.items()}


def _check(is_safe: bool, what: str, value: Any) -> None:
    if not is_safe:
        raise ModelError(
            f"expected {what} for the graph of the .pt2 file, got {value!r:.200}, which torch does "
            f"not write; {_AGAIN}"
        )


def _is(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _is_operator(value: Any) -> bool:
    """Whether it is in torch's tables of operators, and no attribute of something else."""
    if not _is(_OPERATOR, value) or value.startswith(_FORBIDDEN):
        return False
    if not value.startswith("torch.ops."):
        return True
    import torch

    member: Any = torch
    for name in value.split(".")[1:]:
        member = getattr(member, name, None)
    kinds = (torch._ops.OpOverload, torch._ops.HigherOrderOperator)
    return member is None or isinstance(member, kinds)  # torch names those that it does not know


def _is_expression(text: Any) -> bool:
    """Whether it only calls known functions on numbers and symbols: `sympy` evaluates it."""
    if not isinstance(text, str) or len(text) > 10_000:
        return False
    try:
        nodes = list(ast.walk(ast.parse(text, mode="eval")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    names = [call.func.id if isinstance(call.func, ast.Name) else "" for call in calls]
    functions = {id(call.func) for call in calls}
    return (
        len(nodes) <= _MOST_NODES
        and set(names) <= _FUNCTIONS
        and all(_is_small(call) for call in calls if call.func.id in _POWERS)  # type: ignore[attr-defined]
        and all(_is_leaf(node, functions) for node in nodes)
    )


def _is_small(power: ast.Call) -> bool:
    """Whether its exponent is a small number: `sympy` computes powers of numbers."""
    operands = power.args[1:] or [power]
    text = ast.unparse(operands[0])
    small = re.fullmatch(r"Integer\((-?\d)\)", text)
    return len(power.args) == 2 and small is not None and abs(int(small[1])) <= _LARGEST_POWER


def _is_leaf(node: ast.AST, functions: set[int]) -> bool:
    """Whether a syntax node may occur in a shape expression."""
    if isinstance(node, ast.Name):
        return id(node) in functions or _is(_SYMBOL, node.id) or node.id in ("true", "false")
    if isinstance(node, ast.Constant):
        value = node.value
        if isinstance(value, str):
            return _is(_SYMBOL, value) or _is(_NUMBER, value)
        return isinstance(value, bool | float) or (type(value) is int and abs(value) < 2**63)
    return isinstance(node, _SYNTAX)


_SYNTAX = (ast.Expression, ast.Call, ast.keyword, ast.Load, ast.UnaryOp, ast.USub)


def _is_structure(text: Any) -> bool:
    """Whether a structure of inputs or outputs has only types that need no import."""
    if not isinstance(text, str):
        return False
    try:
        version, tree = json.loads(text)
    except (ValueError, TypeError):
        return False
    return version == 1 and all(map(_is_plain, _trees(tree)))


def _trees(tree: Any) -> Iterator[Any]:
    yield tree
    for child in tree.get("children_spec", ()) if isinstance(tree, dict) else ():
        yield from _trees(child)


def _is_plain(tree: Any) -> bool:
    if not isinstance(tree, dict) or tree.get("type") not in _STRUCTURES:
        return False
    context = tree.get("context")
    if context is None:
        return True
    keys = json.loads(context) if isinstance(context, str) else context
    keys = keys if isinstance(keys, list) else [keys]
    return all(isinstance(key, str | int | None) for key in keys)


_RULES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "target": ("a node", _is_operator),
    "as_operator": ("an argument", _is_operator),
    "expr_str": ("a size", _is_expression),
    "in_spec": ("a structure of inputs", _is_structure),
    "out_spec": ("a structure of outputs", _is_structure),
    "name": ("the name of a tensor", lambda value: _is(_NAME, value) or value == ""),
    "as_name": ("the name of a size", lambda value: _is(_NAME, value)),
}
"""What fields hold that torch evaluates, and how to tell."""

_BY_NAME = {
    *("tensor_values", "sym_int_values", "sym_bool_values", "sym_float_values"),
    *("custom_obj_values", "as_string_to_argument"),
}
"""Fields that hold objects by the names of tensors."""


_MOST_PARTS = 100_000
_ROOT = "archive"
_MODEL = "models/model.json"
_TENSORS = {
    "data/weights/": ("data/weights/model_weights_config.json", r"weight_\d{1,9}"),
    "data/constants/": ("data/constants/model_constants_config.json", r"tensor_\d{1,9}"),
}
_COMPILED = ("data/aotinductor/", "data/executorch/")


def safe_archive(path: Path) -> io.BytesIO:
    """The copy that torch may read.

    Raises:
        ModelError: it is no archive of this version, or it needs code to be run.
        OSError: it cannot be read.
        zipfile.BadZipFile: it is no ZIP file.
    """
    with open_regular(path) as file, zipfile.ZipFile(file) as archive:
        parts = _parts(archive, file.seek(0, io.SEEK_END))
        copy = io.BytesIO()
        with zipfile.ZipFile(copy, "w") as written:
            for name in ("archive_format", "archive_version", "byteorder", ".data/version"):
                written.writestr(f"{_ROOT}/{name}", archive.read(_part(parts, name)))
            graph = _json(archive, _part(parts, _MODEL))
            written.writestr(f"{_ROOT}/{_MODEL}", json.dumps(safe_program(graph)))
            written.writestr(f"{_ROOT}/data/sample_inputs/model.pt", b"")
            for folder, (config, names) in _TENSORS.items():
                settings = _json(archive, _part(parts, config))
                written.writestr(f"{_ROOT}/{config}", json.dumps(settings))
                for tensor in _tensors(settings, names, parts, folder):
                    content = archive.read(parts[folder + tensor])
                    written.writestr(f"{_ROOT}/{folder}{tensor}", content)
    copy.seek(0)
    return copy


def _parts(archive: zipfile.ZipFile, file_bytes: int) -> dict[str, zipfile.ZipInfo]:
    """The parts by their names below the archive's own folder."""
    entries = archive.infolist()
    total = sum(entry.file_size for entry in entries)
    if len(entries) > _MOST_PARTS or total > file_bytes:
        raise ModelError(
            f"expected at most {_MOST_PARTS} parts that are not compressed for the archive of "
            f"torch.export.save, got {len(entries)} of {total} bytes in a file of {file_bytes}; "
            + _AGAIN
        )
    parts: dict[str, zipfile.ZipInfo] = {}
    roots = set()
    for entry in entries:
        root, slash, name = entry.filename.partition("/")
        roots.add(root)
        if not slash:
            raise ModelError(
                f"expected an archive of torch 2.9 or later for the .pt2 file, got {root!r} "
                f"outside of its folder; {_AGAIN}"
            )
        odd = not name or name.startswith("/") or ".." in name.split("/") or "\\" in name
        if odd or name in parts or len(roots) > 1:
            raise ModelError(
                "expected parts with names of their own in one folder for the archive of "
                f"torch.export.save, got {entry.filename!r}; {_AGAIN}"
            )
        if name.startswith(_COMPILED):
            raise ModelError(
                f"expected a network for the .pt2 file, got compiled code ({name}), which is not "
                "loaded; save the program with torch.export.save"
            )
        parts[name] = entry
    return parts


def _part(parts: dict[str, zipfile.ZipInfo], name: str) -> zipfile.ZipInfo:
    if name not in parts:
        raise ModelError(f"expected {name} in the archive of torch.export.save, got none; {_AGAIN}")
    return parts[name]


def _json(archive: zipfile.ZipFile, part: zipfile.ZipInfo) -> dict[str, Any]:
    data = json.loads(archive.read(part))
    if not isinstance(data, dict):
        raise ModelError(f"expected an object in {part.filename}, got {data!r:.60}; {_AGAIN}")
    return data


def _tensors(
    config: dict[str, Any], names: str, parts: dict[str, zipfile.ZipInfo], folder: str
) -> set[str]:
    """The parts that hold a network's tensors."""
    tensors = set()
    sizes = Constants(sum(part.file_size for part in parts.values()))
    for name, tensor in config["config"].items():
        part, meta = tensor["path_name"], tensor["tensor_meta"]
        if tensor["use_pickle"] or not isinstance(part, str) or not re.fullmatch(names, part):
            raise ModelError(
                f"expected plain numbers for the tensor {name!r} of the .pt2 file, got a pickle "
                f"({part!r}), which may run any code; make it a plain tensor and save it again"
            )
        shape = [size["as_int"] for size in meta["sizes"]]
        if any(type(size) is not int or size < 0 for size in shape):
            raise ModelError(
                f"expected whole numbers for the shape of {name!r}, got {shape}; {_AGAIN}"
            )
        is_empty = _part(parts, folder + part).file_size == 0
        if math.prod(shape) > MOST_ELEMENTS or (is_empty and math.prod(shape)):
            raise ModelError(
                f"expected the numbers of the tensor {name!r} in the .pt2 file, got shape {shape} "
                f"of {parts[folder + part].file_size} bytes; {_AGAIN}"
            )
        sizes.add(f"the tensor {name!r}", shape)
        tensors.add(part)
    return tensors
