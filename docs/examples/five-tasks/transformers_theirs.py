"""The same with Trainer."""

from __future__ import annotations

import torch
from datasets import Dataset
from torch.utils.data import SequentialSampler
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
)

rows = [[1 + (first + i) % 40 for i in range(6 + first % 9)] for first in range(64)]
dataset = Dataset.from_dict(
    {
        "input_ids": rows,
        "attention_mask": [[1] * len(row) for row in rows],
        "label": [len(row) % 2 for row in rows],
    }
)
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


def collate(items):  # DataCollatorWithPadding, if you have a tokenizer
    longest = max(len(item["input_ids"]) for item in items)
    batch = {
        name: torch.tensor([i[name] + [0] * (longest - len(i[name])) for i in items])
        for name in ("input_ids", "attention_mask")
    }
    return {**batch, "labels": torch.tensor([item["label"] for item in items])}


class InOrder(Trainer):
    def _get_train_sampler(self, dataset=None):
        return SequentialSampler(self.train_dataset)


arguments = TrainingArguments(
    "out",
    num_train_epochs=4,
    per_device_train_batch_size=8,
    learning_rate=1e-3,
    logging_steps=8,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
)
trainer = InOrder(model, arguments, train_dataset=dataset, data_collator=collate)
trainer.train()
trainer.save_model("bert-trainer")
losses = [log["loss"] for log in trainer.state.log_history if "loss" in log]
print("losses", *[f"{loss:.4f}" for loss in losses])
print(*trainer.predict(dataset).predictions.argmax(1)[:5])
