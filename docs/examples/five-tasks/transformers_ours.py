"""A BERT classifier, made from a configuration: fine-tune on tokens, store, predict."""

from __future__ import annotations

import torch
from datasets import Dataset
from transformers import BertConfig, BertForSequenceClassification

import anyaccel as aa

rows = [[1 + (first + i) % 40 for i in range(6 + first % 9)] for first in range(64)]
dataset = Dataset.from_dict({"input_ids": rows, "label": [len(row) % 2 for row in rows]})
torch.manual_seed(0)
config = BertConfig(
    vocab_size=50,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
model = BertForSequenceClassification(config)
adam = aa.Optimizer(
    "adamw",
    lr=1e-3,
    weight_decay=0.0,
    clip_norm=1.0,
    schedule=aa.Schedule("linear", steps=32),
)
fit = aa.fit(
    model,
    dataset,
    optimizer=adam,
    epochs=4,
    sampler=aa.SimpleSampler(8, shuffle=False),
    progress="none",
)
fit.save("bert")
print("losses", *[f"{loss:.4f}" for loss in fit.results.loss])
print(*fit.predict(dataset)[:5])
