"""Mistakes with data."""

from __future__ import annotations

import numpy as np

import anyaccel as aa

from .newcomer import (
    CLASSES,
    Row,
    X,
    data,
    graph,
    judge,
    node,
    rows,
    run,
    train,
)

DATA = [
    Row("an array feeds a node", lambda: node(up=X), r"an upstream of type ndarray\. Hint: pass feature_set", node),
    Row("a frame of rows is data of a phase", lambda: run(train(data=X)), r"Hint: write FeatureSet\.from_dict", data),
    Row(
        "no split was made",
        lambda: run(train(), graph(rows())),
        r"no split 'train'.*Hint: create splits with split_random",
        lambda: run(train(), graph(data())),
    ),
    Row(
        "ratios in percent",
        lambda: rows().split_random({"a": 80, "b": 20}),
        r"add up to 100, not to 1.*Hint: make them",
        lambda: rows().split_random({"a": 0.8, "b": 0.2}),
    ),
    Row(
        "ratios without names",
        lambda: rows().split_random([0.8, 0.2]),
        r"Hint: write \{'train': 0\.8, 'test': 0\.2\}",
        lambda: rows().split_random({"train": 0.8, "test": 0.2}),
    ),
    Row(
        "split again",
        lambda: data().split_random({"train": 0.5, "val": 0.5}),
        r"already has a split 'train' of other rows.*Hint: .*choose another name",
        lambda: data().split_random({"fit": 0.5, "test": 0.5}),
    ),
    Row(
        "a split misspelt",
        lambda: run(train(data="trian")),
        r"no split 'trian'.*Hint: did you mean 'train'\?",
        lambda: run(train(data="train")),
    ),
    Row(
        "a split that was not made",
        lambda: run(judge(data="test")),
        r"no split 'test'\. Available: train, val, all",
        lambda: run(judge(data="val")),
    ),
    Row(
        "a split by its column",
        lambda: data()["x"],
        r"no split 'x'.*Hint: it is a column: data\.array\('x'\)",
        lambda: data().array("x"),
    ),
    Row(
        "a target that is no column",
        lambda: aa.FeatureSet.from_dict("d", {"x": X, "y": CLASSES}, ["x"], ["label"]),
        r"no column 'label'\. Available: x, y",
        lambda: aa.FeatureSet.from_dict("d", {"x": X, "y": CLASSES}, ["x"], ["y"]),
    ),
    Row(
        "columns of different length",
        lambda: rows(CLASSES[:50]),
        r"differ in length; x: 60, y: 50\. Hint: use one entry per",
        rows,
    ),
    Row(
        "x and y without a label",
        lambda: aa.FeatureSet(X, CLASSES),
        r"is not a label of a feature set.*Hint: write FeatureSet\.from_dict",
        rows,
    ),
    Row(
        "a label with a dot",
        lambda: rows(label="my.data"),
        r"is not a label of a feature set.*Hint: choose another",
        lambda: rows(label="my_data"),
    ),
    Row(
        "a feature misspelt",
        lambda: data().reference("xx"),
        r"no feature 'xx'.*Hint: did you mean 'x'\?",
        lambda: data().reference("x"),
    ),
    Row(
        "a target misspelt",
        lambda: data().reference(target=["yy"]),
        r"no target 'yy'.*Hint: did you mean 'y'\?",
        lambda: data().reference(target=["y"]),
    ),
    Row(
        "a missing number",
        lambda: data(x=np.array([None, 1.0, 2.0] * 20, dtype=object)),
        r"has nulls in 20 of 60 rows.*Hint: fill these places",
        lambda: data(x=np.array([0.0, 1.0, 2.0] * 20)),
    ),
    Row(
        "split as in scikit-learn",
        lambda: rows().train_test_split(0.2),
        r"Hint: use split_random\(\{'train': 0\.8, 'test': 0\.2\}\)",
        lambda: rows().split_random({"train": 0.8, "test": 0.2}),
    ),
    Row(
        "rows as in pandas",
        lambda: data().iloc[0:3],
        r"no attribute 'iloc'\. Hint: use take\(\[0, 1, 2\]\)",
        lambda: data().take([0, 1, 2]),
    ),
    Row(
        "batches as of a loader",
        lambda: data().batch(32),
        r"Hint: a phase draws batches: TrainPhase\(\.\.\., batch_size=32\)",
        lambda: run(train(batch_size=32)),
    ),
    Row(
        "dtype as in NumPy",
        lambda: data().astype("float32"),
        r"Hint: use cast\(\{'COLUMN': 'float32'\}\)",
        lambda: data().cast({"y": "float32"}),
    ),
    Row(
        "the shape",
        lambda: data().shape,
        r"Hint: use len\(\.\.\.\) for rows",
        lambda: (len(data()), data().array("x").shape),
    ),
    Row("a loader of torch", lambda: aa.DataLoader, r"Hint: a phase draws batches", lambda: train(batch_size=32)),
    Row("a data set", lambda: aa.Dataset, r"Hint: write FeatureSet\.from_dict", data),
]
