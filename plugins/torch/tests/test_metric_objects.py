"""Metric objects of torch: given tensors, reset before each evaluation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import anyaccel as aa
from anyaccel.errors import SpecError


class MeanOfTensors(nn.Module):
    """A metric with the methods of torchmetrics, which takes tensors and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.reset()

    def reset(self) -> None:
        self.total, self.count = torch.zeros(()), 0

    def update(self, preds: torch.Tensor, target: torch.Tensor) -> None:
        assert isinstance(preds, torch.Tensor) and preds.shape == target.shape
        self.total, self.count = self.total + (preds - target).abs().sum(), self.count + preds.numel()

    def compute(self) -> torch.Tensor:
        return self.total / self.count

    def forward(self, preds: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        raise AssertionError("a metric object is updated, not called")


def experiment(classes: int) -> aa.Experiment:
    rng = np.random.default_rng(0)
    columns = {"x": rng.normal(size=(60, 4)).astype("float32"), "y": rng.integers(0, max(classes, 2), 60)}
    data = aa.FeatureSet.from_dict("data", columns, "x", "y")
    torch.manual_seed(0)
    graph = aa.ModelGraph([aa.ModelNode("net", nn.Linear(4, classes), data.reference())], aa.Optimizer("sgd", lr=0.1))
    return aa.Experiment("e", graph, progress="none")


def test_a_metric_object_gets_tensors_and_starts_anew_in_each_evaluation():
    ours = experiment(1)
    given = MeanOfTensors()
    for _ in range(2):
        tested = ours.run_phase(aa.EvalPhase("e", data="all", metrics=[given, "mae"]))
        assert tested.metrics["MeanOfTensors"] == pytest.approx(tested.metrics["mae"], rel=1e-6)


def test_objects_of_torchmetrics_equal_the_named_metrics():
    metrics = pytest.importorskip("torchmetrics")
    objects = {
        "f1_macro": metrics.F1Score(task="multiclass", num_classes=3, average="macro"),
        "accuracy": metrics.Accuracy(task="multiclass", num_classes=3, average="micro"),
        "roc_auc_ovr": metrics.AUROC(task="multiclass", num_classes=3),
        "matthews_corrcoef": metrics.MatthewsCorrCoef(task="multiclass", num_classes=3),
    }
    ours = experiment(3)
    validation = aa.EvalPhase("v", data="all", metrics=[*objects, *objects.values()])
    loss = aa.AppliedLoss("cross_entropy", on="net")
    trained = ours.run_phase(aa.TrainPhase("t", data="all", losses=[loss], epochs=3, validation=validation))
    for name, given in objects.items():
        label = f"val_{type(given).__name__}"
        np.testing.assert_allclose(trained.figure(label), trained.figure(f"val_{name}"), rtol=1e-5)


def test_an_object_that_gives_several_numbers_is_refused_with_what_to_write():
    metrics = pytest.importorskip("torchmetrics")
    ours = experiment(3)
    each = metrics.F1Score(task="multiclass", num_classes=3, average=None)
    with pytest.raises(SpecError, match=r"MulticlassF1Score' on node 'net': it returned values of shape \[3\]"):
        ours.run_phase(aa.EvalPhase("e", data="all", metrics=[each]))
    several = metrics.MetricCollection([metrics.Accuracy(task="multiclass", num_classes=3)])
    with pytest.raises(SpecError, match=r"it returned a dict.*Hint: pass each .*metrics=list\(collection.values\(\)\)"):
        ours.run_phase(aa.EvalPhase("e", data="all", metrics=[several]))
    assert ours.run_phase(aa.EvalPhase("e", data="all", metrics=list(several.values()))).metrics


def test_ignored_positions_are_those_of_torchmetrics() -> None:
    classification = pytest.importorskip("torchmetrics.classification")
    rng = np.random.default_rng(0)
    logits, tags = rng.normal(size=(10, 6, 4)).astype("float32"), rng.integers(0, 4, (10, 6))
    tags[rng.random(tags.shape) < 0.4] = -100
    given = torch.tensor(logits).movedim(-1, 1), torch.tensor(tags)
    for name, make, settings in (
        ("accuracy", classification.MulticlassAccuracy, {"average": "micro"}),
        ("f1_macro", classification.MulticlassF1Score, {"average": "macro"}),
        ("cohen_kappa", classification.MulticlassCohenKappa, {}),
    ):
        theirs = float(make(num_classes=4, ignore_index=-100, **settings)(*given))
        assert aa.Metric(name, ignore_index=-100).compute(logits, tags) == pytest.approx(theirs, rel=1e-5), name
