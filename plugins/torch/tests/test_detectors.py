"""Models with the interface of torchvision's detectors: lists in, a dict of losses or a list of dicts out."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import anyaccel as aa
from anyaccel.errors import ColumnError, ShapeError

ROWS, BATCH, EPOCHS = 13, 4, 3
RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(ROWS, 3, 8, 8)).astype("float32")
COUNTS = RNG.integers(1, 4, ROWS)
BOXES = [RNG.random((n, 4)).astype("float32") for n in COUNTS]
LABELS = [RNG.integers(0, 3, n) for n in COUNTS]


class Detector(nn.Module):
    """Every box and label of an image has a part in its losses."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.boxes, self.classes = nn.Conv2d(3, 4, 3), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, images: list[Tensor], targets: list[dict[str, Tensor]] | None = None) -> Any:
        found = [self.body(image[None]).mean(dim=(0, 2, 3)) for image in images]
        if not self.training:
            return [{"boxes": self.boxes(f)[None], "scores": self.classes(f)[None]} for f in found]
        assert targets is not None and len(targets) == len(images)
        box = [F.l1_loss(self.boxes(f).expand_as(t["boxes"]), t["boxes"]) for f, t in zip(found, targets, strict=True)]
        scores = [self.classes(f).expand(len(t["labels"]), -1) for f, t in zip(found, targets, strict=True)]
        kinds = [F.cross_entropy(s, t["labels"]) for s, t in zip(scores, targets, strict=True)]
        return {"loss_box_reg": torch.stack(box).mean(), "loss_classifier": torch.stack(kinds).mean()}


class InGraph(nn.Module):
    """What the graph sees of a detector: a number for each image."""

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        self.detector = detector

    def forward(self, images: Tensor) -> Tensor:
        return images.new_zeros(len(images), 1)


def detect(models: Any, batch: Any, optimizers: Any) -> dict[str, Tensor]:
    real = batch["labels"] >= 0
    pairs = zip(batch["boxes"], batch["labels"], real, strict=True)
    targets = [{"boxes": boxes[own], "labels": labels[own]} for boxes, labels, own in pairs]
    losses: dict[str, Tensor] = models["net"].detector(list(batch["image"]), targets)
    total = torch.stack(list(losses.values())).sum()
    optimizers["net"].zero_grad()
    total.backward()  # type: ignore[no-untyped-call]
    optimizers["net"].step()
    return {"loss": total, **losses}


@pytest.fixture
def data() -> aa.FeatureSet:
    columns = {"image": IMAGES, "boxes": BOXES, "labels": LABELS}
    return aa.FeatureSet.from_dict("d", columns, ["image"], ["boxes", "labels"], pad={"boxes": 0.0, "labels": -1})


def test_a_detector_is_refused_with_the_way_to_train_it(data: aa.FeatureSet) -> None:
    graph = aa.ModelGraph([aa.ModelNode("net", Detector(), data.reference())], "adam")
    with pytest.raises(ShapeError, match=r"Detector returns .*Hint: .*\(a detector\) in a module .*step=\.\.\."):
        graph.build()


def test_a_step_of_your_own_trains_it_as_a_loop_by_hand(data: aa.FeatureSet) -> None:
    torch.manual_seed(0)
    net = Detector()
    expected = copy.deepcopy(net)
    graph = aa.ModelGraph([aa.ModelNode("net", InGraph(net), data.reference())], aa.Optimizer("sgd", lr=0.1))
    phase = aa.TrainPhase(data="all", step=detect, sampler=aa.SimpleSampler(BATCH), epochs=EPOCHS)
    results = graph.run(phase, progress="none")

    optimizer, means = torch.optim.SGD(expected.parameters(), lr=0.1), []
    for _ in range(EPOCHS):
        total = 0.0
        for i in range(0, ROWS, BATCH):
            rows = range(i, min(i + BATCH, ROWS))
            targets = [{"boxes": torch.tensor(BOXES[j]), "labels": torch.tensor(LABELS[j])} for j in rows]
            losses = expected([torch.tensor(IMAGES[j]) for j in rows], targets)
            loss = losses["loss_box_reg"] + losses["loss_classifier"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(rows)
        means.append(total / ROWS)
    for name, value in expected.named_parameters():
        torch.testing.assert_close(net.get_parameter(name), value, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(results.loss, means, rtol=1e-5)
    assert results.figures == ("loss", "loss_box_reg", "loss_classifier")


DICTS = [{"boxes": torch.tensor(b), "labels": torch.tensor(k)} for b, k in zip(BOXES, LABELS, strict=True)]


def in_batches() -> Any:
    yield tuple(map(torch.tensor, IMAGES[:4])), tuple(DICTS[:4])


@pytest.mark.parametrize(
    "given",
    [
        {"images": IMAGES, "targets": DICTS},
        {"images": IMAGES, "targets": tuple({"boxes": b.tolist()} for b in BOXES)},
        list(zip(map(torch.tensor, IMAGES), DICTS, strict=True)),
        in_batches,
    ],
)
def test_fit_refuses_a_dict_for_each_image_with_the_way_to_train_it(given: Any, data: aa.FeatureSet) -> None:
    with pytest.raises(
        ColumnError, match=r"has a dict for each row; .*Hint: .*fit\(InGraph\(model\), data, step=step\)"
    ):
        aa.fit(Detector(), given, progress="none")
    torch.manual_seed(0)
    net = Detector()
    before = copy.deepcopy(net.state_dict())

    def step(models: Any, batch: Any, optimizers: Any) -> dict[str, Tensor]:
        return detect({"net": models["model"]}, batch, {"net": optimizers["model"]})

    fitted = aa.fit(InGraph(net), data, step=step, epochs=2, progress="none")
    assert fitted.results.figures == ("loss", "loss_box_reg", "loss_classifier")
    assert not all(torch.equal(before[name], value) for name, value in net.state_dict().items())
