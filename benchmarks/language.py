"""A decoder of language with weights of 4 bits, beside llama.cpp, ONNX Runtime and its genai.

```
pip install llama-cpp-python gguf onnxruntime onnxscript onnxruntime-genai transformers
# the first is compiled: ten minutes
python -m benchmarks.language [--layers 6] [--threads 1 2] [--seconds 20] [--folder F]
```
The network has Qwen2-0.5B's layers (896 wide, feed-forward of 4,864, 14 heads that share two of
keys and values), 32,000 words and random weights. All engines hold the same weights: they are
rounded to llama.cpp's Q4_0 (blocks of 32 with one float16 scale), which `MatMulNBits` says exactly.
All may round activations to 8 bits (`accuracy_level=4`; llama.cpp always does).

One step is timed: the scores of the next token after 128 others, by turns, medians, and the ratios
of neighbouring runs. Before that, every engine's scores are compared with PyTorch's in float32.
"""

from __future__ import annotations

import ctypes
import logging
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import onnx
import torch
from torch import nn

import tvm_stretch as ts
from benchmarks.commands import options, turns
from benchmarks.language_genai import genai_folder, genai_step
from benchmarks.speech import QwenLayer, exported

WIDTH, INNER, WORDS, HEADS, GROUPS, HEAD = 896, 4864, 32_000, 14, 2, 64
BASE, EPSILON, BLOCK = 1e6, 1e-6, 32
BEFORE = 128
MOST = 0.05
"""Largest error of the scores, as a share of the largest score: activations of 8 bits."""
Step = Callable[[], np.ndarray]


class Decoder(nn.Module):
    """Scores after some tokens, and the caches with their keys and values."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(QwenLayer(WIDTH, INNER) for _ in range(layers))
        self.norm = nn.RMSNorm(WIDTH, EPSILON)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        turns = BASE ** (-torch.arange(0, HEAD, 2) / HEAD)
        self.register_buffer("turns", turns, persistent=False)

    def forward(self, token: torch.Tensor, position: torch.Tensor, past: torch.Tensor) -> Any:
        """One token."""
        angles = (position.float() * self.turns).repeat(1, 2)
        x, caches = self.embedding(token), []
        for i, layer in enumerate(self.layers):
            x, k, v = layer(x, past[2 * i : 2 * i + 2], (angles.cos(), angles.sin()))
            caches += [k, v]
        return (self.head(self.norm(x)), *caches)


def rounded(weight: np.ndarray) -> np.ndarray:
    """The nearest weights of Q4_0."""
    kind = gguf.GGMLQuantizationType.Q4_0
    return gguf.quants.dequantize(gguf.quants.quantize(weight, kind), kind)


def decoder(layers: int) -> Decoder:
    """Random weights, those of products in 4 bits."""
    torch.manual_seed(0)
    network = Decoder(layers).eval()
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.Linear):
                module.weight.copy_(torch.from_numpy(rounded(module.weight.numpy())))
    return network


@dataclass(frozen=True)
class Problem:
    """A step: inputs, and PyTorch's scores."""

    tokens: list[int]
    past: np.ndarray
    scores: np.ndarray

    @property
    def inputs(self) -> dict[str, np.ndarray]:
        """Inputs of the network of one step."""
        token, position = self.tokens[-1], len(self.tokens) - 1
        return {
            "token": np.array([[token]]),
            "position": np.array([[position]]),
            "past": self.past,
        }


@torch.no_grad()
def problem(network: Decoder) -> Problem:
    """PyTorch computes the tokens before, one after the other."""
    tokens = np.random.default_rng(0).integers(0, WORDS, BEFORE + 1).tolist()
    past = torch.zeros(2 * len(network.layers), 1, GROUPS, 0, HEAD)
    for position, token in enumerate(tokens):
        before = past
        scores, *caches = network(torch.tensor([[token]]), torch.tensor([[position]]), past)
        past = torch.stack(caches)
    return Problem(tokens, before.numpy(), scores.numpy().ravel())


# --- the same weights as files --------------------------------------------------------------------


def onnx_file(network: Decoder, inputs: dict[str, np.ndarray], path: Path) -> None:
    """Products as `MatMulNBits`; its symmetric blocks have the scales of Q4_0."""
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    values = {name: torch.from_numpy(value) for name, value in inputs.items()}
    model = onnx.load_from_string(exported(network, values, True))
    quantizer = MatMulNBitsQuantizer(model, block_size=BLOCK, is_symmetric=True, accuracy_level=4)
    quantizer.process()
    kinds = [node.op_type for node in quantizer.model.model.graph.node]
    if kinds.count("MatMulNBits") != 7 * len(network.layers) + 1:
        raise SystemExit(f"expected all products in 4 bits, got {kinds.count('MatMulNBits')}")
    onnx.save(quantizer.model.model, path)


