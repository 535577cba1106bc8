"""`fit` of models of transformers, compared with loops by hand and with transformers' own Trainer."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from datasets import Dataset
from torch.utils.data import DataLoader

import anyaccel as aa
from anyaccel.errors import DataError

from .conftest import BERT, LLAMA, QUIET, batch_of, random_rows

BATCH, EPOCHS, LR = 8, 2, 1e-2


def loop_by_hand(model: Any, batches: list[dict[str, torch.Tensor]], weights: list[int]) -> list[float]:
    """The mean loss of each epoch, over all that counts."""
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    model.train()
    means = []
    for _ in range(EPOCHS):
        total = 0.0
        for batch, weight in zip(batches, weights, strict=True):
            loss = model(**batch).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * weight
        means.append(total / sum(weights))
    return means


def in_order(model: Any, data: Any, target: Any = None, **settings: Any) -> Any:
    """Fit on batches in the order of the rows."""
    items = [data[i : i + BATCH] for i in range(0, len(data), BATCH)]
    settings = {
        "epochs": EPOCHS,
        "optimizer": aa.Optimizer("adam", lr=LR),
        "progress": "none",
        "compile": "off",
        **settings,
    }
    return aa.fit(model, items, target=target, **settings)


def test_gpt2_trains_as_a_loop_by_hand_with_the_mean_over_all_tokens(gpt2: Any, rows: list[list[int]]) -> None:
    expected = copy.deepcopy(gpt2)
    batches = [batch_of(rows[i : i + BATCH]) for i in range(0, len(rows), BATCH)]
    counts = [int((batch["labels"][:, 1:] != -100).sum()) for batch in batches]
    means = loop_by_hand(expected, batches, counts)
    fitted = aa.fit(
        gpt2,
        batches,
        epochs=EPOCHS,
        optimizer=aa.Optimizer("adam", lr=LR),
        accelerator="cpu",
        progress="none",
        compile="off",
    )
    np.testing.assert_allclose(fitted.results.loss, means, rtol=1e-6)


def test_bert_trains_as_a_loop_by_hand_with_the_mean_over_rows(bert: Any, rows: list[list[int]]) -> None:
    expected = copy.deepcopy(bert)
    labels = [row[0] % 3 for row in rows]
    batches = [batch_of(rows[i : i + BATCH], labels[i : i + BATCH]) for i in range(0, len(rows), BATCH)]
    means = loop_by_hand(expected, batches, [len(batch["labels"]) for batch in batches])
    fitted = in_order(bert, Dataset.from_dict({"input_ids": rows, "attention_mask": ones(rows), "label": labels}))
    np.testing.assert_allclose(fitted.results.loss, means, rtol=1e-6)


def ones(rows: list[list[int]]) -> list[list[int]]:
    return [[1] * len(row) for row in rows]


def test_a_table_is_padded_by_the_batch_and_weighted_by_tokens(gpt2: Any, rows: list[list[int]]) -> None:
    batch = batch_of(rows)
    expected = gpt2.eval()(**batch).loss.item()
    data = {"input_ids": rows}
    fitted = aa.fit(
        gpt2,
        data,
        target="input_ids",
        epochs=1,
        batch_size=len(rows),
        accelerator="cpu",
        progress="none",
        compile="off",
    )
    assert math.isclose(fitted.results.loss[0], expected, rel_tol=1e-6)


@pytest.mark.parametrize("batch_size", [1, 5])
def test_evaluate_is_the_mean_over_all_tokens_whatever_the_batches(
    gpt2: Any, rows: list[list[int]], batch_size: int
) -> None:
    fitted = aa.fit(gpt2, {"input_ids": rows}, target="input_ids", epochs=1, **QUIET)
    total, count = 0.0, 0
    for row in rows:
        with torch.no_grad():
            total += gpt2.eval()(**batch_of([row])).loss.item() * (len(row) - 1)
        count += len(row) - 1
    batches = [batch_of(rows[i : i + batch_size]) for i in range(0, len(rows), batch_size)]
    for data in (batches, {"input_ids": rows}, {"input_ids": rows, "labels": rows}):
        assert math.isclose(fitted.evaluate(data).loss, total / count, rel_tol=1e-6)


def trainer_losses(model: Any, data: Dataset, collate: Any, folder: Path, steps: int) -> list[float]:
    """The loss of each step of transformers' Trainer, in the order of the rows."""

    class InOrder(transformers.Trainer):
        def _get_train_sampler(self, *arguments: Any, **settings: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    settings = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=BATCH,
        learning_rate=LR,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=1.0,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    trainer = InOrder(model, settings, train_dataset=data, data_collator=collate)
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", ["BertForSequenceClassification", "LlamaForCausalLM"])
def test_steps_have_the_losses_of_the_trainer(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model_class = getattr(transformers, name)
    config = BERT if name.startswith("Bert") else LLAMA
    model = model_class(model_class.config_class(**config))
    other = copy.deepcopy(model)
    rows = random_rows(80)
    kinds = [row[0] % 2 for row in rows] if name.startswith("Bert") else None
    data = Dataset.from_dict({"input_ids": rows, "kind": kinds or [0] * len(rows)})

    def collate(items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        return batch_of([item["input_ids"] for item in items], kinds and [item["kind"] for item in items])

    class Steps(aa.Callback):
        losses: list[float] = []

        def steps_done(self, run: Any, steps: Any) -> None:
            self.losses.extend(float(loss) for loss in steps.losses()["model"])

    steps = Steps()
    loader = DataLoader(data, batch_size=BATCH, collate_fn=collate)
    optimizer = aa.Optimizer("adamw", lr=LR, weight_decay=0.0, clip_norm=1.0)
    aa.fit(
        model,
        loader,
        epochs=2,
        optimizer=optimizer,
        callbacks=[steps],
        accelerator="cpu",
        progress="none",
        compile="off",
    )
    expected = trainer_losses(other, data.with_format("python"), collate, tmp_path, 20)
    np.testing.assert_allclose(steps.losses, expected, rtol=1e-6)


def test_accumulated_batches_are_one_step_over_all_their_tokens(rows: list[list[int]]) -> None:
    """The mean over the tokens of all batches of an update, not the mean of their means."""
    weights = []
    for batch_size, accumulate in ((len(rows), 1), (len(rows) // 3, 3)):
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))
        sizes: dict[str, Any] = {"batch_size": batch_size, "accumulate": accumulate}
        optimizer = aa.Optimizer("sgd", lr=0.1)
        fitted = aa.fit(model, {"input_ids": rows}, target="input_ids", epochs=1, optimizer=optimizer, **sizes, **QUIET)
        assert len(fitted.results.loss) == 1
        weights.append(model.lm_head.weight.detach())
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-5, atol=1e-7)


def test_validation_and_its_metrics(bert: Any, rows: list[list[int]]) -> None:
    data = Dataset.from_dict({"input_ids": rows, "label": [row[0] % 3 for row in rows]})
    other = Dataset.from_dict({"input_ids": [[1] * 30, [2, 3]], "label": [0, 1]})  # longer than any to train on
    for validation in (0.25, other):
        fitted = aa.fit(bert, data, validation=validation, metrics=["accuracy"], epochs=1, **QUIET)
        assert np.isfinite(fitted.results.figure("val_loss")).all()
        assert fitted.results.figure("val_accuracy").size == 1
    evaluated = fitted.evaluate(other, metrics=["accuracy"])
    assert math.isclose(evaluated.loss, fitted.results.figure("val_loss")[0], rel_tol=1e-6)


def test_a_classifier_has_probabilities_a_score_and_a_view(bert: Any, rows: list[list[int]]) -> None:
    labels = [len(row) % 2 for row in rows]
    data = {"input_ids": rows, "labels": labels}
    fitted = aa.fit(bert, data, epochs=1, progress="none")
    bert.eval()
    with torch.no_grad():
        by_hand = torch.cat([bert(torch.tensor([row])).logits for row in rows]).double()
    np.testing.assert_allclose(fitted.predict_proba(data), by_hand.softmax(-1), rtol=0, atol=1e-6)
    assert fitted.score(data) == float((by_hand.argmax(-1) == torch.tensor(labels)).double().mean())
    assert "columns: input_ids -> labels" in repr(fitted)
    with pytest.raises(DataError, match=r"score measures rows of a table"):
        fitted.score([{"input_ids": torch.ones(2, 3, dtype=torch.long), "labels": torch.zeros(2, dtype=torch.long)}])


def test_streams_are_batched_and_padded(bert: Any, rows: list[list[int]]) -> None:
    data = Dataset.from_dict({"input_ids": rows, "label": [row[0] % 3 for row in rows]})
    stream = data.to_iterable_dataset().batch(BATCH)
    expected = aa.fit(copy.deepcopy(bert), data, sampler=aa.SimpleSampler(BATCH, drop_last=False), epochs=1, **QUIET)
    fitted = aa.fit(bert, stream, epochs=1, **QUIET)
    np.testing.assert_allclose(fitted.results.loss, expected.results.loss, rtol=1e-6)
    np.testing.assert_allclose(fitted.evaluate(stream).loss, fitted.evaluate(data).loss, rtol=1e-6)
    items = [{"input_ids": row, "labels": row[0] % 3} for row in rows]

    class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return len(items)

        def __getitem__(self, number: int) -> dict[str, Any]:
            return items[number]

    np.testing.assert_allclose(fitted.evaluate(Rows()).loss, fitted.evaluate(data).loss, rtol=1e-6)
    np.testing.assert_allclose(fitted.predict(Rows(), outputs=True), fitted.predict(data, outputs=True), rtol=1e-5)


def test_a_shuffled_loader_gives_the_batches_that_it_gives_by_hand(bert: Any, rows: list[list[int]]) -> None:
    """The first batch is read for the names of its columns, and the generator is as before."""
    labels = [row[0] % 3 for row in rows]
    items = list(zip(rows, labels, strict=True))

    def loader(seen: list[int]) -> Any:
        def collate(pairs: Any) -> Any:
            seen.extend(label for _, label in pairs)
            return batch_of([row for row, _ in pairs], [label for _, label in pairs])

        torch.manual_seed(1)
        return DataLoader(items, batch_size=BATCH, shuffle=True, collate_fn=collate)  # type: ignore[arg-type]

    by_hand, fitted = list[int](), list[int]()
    for _ in loader(by_hand):
        pass
    aa.fit(bert, loader(fitted), epochs=1, **QUIET)
    assert fitted[-len(by_hand) + BATCH :] == by_hand[BATCH:]


def test_rows_may_be_dicts_arrays_and_tensors(bert: Any, rows: list[list[int]]) -> None:
    labels = [row[0] % 3 for row in rows]
    expected = aa.fit(copy.deepcopy(bert), {"input_ids": rows, "labels": labels}, epochs=1, **QUIET).results.loss
    tables: list[Any] = [
        [{"input_ids": row, "labels": label} for row, label in zip(rows, labels, strict=True)],
        {"input_ids": [np.array(row) for row in rows], "labels": np.array(labels)},
        {"input_ids": [torch.tensor(row) for row in rows], "labels": torch.tensor(labels)},
    ]
    for table in tables:
        fitted = aa.fit(copy.deepcopy(bert), table, epochs=1, **QUIET)
        np.testing.assert_allclose(fitted.results.loss, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"input_ids": [], "labels": []}, "no rows"),
        ({"input_ids": [[1, 2], []], "labels": [0, 1]}, "row 1 of 'input_ids' is empty"),
        ({"input_ids": [[1, 2], [3]], "labels": [0.0, 1.0]}, "'labels' are float64, but .* has num_labels=3 classes"),
        ({"input_ids": [[1, 2], [3]], "labels": [0, None]}, "'labels' has no value in 1 of 2 rows"),
        (
            {"input_ids": [[1, 2], [3]], "labels": [-100, -100]},
            "all labels in 'labels' are ignored in row 0, one of 2 such",
        ),
        ({"input_ids": [[1, 2], [99]], "labels": [0, 1]}, "'input_ids' has the value 99, and the vocabulary"),
        ({"input_ids": [[1] * 33], "labels": [0]}, "has 33 tokens, but BertForSequenceClassification has 32 positions"),
        ({"input_ids": [[1, 2], [3]], "labels": [0, 3]}, "'labels' has the value 3, and .* num_labels=3"),
        ({"text": ["a", "b"], "labels": [0, 1]}, "no column is named like an input .* Hint: tokenize it"),
        ({"input_ids": [[1, 2], [3]], "labels": ["a", "b"]}, "contains string instead"),
    ],
)
def test_what_the_model_cannot_compute_with_is_said_before(bert: Any, columns: Any, problem: str) -> None:
    before = copy.deepcopy(bert.state_dict())
    with pytest.raises(aa.errors.DataError, match=problem):
        aa.fit(bert, Dataset.from_dict(columns), epochs=1, **QUIET)
    assert all(torch.equal(value, bert.state_dict()[name]) for name, value in before.items())
