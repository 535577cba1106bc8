"""A plain torch module, with torch's own loss and optimizer.

It prints:

    accuracy 0.958 on ...
"""

from __future__ import annotations

import numpy as np

import anyaccel
from anyaccel import (
    Accelerator,
    AppliedLoss,
    EvalPhase,
    Experiment,
    FeatureSet,
    ModelGraph,
    ModelNode,
    Optimizer,
    TrainPhase,
)


def main() -> None:
    if not Accelerator("cpu").is_available("torch"):
        print("The torch plugin is not installed: python -m pip install ./plugins/torch")
        return
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1))
            self.head = nn.Linear(32, 3)

        def forward(self, x):
            return self.head(self.body(x))

    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 6)).astype("float32")
    label = (x[:, :3] + 0.1 * rng.normal(size=(600, 3))).argmax(axis=1)
    data = FeatureSet.from_dict("data", {"x": x, "label": label}, features=["x"], target=["label"])
    data.split_random({"train": 0.8, "test": 0.2}, seed=0)

    torch.manual_seed(0)
    net = Net()
    graph = ModelGraph([ModelNode("net", net, data.reference())], Optimizer(torch.optim.RMSprop, lr=3e-3))
    experiment = Experiment("plain", graph)

    loss = AppliedLoss(nn.CrossEntropyLoss(label_smoothing=0.05), on="net")
    where = anyaccel.devices_or_cpu("gpu")[0]  # the first GPU, or the CPU where there is none
    train = TrainPhase("train", data="train", losses=[loss], epochs=15, accelerator=where)
    test = EvalPhase("test", data="test", losses=[loss], metrics=["accuracy"], accelerator=where)
    trained, tested = experiment.run(train, test)
    assert trained.loss[-1] < trained.loss[0]
    assert tested.metrics["accuracy"] > 0.8, tested.metrics

    # The node still has your module: the same object, trained, on the device, in its former mode.
    assert graph["net"].model is net and net.training
    assert anyaccel.device_of(net) == where
    state = graph.state()
    assert state["net/buffers/body.1.num_batches_tracked"] == 15 * 15  # 480 samples in batches of 32, 15 times
    print(f"accuracy {tested.metrics['accuracy']:.3f} on {where}")


if __name__ == "__main__":
    main()
