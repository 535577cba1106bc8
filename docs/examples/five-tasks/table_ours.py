"""A CSV file with text and missing values: train, store, predict in a new object."""

from __future__ import annotations

import pandas as pd

import anyaccel as aa

fit = aa.fit("mlp", "train.csv", target="late", validation=0.2, progress="none")
fit.save("late")
model = aa.load("late")
pd.DataFrame({"late": model.predict("test.csv")}).to_csv("ours.csv", index=False)
print(f"accuracy {model.score('test.csv'):.2f}")
