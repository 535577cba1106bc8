"""Estimators that learn batch by batch in a TrainPhase: what they get, and what is refused."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from anyaccel import AppliedLoss
from anyaccel.data import FeatureSet, PairSampler, Same, SimpleSampler
from anyaccel.errors import ColumnError, EstimatorError, PhaseError
from anyaccel.graph import ModelGraph, ModelNode
from anyaccel.metrics import Metric
from anyaccel.numpy_backend import Dense, SequentialMLP
from anyaccel.phases import Callback, EarlyStopping, EvalPhase, Run, TrainPhase, execute
from anyaccel_sklearn import Estimator, FitPhase

MSE = AppliedLoss("mse", on="net")


class Steps:
    """Least squares by gradient steps, and a diary."""

    def __init__(self, rate=0.1):
        self.rate = rate
        self.diary = []

    def partial_fit(self, features, targets):
        self.diary.append((features.copy(), targets.copy()))
        if not hasattr(self, "coef_"):
            self.coef_ = np.zeros(features.shape[1])
        self.coef_ -= self.rate * features.T @ (features @ self.coef_ - targets) / len(features)
        return self

    def fit(self, features, targets):
        self.coef_ = np.linalg.lstsq(features, targets, rcond=None)[0]

    def predict(self, features):
        return (features @ self.coef_).astype("float32")


class Counts:
    """A classifier that needs all classes beforehand, and predicts the most frequent one."""

    def partial_fit(self, features, targets, classes=None):
        if classes is not None:
            self.classes_, self.counts = classes, np.zeros(len(classes), int)
        np.add.at(self.counts, np.searchsorted(self.classes_, targets), 1)

    def predict(self, features):
        return np.full(len(features), self.classes_[self.counts.argmax()])

    def predict_proba(self, features):
        return np.tile(self.counts / self.counts.sum(), (len(features), 1))


def alone(data, model=None, targets="y"):
    return ModelGraph([ModelNode("est", Steps() if model is None else model, data.reference(["x"], [targets]))], "adam")


def learnt(graph, label="est"):
    return graph[label].model.estimator


# -- learning ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [None, "sim:0"])
@pytest.mark.usefixtures("sims")
def test_an_estimator_learns_from_every_batch_in_the_order_of_the_sampler(where, data, experiment):
    graph = alone(data)
    result = experiment(graph).run_phase(
        TrainPhase("t", data="train", sampler=SimpleSampler(6, shuffle=True, seed=3), epochs=2, accelerator=where)
    )
    diary = learnt(graph).diary
    assert [len(features) for features, _ in diary] == [6, 6, 4] * 2
    for epoch in range(2):
        order = SimpleSampler(6, shuffle=True, seed=3).order(16, epoch)
        features = np.concatenate([one for one, _ in diary[3 * epoch : 3 * epoch + 3]])
        targets = np.concatenate([one for _, one in diary[3 * epoch : 3 * epoch + 3]])
        np.testing.assert_array_equal(features, data["train"].array("x")[order])
        np.testing.assert_array_equal(targets, data["train"].array("y").ravel()[order])
    assert [epoch.steps for epoch in result.epochs] == [3, 3]
    assert result.figures == () and np.isnan(result.loss).all()
    assert result.plan.notes == ("est learns by partial_fit on the host, step by step",)


def test_an_estimator_that_learned_is_fitted_and_goes_on_learning(data, experiment):
    graph, phase = alone(data), TrainPhase("t", data="train", batch_size=4)
    ours = experiment(graph)
    assert graph.shapes.unfitted == ("est",)
    ours.run_phase(phase)
    model = graph["est"].model
    assert model.is_fitted and model.partially_fitted and graph.frozen == ()
    assert graph.shapes.unfitted == () and graph.shapes.specs["est"].shape == ()
    first = learnt(graph).coef_.copy()
    ours.run_phase(phase)
    assert not np.array_equal(learnt(graph).coef_, first) and len(learnt(graph).diary) == 8
    graph.freeze("est")
    with pytest.raises(PhaseError, match=r"phase 't' trains, but has no loss and no estimator with partial_fit"):
        ours.run_phase(phase)
    assert len(learnt(graph).diary) == 8
    assert ours.run_phase(EvalPhase("e", data="val")).prediction("est").shape == (8,)


def test_an_estimator_learns_behind_a_model_that_is_trained(data, experiment):
    nodes = [
        ModelNode("enc", SequentialMLP((4,), 2, 5, "tanh"), data.reference(["x"], ["y"])),
        ModelNode("est", Steps(), "enc"),
        ModelNode("net", Dense(1), "enc"),
    ]
    graph = ModelGraph(nodes, "adam")
    plain = [
        ModelNode("enc", SequentialMLP((4,), 2, 5, "tanh"), data.reference(["x"], ["y"])),
        ModelNode("net", Dense(1), "enc"),
    ]
    before = {}

    class Spy(Callback):
        def after_loading(self, run):
            before.update(run.graph.state())

    def phase(*callbacks):
        return TrainPhase("t", data="train", losses=[MSE], sampler=SimpleSampler(8), epochs=3, callbacks=callbacks)

    result = experiment(graph).run_phase(phase(Spy()))
    expected = experiment(ModelGraph(plain, "adam")).run_phase(phase())
    np.testing.assert_allclose(result.loss, expected.loss, rtol=1e-6)  # nobody notices that somebody listens
    assert result.plan.notes == ("est learns by partial_fit on the host, step by step",)
    diary = learnt(graph).diary
    assert len(diary) == 6
    model = graph["enc"].model
    values = {
        name.rpartition("parameters/")[2]: array for name, array in before.items() if name.startswith("enc/param")
    }
    expected = model.apply(values, (data["train"].array("x")[:8],), train=False, key=0).outputs[0]
    np.testing.assert_allclose(diary[0][0], expected, rtol=1e-5, atol=1e-6)


def test_an_encoder_without_a_loss_is_computed_but_not_trained(data, experiment):
    nodes = [ModelNode("enc", Dense(4), data.reference(["x"], ["y"])), ModelNode("est", Steps(), "enc")]
    graph = ModelGraph(nodes)
    before = graph.state()
    experiment(graph).run_phase(TrainPhase("t", data="train"))
    after = graph.state()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    np.testing.assert_allclose(
        learnt(graph).diary[0][0].sum(), graph["enc"].model(data["train"].array("x")).sum(), rtol=1e-4
    )


def test_several_steps_stay_one_call_without_learning_estimators(data, line, experiment, monkeypatch):
    """Only graphs without learning estimators take several steps in one call."""
    from anyaccel.adapter import ArrayProgram

    calls = []
    steps = ArrayProgram.train_steps
    monkeypatch.setattr(ArrayProgram, "train_steps", lambda self, *args: calls.append(1) or steps(self, *args))
    graph = line(Dense(1), "adam")
    graph.add_node(ModelNode("est", Steps(), "net"))
    graph.freeze("est")
    experiment(graph).run_phase(TrainPhase("t", data="train", losses=[MSE], batch_size=4))
    assert calls and not learnt(graph).diary if isinstance(graph["est"].model, Estimator) else calls
    graph.unfreeze("est")
    before = len(calls)
    experiment(graph).run_phase(TrainPhase("t", data="train", losses=[MSE], batch_size=4))
    assert len(calls) == before and len(learnt(graph).diary) == 4


def test_an_estimator_learns_from_the_stream_that_it_names(experiment):
    x = np.arange(12, dtype="float32").reshape(12, 1)
    data = FeatureSet.from_dict("fs", {"x": x, "y": x * 10, "k": np.arange(12) % 3}, "x", "y", "k")
    nodes = [
        ModelNode("a", Steps(1e-6), data.reference()),
        ModelNode("b", Steps(1e-6), data.reference(stream="pair")),
    ]
    graph = ModelGraph(nodes)
    sampler = PairSampler(5, Same("k"))
    experiment(graph).run_phase(TrainPhase("t", data="all", sampler=sampler))
    first, second = (np.concatenate([one for one, _ in learnt(graph, label).diary]).ravel() for label in "ab")
    targets = np.concatenate([one for _, one in learnt(graph, "b").diary])
    assert len(first) > 0 and np.array_equal(first % 3, second % 3) and not np.array_equal(first, second)
    np.testing.assert_array_equal(targets, second * 10)


def test_alternating_feature_sets_feed_their_own_estimators(table, experiment):
    one, other = table(8, "one"), table(12, "other", seed=1)
    nodes = [
        ModelNode("a", Steps(), one.reference(["x"], ["y"])),
        ModelNode("b", Steps(), other.reference(["x"], ["y"])),
    ]
    graph = ModelGraph(nodes)
    phase = TrainPhase("t", data="all", sampler={"one": 4, "other": 4}, schedule="alternate_cycle")
    experiment(graph).run_phase(phase)
    assert len(learnt(graph, "a").diary) == len(learnt(graph, "b").diary) == 3


# -- classes -----------------------------------------------------------------------------------------------------------


def test_a_classifier_gets_all_classes_and_has_metrics_in_the_validation(data, experiment):
    graph = alone(data, Counts(), "c")
    validation = EvalPhase("val", data="val", metrics=["accuracy", Metric(lambda o, t: len(o), "est", label="n")])
    result = experiment(graph).run_phase(TrainPhase("t", data="train", batch_size=2, epochs=2, validation=validation))
    own = learnt(graph)
    np.testing.assert_array_equal(own.classes_, np.unique(data["train"].array("c")))
    assert result.figures == ("val_accuracy", "val_n")
    assert list(result.figure("val_n")) == [8, 8]
    most = own.classes_[own.counts.argmax()]
    assert result.figure("val_accuracy")[-1] == np.mean(data["val"].array("c") == most)


def test_nodes_that_share_an_estimator_feed_it_each_batch_once(data, experiment):
    counts, ref = Counts(), data.reference(["x"], ["c"])
    nodes = [ModelNode("class", counts, ref), ModelNode("chance", Estimator(counts, "predict_proba"), ref)]
    graph = ModelGraph(nodes)
    experiment(graph).run_phase(TrainPhase("t", data="train"))
    assert counts.counts.sum() == 16
    assert graph.shapes.specs["chance"].shape == (len(counts.classes_),)


def test_unknown_classes_are_refused(data, table, experiment):
    counts = Counts()
    counts.partial_fit(None, np.array([0, 1]), classes=np.array([0, 1]))
    graph = alone(data, counts, "c")
    with pytest.raises(EstimatorError) as caught:
        experiment(graph).run_phase(TrainPhase("t", data="train"))
    assert str(caught.value) == (
        "node 'est': Counts does not know the class 2, which is in the targets. Available: 0, 1. "
        "Hint: fit it again from the start, with a new estimator or in a FitPhase over all classes."
    )


def test_sklearn_estimators_learn_batch_by_batch(experiment):
    pytest.importorskip("sklearn")
    from sklearn.cluster import MiniBatchKMeans
    from sklearn.linear_model import SGDClassifier, SGDRegressor
    from sklearn.naive_bayes import GaussianNB
    from sklearn.preprocessing import StandardScaler

    draw = np.random.default_rng(0)
    c = np.arange(120) % 3
    x = (draw.normal(size=(120, 4)) + 4 * np.eye(3, 4)[c]).astype("float32")
    data = FeatureSet.from_dict("fs", {"x": x, "c": c, "y": x.sum(axis=1)}, "x", ["c", "y"])
    data.split_random({"train": 0.8, "test": 0.2}, seed=0)
    nodes = [
        ModelNode("scaler", Estimator(StandardScaler(), method="transform"), data.reference(target=["c"])),
        ModelNode("sgd", SGDClassifier(random_state=0), "scaler"),
        ModelNode("bayes", GaussianNB(), data.reference(target=["c"])),
        ModelNode("line", SGDRegressor(random_state=0), data.reference(target=["y"])),
        ModelNode("means", MiniBatchKMeans(3, random_state=0, n_init=1), data.reference(target=[])),
    ]
    ours = experiment(ModelGraph(nodes))
    ours.run_phase(FitPhase("scale", data="train", nodes="scaler"))
    metrics = [Metric("accuracy", on=name, label=name) for name in ("sgd", "bayes")]
    validation = EvalPhase("val", data="test", metrics=[*metrics, Metric("r2", on="line")])
    phase = TrainPhase("t", data="train", batch_size=16, epochs=8, validation=validation)
    result = ours.run_phase(phase)
    assert min(result.figure(f"val_{name}")[-1] for name in ("sgd", "bayes", "r2")) > 0.9
    tested = ours.run_phase(EvalPhase("test", data="test", metrics=[*metrics, Metric("r2", on="line")]))
    for name in ("sgd", "bayes", "r2"):
        assert tested.metrics[name] == pytest.approx(result.figure(f"val_{name}")[-1], rel=1e-4)
    assert tested.prediction("means").shape == (24,)


# -- snapshots ---------------------------------------------------------------------------------------------------------


class Worse(Steps):
    """Learns for two epochs, and gets worse in the third."""

    def partial_fit(self, features, targets):
        super().partial_fit(features, targets)
        if len(self.diary) == 3:
            self.coef_ = self.coef_ + 100


def test_early_stopping_restores_the_best_estimator_in_the_users_object(data, experiment):
    own = Worse()
    graph = alone(data, own)
    stop = EarlyStopping("val_mse", patience=1, restore_best=True)
    validation = EvalPhase("val", data="val", metrics=["mse"])
    phase = TrainPhase("t", data="train", batch_size=16, epochs=9, validation=validation, callbacks=[stop])
    result = experiment(graph).run_phase(phase)
    assert len(result.epochs) == 3 and stop.best_epoch == 1
    assert learnt(graph) is own and len(own.diary) == 2 and np.abs(own.coef_).max() < 10
    tested = experiment(graph).run_phase(EvalPhase("e", data="val", metrics=["mse"]))
    assert tested.metrics["mse"] == pytest.approx(stop.best, rel=1e-5)


def test_estimators_with_slots_are_restored_as_a_copy(data, experiment):
    class Slotted:
        __slots__ = ("count",)

        def __init__(self):
            self.count = 0

        def partial_fit(self, features, targets):
            self.count += 1

        def predict(self, features):
            return np.full(len(features), self.count)

    graph = alone(data, Slotted())
    kept = []

    class Back(Callback):
        def epoch_end(self, run):
            if run.epoch == 0:
                kept.append(run.snapshot())
            else:
                run.restore(kept[0])

    experiment(graph).run_phase(TrainPhase("t", data="train", batch_size=16, epochs=2, callbacks=[Back()]))
    assert learnt(graph).count == 1


def test_restoring_an_estimator_that_cannot_be_copied_is_refused(data, experiment):
    class Stuck(Steps):
        def __deepcopy__(self, memo):
            raise TypeError("a lock")

    validation = EvalPhase("val", data="val", metrics=["mse"])
    stop = EarlyStopping("val_mse", restore_best=True)
    phase = TrainPhase("t", data="train", validation=validation, callbacks=[stop])
    with pytest.raises(EstimatorError) as caught:
        experiment(alone(data, Stuck())).run_phase(phase)
    assert str(caught.value) == (
        "Stuck cannot be copied for a snapshot: TypeError: a lock. Hint: freeze its node, or do not use snapshots "
        "(EarlyStopping(restore_best=True) does)."
    )


# -- fitting after it --------------------------------------------------------------------------------------------------


def test_a_fit_without_nodes_is_refused_if_an_estimator_learned_before(data, experiment):
    graph = alone(data)
    graph.add_node(ModelNode("two", Steps(), data.reference(["x"], ["y"])))
    graph.freeze("two")
    ours = experiment(graph)
    ours.run_phase(TrainPhase("t", data="train"))
    with pytest.raises(PhaseError) as caught:
        ours.run_phase(FitPhase("fit", data="train"))
    assert str(caught.value) == (
        "phase 'fit' names no nodes, but 'est' learned by partial_fit before; not fitted: two. "
        "Hint: name nodes=[...], or graph.freeze('est') to keep it unchanged."
    )
    graph.freeze(["est"])
    assert ours.run_phase(FitPhase("fit", data="train")).nodes == ("two",)
    assert ours.run_phase(FitPhase("again", data="train", nodes="est")).nodes == ("est",)
    assert not graph["est"].model.partially_fitted


def test_an_estimator_with_partial_fit_only_is_not_fitted(data, experiment):
    ours = experiment(ModelGraph([ModelNode("est", Estimator(Counts()), data.reference(["x"], ["c"]))]))
    with pytest.raises(PhaseError, match=r"phase 'fit' has nothing to fit"):
        ours.run_phase(FitPhase("fit", data="train"))
    with pytest.raises(
        PhaseError,
        match=r"phase 'fit' fits 'est', and Counts has no fit; it has partial_fit\. Hint: train it in",
    ):
        ours.run_phase(FitPhase("fit", data="train", nodes="est"))


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_loss_on_an_estimator_that_learns_is_refused(data, experiment):
    phase = TrainPhase("t", data="train", losses=[AppliedLoss("mse", on="est")])
    ours = experiment(alone(data))
    for attempt in (ours.run_phase, ours.plan):
        with pytest.raises(PhaseError) as caught:
            attempt(phase)
        assert str(caught.value) == (
            "phase 't' has a loss on 'est', which learns by partial_fit, not from a loss. Hint: measure it in the "
            "validation: EvalPhase(..., metrics=[Metric('mse', on='est')]), or freeze it."
        )
    assert not learnt(ours.graph).diary


def test_learning_from_an_estimator_that_learned_nothing_is_refused(data, experiment):
    nodes = [ModelNode("one", Steps(), data.reference(["x"], ["y"])), ModelNode("two", Steps(), "one")]
    ours = experiment(ModelGraph(nodes))
    with pytest.raises(
        PhaseError, match=r"phase 't': 'two' learns from the output of 'one', which has not learned yet\."
    ):
        ours.run_phase(TrainPhase("t", data="train"))


def test_an_unfitted_estimator_before_one_that_learns_is_refused(data, experiment):
    class Only:
        def fit(self, features, targets):
            self.fitted_ = True

        def predict(self, features):
            return features

    nodes = [ModelNode("first", Only(), data.reference(["x"], ["y"])), ModelNode("est", Steps(), "first")]
    ours = experiment(ModelGraph(nodes))
    with pytest.raises(PhaseError, match=r"phase 't' needs 'first', an estimator that is not fitted\. Hint: run a"):
        ours.run_phase(TrainPhase("t", data="train"))
    ours.run_phase(FitPhase("fit", data="train", nodes="first"))
    ours.run_phase(TrainPhase("t", data="train"))
    assert len(learnt(ours.graph).diary) == 1


def test_one_estimator_in_two_different_nodes_is_refused(data, experiment):
    counts = Counts()
    nodes = [
        ModelNode("a", counts, data.reference(["x"], ["c"])),
        ModelNode("b", Estimator(counts, "predict_proba"), data.reference(["x"], ["c"])),
    ]
    graph = ModelGraph(nodes).freeze("b")
    with pytest.raises(
        PhaseError, match=r"nodes 'a' and 'b' share one estimator, but only one of them is frozen\. Hint: fre"
    ):
        experiment(graph).run_phase(TrainPhase("t", data="train"))
    graph.unfreeze()
    graph["b"].upstreams = (data.reference(["x"], ["y"]),)
    with pytest.raises(PhaseError, match=r"nodes 'a' and 'b' share one estimator, but their inputs differ"):
        experiment(graph).run_phase(TrainPhase("t", data="train"))


def test_ambiguous_targets_are_refused(data, table, experiment):
    other = table(24, "other")
    other.add_split("train", np.arange(16))
    refs = [data.reference(["x"], ["y"]), other.reference(["x"], ["y"])]
    with pytest.raises(ColumnError, match=r"'est' learns from targets, but its data have several"):
        experiment(ModelGraph([ModelNode("est", Steps(), refs)])).run_phase(TrainPhase("t", data="train"))


def test_estimators_without_partial_fit_do_not_learn(data, line, experiment):
    class Only:
        def fit(self, features, targets):
            raise AssertionError("nobody asked")

        predict = fit

    graph = line(Dense(1), "adam")
    graph.add_node(ModelNode("est", Only(), "net"))
    result = experiment(graph).run_phase(TrainPhase("t", data="train", losses=[MSE]))
    assert result.plan.notes == ("est takes no part: no loss depends on it",)


def test_a_failing_partial_fit_names_the_node_and_keeps_the_epochs(data):
    class Fails(Steps):
        def partial_fit(self, features, targets):
            if len(self.diary) == 2:
                raise RuntimeError("singular")
            super().partial_fit(features, targets)

    run = Run(TrainPhase("t", data="train", batch_size=16, epochs=5), alone(data, Fails()))
    with pytest.raises(RuntimeError, match="singular") as caught:
        execute(run)
    assert "while node 'est' learned by partial_fit from a batch of 16" in caught.value.__notes__
    assert len(run.history) == 2


def test_a_phase_without_losses_and_without_learners_is_refused(data, line, experiment):
    with pytest.raises(PhaseError) as caught:
        experiment(line(Dense(1), "adam")).run_phase(TrainPhase("t", data="train", losses=[]))
    assert str(caught.value) == (
        "phase 't' trains, but has no loss and no estimator with partial_fit to train. "
        "Hint: pass losses=[AppliedLoss('mse', on='NODE')]."
    )


# -- what is left ------------------------------------------------------------------------------------------------------


def test_nothing_is_left_on_a_device_after_an_estimator_learned(data, sims, experiment):
    """Even before the garbage collector runs."""
    nodes = [
        ModelNode("enc", Dense(4), data.reference(["x"], ["y"])),
        ModelNode("net", Dense(1), "enc"),
        ModelNode("est", Steps(), "enc"),
    ]
    ours = experiment(ModelGraph(nodes, "adam"))
    gc.collect()
    gc.disable()
    try:
        ours.run_phase(TrainPhase("t", data="train", losses=[MSE], validation="val", accelerator="sim:0"))
        assert sims[0].used == 3 * 4 * (3 * 4 + 4 + 4 + 1)  # parameters and the two moments of adam, float32
    finally:
        gc.enable()
