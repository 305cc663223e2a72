"""Architectures of the package `transformers`, made tiny from their configurations: no downloads.

A group is a model type, such as `llama`. Its base model gets random weights and one input, is
exported, and its first tensors of floats are compared. Whatever the configuration of a type names
as a size (width, layers, heads, vocabulary, image) becomes small; sizes that do not fit each other
are torch's error, so the case counts as not exported.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from benchmarks.conformance.torch_cases import (
    Sample,
    Verdict,
    call,
    copies,
    tensors,
    verdicts,
)
from benchmarks.real_networks import import_torchvision, unequal_weights

_SEED = 20260
_TOKENS, _SIDE, _VOCABULARY, _MOST_WEIGHTS = 8, 32, 99, 30_000_000
_SIZES = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "emb_dim"), 32),
    **dict.fromkeys(("embedding_size", "d_embed", "projection_dim", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "n_inner", "hidden_dim"), 64),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "mlp_dim", "d_inner"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "multi_query_group_num"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "d_head", "attention_head_size"), 8),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    **{"vocab_size": _VOCABULARY, "image_size": _SIDE, "patch_size": 8},
    **{"max_position_embeddings": 64, "n_positions": 64, "num_mel_bins": 16},
    **dict.fromkeys(("rotary_dim", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 8),
    **{"max_source_positions": 8, "max_target_positions": 16},
}
_DEPTHS = {
    name: size
    for name, size in _SIZES.items()
    if "layer" in name or "expert" in name or name in ("vocab_size", "max_position_embeddings")
}
"""Sizes that become small where small widths do not fit each other."""
_PLAIN = {"use_cache": False, "attn_implementation": "eager", "is_training": False}


def groups() -> list[str]:
    """The model types that have a base model in torch."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return sorted(MODEL_MAPPING_NAMES)


def judge(group: str, target: str, most: int, singly: bool, done: set[str]) -> Iterator[Verdict]:
    """The verdict on an architecture: each has one case."""
    yield "", "scope", "in"
    if group in done:
        return
    import_torchvision()  # image networks of transformers look for its operators
    try:
        sample = sample_of(group)
    except Exception as error:  # a configuration without which nothing can be made, or a package
        yield group, "unsupported by export", f"not made: {type(error).__name__}: {error}"[:200]
        return
    yield from verdicts([sample], target, singly)


def sample_of(group: str) -> Sample:
    """The first tiny network of a model type that runs: small, or with its own widths.

    Each gets one input for each of its main arguments, or words alone: places of images among
    words depend on tokens of each type.
    """
    first: Exception | None = None
    for sizes in (_SIZES, _DEPTHS):
        for words_alone in (False, True):
            try:
                sample = _sample(group, sizes, words_alone)
                with torch.no_grad():
                    sample.module(*copies(sample.inputs))
                return sample
            except Exception as error:  # sizes that do not fit raise many kinds
                first = first or error
    assert first is not None
    raise first


def _sample(group: str, sizes: Mapping[str, int], words_alone: bool) -> Sample:
    from transformers import AutoConfig, AutoModel

    torch.manual_seed(_SEED)
    config = AutoConfig.for_model(group)
    _shrink(config, sizes)
    options = {"attn_implementation": "eager"}
    with torch.device("meta"):
        weights = sum(p.numel() for p in AutoModel.from_config(config, **options).parameters())
    if weights > _MOST_WEIGHTS:
        raise ValueError(f"{weights} weights are left, more than {_MOST_WEIGHTS}")
    model = AutoModel.from_config(config, **options).float().eval()
    unequal_weights(model)
    inputs = _inputs(model, config)
    if words_alone:
        inputs = {name: x for name, x in inputs.items() if name.endswith("input_ids")}

    def forward(**inputs: torch.Tensor) -> list[torch.Tensor]:
        results = model(**inputs, **_accepted(model, {"use_cache": False, "return_dict": True}))
        return [x for x in tensors(dict(results)) if x.is_floating_point()]

    sample = call(group, forward, (), inputs)
    sample.module.add_module("model", model)
    return sample


def _shrink(config: Any, small: Mapping[str, int]) -> None:
    """Make the sizes that a configuration names small, those of its parts, too."""
    for part in vars(config).values():
        if hasattr(part, "to_diff_dict"):
            _shrink(part, small)
    for name, size in {**small, **_PLAIN}.items():
        value, meant = getattr(config, name, None), config.attribute_map.get(name, name)
        is_size = isinstance(value, int | float) and (value > 0 or type(value) is bool)
        if is_size and meant in vars(config) and (meant == name or meant in _SIZES):
            setattr(config, name, size)
    _shrink_lists(config, small)
    for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        if isinstance(getattr(config, name, None), int):
            setattr(config, name, 1)


def _shrink_lists(config: Any, small: Mapping[str, int]) -> None:
    layers = getattr(config, "num_hidden_layers", None)
    for name in ("hidden_sizes", "embed_dims", "encoder_hidden_sizes", "depths", "layer_types"):
        sizes = getattr(config, name, None)
        if name == "depths" and isinstance(sizes, list | tuple):
            config.depths = [1] * len(sizes)
        elif name == "layer_types" and isinstance(sizes, list):
            if name in vars(config):  # others derive it of their sizes
                config.layer_types = sizes[:layers]
        elif small is _SIZES and isinstance(sizes, list | tuple) and {*map(type, sizes)} == {int}:
            setattr(config, name, [8 * 2**place for place in range(len(sizes))])


def _inputs(model: Any, config: Any) -> dict[str, torch.Tensor]:
    """Random values for what the model's main input is, and for a decoder."""
    names = inspect.signature(model.forward).parameters
    words = torch.randint(3, _VOCABULARY, (1, _TOKENS))
    side = getattr(config, "image_size", None) or _SIDE
    side = side if isinstance(side, int) else _SIDE
    bins = getattr(config, "num_mel_bins", 16)
    values = {
        "input_ids": words,
        "decoder_input_ids": words[:, :4],
        "pixel_values": torch.randn(1, getattr(config, "num_channels", 3), side, side),
        "input_values": torch.randn(1, 800),
        "input_features": torch.randn(1, bins, 16),
    }
    main = [name for name in values if name in names]
    if not main:
        raise ValueError(f"no input of {', '.join(names)} is known")
    return {name: values[name] for name in main}


def _accepted(model: Any, options: dict[str, Any]) -> dict[str, Any]:
    names = inspect.signature(model.forward).parameters
    return {name: value for name, value in options.items() if name in names}
