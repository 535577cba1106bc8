"""Hints of models that compute their own loss, of transformers and others."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyaccel as aa

pytest.importorskip("anyaccel_transformers")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from datasets import Dataset
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

ROWS = [[1, 2, 3], [4, 5, 6, 7], [8, 9, 1], [2, 3, 4, 5]]
SIZES: dict[str, Any] = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 8, "max_position_embeddings": 16}


def bert(kind: str = "ForSequenceClassification", **settings: Any) -> Any:
    return getattr(transformers, f"Bert{kind}")(transformers.BertConfig(**SIZES, **settings))


def llama() -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))


def t5() -> Any:
    config = {"vocab_size": 20, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**config, decoder_start_token_id=0))


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(20, 4), nn.Linear(4, 4)

    def forward(self, ids: torch.Tensor, labels: Any = None) -> Any:
        logits = self.head(self.tokens(ids))
        return {"loss": None if labels is None else F.cross_entropy(logits.mT, labels), "logits": logits}


def fit(model: Any, data: Any, **settings: Any) -> Any:
    return aa.fit(model, data, **{"epochs": 1, "progress": "none", "accelerator": "cpu", "compile": "off", **settings})


def tokenizer(texts: list[str], truncation: bool = False, max_length: int = 100) -> dict[str, Any]:
    return {"input_ids": [[ord(letter) % 20 for letter in text][:max_length] for text in texts]}


DATA = Dataset.from_dict({"input_ids": ROWS, "labels": [0, 1, 0, 1]})


def test_a_loss_beside_that_of_the_model(hint: Any) -> None:
    with hint("leave loss= out"):
        fit(llama(), {"input_ids": ROWS}, target="input_ids", loss="cross_entropy")
    assert fit(llama(), {"input_ids": ROWS}, target="input_ids", loss=None).results.loss.size


def test_labels_that_repeat_an_input(hint: Any) -> None:
    gpt2 = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=20, n_positions=16, n_embd=8, n_layer=1, n_head=2, use_cache=False)
    )
    tokens = np.array([row[:3] for row in ROWS])
    shifted = {"input_ids": tokens[:, :-1], "next": tokens[:, 1:]}
    with hint("leave loss= out") as printed:
        with pytest.warns(UserWarning, match="equals the input 'input_ids', so with loss='cross_entropy'") as caught:
            fit(
                gpt2, {"input_ids": tokens, "labels": tokens}, target="labels", loss="cross_entropy", outputs=["logits"]
            )
        printed.text = str(caught[0].message)
    assert fit(gpt2, {"input_ids": tokens, "labels": tokens}, loss=None).results.loss.size
    assert fit(gpt2, shifted, target="next", loss="cross_entropy", outputs=["logits"]).results.loss.size  # no warning


def test_a_loss_beside_that_of_the_model_on_data_that_it_cannot_take() -> None:
    padded = {"input_ids": np.ones((4, 3), "int64"), "attention_mask": np.ones((4, 3), "int64"), "labels": [0, 1, 0, 1]}
    beginnings = {
        "pass each as a separate input": {"data": padded, "target": "labels"},
        "in a FeatureSet, choose a padding value": {"data": DATA, "target": "labels"},
        "write fit(model, table, target='COLUMN', ...)": {"data": DATA},
    }
    for beginning, settings in beginnings.items():
        with pytest.raises(aa.errors.AnyaccelError) as caught:
            fit(bert(), loss="cross_entropy", **settings)
        assert caught.value.hint.startswith(beginning)
        assert caught.value.hint.endswith("; or leave loss= out: BertForSequenceClassification computes its own loss")
        assert fit(bert(), settings["data"]).results.loss.size
    with pytest.raises(aa.errors.AnyaccelError) as caught:  # a model without one
        fit(nn.Linear(3, 2), DATA, target="labels", loss="cross_entropy")
    assert "own loss" not in caught.value.hint


def test_text_to_predict_for(hint: Any) -> None:
    fitted = fit(bert(), DATA)
    with hint("pass the numbers of its tokenizer by column: {{}: [...]}"):
        fitted.predict("such a fine day")
    assert fitted.predict(tokenizer(["such a fine day"])).shape == (1,)
    with hint("pass a dict: {'COLUMN': rows}"):
        fitted.predict([[1, 2, 3]])
    assert fitted.predict({"input_ids": [[1, 2, 3]]}).shape == (1,)


def test_labels_and_inputs_by_name(hint: Any) -> None:
    dataset = Dataset.from_dict({"input_ids": ROWS, "mood": [0, 1, 0, 1]})
    with hint("name the column: target={}"):
        fit(bert(), dataset)
    assert fit(bert(), dataset, target="mood")
    with hint("write target='input_ids' to predict each next token of the input"):
        fit(llama(), dataset)
    assert fit(llama(), dataset, target="input_ids")
    dataset = Dataset.from_dict({"text": ["good", "bad day"], "label": [0, 1]})
    with hint("tokenize it: dataset.map(lambda rows: tokenizer(rows[{}], truncation=True), batched=True)"):
        fit(bert(), dataset)
    assert fit(bert(), dataset.map(lambda rows: tokenizer(rows["text"], truncation=True), batched=True))
    model = bert(id2label={0: "bad", 1: "good"}, label2id={"bad": 0, "good": 1})
    dataset = Dataset.from_dict({"input_ids": ROWS, "label": ["bad", "good", "bad", "good"]})
    with hint("convert each label to its number: dataset.map(lambda row: {'labels': model.config.label2id[row[{}]]})"):
        fit(model, dataset)
    fitted = fit(model, dataset.map(lambda row: {"labels": model.config.label2id[row["label"]]}))
    assert set(fitted.predict(dataset)) <= {"bad", "good"}
    with hint("name the argument: features={'ARGUMENT': {}}"):
        fit(bert(), {"ids": ROWS, "input_ids": ROWS, "labels": [0, 1, 0, 1]}, features="ids")
    assert fit(bert(), {"ids": ROWS, "labels": [0, 1, 0, 1]}, features={"input_ids": "ids"})
    with hint("name one: features={{}: 'COLUMN'}"):
        fit(bert(), DATA, features={"input_ids": ["input_ids", "labels"]})
    assert fit(bert(), DATA, features={"input_ids": "input_ids"})
    with hint("rename columns to the names of the model's inputs"):
        fit(Tagger(), {"tokens": [[1, 2], [3, 4]], "labels": [[1, 2], [3, 0]]})
    assert fit(Tagger(), {"ids": [[1, 2], [3, 4]], "labels": [[1, 2], [3, 0]]})


def test_rows_of_different_length(hint: Any) -> None:
    table = {"ids": ROWS, "labels": [[token % 4 for token in row] for row in ROWS]}
    with hint("pass a FeatureSet: FeatureSet.from_dict('data', table, [...], [...], pad={{}: 0})"):
        fit(Tagger(), table)
    data = aa.FeatureSet.from_dict("data", table, ["ids"], ["labels"], pad={"ids": 0, "labels": -100})
    assert fit(Tagger(), data)
    with hint("pass a label for each token, with -100 for tokens to ignore"):
        fit(bert("ForTokenClassification"), {"input_ids": ROWS, "labels": [row[1:] for row in ROWS]})
    labels = [[-100, *(token % 2 for token in row[1:])] for row in ROWS]
    assert fit(bert("ForTokenClassification"), {"input_ids": ROWS, "labels": labels})


def test_splits(hint: Any, tmp_path: Path) -> None:
    data = {"train": DATA, "test": Dataset.from_dict(DATA[:2])}
    model = bert()
    with hint("pass one: fit(model, data[{}], validation=data[{}], ...)"):
        fit(model, data)
    assert fit(model, data["train"], validation=data["test"]).results.figure("val_loss").size
    with hint("pass a fraction of the rows, or another table: validation=0.2"):
        fit(model, DATA, validation=DataLoader(DATA))
    with hint("write validation=0.2"):
        fit(model, DATA, validation="test")
    fitted: Any = fit(model, DATA, validation=0.2)
    with hint("write fitted.model.save_pretrained('FOLDER')"):
        fitted.save_pretrained("saved")
    fitted.model.save_pretrained(tmp_path)


def test_loaders(hint: Any) -> None:
    pairs = [(torch.tensor([[1, 2]]), torch.tensor([0]))]
    with hint("return a dict from the collate function: {'COLUMN': tensor}"):
        fit(bert(), pairs)
    assert fit(bert(), [{"input_ids": ids, "labels": labels} for ids, labels in pairs])
    for wrong in (3, object()):
        with hint("pass a dict: {'COLUMN': rows}"):
            fit(bert(), wrong)
    assert fit(bert(), {"input_ids": ROWS, "labels": [0, 1, 0, 1]})
    batch = {"input_ids": torch.tensor([[1, 2, 3]])}
    with hint("add them in its collate function: batch[{}] = ..."):
        fit(llama(), [batch], target="input_ids")
    batch["labels"] = batch["input_ids"]
    assert fit(llama(), [batch])


def test_what_a_model_cannot_compute_with(hint: Any) -> None:
    dataset = Dataset.from_dict({"input_ids": ROWS, "labels": [[-100] * len(row) for row in ROWS]})
    ids = [[token % 2 for token in row] for row in ROWS]
    mixed = Dataset.from_dict({"input_ids": [*ROWS, *ROWS], "labels": [*dataset["labels"], *ids]})
    for wrong, model in ((dataset, bert("ForTokenClassification")), (mixed, bert("ForTokenClassification"))):
        with hint("leave such rows out: dataset.filter(lambda row: any(label != -100 for label in {}))"):
            fit(model, wrong)
    dataset = mixed
    assert fit(
        bert("ForTokenClassification"), dataset.filter(lambda row: any(label != -100 for label in row["labels"]))
    )
    tokenizer_ = range(40)
    model = bert()
    wrong = Dataset.from_dict({"input_ids": [[1, 2], [3, 39]], "labels": [0, 1]})
    with hint(
        "use the tokenizer of this model, or resize the vocabulary: model.resize_token_embeddings(len(tokenizer))"
    ):
        fit(model, wrong)
    for tokenizer in (tokenizer_,):
        model.resize_token_embeddings(len(tokenizer))
    assert fit(model, wrong)
    with hint("create the model with one per class: num_labels={}"):
        fit(bert(), {"input_ids": ROWS, "labels": [0, 1, 2, 0]})
    assert fit(bert(num_labels=3), {"input_ids": ROWS, "labels": [0, 1, 2, 0]})
    prices = {"input_ids": ROWS, "labels": [0.5, 1.5, 2.0, 0.0]}
    with hint("use integer class numbers, or create the model for one number: num_labels=1"):
        fit(bert(num_labels=3), prices)
    assert fit(bert(num_labels=1), prices)


def test_rows_longer_than_the_positions(hint: Any) -> None:
    rows = ["a long text of many words", "short"]
    data = {**tokenizer(rows), "labels": [0, 1]}
    with hint("truncate them: tokenizer(rows, truncation=True, max_length={})"):
        fit(bert(), data)
    assert fit(bert(), {**tokenizer(rows, truncation=True, max_length=16), "labels": [0, 1]})


def test_losses_and_metrics(hint: Any) -> None:
    with hint("use a model of its library with a head for the task, or set loss="):
        fit(bert("Model"), DATA)
    assert fit(bert("ForSequenceClassification"), DATA)
    with hint("leave metrics out and use the loss; its exponential is the perplexity"):
        fit(llama(), {"input_ids": ROWS}, target="input_ids", validation=0.5, metrics=["accuracy"])
    fitted = fit(llama(), {"input_ids": ROWS}, target="input_ids", validation=0.5)
    assert np.exp(fitted.results.figure("val_loss")).size
    config = {"vocab_size": 10, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config |= {"intermediate_size": 8, "conv_dim": (8,), "conv_stride": (4,), "conv_kernel": (4,)}
    config |= {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
    model = transformers.Wav2Vec2ForCTC(transformers.Wav2Vec2Config(**config, mask_time_prob=0.0, layerdrop=0.0))
    sounds = {"input_values": np.random.default_rng(0).normal(size=(4, 64)).astype("float32")}
    sounds["labels"] = np.array([[1, 2], [2, 3], [3, 4], [5, 1]])
    with hint("set model.config.ctc_loss_reduction = 'mean'"):
        fit(model, sounds)
    model.config.ctc_loss_reduction = "mean"
    assert fit(model, sounds)


class Tokenizer(transformers.PreTrainedTokenizer):
    """Of letters, with a mask."""

    def get_vocab(self) -> dict[str, int]:
        return {**{chr(97 + number): number + 2 for number in range(18)}, "[MASK]": 0, "[PAD]": 1}

    vocab_size = 20

    def _tokenize(self, text: str, **settings: Any) -> list[str]:
        return list(text)

    def _convert_token_to_id(self, token: str) -> int:
        return self.get_vocab().get(token, 2)

    def _convert_id_to_token(self, index: int) -> str:
        return {number: token for token, number in self.get_vocab().items()}[index]


def test_masked_language_models(hint: Any) -> None:
    from transformers import DataCollatorForLanguageModeling

    dataset = Dataset.from_dict({"input_ids": ROWS})
    with hint(
        "create the labels with a collator: DataLoader(dataset, collate_fn=DataCollatorForLanguageModeling(tokenizer))"
    ):
        fit(bert("ForMaskedLM"), dataset, target="input_ids")
    tokenizer = Tokenizer(mask_token="[MASK]", pad_token="[PAD]")
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.9)
    assert fit(bert("ForMaskedLM"), DataLoader(dataset, batch_size=4, collate_fn=collator))


def test_encoder_decoders_generate(hint: Any) -> None:
    fitted = fit(t5(), {"input_ids": ROWS, "labels": ROWS})
    input_ids = torch.tensor([[1, 2, 3]])
    with hint("generate with it: fitted.model.eval().generate(input_ids)"):
        fitted.predict({"input_ids": ROWS})
    assert len(fitted.model.eval().generate(input_ids, max_new_tokens=3))


def test_models_that_are_not_known_where_they_are_loaded(
    hint: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, folder = bert(), tmp_path / "fit"
    fit(model, DATA).save(folder)
    load, without = aa.load, "anyaccel.fitting.fitted_model_loss.load"
    with monkeypatch.context() as patch, hint("pass the model: load(folder, models={'model': model})"):
        patch.setattr(without, lambda group, name: None)
        load(folder)
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["transformers"], "BertForSequenceClassification", None)
        with hint("update transformers, or pass the model: load(folder, models={'model': model})"):
            load(folder)
    assert load(folder, models={"model": model})


class Detector(nn.Module):
    """As those of torchvision: losses by name for a list of dicts."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 4, 3)

    def forward(self, images: Any, targets: Any = None) -> Any:
        found = [self.body(image[None]).mean(dim=(0, 2, 3)) for image in images]
        if targets is None:
            return [{"boxes": box[None]} for box in found]
        losses = [F.l1_loss(box.expand_as(own["boxes"]), own["boxes"]) for box, own in zip(found, targets, strict=True)]
        return {"loss_box_reg": torch.stack(losses).mean()}


