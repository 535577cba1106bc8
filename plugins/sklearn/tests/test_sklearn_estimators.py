"""Every estimator of scikit-learn that takes a table of numbers, in a graph: what it gives by itself, or a refusal."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from anyaccel import Estimator, EvalPhase, Experiment, FeatureSet, FitPhase, ModelGraph, ModelNode
from anyaccel.errors import EstimatorError, ShapeError

pytest.importorskip("sklearn")

from sklearn.base import clone, is_classifier, is_regressor
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import BaggingClassifier, StackingClassifier, VotingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import OneHotEncoder, PolynomialFeatures, StandardScaler
from sklearn.utils import all_estimators, get_tags

random = np.random.default_rng(0)
N = 60
X = np.abs(random.normal(size=(N, 6))).round(1) + 0.1
CLASSES = np.arange(N) % 3
NUMBERS = X[:, 0] * 2 + X[:, 1] + 0.1 * random.random(N)

METHODS = ("predict", "transform", "predict_proba", "decision_function", "score_samples")

# What the classes with required arguments are given, by the names of these.
ARGUMENTS: dict[str, Callable[[type], Any]] = {
    "estimator": lambda cls: Ridge() if "Regressor" in cls.__name__ else LogisticRegression(),
    "estimators": lambda cls: (
        [("a", Ridge()), ("b", Ridge(2.0))]
        if "Regressor" in cls.__name__
        else [("a", LogisticRegression()), ("b", LogisticRegression(C=0.1))]
    ),
    "transformer_list": lambda cls: [("a", StandardScaler()), ("b", PolynomialFeatures())],
    "transformers": lambda cls: [("a", StandardScaler(), [0, 1]), ("b", OneHotEncoder(handle_unknown="ignore"), [2])],
    "steps": lambda cls: [("a", StandardScaler()), ("b", LogisticRegression())],
    "param_grid": lambda cls: {"C": [0.1, 1.0]},
    "param_distributions": lambda cls: {"C": [0.1, 1.0]},
    "dictionary": lambda cls: np.eye(6),
}
# Fewer iterations than by default, for speed alone; and sizes that fit this table.
SETTINGS: dict[str, dict[str, Any]] = {
    "CCA": {"n_components": 1},
    "ClassifierChain": {"estimator": LogisticRegression()},  # has a default in scikit-learn 1.8
    "DictionaryLearning": {"max_iter": 3},
    "GaussianRandomProjection": {"n_components": 3},
    "HalvingRandomSearchCV": {"min_resources": 30},
    "MiniBatchDictionaryLearning": {"max_iter": 3},
    "PLSCanonical": {"n_components": 1},
    "PLSSVD": {"n_components": 1},
    "RandomizedSearchCV": {"n_iter": 2},
    "RegressorChain": {"estimator": Ridge()},
    "SelfTrainingClassifier": {"estimator": LogisticRegression()},
    "SparseRandomProjection": {"n_components": 3},
    **{name: {"n_estimators": 5} for name in ("GradientBoostingClassifier", "RandomForestClassifier")},
    **{name: {"n_estimators": 5} for name in ("RandomForestRegressor", "IsolationForest", "RandomTreesEmbedding")},
}
TWO_CLASSES = {"FixedThresholdClassifier", "TunedThresholdClassifierCV"}
TWO_TARGETS = {
    *("MultiTaskElasticNet", "MultiTaskElasticNetCV", "MultiTaskLasso", "MultiTaskLassoCV"),
    *("MultiOutputClassifier", "MultiOutputRegressor", "ClassifierChain", "RegressorChain"),
}


def made(cls: type) -> Any:
    """An estimator of a class, with what it requires."""
    parameters = inspect.signature(cls).parameters
    required = [name for name, p in parameters.items() if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    settings = {name: ARGUMENTS[name](cls) for name in required}
    settings |= {"random_state": 0} if "random_state" in parameters else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # some classes will go
        return cls(**{**settings, **SETTINGS.get(cls.__name__, {})})


def takes_a_table(cls: type) -> bool:
    tags = get_tags(made(cls)).input_tags
    return tags.two_d_array and not tags.pairwise and cls.__name__ not in ("KernelCenterer", "FrozenEstimator")


def targets_of(name: str, estimator: Any) -> np.ndarray:
    if name in TWO_TARGETS:
        both = [CLASSES, CLASSES[::-1]] if is_classifier(estimator) else [NUMBERS, NUMBERS**2]
        return np.stack(both, axis=1)
    if name in TWO_CLASSES:
        return CLASSES % 2
    return NUMBERS if is_regressor(estimator) else CLASSES


def output(estimator: Any, method: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """What a node with an estimator gives once a FitPhase has fitted it, where there is anything to fit."""
    node = Estimator(estimator, method=method)
    data = FeatureSet.from_dict("data", {"x": x, "y": y}, ["x"], ["y"])
    experiment = Experiment("e", ModelGraph([ModelNode("node", node, data.reference())]), progress="none")
    if not node.is_fitted:
        experiment.run_phase(FitPhase("fit", data="all"))
    return np.asarray(experiment.run_phase(EvalPhase("look", data="all", outputs=["node"])).prediction("node"))


@pytest.fixture(scope="module")
def table() -> dict[str, type]:
    """The estimators that take a table of numbers, by name; finding them imports all of scikit-learn."""
    return {name: cls for name, cls in all_estimators() if takes_a_table(cls)}


def has_method(cls: type) -> bool:
    return any(hasattr(made(cls), method) for method in METHODS)


def difference(cls: type, method: str) -> str:
    """In what a node differs from its estimator by itself, both fitted to the same table; `""` where in nothing."""
    own = made(cls)
    y = targets_of(cls.__name__, own)
    own.fit(X, y)
    expected = getattr(own, method)(X)
    expected = expected.toarray() if hasattr(expected, "toarray") else np.asarray(expected)
    try:
        actual = output(made(cls), method, X, y)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if actual.shape != expected.shape:
        return f"shape {actual.shape}, not {expected.shape}"
    return "" if np.allclose(actual, expected, rtol=1e-6, atol=1e-9) else "other numbers"


def test_a_node_gives_what_the_estimator_gives_by_itself(table: dict[str, type]) -> None:
    compared, differences = 0, {}
    for name, cls in table.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", (ConvergenceWarning, FutureWarning, RuntimeWarning, UserWarning))
            for method in (method for method in METHODS[:2] if hasattr(made(cls), method)):
                compared += 1
                differences[f"{name}.{method}"] = difference(cls, method)
    assert {name: reason for name, reason in differences.items() if reason} == {}
    assert compared > 160


def test_an_estimator_without_a_method_for_new_rows_is_refused_with_the_reason(table: dict[str, type]) -> None:
    refused = {name: made(cls) for name, cls in table.items() if not has_method(cls)}
    assert {"DBSCAN", "MDS", "NearestNeighbors"} <= refused.keys() and len(refused) < 25
    data = FeatureSet.from_dict("data", {"x": X, "y": CLASSES}, ["x"], ["y"])
    for name, estimator in refused.items():
        knows = next((method for method in ("fit_predict", "fit_transform") if hasattr(estimator, method)), "")
        reason = (f"{knows} supports only the rows that it was fitted to: " if knows else "") + "pass an object"
        with pytest.raises(EstimatorError, match=f"{name} has .*no predict.*Hint: {reason} with fit and predict"):
            ModelGraph([ModelNode("node", estimator, data.reference())]).build()
        with pytest.raises(EstimatorError, match=f"{name} has no method 'fit_predict'.*Hint: {reason}"):
            Estimator(estimator, method="fit_predict")


KINDS = random.integers(3, 6, size=(N, 2)).astype("float64")


@pytest.mark.parametrize(
    "make",
    [
        OneHotEncoder,
        lambda: OneHotEncoder(sparse_output=False),
        lambda: make_pipeline(OneHotEncoder(), StandardScaler(with_mean=False)),
        lambda: FeatureUnion([("kinds", OneHotEncoder()), ("numbers", StandardScaler())]),
        lambda: ColumnTransformer([("kinds", OneHotEncoder(), [0]), ("numbers", StandardScaler(), [1])]),
    ],
)
def test_encoders_widen_a_table_in_which_zero_is_no_category(make: Callable[[], Any]) -> None:
    expected = make().fit_transform(KINDS)
    expected = expected.toarray() if hasattr(expected, "toarray") else expected
    np.testing.assert_array_equal(output(make(), "transform", KINDS, CLASSES), expected)
    encoder, head = make(), LogisticRegression()
    data = FeatureSet.from_dict("data", {"x": KINDS, "y": CLASSES}, ["x"], ["y"])
    nodes = [
        ModelNode("encoder", Estimator(encoder, method="transform"), data.reference()),
        ModelNode("class", head, "encoder"),
    ]
    experiment = Experiment("e", ModelGraph(nodes), progress="none")
    experiment.run_phase(FitPhase("fit", data="all"))
    np.testing.assert_allclose(head.coef_, LogisticRegression().fit(expected, CLASSES).coef_)


def test_an_encoder_that_was_fitted_elsewhere_says_that_it_refuses_zeros() -> None:
    data = FeatureSet.from_dict("data", {"x": KINDS, "y": CLASSES}, ["x"], ["y"])
    fitted = OneHotEncoder().fit(KINDS)
    nodes = [ModelNode("encoder", Estimator(fitted, method="transform"), data.reference())]
    with pytest.raises(ShapeError, match=r"unknown categories .*Hint: it was tried with zeros: pass it un.*clone"):
        ModelGraph(nodes).build()
    np.testing.assert_array_equal(output(clone(fitted), "transform", KINDS, CLASSES), fitted.transform(KINDS).toarray())


@pytest.mark.parametrize(
    "outer",
    [
        lambda inner: StackingClassifier([("a", inner), ("b", GaussianNB())]),
        lambda inner: VotingClassifier([("a", inner)]),
        lambda inner: make_pipeline(StandardScaler(), inner),
        lambda inner: GridSearchCV(inner, {}),
        lambda inner: BaggingClassifier(inner, random_state=0),
        lambda inner: make_pipeline(StandardScaler(), VotingClassifier([("a", inner)])),
    ],
)
def test_an_estimator_of_a_node_within_one_of_scikit_learn_is_refused(outer):
    with pytest.raises(
        EstimatorError,
        match=r" contains Estimator\(LogisticRegression\), which scikit-learn cannot copy and fit\. "
        r"Hint: pass the estimator directly: LogisticRegression\(\.\.\.\) without Estimator\(\.\.\.\)\.",
    ):
        Estimator(outer(Estimator(LogisticRegression())))
    data = FeatureSet.from_dict("d", {"x": X, "y": CLASSES}, ["x"], ["y"])
    right = outer(LogisticRegression())  # the hint
    graph = ModelGraph([ModelNode("net", right, data.reference())])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        Experiment(graph, progress="none").run_phase(FitPhase("fit", data=data))
        alone = clone(right).fit(X, CLASSES)
    assert np.array_equal(right.predict(X), alone.predict(X))
