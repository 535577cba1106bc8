"""From a Parquet file to a data frame: the notebook of docs/tutorial as a script."""

from __future__ import annotations

import torch
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier
from sklearn.preprocessing import StandardScaler
from torch import nn

import anyaccel as aa

tumours = load_breast_cancer(as_frame=True).frame.rename(columns={"target": "benign"})
tumours.insert(0, "patient", tumours.index)
tumours.to_parquet("tumours.parquet")

measures = list(tumours.columns.drop(["patient", "benign"]))
data = aa.FeatureSet.from_parquet("tumours", "tumours.parquet", measures, "benign", "patient")
data.split_random({"train": 0.7, "test": 0.3}, seed=0, stratify_by="benign")
data = data.fit_transform(StandardScaler(), measures, fit_on="train")
print(data)

torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 4))
nodes = [
    aa.ModelNode("encoder", encoder, data.reference()),
    aa.ModelNode("probe", nn.Linear(4, 2), "encoder"),
    aa.ModelNode("forest", RandomForestClassifier(random_state=0), "encoder"),
]
graph = aa.ModelGraph(nodes, aa.Optimizer("adam", lr=1e-2), label="tumours", seed=0)

losses = [aa.AppliedLoss("cross_entropy", on="probe")]
train = aa.TrainPhase("train", data="train", losses=losses, epochs=20, validation="test")
fit = aa.FitPhase("fit", data="train")
test = aa.EvalPhase("test", data="test", metrics=["accuracy"])

trained, fitted, tested = aa.Experiment("tumours", graph).run(train, fit, test)
print(tested)

print(graph)

print(tested.plan)

axes = trained.plot()
axes.figure.savefig("loss.svg")

assert tested.metrics["forest.accuracy"] > 0.95
answers = tested.to_pandas()
print(answers[answers["prediction.forest"] != answers["benign"]])
