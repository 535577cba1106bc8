"""All classifiers of torchvision with fewer than 20 million parameters, and those with auxiliary heads."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import anyaccel as aa

from .conftest import chosen, library

torch = pytest.importorskip("torch")

from . import rows  # noqa: E402
from .classifiers import check_classifier, without_dropout  # noqa: E402

models = library("torchvision").models
pytestmark = pytest.mark.filterwarnings("ignore")  # the library's own, of initial weights that take long

LARGEST = 20_000_000
HEADS = {"googlenet": ["scores", "second", "first"], "inception_v3": ["scores", "auxiliary"]}
SIZES = {"inception_v3": 299}  # its auxiliary head takes no less
SAMPLE = {"googlenet", "squeezenet1_1"}


def small() -> list[str]:
    """Names of the classifiers whose trained weights are fewer than that."""
    names = models.list_models(module=models)
    sizes = {name: next(iter(models.get_model_weights(name))).meta["num_params"] for name in names}
    return [name for name, size in sizes.items() if size < LARGEST]


class InGraph(torch.nn.Module):
    """What the graph sees of a detector: a number for each image."""

    def __init__(self, detector: torch.nn.Module) -> None:
        super().__init__()
        self.detector = detector

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.new_zeros(len(images), 1)


def detect(models: Any, batch: Any, optimizers: Any) -> Any:
    real = batch["labels"] >= 0
    pairs = zip(batch["boxes"], batch["labels"], real, strict=True)
    targets = [{"boxes": boxes[own], "labels": labels[own]} for boxes, labels, own in pairs]
    losses = models["net"].detector(list(batch["image"]), targets)
    total = sum(losses.values())
    optimizers["net"].zero_grad()
    total.backward()
    optimizers["net"].step()
    return {"loss": total, **losses}


@pytest.mark.parametrize("name", chosen(["ssdlite320_mobilenet_v3_large"], set()))
def test_a_detector_trains_in_a_step_of_your_own_as_by_hand(name: str) -> None:
    """One without proposals, whose operators need the compiled part of torchvision."""
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 4, 4)
    corners = [50 * rng.random((n, 2)) for n in counts]
    boxes = [np.concatenate([low, low + 20 + 20 * rng.random(low.shape)], axis=1).astype("float32") for low in corners]
    images, labels = rng.random((4, 3, 96, 96)).astype("float32"), [rng.integers(1, 3, n) for n in counts]
    columns = {"image": images, "boxes": boxes, "labels": labels}
    data = aa.FeatureSet.from_dict("d", columns, ["image"], ["boxes", "labels"], pad={"boxes": 0.0, "labels": -1})
    torch.manual_seed(0)
    detector = models.get_model(name, weights=None, weights_backbone=None, num_classes=3)
    expected = copy.deepcopy(detector).train()
    graph = aa.ModelGraph([aa.ModelNode("net", InGraph(detector), data.reference())], aa.Optimizer("sgd", lr=1e-3))
    phase = aa.TrainPhase(data="all", step=detect, sampler=aa.SimpleSampler(2), epochs=2)
    results = graph.run(phase, progress="none")
    optimizer, losses = torch.optim.SGD(expected.parameters(), lr=1e-3), []
    for rows_of_step in ((0, 1), (2, 3)) * 2:
        targets = [{"boxes": torch.tensor(boxes[i]), "labels": torch.tensor(labels[i])} for i in rows_of_step]
        loss = sum(expected([torch.tensor(images[i]) for i in rows_of_step], targets).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    np.testing.assert_allclose(results.loss, [np.mean(losses[:2]), np.mean(losses[2:])], rtol=1e-5)
    for actual, wanted in zip(detector.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", chosen(sorted({*small(), *HEADS}), SAMPLE))
def test_a_classifier_trains_as_by_hand(name: str) -> None:
    torch.manual_seed(0)
    settings = {"init_weights": False} if name in HEADS else {}  # theirs takes a minute
    model = models.get_model(name, weights=None, num_classes=rows.CLASSES, **settings)
    check_classifier(without_dropout(model), SIZES.get(name, 64), HEADS.get(name))
