"""Objects of scikit-learn that choose columns by name, and estimators that fitting gives their methods."""

from __future__ import annotations

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import ColumnError, EstimatorError, TransformError

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import StackingClassifier, StackingRegressor, VotingClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

X = np.random.default_rng(0).normal(size=(60, 3))
CLASSES = (X[:, 0] > 0).astype("int64")
TABLE = {"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "k": CLASSES}


def data():
    return aa.FeatureSet.from_dict("d", TABLE, ["a", "b", "c"], ["k"])


def fitted(estimator, method="predict"):
    source = data()
    graph = aa.ModelGraph([aa.ModelNode("m", aa.Estimator(estimator, method=method), source.reference())])
    graph.run(aa.FitPhase("fit", data=source), progress="none")
    return graph.run(aa.EvalPhase("all", data=source), progress="none").prediction("m")


def scaling(columns):
    return ColumnTransformer([("scaled", StandardScaler(), columns)], remainder="passthrough")


def test_columns_by_name_in_a_node_are_refused_before_anything_is_fitted_and_the_hint_works():
    with pytest.raises(EstimatorError) as caught:
        fitted(make_pipeline(scaling(["c", "a"]), LogisticRegression()))
    assert str(caught.value) == (
        "Pipeline of node 'm' chooses columns by name (c, a), but it gets an array, which has no names. "
        "Hint: choose them by their positions in the array: [2, 0] for ['c', 'a']."
    )
    right = make_pipeline(scaling([2, 0]), LogisticRegression())
    np.testing.assert_array_equal(fitted(right).ravel(), clone(right).fit(X, CLASSES).predict(X))


def test_columns_by_name_in_a_transform_are_refused_and_the_hint_works():
    with pytest.raises(TransformError, match=r"chooses columns by name, .* Hint: .* \[0, 1\] for \['a', 'b'\]"):
        data().fit_transform(scaling(["a", "b"]), ["a", "b", "c"], fit_on="all")
    source = data().fit_transform(scaling([0, 1]), ["a", "b", "c"], fit_on="all")
    expected = scaling([0, 1]).fit_transform(X)
    np.testing.assert_allclose(np.stack([source.array(name) for name in "abc"], axis=1), expected)


def test_columns_by_name_in_a_scaler_of_fit_are_refused_too():
    with pytest.raises(TransformError, match=r"chooses columns by name.* Hint: .* \[0\] for \['a'\]"):
        aa.fit(aa.SequentialMLP(2), TABLE, loss="cross_entropy", target="k", scaler=scaling("a"), progress="none")


TREE = DecisionTreeClassifier(random_state=0)
BASES = [("tree", TREE), ("linear", LogisticRegression())]


@pytest.mark.parametrize("method", ["predict", "predict_proba"])
@pytest.mark.parametrize(
    "estimator",
    [
        StackingClassifier(BASES),  # without an estimator that it ends with, it has predict when it is fitted
        StackingClassifier(BASES, final_estimator=LogisticRegression()),
        VotingClassifier(BASES, voting="soft"),
        GridSearchCV(LogisticRegression(), {"C": [0.1, 1.0]}, cv=2),
        CalibratedClassifierCV(LogisticRegression(), cv=2),
    ],
    ids=str,
)
def test_estimators_of_estimators_give_what_they_give_by_themselves(estimator, method):
    expected = getattr(clone(estimator).fit(X, CLASSES), method)(X)
    np.testing.assert_allclose(fitted(clone(estimator), method).reshape(expected.shape), expected, rtol=1e-6)


def test_a_stacking_regressor_without_a_last_estimator():
    estimator = StackingRegressor([("one", Ridge()), ("two", Ridge(10.0))])
    expected = clone(estimator).fit(X, CLASSES).predict(X)
    np.testing.assert_allclose(fitted(estimator).ravel(), expected, rtol=1e-5)


def test_a_pipeline_that_ends_without_predict_has_none():
    with pytest.raises(EstimatorError, match=r"Pipeline has no method 'predict'.* Available: transform"):
        fitted(make_pipeline(StandardScaler()))


# -- rows of another shape ---------------------------------------------------------------------------------------------


def test_rows_of_another_width_and_a_row_alone_are_refused_and_the_hint_works():
    rows = X.astype("float32")
    model = aa.fit(aa.SequentialMLP(1), (rows, rows[:, 0]), loss="mse", epochs=1, progress="none")
    with pytest.raises(
        ColumnError, match=r"float32\[2\] in these data; the graph was built for float32\[3\]\. Hint: pass"
    ) as wide:
        model.predict(rows[:, :2])
    assert str(wide.value).endswith("Hint: pass rows of this shape: an array of shape [rows, 3].")
    with pytest.raises(ColumnError, match=r"for a single row, pass x\[None\]\.$"):
        model.predict(rows[0])
    np.testing.assert_allclose(model.predict(rows[0][None]), model.predict(rows)[:1], rtol=1e-6)
