"""FitPhase: estimators are fitted once to whole columns and frozen. NumPy is the only framework here."""

from __future__ import annotations

import numpy as np
import pytest

from anyaccel import AppliedLoss
from anyaccel.data import FeatureSet
from anyaccel.errors import ColumnError, FallbackWarning, GraphError, PhaseError
from anyaccel.experiment import Experiment
from anyaccel.graph import ConcatNode, ModelGraph, ModelNode
from anyaccel.hookspecs import hookimpl
from anyaccel.metrics import Metric
from anyaccel.numpy_backend import Dense, SequentialMLP
from anyaccel.phases import Callback, EvalPhase, Run, TrainPhase, execute
from anyaccel.plugin_testing import TinyBackend
from anyaccel_sklearn import FitPhase
from anyaccel_sklearn.estimators import Estimator, is_estimator

MSE = AppliedLoss("mse", on="net")


class LeastSquares:
    """The shortest estimator with targets."""

    def fit(self, features, targets):
        self.seen = features, targets
        self.weights = np.linalg.lstsq(_with_one(features), targets, rcond=None)[0]
        return self

    def predict(self, features):
        return _with_one(features) @ self.weights


class Centre:
    """A transformer without targets: the distance from the mean."""

    def fit(self, features):
        self.mean_ = features.mean(axis=0)

    def predict(self, features):
        return np.linalg.norm(features - self.mean_, axis=1, keepdims=True)


def _with_one(features):
    return np.concatenate([features, np.ones((len(features), 1), features.dtype)], axis=1)


def fit(graph, **settings):
    """Run a FitPhase on the split `train`."""
    run = Run(FitPhase(settings.pop("label", "fit"), **{"data": "train", **settings}), graph)
    execute(run)
    return run


@pytest.fixture
def straight(data):
    """An estimator on the features."""
    return ModelGraph([ModelNode("est", LeastSquares(), data.reference(["x"], ["y"]))], "adam")


@pytest.fixture
def behind(data):
    """An estimator, and a head that is trained, on one encoder."""
    nodes = [
        ModelNode("enc", SequentialMLP((4,), 2, 5, "tanh"), data.reference(["x"], ["y"])),
        ModelNode("est", LeastSquares(), "enc"),
        ModelNode("net", Dense(1), "enc"),
    ]
    return ModelGraph(nodes, "adam")


# -- on data -----------------------------------------------------------------------------------------------------------


def test_an_estimator_is_fitted_to_the_whole_split(data, straight):
    fit(straight)
    features, targets = straight["est"].model.estimator.seen
    np.testing.assert_array_equal(features, data["train"].array("x"))
    np.testing.assert_array_equal(targets, data["train"].array("y").ravel())


def test_a_fitted_node_is_frozen_and_predicts(data, straight, experiment):
    assert straight.frozen == ()
    fit(straight)
    assert straight.frozen == ("est",)
    result = experiment(straight).run_phase(EvalPhase("e", data="val", metrics=["mse"], batch_size=3))
    wanted = straight["est"].model.estimator.predict(data["val"].array("x"))
    np.testing.assert_allclose(result.prediction("est"), wanted, rtol=1e-5)
    assert result.metrics["mse"] == pytest.approx(np.mean((wanted - data["val"].array("y").ravel()) ** 2), rel=1e-5)
    assert result.metrics["mse"] < 0.1


def test_an_experiment_runs_a_fit_on_data(data, straight):
    ours = Experiment("e", straight, progress="none")
    result = ours.run_phase(FitPhase("fit", data=data))
    assert result.error is None and np.isnan(result.loss) and result.predictions == {}


def test_estimators_without_targets_are_fitted_without(data, experiment):
    graph = ModelGraph([ModelNode("est", Centre(), data.reference(["x"], []))])
    fit(graph)
    np.testing.assert_allclose(graph["est"].model.estimator.mean_, data["train"].array("x").mean(axis=0), rtol=1e-6)
    assert experiment(graph).run_phase(EvalPhase("e", data="val")).prediction("est").shape == (8, 1)


