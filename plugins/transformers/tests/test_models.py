"""What counts in the loss of a model, by its own loss over batches and over single rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers

import anyaccel as aa
from anyaccel.errors import PhaseError

from .conftest import BERT, GPT2, LLAMA, QUIET, batch_of, random_rows

BART: dict[str, Any] = {"vocab_size": 50, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1}
BART |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
BART |= {"max_position_embeddings": 32, "dropout": 0.0, "pad_token_id": 0}
XLM: dict[str, Any] = {"vocab_size": 50, "emb_dim": 16, "n_layers": 1, "n_heads": 2, "max_position_embeddings": 32}
XLM |= {"dropout": 0.0, "attention_dropout": 0.0, "pad_token_id": 0}
MODELS: dict[str, dict[str, Any]] = {
    "GPT2LMHeadModel": GPT2,
    "LlamaForCausalLM": LLAMA,
    "BertLMHeadModel": {**BERT, "is_decoder": True},
    "BartForCausalLM": BART,  # which expects labels that are shifted already, whatever its name says
    "XLMWithLMHeadModel": XLM,
    "BertForMaskedLM": BERT,
    "BertForTokenClassification": {**BERT, "num_labels": 50},
    "GPT2ForTokenClassification": {**GPT2, "num_labels": 50},
    "BartForConditionalGeneration": BART,
}


@pytest.mark.parametrize("name", MODELS)
def test_the_loss_of_rows_of_different_length_is_the_mean_over_what_counts(name: str) -> None:
    """Evaluated row by row and in one batch: both are the loss of the whole batch by hand."""
    torch.manual_seed(0)
    model_class = getattr(transformers, name)
    model = model_class(model_class.config_class(**MODELS[name]))
    rows = random_rows(6)
    batch = batch_of(rows)
    batch["labels"][2, 1:3] = -100
    with torch.no_grad():
        expected = model.eval()(**batch).loss.item()
    items = [{key: value[i : i + 1, : len(rows[i])] for key, value in batch.items()} for i in range(len(rows))]
    fitted = aa.fit(model, [batch], epochs=0, **QUIET)
    table = {"input_ids": rows, "labels": [item["labels"][0].numpy() for item in items]}
    for data in (items, [batch], table):
        np.testing.assert_allclose(fitted.evaluate(data).loss, expected, rtol=2e-6)


def test_rows_without_padding_need_no_column_of_what_counts() -> None:
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))
    fitted = aa.fit(model, {"input_ids": [[1, 2, 3], [4, 5, 6]]}, target="input_ids", epochs=1, **QUIET)
    assert list(fitted.graph.feature_sets["data"].columns) == ["input_ids", "labels"]
    assert not fitted.graph.feature_sets["data"].is_ragged("input_ids")


def test_an_attention_mask_of_a_table_leaves_tokens_out_of_the_labels() -> None:
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))
    table = {"input_ids": [[1, 2, 3, 0], [4, 5, 6, 7]], "attention_mask": [[1, 1, 1, 0], [1, 1, 1, 1]]}
    fitted = aa.fit(model, table, target="input_ids", epochs=0, **QUIET)
    labels = torch.tensor([[1, 2, 3, -100], [4, 5, 6, 7]])
    with torch.no_grad():
        expected = model.eval()(**{name: torch.tensor(rows) for name, rows in table.items()}, labels=labels).loss
    np.testing.assert_allclose(fitted.evaluate(table).loss, expected.item(), rtol=1e-6)


def test_a_regression_and_several_labels_of_a_row() -> None:
    rows = random_rows(12)
    numbers = np.linspace(0, 1, 12).astype("float32")
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**BERT, num_labels=1))
    fitted = aa.fit(model, {"input_ids": rows, "labels": numbers}, epochs=1, **QUIET)
    assert fitted.predict({"input_ids": rows}).shape == (12, 1)
    with pytest.raises(PhaseError, match="are not known to be scores"):
        fitted.predict_proba({"input_ids": rows})
    config = transformers.BertConfig(**BERT, num_labels=4, problem_type="multi_label_classification")
    several = (np.arange(48).reshape(12, 4) % 2).astype("float32")
    model = transformers.BertForSequenceClassification(config)
    fitted = aa.fit(model, {"input_ids": rows, "labels": several}, epochs=1, **QUIET)
    assert fitted.predict({"input_ids": rows}).shape == (12, 4)


def test_questions_have_two_labels_and_two_outputs() -> None:
    rows = random_rows(12)
    model = transformers.BertForQuestionAnswering(transformers.BertConfig(**BERT))
    table = {"input_ids": rows, "start_positions": [0] * 12, "end_positions": [2] * 12}
    fitted = aa.fit(model, table, epochs=1, **QUIET)
    predicted = fitted.predict({"input_ids": rows})
    assert set(predicted) == {"start_logits", "end_logits"}
    assert np.isnan(predicted["start_logits"][0, len(rows[0]) :]).all()


def test_classes_have_the_names_of_the_configuration() -> None:
    rows = random_rows(12)
    config = transformers.BertConfig(**BERT, id2label={0: "no", 1: "yes"}, label2id={"no": 0, "yes": 1})
    model = transformers.BertForSequenceClassification(config)
    fitted = aa.fit(model, {"input_ids": rows, "labels": [row[0] % 2 for row in rows]}, epochs=1, **QUIET)
    probabilities = fitted.predict_proba({"input_ids": rows})
    assert fitted.classes_.tolist() == ["no", "yes"]
    assert fitted.predict({"input_ids": rows}).tolist() == fitted.classes_[probabilities.argmax(axis=1)].tolist()
    with torch.no_grad():
        logits = model.eval()(**{k: v for k, v in batch_of(rows).items() if k != "labels"}).logits
    np.testing.assert_allclose(probabilities, logits.softmax(dim=-1), rtol=1e-5)
    assert fitted.columns["labels"].treatment == "given as 'labels', -100 after the shorter rows of a batch"


def test_integers_are_int64_whatever_the_data_store() -> None:
    """As the collators of transformers make them; a data set stores tokens in 32 bits and masks in 8."""
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**BERT))
    tokens, labels = np.arange(12).reshape(4, 3), np.array([0, 1, 0, 1])
    small = {"input_ids": tokens.astype("int32"), "labels": labels.astype("int8")}
    batch = {name: torch.tensor(values) for name, values in small.items()}
    for data in (small, [batch]):
        fitted = aa.fit(model, data, validation={"input_ids": tokens, "labels": labels}, epochs=1, **QUIET)
        assert {column.stored.dtype for column in fitted.plan.columns} == {"int64"}
