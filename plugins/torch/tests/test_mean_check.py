"""Losses that are no means over rows, and models that mix rows, where batches are accumulated: told by their values."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import anyaccel as aa

ROWS = 16
RNG = np.random.default_rng(0)
MASK = np.arange(4) < RNG.integers(1, 5, ROWS)[:, None]
COLUMNS = {
    "x": RNG.normal(size=(ROWS, 4, 3)).astype("float32"),
    "labels": np.where(MASK, RNG.integers(0, 5, (ROWS, 4)), -100),
}


class Tagger(nn.Module):
    """As models of transformers: a loss over all tokens that count, and heads that exist in training alone."""

    def __init__(self, *, auxiliary: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head, self.auxiliary = nn.Linear(3, 5), auxiliary

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        given = {"logits": self.head(x)}
        if labels is not None and not self.auxiliary:
            given["loss"] = F.cross_entropy(given["logits"].flatten(0, 1), labels.flatten())
        if self.auxiliary and self.training:
            given["auxiliary"] = 2 * given["logits"]
        return given


def accumulated(loss: aa.AppliedLoss, model: nn.Module | None = None, **settings: Any) -> list[str]:
    """What is warned of."""
    data = aa.FeatureSet.from_dict("data", COLUMNS, ["x"], ["labels"])
    model = Tagger() if model is None else model
    upstream = {"x": data.reference("x"), "labels": data.reference("labels")}
    named = {"outputs": ["logits", "auxiliary"]} if model.auxiliary else {}
    graph = aa.ModelGraph([aa.ModelNode("net", model, upstream, **named)], aa.Optimizer("sgd", lr=0.1))
    settings = {"sampler": aa.SimpleSampler(4), "accumulate": 2, **settings}
    phase = aa.TrainPhase("t", data="all", losses=[loss], **settings)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        result = aa.Experiment("e", graph, progress="none").run_phase(phase)
    assert np.isfinite(result.loss).all()
    assert all(each.filename == __file__ for each in told)
    return [str(each.message) for each in told]


def on_logits(function: Any) -> aa.AppliedLoss:
    return aa.AppliedLoss(function, on="net", inputs=["outputs.logits", "data.x"])


def test_a_sum_is_told_with_both_values() -> None:
    (message,) = accumulated(on_logits(lambda logits, x: (logits**2).sum()))
    with torch.no_grad():
        expected = float((Tagger()(torch.tensor(COLUMNS["x"][:4]))["logits"] ** 2).sum())
    assert f"the loss 'net' is not a mean over rows: over one batch it is {expected:.6g}, and" in message
    assert (
        f"two halves is {expected / 2:.6g}. A step would differ from one on the whole batch. Hint: return the"
        in message
    )


def test_a_mean_over_tokens_of_the_models_own_is_told_and_the_hint_counts_them() -> None:
    (message,) = accumulated(aa.AppliedLoss.from_output("net"))
    assert "use a named loss with ignore_index" in message
    named = aa.Loss("cross_entropy", ignore_index=-100)
    assert accumulated(aa.AppliedLoss(named, on="net", inputs=["outputs.logits", "data.labels"])) == []


def test_a_contrast_within_the_batch_is_told() -> None:
    assert accumulated(on_logits(lambda logits, x: (logits[:, None] - logits[None]).abs().max()))


def test_it_is_told_where_all_tokens_of_the_first_batch_count() -> None:
    model, first = Tagger(), np.arange(ROWS)[:, None] < 4
    columns = {**COLUMNS, "labels": np.where(first, np.abs(COLUMNS["labels"]) % 5, COLUMNS["labels"])}
    data = aa.FeatureSet.from_dict("data", columns, ["x"], ["labels"])
    upstream = {"x": data.reference("x"), "labels": data.reference("labels")}
    graph = aa.ModelGraph([aa.ModelNode("net", model, upstream)], aa.Optimizer("sgd", lr=0.1))
    losses = [aa.AppliedLoss.from_output("net")]
    phase = aa.TrainPhase("t", data="all", losses=losses, sampler=aa.SimpleSampler(4), accumulate=2)
    with pytest.warns(UserWarning, match="the loss 'net' is not a mean over rows: over one batch"):
        aa.Experiment("e", graph, progress="none").run_phase(phase)


def test_a_small_part_that_is_no_mean_is_told_unless_16_bits_hide_it() -> None:
    loss = on_logits(lambda logits, x: (logits**2).mean() + 1e-3 * logits.mean(0).square().sum())
    assert accumulated(loss)
    assert accumulated(loss, precision="bf16-mixed") == []


class Centred(Tagger):
    """Mixes the rows of a batch."""

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        return super().forward(x - x.mean(0))


def test_a_model_that_mixes_rows_is_told_also_beside_a_named_loss() -> None:
    named = aa.Loss("cross_entropy", ignore_index=-100)
    loss = aa.AppliedLoss(named, on="net", inputs=["outputs.logits", "data.labels"])
    (message,) = accumulated(loss, Centred())
    assert "accumulates batches, and the loss 'net' depends on a model that mixes the rows of a batch" in message
    assert message.endswith("Hint: compute each row independently in the model; or leave accumulate out")


@pytest.mark.parametrize(
    "function",
    [
        lambda logits, x: (logits**2).mean(),
        lambda logits, x: (logits * torch.rand_like(logits)).mean(),  # random: two batches differ by themselves
        lambda logits, x: (logits * 0).mean(),
    ],
    ids=["mean", "random", "zero"],
)
def test_means_and_random_losses_are_not_told(function: Any) -> None:
    assert accumulated(on_logits(function)) == []


@pytest.mark.parametrize("settings", [{"accumulate": 1}, {"sampler": aa.SimpleSampler(1)}], ids=str)
def test_where_there_is_nothing_to_compare_nothing_is_told(settings: dict[str, Any]) -> None:
    assert accumulated(on_logits(lambda logits, x: (logits**2).sum()), **settings) == []


def test_a_loss_on_an_output_of_training_alone_trains() -> None:
    loss = aa.AppliedLoss(lambda out, x: (out**2).mean(), on="net", inputs=["outputs.auxiliary", "data.x"])
    assert accumulated(loss, Tagger(auxiliary=True)) == []


def test_the_check_changes_no_number() -> None:
    whole, parted = Tagger(), Tagger()
    accumulated(on_logits(lambda logits, x: (logits**2).mean()), whole, sampler=aa.SimpleSampler(8), accumulate=1)
    accumulated(on_logits(lambda logits, x: (logits**2).mean()), parted)
    torch.testing.assert_close(whole.head.weight, parted.head.weight, rtol=1e-6, atol=1e-7)


@pytest.mark.filterwarnings("ignore:phase 't' accumulates batches, and the loss 'rare'")
@pytest.mark.parametrize("first_counts", [True, False])
def test_a_loss_that_is_a_constant_on_some_batches_counts_on_the_others(first_counts: bool) -> None:
    """As a loss over the rows of a rare class, beside a loop by hand, which adds up the gradients of batches."""
    marks = np.repeat([first_counts, not first_counts, True, False], 4).astype("float32")
    x = COLUMNS["x"][:, 0]
    data = aa.FeatureSet.from_dict("data", {"x": x, "y": x[:, :1], "mark": marks}, ["x"], ["y"], ["mark"])

    def rare(outputs: Tensor, targets: Tensor, mark: Tensor) -> Tensor:
        return F.l1_loss(outputs, targets) if bool(mark[0]) else outputs.new_zeros(())

    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    expected = nn.Linear(3, 1)
    expected.load_state_dict(model.state_dict())
    own = aa.AppliedLoss(rare, on="net", inputs=["outputs", "targets", "data.mark"], label="rare", weight=0.5)
    phase = aa.TrainPhase(
        "t", data="all", losses=[aa.AppliedLoss("mse", on="net"), own], sampler=aa.SimpleSampler(4), accumulate=2
    )
    graph = aa.ModelGraph([aa.ModelNode("net", model, data.reference("x"))], aa.Optimizer("sgd", lr=0.1))
    graph.run(phase, progress="none")
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.1)
    rows, targets, counts = torch.tensor(x), torch.tensor(x[:, :1]), torch.tensor(marks)
    for start in range(0, ROWS, 4):
        outputs, wanted = expected(rows[start : start + 4]), targets[start : start + 4]
        loss = F.mse_loss(outputs, wanted) + 0.5 * rare(outputs, wanted, counts[start : start + 4])
        (loss / 2).backward()
        if start % 8 == 4:
            optimizer.step()
            optimizer.zero_grad()
    torch.testing.assert_close(model.state_dict(), expected.state_dict())