def test_several_inputs_are_flattened_and_joined(data, table):
    other = table(24, "other", seed=4)
    other.add_split("train", np.arange(16))
    refs = [data.reference(["x"], ["y"]), other.reference(["x"], [])]
    graph = ModelGraph([ModelNode("est", LeastSquares(), refs)])
    fit(graph)
    features, _ = graph["est"].model.estimator.seen
    joined = np.concatenate([data["train"].array("x"), other["train"].array("x")], axis=1)
    np.testing.assert_array_equal(features, joined)


def test_several_estimators_are_fitted_in_one_phase(data):
    ref = data.reference(["x"], ["y"])
    graph = ModelGraph([ModelNode("one", LeastSquares(), ref), ModelNode("two", Centre(), data.reference(["x"], []))])
    fit(graph)
    assert graph.frozen == ("one", "two")
    assert graph.shapes.outputs == {"one": ("one",), "two": ("two",)}


def test_columns_that_are_fitted_to_cannot_be_written(data):
    class Writer(LeastSquares):
        def fit(self, features, targets):
            features[:] = 0

    graph = ModelGraph([ModelNode("est", Writer(), data.reference(["x"], ["y"]))])
    before = data.array("x").copy()
    with pytest.raises(ValueError, match="read-only"):
        fit(graph)
    np.testing.assert_array_equal(data.array("x"), before)
    assert graph.frozen == () and not graph["est"].model.is_fitted


# -- behind models -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [None, "sim:0"])
@pytest.mark.parametrize("batch", [3, 1024])
@pytest.mark.usefixtures("sims")
def test_an_estimator_is_fitted_behind_a_trained_encoder(where, batch, data, behind, experiment):
    ours = experiment(behind)
    ours.run_phase(TrainPhase("t", data="train", losses=[MSE], epochs=3, accelerator=where))
    before = behind.state()
    ours.run_phase(FitPhase("fit", data="train", accelerator=where, batch_size=batch))
    after = behind.state()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    ours.run_phase(EvalPhase("home", data="val", outputs=["enc"]))
    features = behind["enc"].model(data["train"].array("x"))
    np.testing.assert_allclose(behind["est"].model.estimator.seen[0], features, rtol=1e-5, atol=1e-6)
    phase = EvalPhase("e", data="val", metrics=[Metric("mse", on="est")], accelerator=where, batch_size=3)
    result = ours.run_phase(phase)
    assert list(result.predictions) == ["est", "net"]
    wanted = behind["est"].model.estimator.predict(coded(behind, data))
    np.testing.assert_allclose(result.prediction("est"), wanted, rtol=1e-4, atol=1e-5)


def coded(graph, data):
    model = graph["enc"].model
    values = {name: np.asarray(array) for name, array in model.parameters.items()}
    return model.apply(values, (data["val"].array("x"),), train=False, key=0).outputs[0]


def test_training_goes_on_beside_a_fitted_estimator(behind, experiment):
    """A loss on the head trains the encoder; the estimator is not called."""
    ours = experiment(behind)
    ours.run_phase(FitPhase("fit", data="train"))
    ours.run_phase(TrainPhase("t", data="train", losses=[MSE], epochs=2))
    assert behind.optimizer_states["enc"].step == behind.optimizer_states["net"].step == 2


def test_a_model_may_follow_a_fitted_estimator(sims, data, experiment):
    """Also where the device is another one: the estimator computes on the host, its output goes where the node is."""
    graph = ModelGraph([ModelNode("est", Rotate(), data.reference(["x"], ["y"]))], "adam")
    fit(graph)
    graph.add_node(ModelNode("net", Dense(1), "est"))
    ours = experiment(graph)
    for where in ("sim:0", None, "sim:1"):
        result = ours.run_phase(TrainPhase("t", data="train", losses=[MSE], accelerator=where, epochs=3))
        assert result.loss[-1] < result.loss[0]
        assert str(result.plan.device("est")) == (where or "cpu:0")
    assert sims[0].used == 0


class Rotate:
    def fit(self, features, targets):
        self.by_ = np.eye(3, dtype="float32")[[2, 0, 1]]

    def predict(self, features):
        return features @ self.by_


