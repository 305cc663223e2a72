"""A network as data: graph, plan and weights in a file that a library of kernels runs.

    model.export("kernels.so", data="net.data")      # kernels ship with the app
    ts.load("kernels.so", data="net.data")
    finetuned.export_data("better.data")             # sent later: it has no code
    ts.load("kernels.so", data="better.data")

native/network_data.cc reads it, and refuses calls of kernels that the library's own graph does not
make.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np
import tvm

from tvm_stretch.base.errors import ArtifactError
from tvm_stretch.make.lowering.executor_graph import Graph
from tvm_stretch.run.artifact import written_beside
from tvm_stretch.run.private_copy import PrivateCopy
from tvm_stretch.run.seal import require_seal, seal

_MAGIC = b"TVMSTRD1"
_HEADER = struct.Struct("<8sQQ40x")
_ALIGNMENT = 64


def write_data(graph: Graph, weights: tvm.runtime.Tensor, path: Path) -> None:
    """Write the file; it appears complete or not at all.

    Raises:
        ArtifactError: the network is for streams, whose kernels rely on what the executor writes.
    """
    if graph.streams:
        raise ArtifactError(
            "expected a network without streams for data beside its kernels, got one that was "
            "compiled with streams=True; export it without data="
        )
    blob = np.from_dlpack(weights)
    text = graph.to_json().encode()
    with written_beside(path) as folder:
        written = folder / path.name
        with written.open("wb") as file:
            file.write(_HEADER.pack(_MAGIC, len(text), blob.nbytes))
            file.write(text)
            file.write(bytes(-file.tell() % _ALIGNMENT))
            file.write(blob.data)
            file.write(bytes(-blob.nbytes % 8))
        seal(written)


def read_data(path: Path) -> PrivateCopy:
    """The bytes of such a file; the executor checks them.

    Raises:
        ArtifactError: the file is missing, no regular one, truncated or another one.
        RunError: there is no memory for it.
    """
    return PrivateCopy.of_file(path, _check)


def _check(file: BinaryIO, name: str) -> None:
    file.seek(0)
    if file.read(len(_MAGIC)) != _MAGIC:
        raise ArtifactError(
            f"expected the data of a network for {name}, got another file; write it with "
            "Model.export_data"
        )
    require_seal(file, name)
