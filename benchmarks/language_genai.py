"""onnxruntime-genai for `language.py`: its builder makes the network of the same weights.

    weights in transformers' names  ->  builder, int4 in blocks of 32  ->  model.onnx, genai_config

The builder joins query, key and value to one product and uses ONNX Runtime's `GroupQueryAttention`,
whose cache stays in place.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

_PARTS = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_output": "self_attn.o_proj",
    **{f"attn_{part}": f"self_attn.{part}_proj" for part in "qkv"},
    **{f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")},
}
_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_OPTIONS = ("int4_block_size=32", "int4_accuracy_level=4", "int4_is_symmetric=true")


def genai_folder(
    named: Iterable[tuple[str, Any]],  # parameters in llama.cpp's names
    sizes: dict[str, Any],  # of transformers' Qwen2Config
    folder: Path,
) -> Path:
    """The folder that onnxruntime-genai reads."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    network = Qwen2ForCausalLM(Qwen2Config(**sizes, **ends, tie_word_embeddings=False))
    network.load_state_dict({_transformers_name(name): value for name, value in named})
    network.save_pretrained(folder / "transformers")
    words = {"<|endoftext|>" if i == 2 else str(i): i for i in range(sizes["vocab_size"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="0"))  # the builder asks for one
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>").save_pretrained(
        folder / "transformers"
    )
    builder = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-p", "int4", "-e", "cpu"]
    places = ["-i", folder / "transformers", "-o", folder / "genai", "-c", folder / "cache"]
    done = subprocess.run(
        [*builder, *places, "--extra_options", *_OPTIONS], capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"onnxruntime-genai's builder failed: {done.stderr[-2000:]}")
    return folder / "genai"


def _transformers_name(name: str) -> str:
    if not name.startswith("blk."):
        return _OUTER[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{_PARTS[part]}.{kind}"


def genai_step(folder: Path, tokens: list[int], threads: int) -> Callable[[], np.ndarray]:
    """The scores after the last token; its cache is cut back to the tokens before in each step."""
    import onnxruntime_genai as genai

    config = genai.Config(str(folder))
    config.overlay(
        '{"model": {"decoder": {"session_options": {'
        f'"intra_op_num_threads": {threads}, "inter_op_num_threads": 1}}}}}}}}'
    )
    model = genai.Model(config)
    params = genai.GeneratorParams(model)
    params.set_search_options(max_length=2 * len(tokens))
    generator = genai.Generator(model, params)
    generator.append_tokens(np.array([tokens[:-1]], "int32"))

    def step() -> np.ndarray:
        generator.rewind_to(len(tokens) - 1)
        generator.append_tokens(np.array([tokens[-1:]], "int32"))
        return generator.get_logits().ravel()

    return step