def test_a_concat_node_joins_an_estimator_with_a_model(data, experiment):
    graph = ModelGraph([ModelNode("est", Rotate(), data.reference(["x"], ["y"]))], "adam")
    fit(graph)
    graph.add_node(ModelNode("own", Dense(2), data.reference(["x"], ["y"])))
    graph.add_node(ConcatNode("both", ["est", "own"]))
    graph.add_node(ModelNode("net", Dense(1), "both"))
    result = experiment(graph).run_phase(TrainPhase("t", data="train", losses=[MSE], epochs=4))
    assert result.loss[-1] < result.loss[0]
    assert sorted(graph.optimizer_states) == ["net", "own"]


def test_predictions_do_not_share_memory_that_an_estimator_reuses(data, experiment):
    class Reuser(LeastSquares):
        buffer = np.zeros(4)

        def predict(self, features):
            self.buffer[: len(features)] = features[:, 0]
            return self.buffer[: len(features)]

    graph = ModelGraph([ModelNode("est", Reuser(), data.reference(["x"], ["y"]))])
    fit(graph)
    result = experiment(graph).run_phase(EvalPhase("e", data="val", batch_size=4))
    np.testing.assert_allclose(result.prediction("est"), data["val"].array("x")[:, 0], rtol=1e-6)


# -- fitting again, and what counts as fitted --------------------------------------------------------------------------


def test_fitted_estimators_are_not_fitted_again_unless_named(data, straight):
    fit(straight)
    first = straight["est"].model.estimator.weights
    with pytest.raises(PhaseError, match="phase 'fit' has nothing to fit"):
        fit(straight)
    assert straight["est"].model.estimator.weights is first
    for nodes in (["est"], "est"):
        fit(straight, nodes=nodes, data="val")
        assert len(straight["est"].model.estimator.seen[0]) == 8


def test_only_the_nodes_that_are_named_are_fitted(data):
    graph = ModelGraph([ModelNode(name, LeastSquares(), data.reference(["x"], ["y"])) for name in ("one", "two")])
    fit(graph, nodes=["two"])
    assert graph.frozen == ("two",)
    fit(graph)
    assert graph.frozen == ("one", "two")


def test_estimators_that_come_fitted_need_no_phase(data, experiment):
    centre = Centre()
    centre.fit(data.array("x"))
    graph = ModelGraph([ModelNode("est", centre, data.reference(["x"], []))])
    assert experiment(graph).run_phase(EvalPhase("e", data="val")).prediction("est").shape == (8, 1)


@pytest.mark.parametrize("answer", [True, False])
def test_sklearn_is_fitted_decides_whether_an_estimator_is_fitted(answer):
    class Says(LeastSquares):
        steps_ = "an attribute that proves nothing"

        def __sklearn_is_fitted__(self):
            return answer

    assert Estimator(Says()).is_fitted is answer


def test_estimators_with_slots_are_supported():
    class Slotted:
        __slots__ = ("value",)

        def fit(self, features, targets):
            self.value = targets.mean()

        def predict(self, features):
            return np.full(len(features), self.value)

    estimator = Estimator(Slotted())
    assert not estimator.is_fitted
    estimator.fit([np.zeros((2, 1))], np.ones(2))
    assert estimator.is_fitted


def test_an_estimator_is_an_object_with_fit_and_predict():
    assert is_estimator(LeastSquares())
    assert not is_estimator(LeastSquares)
    assert not is_estimator(Dense(1))


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_estimators_before_a_fitted_node_must_be_fitted(data, experiment):
    nodes = [
        ModelNode("first", Rotate(), data.reference(["x"], ["y"])),
        ModelNode("second", LeastSquares(), "first"),
        ModelNode("net", Dense(1), "first"),
    ]
    ours = experiment(ModelGraph(nodes, "adam"))
    assert ours.graph.shapes.unfitted == ("first", "second")
    with pytest.raises(PhaseError) as caught:
        fit(ours.graph, nodes="second")
    assert str(caught.value) == (
        "phase 'fit' fits 'second', but 'second' needs 'first', an estimator that is not fitted. "
        "Hint: name it too, nodes=['first', 'second']."
    )
    with pytest.raises(PhaseError, match=r"phase 'e' needs 'first', an estimator that is not fitted"):
        ours.run_phase(EvalPhase("e", data="val", outputs=["first"]))
    with pytest.raises(PhaseError, match=r"needs 'net', which depends on 'first', an estimator that is not fitted"):
        ours.run_phase(TrainPhase("t", data="train", losses=[MSE]))
    fit(ours.graph, nodes="first")
    ours.run_phase(TrainPhase("t", data="train", losses=[MSE]))


