"""The jobs of the guides in few statements: blocks of the pages are counted, run, and compared with loops by hand."""

from __future__ import annotations

import ast
import copy
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyaccel as aa

GUIDES = Path(__file__).parents[2] / "docs/how-to"
ROWS = [[1 + (first + step) % 40 for step in range(6 + first % 9)] for first in range(42)]
BATCH, LR = 8, 1e-2
WITHOUT_DROPOUT = {
    "GPT2Config": ["resid_pdrop", "embd_pdrop", "attn_pdrop"],
    "BertConfig": ["hidden_dropout_prob", "attention_probs_dropout_prob"],
}


def block(page: str, heading: str, number: int = 0) -> str:
    """The Python block of a section."""
    section = (GUIDES / page).read_text("utf-8").partition(f"## {heading}")[2].partition("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)[number]


def count(code: str) -> int:
    return len(ast.parse(code).body)


def test_a_csv_file_to_saved_predictions_in_eight_statements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("sklearn")
    code = block("tables.md", "From a CSV file to saved predictions in eight statements")
    assert count(code) == 8
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rides = pandas.DataFrame({"age": rng.integers(16, 80, 200), "plan": rng.choice(["day", "month"], 200)})
    rides = rides.assign(rider=range(200), minutes=0.0, late=np.where(rides["plan"] == "day", "yes", "no"))
    rides.to_csv("rides.csv", index=False)
    exec(compile(code, "tables.md", "exec"), {})  # noqa: S102  (the block of our own page)
    assert (pandas.read_csv("predicted.csv")["late"] == rides["late"]).mean() > 0.95


def ran(code: str, monkeypatch: pytest.MonkeyPatch, **names: Any) -> tuple[dict[str, Any], Any]:
    """Run a block with batches in the order of the rows, without dropout; return its names, and the model before."""
    config = next(name for name in WITHOUT_DROPOUT if name in code)
    none = "".join(f", {name}=0.0" for name in WITHOUT_DROPOUT[config])
    code = re.sub(rf"({config}\([^)]*)\)", rf"\1{none})", code)
    before: list[Any] = []
    fit = aa.fit

    def in_order(model: Any, *data: Any, epochs: int, **settings: Any) -> Any:
        before.append(copy.deepcopy(model))
        adam, order = aa.Optimizer("adam", lr=LR), aa.SimpleSampler(BATCH)
        return fit(model, *data, epochs=2, optimizer=adam, sampler=order, accelerator="cpu", **settings)

    with monkeypatch.context() as patched:
        patched.setattr(aa, "fit", in_order)
        exec(compile(code, "transformers.md", "exec"), names)  # noqa: S102  (the block of our own page)
    return names, before[0]


def loop_by_hand(model: Any, labels: list[Any], counts: list[int]) -> list[float]:
    """The losses of two epochs, over all that counts: padded batches in the order of the rows, and Adam."""
    torch = pytest.importorskip("torch")

    def padded(rows: list[list[int]], fill: int) -> Any:
        longest = max(map(len, rows))
        return torch.tensor([row + [fill] * (longest - len(row)) for row in rows])

    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    model.train()
    means = []
    for _ in range(2):
        total = 0.0
        for first in range(0, len(ROWS), BATCH):
            rows, given = ROWS[first : first + BATCH], labels[first : first + BATCH]
            target = padded(given, -100) if isinstance(given[0], list) else torch.tensor(given)
            mask = padded([[1] * len(row) for row in rows], 0)
            loss = model(input_ids=padded(rows, 0), attention_mask=mask, labels=target).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * sum(counts[first : first + BATCH])
        means.append(total / sum(counts))
    return means


def test_gpt2_in_five_statements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("anyaccel_transformers")
    code = block("transformers.md", "Five statements, and six with predictions")
    assert count(code) == 5
    monkeypatch.chdir(tmp_path)
    names, before = ran(code, monkeypatch, rows=ROWS)
    expected = loop_by_hand(before, ROWS, [len(row) - 1 for row in ROWS])
    np.testing.assert_allclose(names["fitted"].results.loss, expected, rtol=1e-5)
    assert isinstance(aa.load("gpt2").model, transformers.GPT2LMHeadModel)


def test_bert_in_six_statements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("anyaccel_transformers")
    datasets = pytest.importorskip("datasets")
    code = block("transformers.md", "Five statements, and six with predictions", 1)
    assert count(code) == 6
    monkeypatch.chdir(tmp_path)
    labels = [len(row) % 2 for row in ROWS]
    names, before = ran(code, monkeypatch, dataset=datasets.Dataset.from_dict({"input_ids": ROWS, "label": labels}))
    expected = loop_by_hand(before, labels, [1] * len(ROWS))
    np.testing.assert_allclose(names["fitted"].results.loss, expected, rtol=1e-5)
    assert names["predicted"].shape == (42,)
