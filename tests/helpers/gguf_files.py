"""Small language models in GGUF files, with random weights, written by llama.cpp's own package."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

LAYERS, WIDTH, INNER, HEADS, GROUPS, HEAD, WORDS = 2, 256, 512, 8, 4, 32, 96
LETTERS = ("<|begin|>", "<|end|>", *map(chr, range(33, 127)))
"""A vocabulary of the printable letters of ASCII."""
GEMMA = ("gemma", "gemma2", "gemma3")


def write_model(
    path: Path,
    family: str = "llama",
    kind: str = "Q4_1",  # of products
    table: str = "Q8_0",  # of the table of tokens, and of the head
    head: bool = False,  # whether the head is a tensor of its own
    tokens: Sequence[str] = (),  # by default numbers in brackets
    **fields: Any,  # numbers that replace others, such as ``block_count``
) -> Path:
    """A file whose norms are near one, and whose answers differ between tokens."""
    rng = np.random.default_rng(3)
    writer = gguf.GGUFWriter(str(path), family)
    _fields(writer, family, fields)
    _vocabulary(writer, tokens)

    def add(name: str, *sizes: int, kind: str = "F32", spread: float = 0.0) -> None:
        noise = rng.standard_normal(sizes)
        value = noise * spread if spread else 1 + 0.1 * noise
        own = gguf.GGMLQuantizationType[kind]
        array = value.astype("float32")
        data = array if kind == "F32" else gguf.quants.quantize(array, own)
        writer.add_tensor(name, data, raw_dtype=own)

    add("token_embd.weight", WORDS, WIDTH, kind=table, spread=0.5)
    if head:
        add("output.weight", WORDS, WIDTH, kind=table, spread=0.2)
    add("output_norm.weight", WIDTH)
    for layer in range(LAYERS):
        own = f"blk.{layer}"
        for part, heads in (("q", HEADS), ("k", GROUPS), ("v", GROUPS)):
            add(f"{own}.attn_{part}.weight", heads * HEAD, WIDTH, kind=kind, spread=0.1)
            if family == "qwen2":
                add(f"{own}.attn_{part}.bias", heads * HEAD, spread=0.5)
            if family in ("qwen3", "gemma3") and part != "v":
                add(f"{own}.attn_{part}_norm.weight", HEAD)
        add(f"{own}.attn_output.weight", WIDTH, HEADS * HEAD, kind=kind, spread=0.1)
        for part in ("gate", "up"):
            add(f"{own}.ffn_{part}.weight", INNER, WIDTH, kind=kind, spread=0.1)
        add(f"{own}.ffn_down.weight", WIDTH, INNER, kind=kind, spread=0.1)
        norms = ["attn_norm", "ffn_norm"]
        if family in ("gemma2", "gemma3"):
            norms += ["post_attention_norm", "post_ffw_norm"]
        for norm in norms:
            add(f"{own}.{norm}.weight", WIDTH)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _fields(writer: Any, family: str, given: dict[str, Any]) -> None:
    numbers = {
        "block_count": LAYERS,
        "context_length": 64,
        "embedding_length": WIDTH,
        "feed_forward_length": INNER,
        "vocab_size": WORDS,
        "attention.head_count": HEADS,
        "attention.head_count_kv": GROUPS,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
        "rope.dimension_count": HEAD,
    }
    reals = {"attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 5000.0}
    if family in ("gemma2", "gemma3"):
        numbers["attention.sliding_window"] = 4
    if family == "gemma2":
        reals |= {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    for name, number in (numbers | reals | given).items():
        add = writer.add_float32 if isinstance(number, float) else writer.add_uint32
        add(f"{family}.{name}", number)


def _vocabulary(writer: Any, letters: Sequence[str]) -> None:
    """Letters of their own, or numbers of which one merge makes sense."""
    tokens = letters or [f"<{number}>" for number in range(WORDS)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(list(tokens))
    writer.add_token_types([3, 3 if letters else 1, *[1] * (WORDS - 2)])
    writer.add_token_merges(["no pair"] if letters else ["< 1", "<1 >"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template("{{ messages }}")
