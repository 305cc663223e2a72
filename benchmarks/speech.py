"""Networks of speech and language, with random weights: what phones run beside images.

```
python -m benchmarks.speech [names ...] [--json rows.json] [--seconds 10] [--mcpu haswell]
python -m benchmarks.speech asked    # eleven in float32, and their geometric mean
python -m benchmarks.speech minilm --precision bfloat16 --seconds 60
```
Answers and times are compared with ONNX Runtime's and OpenVINO's as `real_networks.py` does.
Decoder steps are written here, with the cache of keys and values as plain inputs and outputs; other
architectures are those of `transformers`. Dynamic 8 bits are ONNX Runtime's own
(`quantize_dynamic`).
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.harness import TOLERANCE, Model
from benchmarks.real_networks import Network, main

Inputs = Mapping[str, torch.Tensor]

EIGHT_BITS = 0.05
"""Tolerance in 8 bits: ONNX Runtime with and without its optimiser differ by 0.032 in MiniLM."""


def _network(
    make: Callable[[bool], tuple[nn.Module, Inputs]],
    *packages: str,
    bits: str = "",
    modern: bool = True,
) -> Network:
    """A network that torch exports; ``bits``: its products in 8 bits, ``dynamic`` or ``static``.

    ``modern``: by torch.export, which takes recurrent layers apart, or by the older exporter.
    """

    def build(quick: bool) -> Model:
        torch.manual_seed(0)
        net, inputs = make(quick)
        content = exported(net.eval(), inputs, modern)
        values = {name: value.numpy() for name, value in inputs.items()}
        if bits:
            content = _in_8_bits(content, values, bits)
        return Model(content, values)

    return Network(("onnxscript", *packages), build, tolerance=EIGHT_BITS if bits else TOLERANCE)


def exported(net: nn.Module, inputs: Inputs, modern: bool) -> bytes:
    """The network as ONNX; ``modern`` as for `_network`."""
    names, values = list(inputs), tuple(inputs.values())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "network.onnx")
        torch.onnx.export(
            net, values, str(path), input_names=names, dynamo=modern, external_data=False,
            verbose=False,
        )  # fmt: skip
        return path.read_bytes()


def _in_8_bits(content: bytes, inputs: Mapping[str, np.ndarray], bits: str) -> bytes:
    """Dynamic, or static: all products between quantising and dequantising (QDQ).

    Published 8-bit encoders are static.
    """
    from onnxruntime import quantization
    from onnxruntime.quantization import QuantType

    class Reader(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            self.left = [dict(inputs)]

        def get_next(self) -> Any:
            return self.left.pop() if self.left else None

    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "float.onnx"), Path(folder, "integer.onnx")
        source.write_bytes(content)
        if bits == "dynamic":
            quantization.quantize_dynamic(source, target, weight_type=QuantType.QInt8)
        else:
            quantization.quantize_static(
                source, target, Reader(), per_channel=True, op_types_to_quantize=["MatMul"],
                weight_type=QuantType.QInt8, activation_type=QuantType.QUInt8,
            )  # fmt: skip
        return target.read_bytes()


class First(nn.Module):
    """A network whose result is its first tensor."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """The first tensor of the result."""
        found = self.net(*inputs)
        while not isinstance(found, torch.Tensor):
            found = found[0]
        return found


# --- encoders -------------------------------------------------------------------------------------


def _encoder(
    kind: str, inputs: Callable[[Any], Inputs], small: Mapping[str, Any], **values: Any
) -> Callable[[bool], tuple[nn.Module, Inputs]]:
    """An architecture of `transformers`; ``small`` are values for a quick test."""

    def make(quick: bool) -> tuple[nn.Module, Inputs]:
        import transformers

        config = getattr(transformers, f"{kind}Config")(**{**values, **(small if quick else {})})
        net = getattr(transformers, f"{kind}Model")(config)
        return First(net.encoder if kind == "Whisper" else net), inputs(config)

    return make


def _tokens(config: Any) -> Inputs:
    return {"tokens": torch.randint(0, config.vocab_size, (1, config.length))}


def _image(config: Any) -> Inputs:
    size = config.image_size
    return {"image": torch.randn(1, 3, *(size if isinstance(size, list) else (size, size)))}


def _mel(config: Any) -> Inputs:
    return {"mel": torch.randn(1, 80, 2 * config.max_source_positions)}


def _audio(config: Any) -> Inputs:
    return {"audio": torch.randn(1, config.length)}


_MINILM = _encoder(
    "Bert", _tokens, {"num_hidden_layers": 1, "length": 7}, length=128, hidden_size=384,
    num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536,
    attn_implementation="eager",
)  # fmt: skip
_MOBILEBERT = _encoder(
    "MobileBert", _tokens, {"num_hidden_layers": 1, "length": 7}, length=128,
    num_hidden_layers=24, attn_implementation="eager", use_cache=False,
)  # fmt: skip
_VIT, _DEIT = (
    _encoder(
        "ViT", _image, {"num_hidden_layers": 1, "image_size": 32}, image_size=224,
        num_hidden_layers=12, hidden_size=width, num_attention_heads=width // 64,
        intermediate_size=4 * width, attn_implementation="sdpa",
    )
    for width in (768, 192)
)  # fmt: skip
"""Vision transformers with patches of 16x16: ViT-B/16 and DeiT-tiny."""
_SAM = _encoder(
    "Sam2HieraDet", _image, {"image_size": [128] * 2}, image_size=[512] * 2,
    attn_implementation="sdpa",
)  # fmt: skip
"""The tiny encoder of SAM 2, for images of a quarter of its pixels."""
_WHISPER = _encoder(
    "Whisper", _mel, {"encoder_layers": 1, "max_source_positions": 50}, d_model=384,
    encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536, decoder_attention_heads=6,
    max_source_positions=1500, attn_implementation="sdpa",
)  # fmt: skip
_WAV2VEC2 = _encoder(
    "Wav2Vec2", _audio, {"num_hidden_layers": 1, "length": 2000}, num_hidden_layers=2,
    length=32000, attn_implementation="sdpa",
)  # fmt: skip


class _Crepe(nn.Module):
    """CREPE (Kim et al., 2018): pitch; the first layer has 512 taps of one channel."""

    def __init__(self, scale: int) -> None:
        super().__init__()
        widths = [1, *(scale * w for w in (32, 4, 4, 4, 8, 16))]
        kernels = [(512, 4, (254, 254)), *[(64, 1, (31, 32))] * 5]
        self.padding = [padding for *_, padding in kernels]
        self.layers = nn.ModuleList(
            nn.Conv2d(i, o, (taps, 1), (stride, 1))
            for i, o, (taps, stride, _) in zip(widths, widths[1:], kernels, strict=False)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in widths[1:])
        self.classifier = nn.Linear(4 * widths[-1], 360)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x[:, None, :, None]
        for layer, norm, padding in zip(self.layers, self.norms, self.padding, strict=True):
            x = F.max_pool2d(norm(F.relu(layer(F.pad(x, (0, 0, *padding))))), (2, 1))
        return torch.sigmoid(self.classifier(x.permute(0, 2, 1, 3).flatten(1)))


def _crepe(scale: int) -> Callable[[bool], tuple[nn.Module, Inputs]]:
    return lambda quick: (_Crepe(1 if quick else scale), {"audio": torch.randn(1, 1024)})


class _BiLstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(80, 256, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(512, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0])


def _bilstm(quick: bool) -> tuple[nn.Module, Inputs]:
    return _BiLstm(), {"features": torch.randn(1, 5 if quick else 100, 80)}


# --- one step of a decoder ------------------------------------------------------------------------


def _heads(x: torch.Tensor, count: int) -> torch.Tensor:
    return x.view(1, x.shape[1], count, -1).transpose(1, 2)


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


class _WhisperLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.v, self.out, self.cross_q, self.cross_out = (
            nn.Linear(width, width) for _ in range(5)
        )
        self.k = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))

    def forward(self, x: torch.Tensor, past: Any, cross: Any) -> Any:
        h = self.norms[0](x)
        k = torch.cat([past[0], _heads(self.k(h), self.heads)], 2)
        v = torch.cat([past[1], _heads(self.v(h), self.heads)], 2)
        x = x + self.out(_attend(_heads(self.q(h), self.heads), k, v))
        q = _heads(self.cross_q(self.norms[1](x)), self.heads)
        x = x + self.cross_out(_attend(q, *cross))
        return x + self.down(F.gelu(self.up(self.norms[2](x)))), k, v


class _WhisperStep(nn.Module):
    """One token of Whisper tiny's decoder: caches of its own and of the encoder's keys, values."""

    def __init__(self, layers: int, words: int) -> None:
        super().__init__()
        self.embed, self.positions = nn.Embedding(words, 384), nn.Embedding(448, 384)
        self.layers = nn.ModuleList(_WhisperLayer(384, 6) for _ in range(layers))
        self.norm = nn.LayerNorm(384)

    def forward(
        self, token: torch.Tensor, position: torch.Tensor, past: torch.Tensor, cross: torch.Tensor
    ) -> Any:
        x = self.embed(token) + self.positions(position)
        caches = []
        for i, layer in enumerate(self.layers):
            x, k, v = layer(x, past[2 * i : 2 * i + 2], cross[2 * i : 2 * i + 2])
            caches += [k, v]
        return (self.norm(x) @ self.embed.weight.T, *caches)


def _whisper_step(quick: bool) -> tuple[nn.Module, Inputs]:
    layers, words, audio = (1, 1000, 50) if quick else (4, 51865, 1500)
    return _WhisperStep(layers, words), {
        "token": torch.tensor([[7]]),
        "position": torch.tensor([[48]]),
        "past": torch.randn(2 * layers, 1, 6, 48, 64),
        "cross": torch.randn(2 * layers, 1, 6, audio, 64),
    }


class QwenLayer(nn.Module):
    """A layer of Qwen2: RMS norm, rotary embedding, 14 heads that share two of keys and values."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.q, self.out = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.k, self.v = nn.Linear(width, 128), nn.Linear(width, 128)
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)
        self.norms = nn.ModuleList(nn.RMSNorm(width, 1e-6) for _ in range(2))

    def forward(self, x: torch.Tensor, past: Any, turn: Any) -> Any:
        """Its output, keys and values."""
        h = self.norms[0](x)
        k = torch.cat([past[0], _turned(_heads(self.k(h), 2), *turn)], 2)
        v = torch.cat([past[1], _heads(self.v(h), 2)], 2)
        q = _turned(_heads(self.q(h), 14), *turn)
        x = x + self.out(_attend(q, k.repeat_interleave(7, 1), v.repeat_interleave(7, 1)))
        h = self.norms[1](x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h)), k, v


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class QwenStep(nn.Module):
    """Layers of Qwen2 for some tokens after others, whose keys and values are inputs."""

    def __init__(self, layers: int, width: int, inner: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(QwenLayer(width, inner) for _ in range(layers))
        self.register_buffer("turns", 1e6 ** (-torch.arange(0, 64, 2) / 64), persistent=False)

    def forward(self, x: torch.Tensor, position: torch.Tensor, past: torch.Tensor) -> Any:
        """Their output, then keys and values of each layer."""
        angles = (position.float() * self.turns).repeat(1, 2)
        turn = angles.cos(), angles.sin()
        caches = []
        for i, layer in enumerate(self.layers):
            x, k, v = layer(x, past[2 * i : 2 * i + 2], turn)
            caches += [k, v]
        return (x, *caches)


def _qwen_step(tokens: int) -> Callable[[bool], tuple[nn.Module, Inputs]]:
    def make(quick: bool) -> tuple[nn.Module, Inputs]:
        layers, inner = (1, 100) if quick else (4, 4864)
        return QwenStep(layers, 896, inner), {
            "x": torch.randn(1, tokens, 896),
            "position": torch.arange(tokens)[:, None] + 128,
            "past": torch.randn(2 * layers, 1, 2, 128, 64),
        }

    return make


NETWORKS: dict[str, Network] = {
    "minilm": _network(_MINILM, "transformers"),
    "minilm dynamic": _network(_MINILM, "transformers", bits="dynamic"),
    "minilm static": _network(_MINILM, "transformers", bits="static"),
    "whisper tiny encoder": _network(_WHISPER, "transformers"),
    "whisper tiny step": _network(_whisper_step),
    "wav2vec2": _network(_WAV2VEC2, "transformers"),
    "crepe tiny": _network(_crepe(4)),
    "crepe full": _network(_crepe(32)),
    "qwen2 step": _network(_qwen_step(1)),
    "bilstm": _network(_bilstm, modern=False),
    "mobilebert": _network(_MOBILEBERT, "transformers"),
    "vit-b/16": _network(_VIT, "transformers"),
    "deit tiny": _network(_DEIT, "transformers"),
    "sam2 tiny": _network(_SAM, "transformers"),
}
ASKED = (
    *("vit-b/16", "deit tiny", "minilm", "mobilebert", "whisper tiny encoder"),
    *("whisper tiny step", "wav2vec2", "sam2 tiny", "crepe tiny", "crepe full", "bilstm"),
)
"""What phones run most, in float32."""

if __name__ == "__main__":
    given = [name for one in sys.argv[1:] for name in (ASKED if one == "asked" else (one,))]
    sys.exit(main(given, every=NETWORKS))
