"""Classifiers of images of torch libraries, beside a loop by hand with cross entropy of each of their outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import anyaccel as aa

from . import rows
from .by_hand import Batch, check_equal

AUXILIARY = 0.3
"""Weight of the losses of auxiliary heads."""


def without_dropout(model: nn.Module) -> nn.Module:
    """The model with all rates of dropout and stochastic depth at zero: both ways draw random numbers of their own."""
    for part in model.modules():
        for name in ("p", "drop_prob", "drop_rate", "dropout", "attention_dropout"):
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, 0.0)
    return model


def check_classifier(model: nn.Module, size: int, heads: Sequence[str] | None = None) -> None:
    """Train a classifier as it is in a node and by hand.

    Args:
        model: takes images [batch, 3, size, size], and returns scores.
        size: height and width.
        heads: names of what it returns in training, the usual scores first; None if it returns a tensor.
    """
    inputs = {"images": rows.floats(3, size, size), "kinds": rows.kinds()}
    weights = dict(zip(heads or (), [1.0, *[AUXILIARY] * len(heads or ())], strict=False))

    def in_a_node(model: nn.Module, data: aa.FeatureSet) -> tuple[aa.ModelNode, Any]:
        losses = [
            aa.AppliedLoss(
                "cross_entropy", on="net", inputs=[f"outputs.{name}", "targets"], weight=weight, label=f"loss_{name}"
            )
            for name, weight in weights.items()
        ]
        node = aa.ModelNode("net", model, data.reference("images"), outputs=heads)
        return node, losses or aa.AppliedLoss("cross_entropy", on="net")

    def loss_of(model: nn.Module, batch: Batch) -> Tensor:
        scores = model(batch["images"])
        if heads is None:
            return F.cross_entropy(scores, batch["kinds"])
        terms = zip(scores, weights.values(), strict=True)
        return torch.stack([weight * F.cross_entropy(each, batch["kinds"]) for each, weight in terms]).sum()

    check_equal(model, inputs, ["kinds"], in_a_node, loss_of)
