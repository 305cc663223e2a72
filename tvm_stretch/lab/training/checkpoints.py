"""Checkpoints of training: written atomically, each for one network and one set of settings.

tvm_stretch.checkpoint 1 <fingerprint of the rest>
output of torch.save: {"graph": .., "settings": .., "epoch": .., "net": .., "optimizer": ..}
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tvm_stretch.base.errors import TrainingError
from tvm_stretch.base.files import open_regular, reason_of, write_whole, writing
from tvm_stretch.lab.training.data import device_of

_NAME = b"tvm_stretch.checkpoint 1"


def graph_of_module(net: nn.Module) -> str:
    """A fingerprint of the network; other modules are told apart by names and shapes of weights."""
    if known := getattr(net, "fingerprint", None):
        return str(known)
    shapes = [(key, tuple(value.shape)) for key, value in net.state_dict().items()]
    return hashlib.blake2b(repr(shapes).encode(), digest_size=16).hexdigest()


def write_checkpoint(
    path: Path,
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    settings: Mapping[str, Any],
    epoch: int,
) -> None:
    """Write the state after an epoch."""
    buffer = io.BytesIO()
    state = {
        "graph": graph_of_module(net),
        "settings": dict(settings),
        "epoch": epoch,
        "net": net.state_dict(),
        "optimizer": optimizer.state_dict(),
    }
    torch.save(state, buffer)
    content = buffer.getvalue()
    with writing("the checkpoint", TrainingError):
        write_whole(path, b"%s %s\n" % (_NAME, _digest(content)) + content)


def read_checkpoint(
    path: Path,
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    settings: Mapping[str, Any],
) -> int:
    """Load a checkpoint into the network and optimizer; return the number of finished epochs."""
    state = _read(path, net)
    if state["graph"] != graph_of_module(net):
        raise TrainingError(
            f"expected a checkpoint of this network in {path}, got one of another; give another "
            "path, or remove the file"
        )
    if state["settings"] != dict(settings):
        found = state["settings"]
        name = next(n for n in {**settings, **found} if found.get(n) != settings.get(n))
        raise TrainingError(
            f"expected a checkpoint of the same training in {path}, got {name}={found.get(name)!r} "
            f"where this has {settings.get(name)!r}; give another path, or remove the file"
        )
    net.load_state_dict(state["net"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["epoch"])


def _read(path: Path, net: nn.Module) -> dict[str, Any]:
    try:
        with open_regular(path) as file:
            head, _, content = file.read().partition(b"\n")
    except OSError as error:
        raise TrainingError(
            f"expected a readable checkpoint, got {reason_of(error)}; check the path, or remove "
            "the file"
        ) from error
    if head != b"%s %s" % (_NAME, _digest(content)):
        got = "a damaged one" if head.startswith(_NAME) else "another kind of file"
        raise TrainingError(
            f"expected a checkpoint of this version of tvm_stretch in {path}, got {got}; give "
            "another path, or remove the file"
        )
    where = device_of(net)
    state: dict[str, Any] = torch.load(io.BytesIO(content), map_location=where, weights_only=True)
    return state


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).hexdigest().encode()
