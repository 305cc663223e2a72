"""Networks by name, with random weights and small configurations: package/name.

timm/swin_tiny_patch4_window7_224, transformers/bert, diffusers/UNet2DModel

Networks of timm come at their own size, networks of transformers have two narrow layers, and
networks of diffusers two narrow blocks: more layers would need the same operators.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from benchmarks.harness import Model
from benchmarks.real_networks import import_torchvision
from benchmarks.speech import exported

NARROW = {
    "num_hidden_layers": 2, "num_layers": 2, "encoder_layers": 2, "decoder_layers": 2,
    "hidden_size": 256, "d_model": 256, "embedding_size": 128, "intermediate_size": 512,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_heads": 4, "head_dim": 64, "d_kv": 64,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 512,
    "decoder_ffn_dim": 512, "vocab_size": 1000, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "use_cache": False, "layerdrop": 0.0, "num_experts": 4,
    "num_local_experts": 4, "moe_intermediate_size": 128,
}  # fmt: skip
"""Values of a configuration of transformers, for the fields that it has."""

DIFFUSERS: Mapping[str, tuple[dict[str, Any], tuple[tuple[int, ...], ...]]] = {
    "UNet2DModel": (
        {
            "sample_size": 32, "block_out_channels": (64, 128), "layers_per_block": 1,
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
        },
        ((1, 3, 32, 32), ()),
    ),
    "UNet2DConditionModel": (
        {
            "sample_size": 32, "block_out_channels": (64, 128), "layers_per_block": 1,
            "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
            "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"), "cross_attention_dim": 128,
        },
        ((1, 4, 32, 32), (), (1, 77, 128)),
    ),
    "AutoencoderKL": (
        {
            "block_out_channels": (64, 128), "layers_per_block": 1, "latent_channels": 4,
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "up_block_types": ("UpDecoderBlock2D",) * 2,
        },
        ((1, 3, 64, 64),),
    ),
    "AutoencoderTiny": ({}, ((1, 3, 64, 64),)),
    "AutoencoderDC": (
        {
            "encoder_block_out_channels": (64, 128), "decoder_block_out_channels": (64, 128),
            "encoder_layers_per_block": (1, 1), "decoder_layers_per_block": (1, 1),
            "encoder_block_types": ("ResBlock", "EfficientViTBlock"),
            "decoder_block_types": ("ResBlock", "EfficientViTBlock"),
            "encoder_qkv_multiscales": ((), (5,)), "decoder_qkv_multiscales": ((), (5,)),
        },
        ((1, 3, 64, 64),),
    ),
    "VQModel": ({"block_out_channels": (64,)}, ((1, 3, 64, 64),)),
    "UVit2DModel": (
        {
            "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
            "encoder_hidden_size": 128, "block_out_channels": 128, "cond_embed_dim": 128,
            "micro_cond_encode_dim": 32, "micro_cond_embed_dim": 160, "intermediate_size": 256,
        },
        ((1, 16, 16), (1, 77, 128), (1, 128), (1, 5)),
    ),
}  # fmt: skip

TIMM = """
coatnet_nano_rw_224 convit_tiny convmixer_768_32 cspresnet50 eca_nfnet_l0 edgenext_xx_small
fastvit_t8 fasternet_t0 ghostnetv3_100 hardcorenas_a hgnetv2_b0 hiera_tiny_224 hrnet_w18_small
inception_next_atto lambda_resnet26t mixer_s32_224 mixnet_s mobileone_s0 nest_tiny nextvit_small
pit_ti_224 poolformer_s12 rdnet_tiny repghostnet_050 repvit_m0_9 resmlp_12_224 selecsls42 shvit_s1
skresnet18 tinynet_e tiny_vit_5m_224 tresnet_m twins_svt_small vgg11_bn visformer_tiny vovnet39a
xception41
"""
TRANSFORMERS = """
albert bert bloom canine codegen cohere convbert ctrl data2vec-text distilbert electra ernie esm
gemma glm gpt_neox granite helium ibert llama mistral mpt mpnet nemotron olmo2 opt qwen3_next
recurrent_gemma rembert roberta roformer stablelm starcoder2 xglm xlm xlnet yoso zamba2 beit bit
convnextv2 cvt dinov2 dpt focalnet glpn ijepa levit mobilenet_v1 mobilevitv2 pvt regnet segformer
siglip_vision_model swin2sr vit_mae yolos audio-spectrogram-transformer data2vec-audio hubert sew
sew-d unispeech-sat wav2vec2 whisper t5 bart
"""
NETWORKS = (
    *(f"timm/{name}" for name in TIMM.split()),
    *(f"transformers/{name}" for name in TRANSFORMERS.split()),
    *(f"diffusers/{name}" for name in DIFFUSERS),
)


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


def missing(name: str) -> str:
    """Packages that a network needs and that are not installed."""
    needed = (name.partition("/")[0], "onnxscript")
    return " and ".join(each for each in needed if importlib.util.find_spec(each) is None)


def network(name: str) -> Model:
    """A network as ONNX with its inputs."""
    if importlib.util.find_spec("torchvision"):
        import_torchvision()
    torch.manual_seed(0)
    package, _, kind = name.partition("/")
    net, inputs = {"timm": _timm, "transformers": _transformers, "diffusers": _diffusers}[package](
        kind
    )
    named = {f"x{i}": value for i, value in enumerate(inputs)}
    content = exported(First(net).eval(), named, modern=True)
    return Model(content, {key: value.numpy() for key, value in named.items()})


def _timm(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    import timm

    net = timm.create_model(name)
    return net, (torch.randn(1, *net.default_cfg["input_size"]),)


def _transformers(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    from transformers import CONFIG_MAPPING, AutoModel

    kind = CONFIG_MAPPING[name]
    known = kind()
    narrow = {k: v for k, v in NARROW.items() if type(getattr(known, k, None)) is type(v)}
    try:
        config = kind(**narrow)
    except Exception:  # its numbers depend on each other
        config = kind(**{k: v for k, v in narrow.items() if "layers" in k or k == "use_cache"})
    net = AutoModel.from_config(config, attn_implementation="eager")
    if getattr(config, "is_encoder_decoder", False):
        net = net.get_encoder()
    return net, (_input(net.main_input_name, config),)


def _input(name: str, config: Any) -> torch.Tensor:
    """An input of a network of transformers, by the name of its argument."""
    size = getattr(config, "image_size", 224)
    shapes = {
        "pixel_values": (1, 3, *(size if isinstance(size, (list, tuple)) else (size, size))),
        "input_values": (1, 16000),
        "input_features": (1, getattr(config, "num_mel_bins", 80), 3000),
    }
    if name == "input_ids":
        return torch.randint(3, getattr(config, "vocab_size", 1000), (1, 128))
    return torch.randn(shapes[name])


def _diffusers(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    import diffusers

    values, shapes = DIFFUSERS[name]
    net = getattr(diffusers, name)(**values)
    return net, tuple(torch.randn(shape) if shape else torch.tensor(10) for shape in shapes)