class InGraph(nn.Module):
    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        self.detector = detector

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.new_zeros(len(images), 1)


def test_detectors(hint: Any) -> None:
    images = np.random.default_rng(0).normal(size=(4, 3, 8, 8)).astype("float32")
    boxes = np.random.default_rng(1).random((4, 2, 4)).astype("float32")
    wrong = {"images": images, "targets": [{"boxes": own.tolist()} for own in boxes]}
    with hint("train it by a step, in a module that returns a tensor: fit(InGraph(model), data, step=step)"):
        fit(Detector(), wrong)

    def step(models: Any, batch: Any, optimizers: Any) -> Any:
        losses = models["model"].detector(list(batch["images"]), [{"boxes": own} for own in batch["boxes"]])
        optimizers["model"].zero_grad()
        losses["loss_box_reg"].backward()
        optimizers["model"].step()
        return {"loss": losses["loss_box_reg"]}

    data = {"images": images, "boxes": boxes}
    assert fit(InGraph(Detector()), data, step=step, target=["boxes"], epochs=2).results.loss.size == 2
    fitted = fit(Tagger(), {"ids": [[1, 2], [3, 4]], "labels": [[1, 2], [3, 0]]})
    data = {"ids": [[1, 2]]}
    with hint("use predict(data, outputs=True) for its outputs"):
        fitted.predict_proba(data)
    assert fitted.predict(data, outputs=True).shape == (1, 2, 4)


