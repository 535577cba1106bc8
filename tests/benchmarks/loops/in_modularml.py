"""ModularML, which this project follows: a TrainPhase of its release on the package index."""

from __future__ import annotations

import time
from typing import Any

import modularml  # type: ignore[import-untyped]
from harness.absent import Absent
from modularml.core.experiment.callbacks.callback import Callback  # type: ignore[import-untyped]
from modularml.models.torch import SequentialMLP  # type: ignore[import-untyped]
from modularml.samplers import SimpleSampler  # type: ignore[import-untyped]

from loops.turns import Turn
from loops.workloads import Workload, workload


class Watch(Callback):  # type: ignore[misc]
    """Notes how long each epoch takes."""

    def __init__(self) -> None:
        super().__init__(label="watch")
        self.seconds: list[float] = []
        self._began = 0.0

    def on_epoch_start(self, **_: Any) -> None:
        """Start the watch."""
        self._began = time.perf_counter()

    def on_epoch_end(self, **_: Any) -> None:
        """Stop it."""
        self.seconds.append(time.perf_counter() - self._began)

    def get_config(self) -> dict[str, Any]:
        """Nothing that it could be made again from."""
        return {}


def train_phase(name: str, *, lean: bool = True) -> Turn:
    """The second of two epochs of a TrainPhase, shuffled, with a fused Adam.

    Args:
        name: of the workload.
        lean: without progress bars, and without the record of every step that it keeps by default.
    """
    work = workload(name)
    if work.classes:
        raise Absent("its columns become float32, so that it has no cross-entropy over classes")
    watch, experiment = Watch(), modularml.Experiment("bench", registration_policy="overwrite")
    phase = made(work, watch, "none" if lean else "all")

    def turn() -> float:
        experiment.run_phase(phase, show_sampler_progress=not lean, show_training_progress=not lean)
        return watch.seconds[-1]

    return turn


def made(work: Workload, watch: Watch, recorded: str) -> Any:
    """A phase over a graph of one node."""
    x, y = work.data()
    data = modularml.FeatureSet.from_dict("data", {"x": list(x), "y": list(y)}, feature_keys="x", target_keys="y")
    data.split_random({"train": 1.0}, seed=0)
    model = SequentialMLP(output_shape=(1, work.outputs), n_layers=len(work.widths) + 1, hidden_dim=work.widths[0])
    node = modularml.ModelNode("mlp", model, data.reference(features="x", targets="y"))
    optimizer = modularml.Optimizer("adam", opt_kwargs={"lr": 1e-3, "fused": True}, backend="torch")
    modularml.ModelGraph([node], optimizer).build()
    loss = modularml.AppliedLoss(modularml.Loss("mse", backend="torch"), on="mlp", inputs=["outputs", "targets"])
    return modularml.TrainPhase.from_split(
        "train",
        split="train",
        sampler=SimpleSampler(batch_size=work.batch, shuffle=True, seed=0),
        losses=[loss],
        n_epochs=2,
        callbacks=[watch],
        result_recording=recorded,
    )
