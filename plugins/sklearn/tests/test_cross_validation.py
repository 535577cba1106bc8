"""cross_validate: folds of scikit-learn, the same numbers as fits by hand, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GroupKFold, KFold, ShuffleSplit, StratifiedKFold, TimeSeriesSplit

import anyaccel as aa
from anyaccel.errors import AnyaccelError, PhaseError, ResultError
from anyaccel.numpy_backend import Dense

draw = np.random.default_rng(0)
X = draw.standard_normal((90, 2)).astype("float32")
KIND = np.array(["a", "b", "c"])[np.digitize(X[:, 0] + 0.3 * draw.standard_normal(90), [-0.5, 0.7])]
TABLE = {"p": X[:, 0], "q": X[:, 1], "y": KIND}
NUMBERS = {"p": X[:, 0], "q": X[:, 1], "y": X[:, 0] * 10 + 3}
GROUPS = np.arange(90) // 6
FAST = {"target": "y", "epochs": 2, "framework": "numpy"}


def test_it_is_fits_on_the_folds_of_scikit_learn():
    found = aa.cross_validate("mlp", TABLE, cv=3, seed=4, metrics=["accuracy"], **FAST)
    splits = list(StratifiedKFold(3, shuffle=True, random_state=4).split(X, KIND))
    for number, (train, test) in enumerate(splits):
        rows, unseen = ({name: values[part] for name, values in TABLE.items()} for part in (train, test))
        fitted = aa.fit("mlp", rows, seed=4, progress="none", **FAST)
        np.testing.assert_array_equal(found.folds[number], test)
        np.testing.assert_array_equal(found.predictions[test], fitted.predict(unseen))
        np.testing.assert_array_equal(found.probabilities[test], fitted.predict_proba(unseen))
        assert found.metrics["score"][number] == fitted.score(unseen) == found.metrics["accuracy"][number]
        assert found.metrics["loss"][number] == fitted.evaluate(unseen).loss
    assert found.mean() == pytest.approx(np.mean(found.metrics["score"]))
    assert found.std("loss") == pytest.approx(np.std(found.metrics["loss"]))
    np.testing.assert_array_equal(found.classes, ["a", "b", "c"])
    assert roc_auc_score(KIND, found.probabilities, multi_class="ovr") > 0.4
    assert "3 folds" in repr(found) and "accuracy" in repr(found)


def test_numbers_are_split_without_strata_and_have_no_probabilities():
    found = aa.cross_validate("mlp", NUMBERS, cv=3, seed=1, **FAST)
    expected = [test for _, test in KFold(3, shuffle=True, random_state=1).split(X)]
    for test, fold in zip(expected, found.folds, strict=True):
        np.testing.assert_array_equal(test, fold)
    assert found.predictions.shape == (90,) and found.classes is None
    with pytest.raises(ResultError, match="predict numbers"):
        found.probabilities  # noqa: B018


@pytest.mark.parametrize("cv", [KFold(3), list(KFold(3).split(X))])
def test_a_splitter_or_its_pairs_are_taken_as_they_are(cv):
    found = aa.cross_validate(lambda n, m: Dense(m), NUMBERS, target="y", cv=cv, epochs=1)
    np.testing.assert_array_equal(np.concatenate(found.folds), np.arange(90))


def test_groups_stay_together_and_are_no_feature():
    for given in ({"data": {**TABLE, "g": GROUPS}, "groups": "g"}, {"data": TABLE, "groups": GROUPS}):
        found = aa.cross_validate("mlp", given["data"], groups=given["groups"], cv=3, **FAST)
        for fold in found.folds:
            assert not set(GROUPS[fold]) & set(np.delete(GROUPS, fold))
        assert all([column.name for column in model.columns] == ["p", "q"] for model in found.models)
    inner = aa.cross_validate("mlp", {**TABLE, "g": GROUPS}, groups="g", cv=3, validation=0.3, **FAST)
    model = inner.models[0]
    train = np.delete(np.arange(90), inner.folds[0])
    splits = model.graph.feature_sets["data"].splits
    assert not set(GROUPS[train[splits["train"].rows]]) & set(GROUPS[train[splits["validation"].rows]])


def test_tables_of_any_kind_give_the_same(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(TABLE)
    frame.to_parquet(tmp_path / "t.parquet")
    expected = aa.cross_validate("mlp", TABLE, cv=2, **FAST)
    for data in (frame, tmp_path / "t.parquet", (frame[["p", "q"]], frame["y"])):
        found = aa.cross_validate("mlp", data, cv=2, **{**FAST, "target": None if isinstance(data, tuple) else "y"})
        np.testing.assert_array_equal(found.predictions, expected.predictions)
        np.testing.assert_array_equal(found.metrics["loss"], expected.metrics["loss"])


def test_a_feature_set_and_its_view():
    data = aa.FeatureSet.from_dict("rows", {"x": X, "y": (X[:, 0] > 0).astype(int)}, ["x"], ["y"])
    found = aa.cross_validate("mlp", data, cv=3, epochs=1, framework="numpy")
    assert found.probabilities.shape == (90, 2)
    few = aa.cross_validate("mlp", data.view().take(np.arange(10, 70)), cv=3, epochs=1, framework="numpy")
    assert few.predictions.shape == (60,)


def test_rows_of_several_folds_or_none_have_no_order():
    for cv in (TimeSeriesSplit(3), ShuffleSplit(3, random_state=0)):
        found = aa.cross_validate("mlp", NUMBERS, cv=cv, **FAST)
        assert len(found.metrics["score"]) == 3
        with pytest.raises(ResultError, match="rows were not tested in one fold"):
            found.predictions  # noqa: B018


@pytest.mark.parametrize(
    ("model", "data", "settings", "message"),
    [
        (Dense(3), TABLE, {"framework": None}, "got a Dense, which would continue learning from fold to fold"),
        ("mlp", TABLE, {"cv": 1}, "cv=1 is not an int of at least 2"),
        ("mlp", TABLE, {"cv": True}, "cv=True is not"),
        ("mlp", TABLE, {"cv": "five"}, "cv='five' is not"),
        ("mlp", TABLE, {"cv": 80}, "cannot split 90 rows"),
        (
            "mlp",
            TABLE,
            {"cv": GroupKFold(3)},
            "GroupKFold keeps groups together, but cross_validate received no groups",
        ),
        ("mlp", TABLE, {"groups": "h"}, "no column 'h'"),
        ("mlp", TABLE, {"groups": [1, 2]}, "groups= has 2 values, but the table has 90 rows"),
        ("mlp", TABLE, {"target": None}, "needs the name of the target"),
        ("mlp", TABLE, {"target": "why"}, "no column 'why'"),
        ("mlp", [1, 2], {}, "is not a table"),
        ("mpl", TABLE, {}, "no model called 'mpl'"),
        ("mlp", {**TABLE, "y": np.array(["z", *KIND[1:]])}, {}, "class 'z' is in 1 of 90 rows"),
        ("mlp", TABLE, {"n_jobs": 2}, "no argument 'n_jobs'"),
    ],
)
def test_what_cannot_be_validated_is_refused(model, data, settings, message):
    with pytest.raises((AnyaccelError, TypeError), match=message):
        aa.cross_validate(model, data, **{**FAST, **settings})


def test_no_metric_of_a_name():
    found = aa.cross_validate("mlp", TABLE, cv=2, **FAST)
    with pytest.raises(ResultError, match="Available: score, loss"):
        found.mean("auc")


def test_a_model_must_be_given_as_what_makes_it():
    with pytest.raises(PhaseError, match="lambda n_features, n_outputs: MODEL"):
        aa.cross_validate(aa.SequentialMLP(3), TABLE, target="y")
