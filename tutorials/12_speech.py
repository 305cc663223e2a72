"""Speech to text, as Whisper does it: an encoder that runs once, and a decoder that loops in C++.

Run it: `python tutorials/12_speech.py`. Every step prints its result and fails if an assertion
does not hold. It needs torch; with transformers, the references are its feature extractor and its
Whisper, otherwise the same network in torch.

audio -> log-mel spectrogram (NumPy) -> encoder -> keys and values -> decoder, a token in each step
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

import tvm_stretch as ts

RATE, SECONDS, WINDOW, HOP, BANDS = 16_000, 2, 400, 160, 80
WORDS, WIDTH, HEADS, LAYERS, PLACES = 512, 128, 4, 2, 80
HEAD, FRAMES, HEARD = WIDTH // HEADS, SECONDS * RATE // HOP, SECONDS * RATE // HOP // 2


def section(title: str) -> None:
    """Print a heading."""
    print(f"\n{'=' * 8} {title}")


def mel_filters() -> np.ndarray:
    """Triangles that overlap by half, of equal width up to 1 kHz, wider by a factor beyond it."""
    step = 200 / 3  # in Hz, below 1 kHz
    top = 15 + 27 * np.log(RATE / 2000) / np.log(6.4)
    mel = np.linspace(0, top, BANDS + 2)
    edges = np.where(mel < 15, step * mel, 1000 * 6.4 ** ((mel - 15) / 27))
    bins = np.linspace(0, RATE / 2, WINDOW // 2 + 1)
    rising = (bins - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - bins) / np.diff(edges)[1:, None]
    return np.maximum(0, np.minimum(rising, falling)) * (2 / (edges[2:] - edges[:-2]))[:, None]


def log_mel(audio: np.ndarray) -> np.ndarray:
    """A spectrogram of the shape (1, BANDS, FRAMES)."""
    padded = np.pad(audio, WINDOW // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP][:FRAMES]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
    power = np.abs(np.fft.rfft(frames * hann, axis=1)) ** 2
    logs = np.log10(np.maximum(mel_filters() @ power.T, 1e-10))
    return ((np.maximum(logs, logs.max() - 8) + 4) / 4)[None].astype("float32")


class Attention(nn.Module):
    """Names of parameters are those of transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.v_proj, self.out_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.k_proj = nn.Linear(WIDTH, WIDTH, bias=False)

    def pair(self, x: torch.Tensor) -> torch.Tensor:
        """Keys and values of rows: (2, HEADS, rows, HEAD)."""
        both = torch.stack([self.k_proj(x), self.v_proj(x)]).view(2, x.shape[1], HEADS, HEAD)
        return both.transpose(1, 2)

    def forward(
        self, x: torch.Tensor, pair: torch.Tensor, hidden: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Rows attend to keys and values that are not hidden."""
        q = (self.q_proj(x) * HEAD**-0.5).view(x.shape[1], HEADS, HEAD).transpose(0, 1)
        scores = q @ pair[0].transpose(1, 2)
        if hidden is not None:
            scores = torch.where(hidden, torch.full_like(scores, -1e9), scores)
        mixed = torch.softmax(scores, dim=-1) @ pair[1]
        return self.out_proj(mixed.transpose(0, 1).reshape(x.shape))


class Layer(nn.Module):
    """Attention to itself, in the decoder to what was heard, and a feed-forward network."""

    def __init__(self, decodes: bool) -> None:
        super().__init__()
        self.self_attn, self.self_attn_layer_norm = Attention(), nn.LayerNorm(WIDTH)
        if decodes:
            self.encoder_attn, self.encoder_attn_layer_norm = Attention(), nn.LayerNorm(WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.final_layer_norm = nn.LayerNorm(WIDTH)

    def feed(self, x: torch.Tensor) -> torch.Tensor:
        """The feed-forward network and its residual."""
        return x + self.fc2(nn.functional.gelu(self.fc1(self.final_layer_norm(x))))


class Encoder(nn.Module):
    """Two convolutions and layers without a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(BANDS, WIDTH, 3, padding=1)
        self.conv2 = nn.Conv1d(WIDTH, WIDTH, 3, stride=2, padding=1)
        self.embed_positions = nn.Embedding(HEARD, WIDTH)
        self.layers = nn.ModuleList(Layer(False) for _ in range(LAYERS))
        self.layer_norm = nn.LayerNorm(WIDTH)

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        """(1, BANDS, FRAMES) -> (1, HEARD, WIDTH)."""
        x = nn.functional.gelu(self.conv2(nn.functional.gelu(self.conv1(mel))))
        x = x.permute(0, 2, 1) + self.embed_positions.weight
        for layer in self.layers:
            y = layer.self_attn_layer_norm(x)
            x = layer.feed(x + layer.self_attn(y, layer.self_attn.pair(y)))
        return self.layer_norm(x)


class Decoder(nn.Module):
    """One token; its own keys and values are a cache, those of the encoder are given."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(WORDS, WIDTH)
        self.embed_positions = nn.Embedding(PLACES, WIDTH)
        self.layers = nn.ModuleList(Layer(True) for _ in range(LAYERS))
        self.layer_norm = nn.LayerNorm(WIDTH)

    def forward(
        self,
        token: torch.Tensor,  # (1, 1)
        position: torch.Tensor,  # (1,)
        past: list[torch.Tensor],  # of each layer: (2, HEADS, PLACES, HEAD)
        heard: list[torch.Tensor],  # of each layer: (2, HEADS, HEARD, HEAD)
    ) -> tuple[torch.Tensor, ...]:
        """Scores of the next token, and the caches."""
        x = self.embed_tokens(token) + self.embed_positions(position)
        place = torch.arange(PLACES).view(1, 1, PLACES)
        present = []
        for layer, own, other in zip(self.layers, past, heard, strict=True):
            y = layer.self_attn_layer_norm(x)
            here = (place == position).view(1, 1, PLACES, 1)
            own = torch.where(here, layer.self_attn.pair(y), own)
            x = x + layer.self_attn(y, own, place > position)
            x = x + layer.encoder_attn(layer.encoder_attn_layer_norm(x), other)
            x = layer.feed(x)
            present.append(own)
        return self.layer_norm(x) @ self.embed_tokens.weight.T, *present


class Listener(nn.Module):
    """The encoder, with the keys and values that the decoder's layers would make in each step."""

    def __init__(self, encoder: Encoder, decoder: Decoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.across = nn.ModuleList(layer.encoder_attn for layer in decoder.layers)

    def forward(self, mel: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Keys and values of each layer."""
        x = self.encoder(mel)
        return tuple(attention.pair(x) for attention in self.across)


def caches() -> list[torch.Tensor]:
    """Empty caches."""
    return [torch.zeros(2, HEADS, PLACES, HEAD) for _ in range(LAYERS)]


def whisper() -> Any:
    """The network as transformers has it; None without transformers."""
    try:
        from transformers import WhisperConfig, WhisperForConditionalGeneration
    except ImportError:
        return None
    config = WhisperConfig(
        vocab_size=WORDS, num_mel_bins=BANDS, d_model=WIDTH,
        encoder_layers=LAYERS, encoder_attention_heads=HEADS, encoder_ffn_dim=4 * WIDTH,
        decoder_layers=LAYERS, decoder_attention_heads=HEADS, decoder_ffn_dim=4 * WIDTH,
        max_source_positions=HEARD, max_target_positions=PLACES, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, decoder_start_token_id=1, attn_implementation="eager",
    )  # fmt: skip
    other = WhisperForConditionalGeneration(config).eval()
    weights = {
        f"model.{side}.{name}": value
        for side, part in (("encoder", encoder), ("decoder", decoder))
        for name, value in part.state_dict().items()
    }
    other.load_state_dict({**weights, "proj_out.weight": decoder.embed_tokens.weight})
    return other


def reference(mel: np.ndarray, prompt: list[int], count: int) -> list[int]:
    """Greedy tokens with a loop in Python, by transformers or else by torch."""
    tokens, other = list(prompt), whisper()
    if other is None:
        print("without transformers: the reference is torch's")
        past, heard = caches(), list(listener(torch.tensor(mel)))
        for place in range(len(prompt) + count - 1):
            scores, *past = decoder(
                torch.tensor([[tokens[place]]]), torch.tensor([place]), past, heard
            )
            if place >= len(prompt) - 1:
                tokens.append(int(scores.argmax()))
        return tokens[len(prompt) :]
    encoded = other.model.encoder(torch.tensor(mel))
    for _ in range(count):
        scores = other(encoder_outputs=encoded, decoder_input_ids=torch.tensor([tokens])).logits
        tokens.append(int(scores[0, -1].argmax()))
    return tokens[len(prompt) :]


torch.set_grad_enabled(False)
torch.manual_seed(0)
encoder, decoder = Encoder().eval(), Decoder().eval()
decoder.embed_tokens.weight *= 0.05  # else the best next token would be the last one
for layer in decoder.layers:  # else the sound would hardly change the tokens
    layer.encoder_attn.k_proj.weight *= 10
    layer.encoder_attn.out_proj.weight *= 10
listener = Listener(encoder, decoder).eval()

section("1. From audio to a spectrogram")
times = np.arange(SECONDS * RATE) / RATE
sound = np.sin(2 * np.pi * (200 + 300 * times) * times) + 0.01 * np.cos(40_000 * times)
audio = sound.astype("float32")
mel = log_mel(audio)
print(f"{audio.size} samples -> {mel.shape}")
try:
    from transformers import WhisperFeatureExtractor
except ImportError:
    print("without transformers: the spectrogram is not compared")
else:
    extractor = WhisperFeatureExtractor(feature_size=BANDS, chunk_length=SECONDS)
    features = extractor(audio, sampling_rate=RATE, return_tensors="np")
    difference = np.abs(mel - features.input_features).max()
    print(f"largest difference from transformers {difference:.1e}")
    assert difference < 1e-3

section("2. The encoder runs once")
# Cross-attention reads the same keys and values in each step, so they are outputs of the encoder.
ear = ts.compile(torch.export.export(listener, (torch.tensor(mel),)), cpu_threads=1)
heard = ear(mel)
for got, right in zip(heard, listener(torch.tensor(mel)), strict=True):
    assert np.abs(np.asarray(got) - right.numpy()).max() < 1e-3
print([str(info) for info in ear.outputs])

section("3. The decoder loops in C++")
# Its cache, token and position are states; keys and values of the encoder stay what they are.
example = (
    torch.tensor([[1]]),
    torch.tensor([0]),
    caches(),
    [torch.zeros(2, HEADS, HEARD, HEAD) for _ in range(LAYERS)],
)
pairs: dict[str, str | ts.Greedy | ts.Counter] = {
    f"past_{layer}": f"output{layer + 1}" for layer in range(LAYERS)
}
mouth = ts.compile(
    torch.export.export(decoder, example),
    states={**pairs, "token": ts.Greedy("output0"), "position": ts.Counter()},
    cpu_threads=1,
)
print([str(info) for info in mouth.inputs], "->", [str(info) for info in mouth.outputs])
prompt, count = [1, 50, 359], 64  # begin, language, task


def transcribed(heard: Sequence[object]) -> list[int]:
    """The tokens of a sound, from empty caches on."""
    mouth.reset()
    for token in prompt:  # given, whatever the network would say
        mouth.states["token"] = np.array([[token]])
        first = mouth(*heard).next_token
    return [first.item(), *mouth.run_steps(count - 1, *heard).next_token.ravel().tolist()]


start = time.perf_counter()
tokens = transcribed(heard)
print(f"{count} tokens in {1e3 * (time.perf_counter() - start):.1f} ms: {tokens[:12]} ...")

section("4. The answer")
assert len({*tokens}) > count // 4, tokens
assert tokens == reference(mel, prompt, count)
print(f"all {count} tokens are equal to the reference's")

section("5. The next sound")
others = transcribed(ear(log_mel(0.1 * audio[::-1])))
print(f"{others[:12]} ...")
assert others != tokens
assert transcribed(heard) == tokens
print("the first sound again has its tokens again")
