"""A pipeline of scikit-learn: scale, fit a network, score, predict, and store it."""

from __future__ import annotations

from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

wine = load_wine(as_frame=True)
train, test = train_test_split(
    wine.frame,
    test_size=0.25,
    stratify=wine.frame["target"],
    random_state=0,
)
model = make_pipeline(
    StandardScaler(),
    MLPClassifier((32,), learning_rate_init=1e-2, random_state=0, max_iter=60),
)
model.fit(train.drop(columns="target"), train["target"])
score = model.score(test.drop(columns="target"), test["target"])
print(f"accuracy {score:.2f}")
print(model.predict(test.drop(columns="target").iloc[:5]))