def gguf_file(network: Decoder, path: Path) -> None:
    """The network in llama.cpp's names."""
    writer = gguf.GGUFWriter(str(path), "qwen2")
    writer.add_block_count(len(network.layers))
    writer.add_context_length(2 * BEFORE)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(GROUPS)
    writer.add_rope_freq_base(BASE)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_vocab_size(WORDS)
    writer.add_tokenizer_model("none")
    four = gguf.GGMLQuantizationType.Q4_0
    for name, value in _named(network):
        array = value.detach().numpy()
        if name.endswith(".weight") and array.ndim == 2 and name != "token_embd.weight":
            writer.add_tensor(name, gguf.quants.quantize(array, four), raw_dtype=four)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _named(network: Decoder) -> list[tuple[str, torch.Tensor]]:
    named = [
        ("token_embd.weight", network.embedding.weight),
        ("output_norm.weight", network.norm.weight),
        ("output.weight", network.head.weight),
    ]
    for i, layer in enumerate(network.layers):
        own = [
            ("attn_norm.weight", layer.norms[0].weight),
            ("ffn_norm.weight", layer.norms[1].weight),
            ("attn_output.weight", layer.out.weight),
        ]
        for name, product in (("q", layer.q), ("k", layer.k), ("v", layer.v)):
            own += [(f"attn_{name}.weight", product.weight), (f"attn_{name}.bias", product.bias)]
        for name, product in (("gate", layer.gate), ("up", layer.up), ("down", layer.down)):
            own.append((f"ffn_{name}.weight", product.weight))
        named += [(f"blk.{i}.{name}", value) for name, value in own]
    return named


# --- engines --------------------------------------------------------------------------------------


def ours(path: Path, task: Problem, threads: int) -> Step:
    """The step as a network of its own, whose cache is an input."""
    model = ts.compile(str(path), ["llvm"], cpu_threads=threads)
    return lambda: model(**task.inputs)[0].ravel()


def onnx_runtime(path: Path, task: Problem, threads: int) -> Step:
    """The same file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    return lambda: session.run(None, task.inputs)[0].ravel()


def llama_cpp(path: Path, task: Problem, threads: int) -> Step:
    """llama.cpp, whose cache is cut back to the tokens before after each step."""
    import llama_cpp

    model = llama_cpp.Llama(
        str(path), n_ctx=2 * BEFORE, n_threads=threads, n_threads_batch=threads, verbose=False
    )
    model.eval(task.tokens[:-1])

    def step() -> np.ndarray:
        model.n_tokens = BEFORE  # eval() forgets what lies after them
        model.eval(task.tokens[-1:])
        pointer = llama_cpp.llama_get_logits(model.ctx)
        return np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float)), (WORDS,))

    return step


def race(steps: dict[str, Step], task: Problem, seconds: float) -> None:
    """Prints medians, and ours over each of the others."""
    for name, step in steps.items():
        error = np.abs(step() - task.scores).max() / np.abs(task.scores).max()
        print(f"{name}: scores within {error:.4f} of the largest of PyTorch's")
        if not error <= MOST:
            raise SystemExit(f"{name}: expected an error of at most {MOST}, got {error:.4f}")
    samples = turns(steps, seconds=seconds, rest=0.05)
    for name in steps:
        ratio = "" if name == "ours" else f"; ours: {samples.ratio('ours', name):.2f} of it"
        print(f"{name}: {samples.median(name):.2f} ms{ratio}")


def main() -> int:
    """Prints the rows; fails if an answer is wrong."""
    logging.disable(logging.INFO)  # the exporter tells every step
    args = options(
        __doc__,
        None,
        ("--layers", 6),
        ("--threads", [1, 2]),
        ("--seconds", 20.0),
        ("--folder", Path, "keeps the two files of the network"),
    )
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.folder or Path(scratch)
        network = decoder(args.layers)
        task = problem(network)
        onnx_file(network, task.inputs, folder / "decoder.onnx")
        gguf_file(network, folder / "decoder.gguf")
        sizes = {
            **{"vocab_size": WORDS, "hidden_size": WIDTH, "intermediate_size": INNER},
            **{"num_hidden_layers": args.layers, "num_attention_heads": HEADS},
            **{"num_key_value_heads": GROUPS, "rope_theta": BASE, "rms_norm_eps": EPSILON},
        }
        genai = genai_folder(_named(network), sizes, folder)
        del network
        for threads in args.threads:
            print(f"\n{threads} threads, {args.layers} layers")
            steps = {
                "ours": ours(folder / "decoder.onnx", task, threads),
                "ONNX Runtime": onnx_runtime(folder / "decoder.onnx", task, threads),
                "llama.cpp": llama_cpp(folder / "decoder.gguf", task, threads),
            }
            race(steps, task, args.seconds)
            # a race of its own, so that fewer threads share the cores
            beside = {"onnxruntime-genai": genai_step(genai, task.tokens, threads)}
            race({"ours": steps["ours"], **beside}, task, args.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
