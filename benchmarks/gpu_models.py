"""The networks of `benchmarks.gpu`, converted for other engines.

    python -m benchmarks.gpu_models FOLDER resnet18        # resnet18.tflite, .ncnn.param, .ncnn.bin

Needs torchvision and timm; for the files litert-torch and pnnx.  Weights have four values, the same
on every machine, so that files compress well when they travel.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.commands import options

NETWORKS = (
    *("resnet18", "resnet50", "mobilenet_v2", "efficientnet_lite0", "squeezenet1_1"),
    *("regnetx_1_6gf", "deit_tiny"),
)
_TIMM = {"efficientnet_lite0": "efficientnet_lite0", "deit_tiny": "deit_tiny_patch16_224"}
_TORCHVISION = {"regnetx_1_6gf": "regnet_x_1_6gf"}


def network(name: str) -> torch.nn.Module:
    """A network with weights that keep values of layers in range."""
    generator = torch.Generator().manual_seed(1)
    made = _made(name).eval()
    with torch.no_grad():
        for weight in made.parameters():
            if weight.dim() > 1:
                scale = 0.02 if name == "deit_tiny" else math.sqrt(2 / weight[0].numel())
                values = torch.randint(0, 4, weight.shape, generator=generator).float() - 1.5
                weight.copy_(values * (scale / 1.118))
    return made


def _made(name: str) -> Any:
    torch.manual_seed(0)
    if name in _TIMM:
        import timm

        return timm.create_model(_TIMM[name], pretrained=False)
    import torchvision

    return getattr(torchvision.models, _TORCHVISION.get(name, name))(weights=None)


def images(batch: int) -> np.ndarray:
    """The same images everywhere."""
    generator = torch.Generator().manual_seed(2)
    return torch.randn(batch, 3, 224, 224, generator=generator).numpy()


@dataclass(frozen=True)
class GpuModel:
    """A network, the folder with its files, and the number of images."""

    name: str
    files: Path
    batch: int

    def random_inputs(self) -> dict[str, np.ndarray]:
        """The same images everywhere."""
        return {"x": images(self.batch)}


def write_onnx(name: str, path: Path, batch: int) -> None:
    """Write the network as ONNX."""
    example = torch.from_numpy(images(batch))
    torch.onnx.export(network(name), (example,), str(path), dynamo=False, input_names=["x"])


def write_files(name: str, folder: Path) -> None:
    """Write the files for LiteRT and ncnn."""
    import litert_torch

    example = torch.from_numpy(images(1))
    litert_torch.convert(network(name), (example,)).export(str(folder / f"{name}.tflite"))
    write_onnx(name, folder / f"{name}.onnx", 1)
    pnnx = Path(sys.executable).with_name("pnnx")
    shape = "inputshape=[1,3,224,224]"
    subprocess.run([pnnx, f"{name}.onnx", shape, "fp16=0"], cwd=folder, check=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the files of some networks."""
    args = options(__doc__, arguments, ("folder", Path), ("networks*", NETWORKS))
    args.folder.mkdir(parents=True, exist_ok=True)
    for name in args.networks:
        write_files(name, args.folder)


if __name__ == "__main__":
    main()
