"""Small models of transformers by their configuration, and rows of tokens of different length; no network."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers

QUIET: dict[str, Any] = {"accelerator": "cpu", "progress": "none", "compile": "off"}
WITHOUT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
BERT = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
BERT |= {"max_position_embeddings": 32, **WITHOUT_DROPOUT}
GPT2 = {"vocab_size": 50, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2, "bos_token_id": 0}
GPT2 |= {"eos_token_id": 0, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
LLAMA = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
LLAMA |= {"max_position_embeddings": 32, "pad_token_id": 0}


def random_rows(count: int = 42, seed: int = 0, longest: int = 20) -> list[list[int]]:
    """Rows of 3 to `longest` tokens."""
    rng = np.random.default_rng(seed)
    return [rng.integers(1, 50, size=length).tolist() for length in rng.integers(3, longest, size=count)]


@pytest.fixture
def rows() -> list[list[int]]:
    return random_rows()


@pytest.fixture
def gpt2() -> Any:
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2))


@pytest.fixture
def bert() -> Any:
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(transformers.BertConfig(**BERT, num_labels=3))


def padded(rows: list[list[int]], value: int) -> torch.Tensor:
    """Rows of different length in one tensor, with `value` behind the shorter ones."""
    longest = max(map(len, rows))
    return torch.tensor([row + [value] * (longest - len(row)) for row in rows])


def batch_of(rows: list[list[int]], labels: Any = None) -> dict[str, torch.Tensor]:
    """A batch as a collator makes it; the labels are the tokens if none are given."""
    tokens = padded(rows, -100) if labels is None else torch.tensor(labels)
    return {
        "input_ids": padded(rows, 0),
        "attention_mask": padded([[1] * len(row) for row in rows], 0),
        "labels": tokens,
    }