def test_weights_of_classes(hint: Any) -> None:
    rows = {"input_ids": ROWS, "label": [0, 1, 1, 1]}
    with hint("derive a class from it, and weight the loss in its forward"):
        aa.fit(bert(), rows, class_weights=[1.0, 3.0], epochs=1, progress="none")
    weight = torch.tensor([1.0, 3.0])

    class Weighted(transformers.BertForSequenceClassification):
        def forward(self, input_ids: Any, attention_mask: Any = None, labels: Any = None) -> Any:
            outputs = super().forward(input_ids, attention_mask)
            if labels is not None:
                outputs.loss = F.cross_entropy(outputs.logits, labels, weight=weight)
            return outputs

    torch.manual_seed(0)
    model = Weighted(transformers.BertConfig(**SIZES)).eval()
    ids = torch.tensor([row + [0] * (4 - len(row)) for row in ROWS])
    with torch.no_grad():
        logits = model(ids, (ids != 0).long()).logits
        expected = F.cross_entropy(logits, torch.tensor(rows["label"]), weight=weight).item()
    fitted = aa.fit(model, rows, epochs=0, progress="none")
    assert fitted.evaluate(rows).loss == pytest.approx(expected, rel=1e-5)
    assert fitted.predict(rows).tolist() == logits.argmax(1).tolist()
