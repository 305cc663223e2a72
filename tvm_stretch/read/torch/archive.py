"""Copy a .pt2 archive without the parts that could run code; torch reads only the copy.

    evil.pt2                                        the copy in memory
      data/weights/weight_0            numbers        as it is
      data/weights/model_weights_...   JSON           refused if a tensor is pickled
      data/constants/...               likewise
      models/model.json                the graph      rewritten, see torch_program.py
      data/sample_inputs/model.pt      a pickle       left out: empty
      data/aotinductor/...             machine code   refused
      anything else                                   left out

`torch.export.load` unpickles whatever an archive declares to be pickled, and loads compiled code.
It reads ZIP files with a parser of its own, so that looking at the user's file would not do: what
Python and torch see in it may differ.
"""

from __future__ import annotations

import io
import json
import math
import re
import zipfile
from pathlib import Path
from typing import Any

from tvm_stretch.base.errors import ModelError
from tvm_stretch.base.files import open_regular
from tvm_stretch.read.network_limits import MOST_ELEMENTS, Constants
from tvm_stretch.read.torch.program import safe_program

_MOST_PARTS = 100_000
_ROOT = "archive"
_MODEL = "models/model.json"
_TENSORS = {
    "data/weights/": ("data/weights/model_weights_config.json", r"weight_\d{1,9}"),
    "data/constants/": ("data/constants/model_constants_config.json", r"tensor_\d{1,9}"),
}
_COMPILED = ("data/aotinductor/", "data/executorch/")
_AGAIN = "save the program again with torch.export.save and this version of torch"


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
                found = _json(archive, _part(parts, config))
                written.writestr(f"{_ROOT}/{config}", json.dumps(found))
                for tensor in _tensors(found, names, parts, folder):
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
    found = json.loads(archive.read(part))
    if not isinstance(found, dict):
        raise ModelError(f"expected an object in {part.filename}, got {found!r:.60}; {_AGAIN}")
    return found


def _tensors(
    config: dict[str, Any], names: str, parts: dict[str, zipfile.ZipInfo], folder: str
) -> set[str]:
    """The parts that hold a network's tensors."""
    found = set()
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
        found.add(part)
    return found
