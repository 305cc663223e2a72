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
import json
import logging
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import onnx
import torch
from torch import nn

from benchmarks import harness
from benchmarks.commands import Run, options
from benchmarks.speech import QwenStep, exported

WIDTH, INNER, WORDS, HEADS, GROUPS, HEAD = 896, 4864, 32_000, 14, 2, 64
BASE, EPSILON, BLOCK = 1e6, 1e-6, 32
BEFORE = 128
MOST = 0.05
"""Largest error of the scores, as a share of the largest score: activations of 8 bits."""
FOUR_BITS = gguf.GGMLQuantizationType.Q4_0
_BUILD = ("int4_block_size=32", "int4_accuracy_level=4", "int4_is_symmetric=true")


class Decoder(nn.Module):
    """Scores after some tokens, and the caches with their keys and values."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embedding, self.step = nn.Embedding(WORDS, WIDTH), QwenStep(layers, WIDTH, INNER)
        self.norm, self.head = nn.RMSNorm(WIDTH, EPSILON), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, token: torch.Tensor, position: torch.Tensor, past: torch.Tensor) -> Any:
        """One token."""
        x, *caches = self.step(self.embedding(token), position, past)
        return (self.head(self.norm(x)), *caches)

    def named(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Its weights by the names of transformers."""
        yield "model.embed_tokens.weight", self.embedding.weight
        yield "model.norm.weight", self.norm.weight
        yield "lm_head.weight", self.head.weight
        for i, layer in enumerate(self.step.layers):
            attention = {"q_proj": layer.q, "k_proj": layer.k, "v_proj": layer.v}
            attention |= {"o_proj": layer.out}
            parts = {f"self_attn.{name}": part for name, part in attention.items()}
            for name in ("gate", "up", "down"):
                parts[f"mlp.{name}_proj"] = getattr(layer, name)
            parts["input_layernorm"], parts["post_attention_layernorm"] = layer.norms
            for name, part in parts.items():
                for kind, value in part.named_parameters():
                    yield f"model.layers.{i}.{name}.{kind}", value


def decoder(layers: int) -> Decoder:
    """Random weights, those of products the nearest ones of Q4_0."""
    torch.manual_seed(0)
    network = Decoder(layers).eval()
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.Linear):
                packed = gguf.quants.quantize(module.weight.numpy(), FOUR_BITS)
                rounded = gguf.quants.dequantize(packed, FOUR_BITS)
                module.weight.copy_(torch.from_numpy(rounded))
    return network


@dataclass(frozen=True)
class Problem:
    """A step: tokens, inputs of a network of one step, and PyTorch's scores."""

    tokens: list[int]
    inputs: dict[str, np.ndarray]
    scores: np.ndarray


@torch.no_grad()
def problem(network: Decoder) -> Problem:
    """PyTorch computes the tokens before, one after the other."""
    tokens = np.random.default_rng(0).integers(0, WORDS, BEFORE + 1).tolist()
    past = torch.zeros(2 * len(network.step.layers), 1, GROUPS, 0, HEAD)
    for position, token in enumerate(tokens):
        given = {"token": torch.tensor([[token]]), "position": torch.tensor([[position]])}
        given["past"] = past
        scores, *caches = network(*given.values())
        past = torch.stack(caches)
    inputs = {name: value.numpy() for name, value in given.items()}
    return Problem(tokens, inputs, scores.numpy().ravel())


# --- the same weights as files --------------------------------------------------------------------


def onnx_bytes(network: Decoder, inputs: dict[str, np.ndarray]) -> bytes:
    """Products as `MatMulNBits`; its symmetric blocks have the scales of Q4_0."""
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    values = {name: torch.from_numpy(value) for name, value in inputs.items()}
    model = onnx.load_from_string(exported(network, values, True))
    quantizer = MatMulNBitsQuantizer(model, block_size=BLOCK, is_symmetric=True, accuracy_level=4)
    quantizer.process()
    made = quantizer.model.model
    count = sum(node.op_type == "MatMulNBits" for node in made.graph.node)
    if count != 7 * len(network.step.layers) + 1:
        raise SystemExit(f"expected all products in 4 bits, got {count}")
    return bytes(made.SerializeToString())


