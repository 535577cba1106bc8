"""Saved models, read by anyaccel in another process and by transformers alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import anyaccel as aa

from .conftest import BERT, QUIET, random_rows

SCRIPT = """
import sys
import numpy as np
import anyaccel as aa
folder, rows, predicted = sys.argv[1:]
fitted = aa.load(folder)
np.save(predicted, fitted.predict({"input_ids": eval(rows)}, outputs=True))
"""


def test_another_process_predicts_the_same_bits(gpt2: Any, rows: list[list[int]], tmp_path: Path) -> None:
    new = random_rows(7, seed=3)
    fitted = aa.fit(gpt2, {"input_ids": rows}, target="input_ids", epochs=1, **QUIET)
    fitted.save(tmp_path / "fit")
    expected = fitted.predict({"input_ids": new}, outputs=True)
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "fit"), repr(new), str(tmp_path / "predicted.npy")]
    subprocess.run(command, check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "predicted.npy"), expected)


def test_transformers_reads_what_the_model_saves(gpt2: Any, rows: list[list[int]], tmp_path: Path) -> None:
    fitted = aa.fit(gpt2, {"input_ids": rows}, target="input_ids", epochs=1, **QUIET)
    fitted.model.save_pretrained(tmp_path)
    read = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    tokens = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        assert torch.equal(read.eval()(tokens).logits, gpt2.eval()(tokens).logits)
    predicted = fitted.predict({"input_ids": [[1, 2, 3]]})
    np.testing.assert_array_equal(predicted[0], read(tokens).logits[0].detach())


def test_a_loaded_model_evaluates_and_knows_its_classes(bert: Any, rows: list[list[int]], tmp_path: Path) -> None:
    table = {"input_ids": rows, "mood": [row[0] % 3 for row in rows]}
    fitted = aa.fit(bert, table, target="mood", epochs=1, **QUIET)
    fitted.save(tmp_path / "fit")
    loaded = aa.load(tmp_path / "fit")
    assert loaded.evaluate(table).loss == fitted.evaluate(table).loss
    assert loaded.predict(table).tolist() == fitted.predict(table).tolist()
    np.testing.assert_array_equal(loaded.results.loss, fitted.results.loss)


def test_a_model_of_ones_own_class_is_given(rows: list[list[int]], tmp_path: Path) -> None:
    class Own(transformers.BertForSequenceClassification):
        pass

    model = Own(transformers.BertConfig(**BERT))
    aa.fit(model, {"input_ids": rows, "labels": [0, 1] * 21}, epochs=1, **QUIET).save(tmp_path / "fit")
    other = Own(transformers.BertConfig(**BERT))
    loaded = aa.load(tmp_path / "fit", models={"model": other})
    assert torch.equal(loaded.model.classifier.weight, model.classifier.weight)
