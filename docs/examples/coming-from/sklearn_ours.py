"""The task of sklearn_theirs.py with a network that also trains on a GPU."""

from __future__ import annotations

from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split

import anyaccel as aa

wine = load_wine(as_frame=True)
train, test = train_test_split(
    wine.frame,
    test_size=0.25,
    stratify=wine.frame["target"],
    random_state=0,
)
fit = aa.fit(
    "mlp",
    train,
    target="target",
    loss="cross_entropy",
    scaler="standard",
    optimizer=aa.Optimizer("adam", lr=1e-2),
    epochs=60,
    progress="none",
)
print(f"accuracy {fit.score(test):.2f}")
print(fit.predict(test.drop(columns="target").iloc[:5]))
fit.save("wine")
