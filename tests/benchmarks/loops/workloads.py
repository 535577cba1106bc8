"""What is computed: data and the sizes of a network, the same for every contestant."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Workload:
    """A network and its data. The optimizer is Adam with a learning rate of 0.001, everything is float32.

    Args:
        features: shape of one sample, [n] or [channels, height, width].
        outputs: numbers that the network gives for a sample.
        widths: of the hidden layers, or channels of the convolutions (3 by 3, then ReLU and pooling by 2).
        batch: samples of a step.
        steps: of an epoch.
        classes: whether targets are classes and the loss is cross-entropy; else they are numbers, and it is MSE.
    """

    features: tuple[int, ...]
    outputs: int
    widths: tuple[int, ...]
    batch: int
    steps: int
    classes: bool = False

    @property
    def rows(self) -> int:
        """Samples of an epoch."""
        return self.batch * self.steps

    @property
    def pictures(self) -> bool:
        """Whether it is a convolutional network."""
        return len(self.features) == 3

    def data(self) -> tuple[Array, Array]:
        """Inputs [rows, *features] float32, and targets: [rows, outputs] float32, or [rows] int64 for classes."""
        random = np.random.default_rng(0)
        inputs = random.standard_normal((self.rows, *self.features), dtype=np.float32)
        if self.classes:
            return inputs, random.integers(0, self.outputs, self.rows)
        return inputs, inputs[:, : self.outputs] - inputs[:, 1 : 1 + self.outputs]


WORKLOADS = {
    "tiny": Workload((50,), 1, (16, 16), batch=64, steps=400),
    "medium": Workload((784,), 10, (1024, 1024), batch=256, steps=16, classes=True),
    "cnn": Workload((1, 28, 28), 10, (8, 16), batch=64, steps=64, classes=True),
    "large": Workload((1024,), 10, (4096, 4096, 4096), batch=4096, steps=16, classes=True),
    "wide": Workload((784,), 10, (512, 512), batch=256, steps=240, classes=True),
}
TITLES = {
    "tiny": "MLP 50-16-16-1, batch 64",
    "medium": "MLP 784-1024-1024-10, batch 256",
    "cnn": "CNN, 28 x 28, convolutions of 8 and 16 channels, batch 64",
    "large": "MLP 1024-4096-4096-4096-10, batch 4096",
    "wide": "MLP 784-512-512-10, batch 256",
}


def workload(name: str, steps: int | None = None) -> Workload:
    """The workload of a name, with another number of steps if one is given."""
    found = WORKLOADS[name]
    return found if steps is None else replace(found, steps=steps)
