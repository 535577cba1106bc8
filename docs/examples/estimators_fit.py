"""Estimators (`fit`, `predict`) as nodes: a FitPhase fits one to the outputs of a trained network.

It needs anyaccel-sklearn: `python -m pip install ./core ./plugins/sklearn`. It prints:

    r2 0.320 by ridge alone, 0.987 behind the network
"""

from __future__ import annotations

import numpy as np

from anyaccel import (
    AppliedLoss,
    EvalPhase,
    Experiment,
    FeatureSet,
    FitPhase,
    ModelGraph,
    ModelNode,
    Optimizer,
    SequentialMLP,
    TrainPhase,
)


class Ridge:
    """Ridge regression. Any object with `fit` and `predict` will do, those of scikit-learn for instance."""

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha

    def fit(self, x, y):
        self.coef_ = np.linalg.solve(x.T @ x + self.alpha * np.eye(x.shape[1]), x.T @ y)
        return self

    def predict(self, x):
        return x @ self.coef_


def main() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 12))
    y = np.abs(x[:, 0]) - 0.8 + 0.5 * x[:, 1]  # not linear in x
    data = FeatureSet.from_dict("data", {"x": x, "y": y}, features=["x"], target=["y"])
    data.split_random({"train": 0.8, "test": 0.2}, seed=0)

    # An estimator by itself.
    alone = Experiment("alone", ModelGraph([ModelNode("ridge", Ridge(), data.reference())]))
    alone.run_phase(FitPhase("fit", data="train"))
    linear = alone.run_phase(EvalPhase("test", data="test", metrics=["r2"])).metrics["r2"]

    # Train a network, replace its last node by an estimator, and fit that to the outputs of the node before it.
    encoder = ModelNode("encoder", SequentialMLP(output_shape=(16,), hidden_dim=32), data.reference())
    head = ModelNode("head", SequentialMLP(n_layers=1), "encoder")
    experiment = Experiment("features", ModelGraph([encoder, head], Optimizer("adam", lr=3e-3)))
    loss = AppliedLoss("mse", on="head")
    experiment.run_phase(TrainPhase("train", data="train", losses=[loss], epochs=40))
    experiment.graph.replace_node("head", ModelNode("ridge", Ridge(alpha=0.1), "encoder"))
    experiment.run_phase(FitPhase("fit", data="train"))
    tested = experiment.run_phase(EvalPhase("test", data="test", metrics=["r2"]))

    assert experiment.graph.frozen == ("ridge",)  # a FitPhase freezes the nodes it fits
    assert tested.metrics["r2"] > linear + 0.1, (tested.metrics, linear)
    print(f"r2 {linear:.3f} by ridge alone, {tested.metrics['r2']:.3f} behind the network")


if __name__ == "__main__":
    main()
