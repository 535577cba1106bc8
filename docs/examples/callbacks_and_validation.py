"""Watching a run: validation after every epoch, early stopping, checkpoints, callbacks, figures as a table.

It prints:

    train on cpu:0
    epoch 0: loss 0.4852, val_loss 0.2700
    epoch 1: loss 0.2062, val_loss 0.2891
    ...
    epoch 11: loss 0.0734, val_loss 0.1239
    finished
"""

from __future__ import annotations

import numpy as np

from anyaccel import (
    AppliedLoss,
    Callback,
    EarlyStopping,
    EvalPhase,
    Experiment,
    FeatureSet,
    ModelGraph,
    ModelNode,
    Optimizer,
    Schedule,
    SequentialMLP,
    TrainPhase,
)
from anyaccel.phases import Run


class Checkpoint(Callback):
    """Keeps the state after each epoch; `numpy.savez(path, **state)` would write it to a file."""

    def epoch_end(self, run: Run) -> None:
        self.state = run.graph.state()


class Journal(Callback):
    """Records a line for each epoch. Only the hooks that are defined here are called."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def before_placement(self, phase, plan) -> None:
        self.lines.append(f"{phase.label} on {plan.device('net')}")

    def epoch_end(self, run: Run) -> None:
        figures = run.history[-1].figures
        self.lines.append(f"epoch {run.epoch}: loss {figures['loss']:.4f}, val_loss {figures['val_loss']:.4f}")

    def phase_end(self, phase, plan, run, error) -> None:
        self.lines.append("finished" if error is None else f"failed: {error}")


def main() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(300, 8))
    y = np.sin(x[:, 0]) + 0.3 * rng.normal(size=300)  # noisy: a long training overfits
    data = FeatureSet.from_dict("data", {"x": x, "y": y}, features=["x"], target=["y"])
    data.split_random({"train": 0.5, "val": 0.5}, seed=1)

    net = ModelNode("net", SequentialMLP(hidden_dim=64, n_layers=3, activation="tanh"), data.reference())
    optimizer = Optimizer("adamw", lr=1e-2, clip_norm=1.0, schedule=Schedule("cosine", steps=500, warmup=10))
    experiment = Experiment("watched", ModelGraph([net], optimizer))

    journal, checkpoint = Journal(), Checkpoint()
    stopping = EarlyStopping("val_loss", patience=5, restore_best=True)
    trained = experiment.run_phase(
        TrainPhase(
            "train",
            data="train",
            losses=[AppliedLoss("mse", on="net")],
            epochs=100,
            validation=EvalPhase("validation", data="val", metrics=["r2"]),
            callbacks=[journal, checkpoint, stopping],
        )
    )

    assert len(trained.epochs) < 100 and "val_loss" in trained.stop_reason
    assert len(trained.epochs) == stopping.best_epoch + 1 + stopping.patience
    assert trained.figures == ("loss", "loss.net", "val_loss", "val_loss.net", "val_r2")
    assert journal.lines[0] == "train on cpu:0" and journal.lines[-1] == "finished"
    assert len(journal.lines) == len(trained.epochs) + 2

    assert checkpoint.state["progress/train"] == len(trained.epochs)  # load_state() continues from there

    # The parameters are those of the best epoch, not of the last one.
    loss = AppliedLoss("mse", on="net")
    best = experiment.run_phase(EvalPhase("test", data="val", losses=[loss])).loss
    assert np.isclose(best, trained.figure("val_loss").min(), rtol=1e-5)

    table = trained.to_arrow()  # a row for each epoch; to_dict() gives the same, ready for JSON
    assert table.column_names[:3] == ["epoch", "steps", "seconds"] and len(table) == len(trained.epochs)
    print(*journal.lines[:3], "...", *journal.lines[-2:], sep="\n")


if __name__ == "__main__":
    main()