class Double:
    """Doubles its input; returns one column fewer after every fit."""

    keep = 3

    def fit(self, features):
        self.keep_, Double.keep = self.keep, self.keep - 1

    def predict(self, features):
        return 2 * features[:, : self.keep_]


@pytest.fixture
def chain(data, monkeypatch):
    """An estimator behind a model behind an estimator behind an estimator, the last one first."""
    monkeypatch.setattr(Double, "keep", 3)
    nodes = [
        ModelNode("last", LeastSquares(), "enc"),
        ModelNode("enc", Dense(4), "second"),
        ModelNode("second", Centre3(), "first"),
        ModelNode("first", Double(), data.reference(["x"], ["y"])),
    ]
    return ModelGraph(nodes)


class Centre3(Centre):
    def predict(self, features):
        return features - self.mean_


@pytest.mark.parametrize("where", [None, "sim:1"])
def test_estimators_that_depend_on_each_other_are_fitted_in_their_order(where, sims, data, chain, experiment):
    run = fit(chain, accelerator=where)
    assert [(item.node, item.estimator, item.rows) for item in run.fitted] == [
        ("first", "Double", 16),
        ("second", "Centre3", 16),
        ("last", "LeastSquares", 16),
    ]
    x = 2 * data["train"].array("x")
    np.testing.assert_allclose(chain["second"].model.estimator.mean_, x.mean(axis=0), rtol=1e-5)
    coded = chain["enc"].model(x - x.mean(axis=0)) if where is None else None
    if coded is not None:
        np.testing.assert_allclose(chain["last"].model.estimator.seen[0], coded, rtol=1e-4, atol=1e-5)
    assert [assignment.node for assignment in run.plan.assignments] == ["first", "second", "enc"]
    assert experiment(chain).run_phase(EvalPhase("e", data="val")).prediction("last").shape == (8,)
    assert sims[0].used == 0


def test_hooks_get_the_plan_of_each_round_of_a_fit(chain):
    seen = []

    class Spy(Callback):
        def phase_start(self, phase):
            seen.append("start")

        def before_placement(self, plan):
            seen.append([value_.node for value_ in plan.assignments])

        def phase_end(self, error):
            seen.append("end")

    fit(chain, callbacks=[Spy()])
    assert seen == ["start", [], ["first"], ["first", "second", "enc"], "end"]


def test_estimators_that_depend_on_each_other_are_refitted_together(data, chain):
    """What the second was fitted to before does not fit what the first gives now, and does not matter."""
    fit(chain)
    assert chain.shapes.specs["second"].shape == (3,)
    chain.remove_node("last")
    chain.remove_node("enc")
    run = fit(chain, nodes=["second", "first"])
    assert [element.node for element in run.fitted] == ["first", "second"]
    assert chain.shapes.specs["second"].shape == (2,)
    assert not any(chain[label].model.awaits_fit for label in ("first", "second"))


def test_a_failing_fit_leaves_what_was_fitted_before_it(data, chain):
    class Fails(Centre3):
        def fit(self, features):
            raise RuntimeError("singular")

    chain.replace_node("second", ModelNode("second", Fails(), "first"))
    run = Run(FitPhase("fit", data="train"), chain)
    with pytest.raises(RuntimeError, match="singular"):
        execute(run)
    assert run.done == ("first",) and chain.frozen == ("first",)
    assert not chain["last"].model.awaits_fit and chain.shapes.unfitted == ("last", "second")


