"""Estimators as nodes: which method computes the output, what it may return, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import anyaccel
from anyaccel import AppliedLoss
from anyaccel.data import FeatureSet
from anyaccel.errors import EstimatorError, GraphError, NoBackendError, PhaseError, SpecError
from anyaccel.graph import ModelGraph, ModelNode
from anyaccel.metrics import Metric
from anyaccel.metrics.classification import accuracy
from anyaccel.numpy_backend import Dense
from anyaccel.phases import EvalPhase, TrainPhase
from anyaccel_sklearn import Estimator, FitPhase
from anyaccel_sklearn.estimators import is_estimator


class Own:
    """An estimator whose method returns what a test says."""

    def __init__(self, gives):
        self.gives = gives

    def fit(self, features, targets=None):
        self.fitted_ = True

    def predict(self, features):
        return self.gives(features)


class Shift:
    """A transformer without targets."""

    def fit(self, features):
        self.mean_ = features.mean(axis=0)

    def transform(self, features):
        return features - self.mean_


@pytest.fixture
def fitted(data, experiment):
    """`fitted(estimator, metrics=...)` fits it in a graph of one node and evaluates over `val`."""

    def run(model, targets="c", **settings):
        graph = ModelGraph([ModelNode("est", model, data.reference(["x"], [targets]))])
        ours = experiment(graph)
        ours.run_phase(FitPhase("fit", data="train"))
        return ours.run_phase(EvalPhase("e", data="val", **settings))

    return run


# -- methods -----------------------------------------------------------------------------------------------------------


def test_estimator_is_public():
    assert anyaccel.Estimator is Estimator
    assert repr(Estimator(Own(None))) == "Estimator(Own)"
    assert repr(Estimator(Shift(), method="transform")) == "Estimator(Shift, method='transform')"


def test_a_transformer_is_fitted_without_targets_even_where_there_are_some(data, fitted):
    result = fitted(Estimator(Shift(), method="transform"))
    train, val = data["train"].array("x"), data["val"].array("x")
    np.testing.assert_allclose(result.prediction("est"), val - train.mean(axis=0), rtol=1e-5, atol=1e-6)


def test_any_method_may_be_named(fitted):
    class Distance(Shift):
        def distance(self, features):
            return np.linalg.norm(features - self.mean_, axis=1)

    assert fitted(Estimator(Distance(), "distance")).prediction("est").shape == (8,)


def test_a_transformer_feeds_a_model_that_is_trained(data, experiment):
    nodes = [
        ModelNode("shift", Estimator(Shift(), method="transform"), data.reference(["x"], ["y"])),
        ModelNode("net", Dense(1), "shift"),
    ]
    ours = experiment(ModelGraph(nodes, "adam"))
    ours.run_phase(FitPhase("fit", data="train"))
    result = ours.run_phase(TrainPhase("t", data="train", losses=[AppliedLoss("mse", on="net")], epochs=5))
    assert result.loss[-1] < result.loss[0]


def test_two_nodes_take_different_methods_of_one_estimator(data, experiment):
    class Both(Own):
        def fit(self, features, targets):
            self.times = getattr(self, "times", 0) + 1
            self.classes_ = np.unique(targets)

        def predict_proba(self, features):
            return np.full((len(features), len(self.classes_)), 1 / len(self.classes_))

    both, ref = Both(lambda x: np.zeros(len(x), int)), data.reference(["x"], ["c"])
    nodes = [ModelNode("class", both, ref), ModelNode("chance", Estimator(both, method="predict_proba"), ref)]
    graph = ModelGraph(nodes)
    ours = experiment(graph)
    fits = ours.run_phase(FitPhase("fit", data="train"))
    assert both.times == 1 and graph.frozen == ("class", "chance")
    assert [item.node for item in fits.fitted] == ["class", "chance"]
    result = ours.run_phase(EvalPhase("e", data="val"))
    assert result.prediction("class").shape == (8,) and result.prediction("chance").shape == (8, 3)


def test_one_estimator_with_two_inputs_is_refused(data, experiment):
    own = Own(lambda x: x[:, 0])
    nodes = [
        ModelNode("a", own, data.reference(["x"], ["y"])),
        ModelNode("b", own, "enc"),
        ModelNode("enc", Dense(2), data.reference(["x"], ["y"])),
    ]
    ours = experiment(ModelGraph(nodes))
    with pytest.raises(anyaccel.errors.PhaseError) as caught:
        ours.run_phase(FitPhase("fit", data="train"))
    assert str(caught.value) == (
        "phase 'fit' fits 'a' and 'b', which share one estimator but not their inputs. Hint: name the one to fit, "
        "nodes=['a'], or use a separate estimator for each."
    )


def test_floating_outputs_are_handed_on_in_the_dtype_that_is_asked_for(fitted):
    assert fitted(Own(lambda x: x[:, 0].astype("float64"))).prediction("est").dtype == np.float64
    asked = fitted(Estimator(Own(lambda x: x[:, 0].astype("float64")), output_dtype="float32"))
    assert asked.prediction("est").dtype == np.float32
    ints = fitted(Estimator(Own(lambda x: np.zeros(len(x), "int16")), output_dtype="float32"))
    assert ints.prediction("est").dtype == np.int16


# -- what is refused when it is made -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Estimator(Shift), r"Estimator takes an object, got the class Shift\. Hint: create one: Shift"),
        (
            lambda: Estimator(Shift()),
            r"Shift has no method 'predict' that could compute a node's output\. Available: transform\. Hint: name one",
        ),
        (lambda: Estimator(Shift(), "transfrom"), r"Available: transform\. Hint: did you mean 'transform'\?"),
        (lambda: Estimator(Shift(), "fit"), r"Shift has no method 'fit' that could compute a node's output"),
        (lambda: Estimator(Shift(), "__init__"), r"Shift has no method '__init__'"),
        (lambda: Estimator(Shift(), None), r"Shift has no method None"),
        (
            lambda: Estimator(object()),
            r"object has no method 'predict' that could compute a node's output\. Hint: pass an obj",
        ),
        (
            lambda: Estimator(Estimator(Shift(), "transform"), "transform"),
            r"Estimator\(Shift, method='transform'\) is already an Estimator\. Hint: pass the wrapped object",
        ),
        (
            lambda: Estimator(Shift(), "transform", output_dtype="int8"),
            r"output_dtype='int8' is not a floating dtype\. Available: float16, float32, float64",
        ),
    ],
)
def test_objects_that_are_not_estimators_are_refused(make, message):
    with pytest.raises(EstimatorError, match=message):
        make()


def test_an_object_that_only_predicts_cannot_be_fitted():
    class Oracle:
        def predict(self, features):
            return features

    with pytest.raises(
        EstimatorError, match=r"Oracle has neither fit nor partial_fit\. Available: predict\. Hint: add"
    ):
        Estimator(Oracle())
    assert not is_estimator(Oracle())


def test_the_error_for_fit_without_predict_says_what_to_write(data):
    graph = ModelGraph([ModelNode("scale", Shift(), data.reference(["x"], ["y"]))])
    with pytest.raises(EstimatorError) as caught:
        graph.build()
    assert str(caught.value) == (
        "node 'scale': Shift has fit, but no predict. Available: transform. "
        "Hint: pass Estimator(Shift(...), method='transform')."
    )


def test_an_object_that_can_only_be_fitted_computes_nothing(data):
    class Clusters:
        def fit_predict(self, features):
            return features

        def fit(self, features):
            pass

    with pytest.raises(
        EstimatorError,
        match=r"node 'e': Clusters has fit, but no predict\."
        r" Hint: fit_predict supports only the rows that it was fitted to: pass an object with fit and predict",
    ):
        ModelGraph([ModelNode("e", Clusters(), data.reference(["x"], ["y"]))]).build()


def test_an_object_without_any_estimator_method_has_no_owner(data):
    with pytest.raises(NoBackendError, match=r"node 'e': .*object"):
        ModelGraph([ModelNode("e", object(), data.reference(["x"], ["y"]))]).build()


# -- what is refused when it computes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gives", "message"),
    [
        (
            lambda x: np.full(len(x), "cat"),
            r"node 'est': Own\.predict returned text, such as 'cat', but a graph needs numbers\. Hint: fit it to "
            r"class indices 0, 1, 2, \.\.\. and store the names separately\.$",
        ),
        (lambda x: np.array(["a", None] * (len(x) // 2), object), r"returned text, such as 'a', but a graph"),
        (
            lambda x: [np.zeros((len(x), 2)), np.zeros((len(x), 3))],
            r"node 'est': Own\.predict returned a list of 2 arrays, one per target, but a node has one output\. "
            r"Hint: "
            r"fit an estimator for each target, or wrap it",
        ),
        (lambda x: None, r"Own\.predict returned a NoneType, not an array of numbers"),
        (lambda x: [[1], [2, 3]], r"Own\.predict returned a list, not an array of numbers"),
        (
            lambda x: np.zeros(len(x), complex),
            r"Own\.predict returned complex128, such as 0j, but a graph needs numbers",
        ),
        (
            lambda x: np.zeros(len(x), "datetime64[s]"),
            r"Own\.predict returned datetime64\[s\], such as .*, but a graph",
        ),
        (lambda x: np.zeros(len(x) + 1), r"Own\.predict returned shape \[3\] for 2 samples"),
    ],
)
def test_unsupported_outputs_are_refused_with_the_node(gives, message, data):
    own = Own(gives)
    own.fit(None)
    with pytest.raises(EstimatorError, match=message):
        ModelGraph([ModelNode("est", own, data.reference(["x"], ["y"]))]).build()


def test_text_classes_suggest_predict_proba(data):
    class Classes(Own):
        def predict_proba(self, features):
            return np.zeros((len(features), 2))

    own = Classes(lambda x: np.full(len(x), "cat"))
    own.fit(None)
    with pytest.raises(EstimatorError, match=r"or use Estimator\(\.\.\., method='predict_proba'\)"):
        ModelGraph([ModelNode("est", own, data.reference(["x"], ["y"]))]).build()
    graph = ModelGraph([ModelNode("est", Estimator(own, method="predict_proba"), data.reference(["x"], ["y"]))])
    assert graph.shapes.specs["est"].shape == (2,)


def test_missing_targets_of_an_estimator_are_an_error(data, experiment):
    class Needs(Own):
        def fit(self, features, targets):
            raise AssertionError("without targets?")

    graph = ModelGraph([ModelNode("est", Needs(lambda x: x), data.reference(["x"], []))])
    with pytest.raises(EstimatorError) as caught:
        experiment(graph).run_phase(FitPhase("fit", data="train"))
    assert str(caught.value) == (
        "Needs.fit takes targets, but its data have none. Hint: name target in the feature set, or "
        "columns in reference(target=[...])."
    )


def test_names_of_outputs_are_known_before_the_fit(data, experiment):
    node = ModelNode("est", Own(lambda x: x[:, :1]), data.reference(["x"], ["y"]), outputs=["first"])
    ours = experiment(ModelGraph([node]))
    ours.run_phase(FitPhase("fit", data="train"))
    assert list(ours.run_phase(EvalPhase("e", data="val")).predictions) == ["est.first"]


# -- classes -----------------------------------------------------------------------------------------------------------


def test_classes_keep_their_dtype_and_have_an_accuracy(data, fitted):
    result = fitted(Own(lambda x: np.ones(len(x), "int16")), metrics=["accuracy"])
    assert result.prediction("est").dtype == np.int16
    assert result.metrics["accuracy"] == np.mean(data["val"].array("c") == 1)


def test_accuracy_refuses_class_indices_without_a_score():
    with pytest.raises(SpecError) as caught:
        accuracy(np.zeros((3, 2)), np.array([1, 2, 2]))
    assert str(caught.value) == (
        "accuracy: the targets have class index 2, but there are 2 scores per sample. Available: 0 to 1. "
        "Hint: to ignore it, write Metric('accuracy', ignore_index=2); otherwise number the classes from 0."
    )


# -- configuration and state -------------------------------------------------------------------------------------------


def test_a_configuration_holds_no_estimator_and_says_which_node_lacks_it(data):
    graph = ModelGraph([ModelNode("est", Estimator(Shift(), "transform"), data.reference(["x"], ["y"]))])
    graph.build()
    config = graph.get_config()
    assert config["nodes"][0]["model"] is None
    with pytest.raises(anyaccel.errors.ConfigError, match=r"est.*models="):
        ModelGraph.from_config(config, feature_sets=[data])
    again = ModelGraph.from_config(config, feature_sets=[data], models={"est": Estimator(Shift(), "transform")})
    assert again["est"].model.method == "transform"


def test_a_state_holds_no_estimator_and_what_needs_one_says_so(data, experiment):
    def make():
        nodes = [ModelNode("enc", Dense(2), data.reference(["x"], ["y"])), ModelNode("est", Own(lambda x: x), "enc")]
        return ModelGraph(nodes)

    graph, other = make(), make()
    experiment(graph).run_phase(FitPhase("fit", data="train"))
    state = graph.state()
    assert sorted(state) == ["enc/parameters/bias", "enc/parameters/weight", "seed"]
    other.load_state(state)
    with pytest.raises(anyaccel.errors.PhaseError) as caught:
        experiment(other).run_phase(EvalPhase("e", data="val"))
    assert str(caught.value) == (
        "phase 'e' needs 'est', an estimator that is not fitted. Hint: run a FitPhase first, "
        "FitPhase('fit', data=..., nodes='est'); a loaded state or configuration has no estimators."
    )


# -- with scikit-learn -------------------------------------------------------------------------------------------------


@pytest.fixture
def classes():
    """Two clouds of points, class 0 and class 1."""
    draw = np.random.default_rng(0)
    y = np.arange(60) % 2
    x = draw.normal(size=(60, 4)) + 3 * y[:, None]
    fs = FeatureSet.from_dict("points", {"x": x.astype("float32"), "c": y}, ["x"], ["c"])
    fs.split_random({"train": 0.5, "test": 0.5}, seed=0)
    return fs


def test_a_scaler_an_analysis_and_a_classifier_in_one_fit(classes, experiment):
    sklearn = pytest.importorskip("sklearn")
    from sklearn.decomposition import PCA
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    head = LogisticRegression()
    nodes = [
        ModelNode("class", head, "pca"),
        ModelNode("chance", Estimator(head, method="predict_proba"), "pca"),
        ModelNode("score", Estimator(head, method="decision_function"), "pca"),
        ModelNode("pca", Estimator(PCA(2), method="transform"), "scaler"),
        ModelNode("scaler", Estimator(StandardScaler(), method="transform"), classes.reference()),
    ]
    graph = ModelGraph(nodes)
    ours = experiment(graph)
    fits = ours.run_phase(FitPhase("fit", data="train"))
    assert [element.node for element in fits.fitted] == ["scaler", "pca", "class", "chance", "score"]
    metrics = [Metric("accuracy", on=name, label=name) for name in ("class", "chance", "score")]
    result = ours.run_phase(EvalPhase("e", data="test", metrics=metrics))
    assert result.metrics["class"] == result.metrics["chance"] == result.metrics["score"] > 0.9
    pipeline = sklearn.pipeline.make_pipeline(StandardScaler(), PCA(2), LogisticRegression())
    pipeline.fit(classes["train"].array("x"), classes["train"].array("c"))
    expected = pipeline.predict_proba(classes["test"].array("x"))
    np.testing.assert_allclose(result.prediction("chance"), expected, rtol=1e-3, atol=1e-4)


def test_a_list_of_arrays_from_sklearn_is_refused(classes):
    pytest.importorskip("sklearn")
    from sklearn.ensemble import RandomForestClassifier

    forest = RandomForestClassifier(3, random_state=0)
    forest.fit(np.zeros((4, 4)), np.array([[0, 1], [1, 0], [0, 0], [1, 1]]))
    graph = ModelGraph([ModelNode("f", Estimator(forest, method="predict_proba"), classes.reference())])
    with pytest.raises(
        EstimatorError, match=r"node 'f': RandomForestClassifier\.predict_proba returned a list of 2 arr"
    ):
        graph.build()


def test_methods_that_sklearn_hides_are_explained():
    pytest.importorskip("sklearn")
    from sklearn.linear_model import SGDClassifier

    with pytest.raises(EstimatorError, match=r"no method 'predict_proba'.* Available: predict, decision_function"):
        Estimator(SGDClassifier(loss="hinge"), method="predict_proba")


def test_sklearn_pipelines_and_grids_are_estimators(classes, experiment):
    pytest.importorskip("sklearn")
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    grid = GridSearchCV(
        make_pipeline(StandardScaler(), LogisticRegression()), {"logisticregression__C": [0.1, 1]}, cv=2
    )
    ours = experiment(ModelGraph([ModelNode("grid", grid, classes.reference())]))
    ours.run_phase(FitPhase("fit", data="train"))
    assert ours.run_phase(EvalPhase("e", data="test", metrics=["accuracy"])).metrics["accuracy"] > 0.9


def test_an_error_of_the_estimator_is_kept_with_the_node(data):
    pytest.importorskip("sklearn")
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(np.zeros((3, 5)))
    graph = ModelGraph([ModelNode("s", Estimator(scaler, method="transform"), data.reference(["x"], ["y"]))])
    with pytest.raises(GraphError, match=r"node 's' does not accept float32\[3\] from data\.x: .*expecting 5 features"):
        graph.build()


# -- what estimators do to memory, and what is left of one that failed -------------------------------------------------


class InPlace(Shift):
    """A transformer that writes to its input, as those of scikit-learn do with `copy=False`."""

    def transform(self, features):
        features -= self.mean_
        features *= 100
        return features


class Sum:
    def fit(self, features, targets):
        self.seen_ = features.copy()

    def predict(self, features):
        return features.sum(axis=1)


def test_an_estimator_that_writes_to_its_input_changes_nothing_else(data, experiment):
    nodes = [
        ModelNode("first", Estimator(Shift(), method="transform"), data.reference(["x"], ["c"])),
        ModelNode("writer", Estimator(InPlace(), method="transform"), "first"),
        ModelNode("again", Estimator(InPlace(), method="transform"), "first"),
        ModelNode("sum", Sum(), "first"),
    ]
    ours = experiment(ModelGraph(nodes))
    ours.run_phase(FitPhase("fit", data="train"))
    x = data["train"].array("x")
    assert np.allclose(
        nodes[3].model.estimator.seen_, x.reshape(len(x), -1) - x.reshape(len(x), -1).mean(axis=0), atol=1e-6
    )
    labels = [node.label for node in nodes]
    done = ours.run_phase(EvalPhase("e", data="val", outputs=labels))
    shifted = data["val"].array("x").reshape(len(data["val"]), -1) - x.reshape(len(x), -1).mean(axis=0)
    assert np.allclose(done.prediction("first"), shifted, atol=1e-5)
    assert np.allclose(done.prediction("sum").ravel(), shifted.sum(axis=1), atol=1e-5)
    assert np.array_equal(done.prediction("writer"), done.prediction("again"))


class Fails(Own):
    """Fails when attributes of a fitted estimator are already set."""

    failing = True

    def fit(self, features, targets=None):
        self.coef_ = 1
        if self.failing:
            raise ValueError("no convergence")


def test_an_estimator_whose_fit_failed_counts_as_not_fitted(data, experiment):
    estimator = Fails(lambda features: np.zeros(len(features)))
    graph = ModelGraph([ModelNode("est", estimator, data.reference(["x"], ["c"]))])
    ours = experiment(graph)
    with pytest.raises(ValueError, match="no convergence") as caught:
        ours.run_phase(FitPhase("fit", data="train"))
    assert caught.value.__notes__ == [f"while node 'est' was fitted to {len(data['train'])} rows"]
    with pytest.raises(PhaseError, match="needs 'est', an estimator that is not fitted"):
        ours.run_phase(EvalPhase("e", data="val", outputs=["est"]))
    estimator.failing = False
    assert ours.run_phase(FitPhase("fit", data="train")).nodes == ("est",)
    assert ours.run_phase(EvalPhase("e", data="val", outputs=["est"])).prediction("est").any() == np.False_


def test_a_failed_refit_does_not_count_as_fitted(data, experiment):
    estimator = Fails(lambda features: np.zeros(len(features)))
    estimator.failing = False
    ours = experiment(ModelGraph([ModelNode("est", estimator, data.reference(["x"], ["c"]))]))
    ours.run_phase(FitPhase("fit", data="train"))
    estimator.failing = True
    with pytest.raises(ValueError, match="no convergence"):
        ours.run_phase(FitPhase("fit", data="train", nodes=["est"]))
    with pytest.raises(PhaseError, match="needs 'est', an estimator that is not fitted"):
        ours.run_phase(EvalPhase("e", data="val", outputs=["est"]))


def test_a_fit_of_no_nodes_says_so(data, experiment):
    ours = experiment(ModelGraph([ModelNode("est", Own(None), data.reference(["x"], ["c"]))]))
    with pytest.raises(PhaseError, match=r"has nothing to fit; nodes=\[\] names no nodes\. Hint: set nodes="):
        ours.run_phase(FitPhase("fit", data="train", nodes=[]))


def test_an_output_dtype_that_cannot_hold_the_numbers_is_refused(fitted):
    with pytest.raises(EstimatorError, match=r"numbers that are too large for output_dtype='float32'.* Hint: leave"):
        fitted(Estimator(Own(lambda x: np.full(len(x), 1e300)), output_dtype="float32"))
