"""Two frameworks in one graph, trained end to end by one optimizer: a torch encoder and a NumPy head.

It prints:

    loss 0.7078 to 0.0864
"""

from __future__ import annotations

import numpy as np

import anyaccel
from anyaccel import Accelerator, AppliedLoss, Experiment, FeatureSet, ModelGraph, ModelNode, Optimizer, TrainPhase


def trained(encoder_mlp, head_mlp) -> tuple[np.ndarray, list[tuple[str, str]]]:
    """The losses, and the value and route of each crossing of the plan."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 10)).astype("float32")
    data = FeatureSet.from_dict("data", {"x": x, "y": np.tanh(x @ rng.normal(size=10))}, ["x"], ["y"])
    encoder = ModelNode("encoder", encoder_mlp(output_shape=(8,)), data.reference())
    head = ModelNode("head", head_mlp(), "encoder")
    graph = ModelGraph([encoder, head], Optimizer("adam", lr=5e-3, clip_norm=1.0), seed=5)
    train = TrainPhase("train", data="all", losses=[AppliedLoss("mse", on="head")], epochs=5, accelerator="cpu")
    results = Experiment("mixed", graph).run_phase(train)
    return results.loss, [(crossing.value, crossing.route) for crossing in results.plan.crossings]


def main() -> None:
    if not Accelerator("cpu").is_available("torch"):
        print("The torch plugin is not installed: python -m pip install ./plugins/torch")
        return
    from anyaccel_torch import SequentialMLP

    alone, no_crossing = trained(anyaccel.SequentialMLP, anyaccel.SequentialMLP)
    mixed, crossings = trained(SequentialMLP, anyaccel.SequentialMLP)

    # Same seed, same weights, same order, same formulas: the same training, within rounding.
    np.testing.assert_allclose(mixed, alone, rtol=1e-4)
    assert no_crossing == []
    assert crossings == [("encoder", "share"), ("encoder", "share")]  # the value and its gradient
    print(f"loss {mixed[0]:.4f} to {mixed[-1]:.4f}")


if __name__ == "__main__":
    main()
