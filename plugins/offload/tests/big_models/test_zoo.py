"""Architectures of transformers from small configurations: empty, planned, dispatched to memory and disk, bit-equal."""

from __future__ import annotations

import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_model
from torch import nn

from anyaccel_offload.torch import init_empty_weights, load_checkpoint_and_dispatch, offload_of

FULL = os.environ.get("ANYACCEL_TEST_FULL") == "1"
TEXT = (
    *(
        "bert",
        "gpt2",
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
        "gemma",
        "gemma2",
        "phi",
        "phi3",
        "opt",
        "gpt_neox",
        "bloom",
    ),
    *("falcon", "roberta", "electra", "albert", "deberta-v2", "xlm-roberta", "mixtral", "qwen2_moe", "olmo"),
    *("olmo2", "starcoder2", "stablelm", "cohere", "granite", "t5", "bart", "biogpt", "persimmon", "nemotron", "glm"),
    *("smollm3", "ernie4_5", "mamba"),
)
IMAGES = ("vit", "deit", "swin", "beit", "dinov2")
QUICK = ("bert", "gemma2", "t5", "mixtral", "vit")
SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "embedding_size"), 32),
    **dict.fromkeys(("intermediate_size", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 64),
    **dict.fromkeys(("head_dim", "d_kv"), 8),
    "num_key_value_heads": 2,
    "vocab_size": 99,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def configuration(kind: str) -> Any:
    transformers = pytest.importorskip("transformers")
    has = transformers.AutoConfig.for_model(kind).to_dict()
    return transformers.AutoConfig.for_model(kind, **{key: value for key, value in SIZES.items() if key in has})


def inputs(config: Any, model: Any) -> dict[str, torch.Tensor]:
    if model.main_input_name == "pixel_values":
        return {"pixel_values": torch.randn(1, config.num_channels, config.image_size, config.image_size)}
    given = {"input_ids": torch.arange(3, 11).view(1, 8)}
    return {**given, "decoder_input_ids": torch.tensor([[3, 4, 5]])} if config.is_encoder_decoder else given


@pytest.mark.parametrize("kind", [*TEXT, *IMAGES] if FULL else QUICK)
def test_an_architecture_is_built_empty_dispatched_and_bit_equal(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = configuration(kind)
        torch.manual_seed(0)
        plain: nn.Module = transformers.AutoModel.from_config(config).eval()
        with init_empty_weights():
            model: nn.Module = transformers.AutoModel.from_config(config).eval()
        assert all(parameter.is_meta for parameter in model.parameters())
        save_model(plain, str(tmp_path / "model.safetensors"))
        total = sum(parameter.nbytes for parameter in plain.parameters())
        memory = {"cpu": int(0.9 * total), "disk": "1GB"}
        load_checkpoint_and_dispatch(model, tmp_path, "auto", memory, strict=False)
        given = inputs(config, plain)
        with torch.no_grad():
            mine, theirs = model(**given).to_tuple(), plain(**given).to_tuple()
    offload = offload_of(model)
    assert offload is not None and any(block.tier == "disk" for block in offload.blocks)
    found = [(a, b) for a, b in zip(mine, theirs, strict=True) if isinstance(a, torch.Tensor)]
    assert found and all(torch.equal(a, b) for a, b in found)


def test_a_pretrained_model_is_built_empty(tmp_path: Path) -> None:
    """`from_pretrained` inside the context: parameters without values, which the files then give."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    plain = transformers.AutoModel.from_config(configuration("bert")).eval()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain.save_pretrained(folder)
        with init_empty_weights():
            model = transformers.AutoModel.from_pretrained(folder).eval()
        load_checkpoint_and_dispatch(model, folder, {"": "cpu"})
    given = {"input_ids": torch.arange(3, 11).view(1, 8)}
    with torch.no_grad():
        assert torch.equal(model(**given)[0], plain(**given)[0])