def test_an_estimator_between_a_loss_and_a_trained_node_is_refused(data, experiment):
    graph = ModelGraph(
        [ModelNode("enc", Dense(3), data.reference(["x"], ["y"])), ModelNode("est", Rotate(), "enc")], "adam"
    )
    fit(graph)
    graph.add_node(ModelNode("net", Dense(1), "est"))
    ours = experiment(graph)
    with pytest.raises(
        GraphError, match=r"node 'est' is not differentiable and is between a loss and enc.* freeze the nodes"
    ):
        ours.run_phase(TrainPhase("t", data="train", losses=[MSE]))
    graph.freeze("enc")
    ours.run_phase(TrainPhase("t", data="train", losses=[MSE]))


def test_the_pullback_of_an_estimator_raises_a_phase_error():
    estimator = Estimator(Rotate())
    estimator.fit([np.zeros((2, 3))], np.zeros(2))
    applied = estimator.apply({}, (np.zeros((2, 3), "float32"),), train=True, key=0)
    with pytest.raises(PhaseError, match="Rotate has no gradient, but a loss depends on trained nodes"):
        applied.pullback((np.zeros((2, 3)),))


def test_a_fit_takes_no_losses():
    with pytest.raises(PhaseError, match=r"phase 'fit' is a FitPhase, which takes no losses\. Hint: leave losses out"):
        FitPhase("fit", data="train", losses=[MSE])


def test_ambiguous_targets_are_refused(data, table):
    other = table(24, "other")
    other.add_split("train", np.arange(16))
    refs = [data.reference(["x"], ["y"]), other.reference(["x"], ["y"])]
    with pytest.raises(
        ColumnError, match=r"'est' learns from targets, but .* have several\. Available: data\.y, other\."
    ):
        fit(ModelGraph([ModelNode("est", LeastSquares(), refs)]))


def test_a_failing_fit_leaves_the_others_as_they_are(data, experiment):
    class Fails(LeastSquares):
        def fit(self, features, targets):
            raise RuntimeError("singular")

    ref = data.reference(["x"], ["y"])
    graph = ModelGraph([ModelNode("one", LeastSquares(), ref), ModelNode("two", Fails(), ref)])
    with pytest.raises(RuntimeError, match="singular"):
        fit(graph)
    assert graph.frozen == ("one",)
    result = experiment(graph).run_phase(EvalPhase("e", data="val", outputs=["one"]))
    assert result.prediction("one").shape == (8,)


# -- devices -----------------------------------------------------------------------------------------------------------


def test_a_fit_needs_no_framework_and_no_accelerator(straight, numpy_only):
    assert numpy_only.frameworks == ("numpy",)
    fit(straight)


def test_estimators_fall_back_to_the_cpu(numpy_only, behind, experiment):
    class Plugin:
        contract = 2

        @hookimpl
        def backends(self):
            return [TinyBackend("tiny", ("tpu:0",))]

    numpy_only.register(Plugin(), "tiny")
    fit(behind)
    with pytest.warns(FallbackWarning, match=r"asks for 'tpu'.* run on the CPU: enc \(numpy\), est \(numpy\), net"):
        result = experiment(behind).run_phase(EvalPhase("e", data="val", accelerator="tpu"))
    assert {entry.reason for entry in result.plan.assignments} == {"fallback"}
    assert {str(member.device) for member in result.plan.assignments} == {"cpu:0"}


def test_a_fit_places_the_nodes_before_it_on_the_device_of_the_phase(sims, behind):
    run = fit(behind, accelerator="sim:1")
    assert str(run.plan.device("enc")) == "sim:1"
    assert sims[1].transfers.out.number > 0 and sims[0].transfers.into.number == 0
    assert [part_.node for part_ in run.plan.assignments] == ["enc"]


def test_a_fitted_estimator_stays_on_the_device_of_its_phase() -> None:
    source = FeatureSet.from_dict("d", {"x": np.ones((4, 2)), "y": np.ones(4)}, ["x"], ["y"])

    class Mean:
        def fit(self, x: np.ndarray, y: np.ndarray) -> None:
            self.mean_ = y.mean()

        def predict(self, x: np.ndarray) -> np.ndarray:
            return np.full(len(x), self.mean_)

    graph = ModelGraph([ModelNode("mean", Mean(), source.reference())])
    Experiment("e", graph, progress="none").run_phase(FitPhase("fit", data="all"))
    assert '<br/>cpu:0<br/>frozen"]' in graph.visualize()