def gguf_file(network: Decoder, path: Path) -> Path:
    """The network in llama.cpp's names."""
    layers = len(network.step.layers)
    writer = gguf.GGUFWriter(str(path), "qwen2")
    writer.add_block_count(layers)
    writer.add_context_length(2 * BEFORE)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(GROUPS)
    writer.add_rope_freq_base(BASE)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_vocab_size(WORDS)
    writer.add_tokenizer_model("none")
    theirs = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, layers)
    for name, value in network.named():
        array, own = value.detach().numpy(), theirs.get_name(name, (".weight", ".bias"))
        if array.ndim == 2 and name != "model.embed_tokens.weight":
            packed = gguf.quants.quantize(array, FOUR_BITS)
            writer.add_tensor(own, packed, raw_dtype=FOUR_BITS)
        else:
            writer.add_tensor(own, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def genai_folder(network: Decoder, folder: Path) -> Path:
    """The folder that onnxruntime-genai reads; its builder joins query, key and value."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=WORDS, hidden_size=WIDTH, intermediate_size=INNER, num_attention_heads=HEADS,
        num_hidden_layers=len(network.step.layers), num_key_value_heads=GROUPS, rope_theta=BASE,
        rms_norm_eps=EPSILON, bos_token_id=1, eos_token_id=2, pad_token_id=0,
        tie_word_embeddings=False,
    )  # fmt: skip
    whole = Qwen2ForCausalLM(config)
    whole.load_state_dict(dict(network.named()))
    whole.save_pretrained(folder / "transformers")
    words = {"<|endoftext|>" if i == 2 else str(i): i for i in range(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="0"))  # the builder asks for one
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")
    wrapped.save_pretrained(folder / "transformers")
    builder = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-p", "int4", "-e", "cpu"]
    places = ["-i", folder / "transformers", "-o", folder / "genai", "-c", folder / "cache"]
    command = [*builder, *places, "--extra_options", *_BUILD]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"onnxruntime-genai's builder failed: {done.stderr[-2000:]}")
    return folder / "genai"


# --- engines --------------------------------------------------------------------------------------


def llama_cpp(path: Path, tokens: list[int], threads: int) -> Run:
    """llama.cpp, whose cache is cut back to the tokens before after each step."""
    import llama_cpp

    model = llama_cpp.Llama(
        str(path), n_ctx=2 * BEFORE, n_threads=threads, n_threads_batch=threads, verbose=False
    )
    model.eval(tokens[:-1])

    def step() -> np.ndarray:
        model.n_tokens = BEFORE  # eval() forgets what lies after them
        model.eval(tokens[-1:])
        pointer = llama_cpp.llama_get_logits(model.ctx)
        return np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float)), (WORDS,))

    return step


def genai(folder: Path, tokens: list[int], threads: int) -> Run:
    """onnxruntime-genai, whose cache is cut back to the tokens before in each step."""
    import onnxruntime_genai

    config = onnxruntime_genai.Config(str(folder))
    limits = {"intra_op_num_threads": threads, "inter_op_num_threads": 1}
    config.overlay(json.dumps({"model": {"decoder": {"session_options": limits}}}))
    model = onnxruntime_genai.Model(config)
    params = onnxruntime_genai.GeneratorParams(model)
    params.set_search_options(max_length=2 * len(tokens))
    generator = onnxruntime_genai.Generator(model, params)
    generator.append_tokens(np.array([tokens[:-1]], "int32"))

    def step() -> np.ndarray:
        generator.rewind_to(len(tokens) - 1)
        generator.append_tokens(np.array([tokens[-1:]], "int32"))
        return generator.get_logits().ravel()

    return step


def _first(answer: Any) -> Any:
    return answer[0] if isinstance(answer, (list, tuple)) else answer


def beside(steps: dict[str, Run], task: Problem, seconds: float) -> None:
    """Prints medians, and ours over each of the others."""
    first = {name: lambda step=step: np.ravel(_first(step())) for name, step in steps.items()}
    how = {"most": MOST, "seconds": seconds, "rest": 0.05}
    errors, samples = harness.race("a step", first, [task.scores], **how)
    for name, error in errors.items():
        print(f"{name}: scores within {error:.4f} of the largest of PyTorch's")
    for name in steps:
        ratio = "" if name == "ours" else f"; ours: {samples.ratio('ours', name):.2f} of it"
        print(f"{name}: {samples.median(name):.2f} ms{ratio}")


def main() -> None:
    """Prints the rows; fails if an answer is wrong."""
    logging.disable(logging.INFO)  # the exporter tells every step
    args = options(
        *(__doc__, None, ("--layers", 6), ("--threads", [1, 2]), ("--seconds", 20.0)),
        ("--folder", Path, "keeps the files of the network"),
    )
    with tempfile.TemporaryDirectory() as scratch:
        folder, network = args.folder or Path(scratch), decoder(args.layers)
        task = problem(network)
        model = harness.Model(onnx_bytes(network, task.inputs), task.inputs)
        llama, theirs = gguf_file(network, folder / "decoder.gguf"), genai_folder(network, folder)
        del network
        for threads in args.threads:
            print(f"\n{threads} threads, {args.layers} layers")
            steps: dict[str, Run] = {
                "ours": harness.load("ours", model, threads),
                "ONNX Runtime": harness.load("ort", model, threads),
                "llama.cpp": llama_cpp(llama, task.tokens, threads),
            }
            beside(steps, task, args.seconds)
            # a race of its own, so that fewer threads share the cores
            other = {"onnxruntime-genai": genai(theirs, task.tokens, threads)}
            beside({"ours": steps["ours"], **other}, task, args.seconds)


if __name__ == "__main__":
    main()
