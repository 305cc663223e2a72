"""Training of stretched networks, in torch: ``pip install tvm-stretch[train]``.

    net = st.to_torch()
    ts.training.recalibrate(net, images)
    ts.training.distill(net, teacher, loader, ts.training.Training(epochs=30))
    model = ts.compile(st.load_torch(net), targets=["llvm", "opencl"])

Only exchange.py imports TVM, so a machine that only trains does not need it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tvm_stretch.base.errors import InstallError

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise InstallError(
        f"expected torch for training, got {error}; pip install tvm-stretch[train]"
    ) from error

from tvm_stretch.lab.training.data import Batches, accuracy
from tvm_stretch.lab.training.descent import refine
from tvm_stretch.lab.training.imitate import imitate
from tvm_stretch.lab.training.loop import Training, distill, fit
from tvm_stretch.lab.training.network import TrainableNetwork
from tvm_stretch.lab.training.statistics import recalibrate
from tvm_stretch.lab.training.supernet import Supernet, fit_supernet

if TYPE_CHECKING:
    from tvm_stretch.lab.training.exchange import load_torch, to_torch

__all__ = [
    "Batches",
    "Supernet",
    "TrainableNetwork",
    "Training",
    "accuracy",
    "distill",
    "fit",
    "fit_supernet",
    "imitate",
    "load_torch",
    "recalibrate",
    "refine",
    "to_torch",
]


def __getattr__(name: str) -> Any:
    if name in ("load_torch", "to_torch"):
        return getattr(importlib.import_module("tvm_stretch.lab.training.exchange"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
