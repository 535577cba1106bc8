"""Hints of fit, of the learning-rate range test, of prepare, and of what is evaluated, plotted and saved."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.adapter import VjpResult
from anyaccel.fitting import FittedModel
from anyaccel.numpy_backend import Module

X = np.random.default_rng(0).standard_normal((24, 3)).astype("float32")
TABLE = {"a": X[:, 0], "b": X[:, 1], "price": X[:, 2]}
TEXTS = {"a": X[:, 0], "kind": np.array(["x", "y", "z"] * 8)}
LOSS = aa.AppliedLoss("mse", on="net")


def features(splits: bool = False, **columns: Any) -> aa.FeatureSet:
    columns = columns or {"y": X[:, :1]}
    data = aa.FeatureSet.from_dict("data", {"x": X, **columns}, ["x"], list(columns))
    if splits:
        data.add_splits({"train": range(16), "val": range(16, 24)})
    return data


DATA = features()


def net(width: int = 1) -> aa.SequentialMLP:
    return aa.SequentialMLP(width, hidden_dim=4)


def fitted(data: Any = TABLE, width: int = 1, **settings: Any) -> FittedModel:
    settings = {"loss": "mse", "epochs": 1, "progress": "none", **settings}
    return aa.fit(net(width), data, **settings)


def test_words_of_others_for_what_fit_returns(hint: Any, tmp_path: Path) -> None:
    model: Any = fitted(target="price", validation=0.25)
    with hint("see results.loss, and results.figure('val_loss')"):
        _ = model.history
    assert model.results.loss.size == model.results.figure("val_loss").size == 1
    with hint("write fitted.model"):
        _ = model.module_
    assert isinstance(model.model, aa.SequentialMLP)
    with hint("the trained model has it: write fitted.model"):
        model.get_weights()
    with hint("write fitted.results.figure('val_accuracy')"):
        _ = model.metrics
    classes = fitted(
        {**TABLE, "price": np.arange(len(TABLE["price"])) % 2},
        2,
        target="price",
        loss="cross_entropy",
        validation=0.25,
        metrics="accuracy",
    )
    assert classes.results.figure("val_accuracy").size == 1
    with hint("pass x and y as a pair: (x, y)"):
        model.evaluate(TABLE, np.ones(3))
    with hint("to continue training, write fitted.experiment.run_phase(fitted.phase)"):
        model.fit(TABLE)
    fitted_model = model
    assert fitted_model.experiment.run_phase(fitted_model.phase).loss.size
    with hint("write fitted.graph.summary()"):
        model.summary()
    assert "model" in fitted_model.graph.summary()
    with hint("write save('FOLDER')"):
        model.save_model(tmp_path / "FOLDER")
    model.save(tmp_path / "FOLDER")
    assert aa.load(tmp_path / "FOLDER").predict(TABLE).shape == (24,)


def test_settings_by_other_values(hint: Any, tmp_path: Path) -> None:
    with hint("write loss={}"):
        fitted(target="price", loss=["mse"])
    assert fitted(target="price", loss="mse").results.loss.size
    with hint("write validation={}"):
        fitted(target="price", validation="0.25")
    assert fitted(target="price", validation=0.25).results.figure("val_loss").size
    folder = str(tmp_path / "a")
    with hint("write checkpoint={}, resume='auto'"):
        fitted(target="price", resume=folder)
    assert fitted(target="price", checkpoint=folder, resume="auto").results.loss.size == 1
    with hint("write callbacks=[EarlyStopping()]"):
        fitted(target="price", validation=0.25, callbacks=["early_stopping"])
    assert fitted(target="price", validation=0.25, callbacks=[aa.EarlyStopping()]).results.loss.size
    with hint("pass it as checkpoint=Checkpoint('runs/a')"):
        fitted(target="price", callbacks=[aa.Checkpoint(tmp_path / "b")])
    assert fitted(target="price", checkpoint=aa.Checkpoint(tmp_path / "b")).results.loss.size
    with hint("write replicas=2, or accelerator='gpu:*'"):
        fitted(target="price", devices=2)
    with aa.simulate(2):
        trained = fitted(target="price", framework=None, accelerator="sim:*", batch_size=4)
        assert len(fitted(target="price", accelerator="sim", replicas=2, batch_size=4).results.loss) == 1
    assert trained.results.loss.size


def test_metrics_by_name(hint: Any) -> None:
    classes = {"data": TEXTS, "width": 3, "loss": "cross_entropy", "target": "kind", "validation": 0.25}
    with hint("write metrics=[Metric('accuracy', label={})]"):
        fitted(**classes, metrics={"hits": "accuracy"})
    named = fitted(**classes, metrics=[aa.Metric("accuracy", label="hits")])
    assert named.results.figure("val_hits").size == 1


def graph(*nodes: Any, optimizer: Any = "sgd") -> aa.ModelGraph:
    return aa.ModelGraph(list(nodes) or [aa.ModelNode("net", net(), DATA.reference())], optimizer)


def train(**settings: Any) -> aa.TrainPhase:
    return aa.TrainPhase("train", data="all", losses=[LOSS], **settings)


def evaluated(given: aa.ModelGraph, **settings: Any) -> aa.EvalResults:
    return given.run(aa.EvalPhase("test", data="all", **settings), progress="none")  # type: ignore[no-any-return]


def test_targets_of_fit(hint: Any) -> None:
    with hint("write fit(model, table, target='COLUMN', ...)"):
        fitted()
    model, table = net(), TABLE
    assert aa.fit(model, table, target="price", loss="mse", epochs=1, progress="none").results.loss.size
    bare = aa.FeatureSet.from_dict("data", {"x": X, "y": X[:, 0]}, ["x"], [], ["y"])
    for target in (None, "y"):
        with hint("set them when you create the feature set: FeatureSet.from_dict(..., features=[...], target=[...])"):
            fitted(bare, target=target)
    columns = {"x": X, "y": X[:, 0]}
    assert fitted(aa.FeatureSet.from_dict("data", columns, features=["x"], target=["y"]))
    tagged = aa.FeatureSet.from_dict("data", TEXTS, ["a"], [], ["kind"])
    with hint("write target='COLUMN'"):
        fitted(tagged, 3, loss="cross_entropy")
    assert fitted(tagged, 3, loss="cross_entropy", target="kind")
    with hint("write loss='cross_entropy', with one output of the model for each class"):
        fitted(TEXTS, target="kind", loss="binary_cross_entropy")
    classes = aa.fit(net(3), TEXTS, target="kind", loss="cross_entropy", epochs=1, progress="none")
    assert set(classes.predict(TEXTS)) <= {"x", "y", "z"}
    with hint("{}; for classes the loss is 'cross_entropy'"):
        fitted({"a": X[:, 0], "n": np.array(list("123") * 8)}, target="n")
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": X[:, 0], "n": list("123") * 8})
    frame["n"] = pandas.to_numeric(frame["n"])
    assert fitted(frame, target="n").predict(frame).shape == (24,)


def test_validations_of_fit(hint: Any) -> None:
    with hint("write validation=0.2"):
        fitted(target="price", metrics=["mse"])
    assert fitted(target="price", metrics=["mse"], validation=0.2)
    with hint("write early_stopping=EarlyStopping({}, patience=8)"):
        fitted(target="price", early_stopping="val_loss", validation=0.2)
    assert fitted(target="price", early_stopping=aa.EarlyStopping("val_loss", patience=8), validation=0.2)
    with hint("write validation=0.2, or early_stopping=EarlyStopping('loss')"):
        fitted(target="price", early_stopping=2)
    assert fitted(target="price", early_stopping=2, validation=0.2)
    assert fitted(target="price", early_stopping=aa.EarlyStopping("loss"))
    loader = [(X[:8], X[:8, :1]), (X[8:], X[8:, :1])]
    with hint("pass the source of the validation: validation=other_loader"):
        fitted(loader, validation=0.2)
    other_loader = loader[:1]
    assert fitted(loader, validation=other_loader).results.figure("val_loss").size == 1


def test_splits_of_fit(hint: Any) -> None:
    data = features()
    data.add_splits({"some": range(16), "val": range(16, 24)})
    with hint("pass the training rows: fit(model, data['SPLIT'], ...)"):
        fitted(data, validation="val")
    assert aa.fit(net(), data["some"], validation="val", loss="mse", epochs=1, progress="none")
    whole = features(splits=True)
    with hint("name the split: validation='SPLIT'"):
        fitted(whole, validation=0.2)
    assert fitted(whole, validation="val")
    with hint("choose the rows: fit(model, data[{}], ...), or data.view() for all"):
        fitted(whole)
    data = features(splits=True)
    assert aa.fit(net(), data["train"], loss="mse", epochs=1, progress="none")
    assert fitted(data.view())


def test_tables_of_fit(hint: Any) -> None:
    with hint("rename one, or pass one table and target='COLUMN'"):
        fitted((X, X[:, :1]), features="x", target="x")
    assert fitted((X, X[:, :1]), features="x", target="y")
    assert fitted({"x": X, "y": X[:, :1]}, target="y")
    with hint("pass (x, y), or a dict of arrays and target='COLUMN'"):
        fitted((X, X[:, :1], X[:, 1:]))
    assert fitted((X, X[:, :1])) and fitted({"x": X, "y": X[:, :1]}, target="y")
    with hint("convert it to a FeatureSet: FeatureSet.from_dict(...)"):
        fitted(3)
    assert fitted(aa.FeatureSet.from_dict("data", {"x": X, "y": X[:, :1]}, ["x"], ["y"]))
    model = fitted(target="price")
    with hint("pass its columns by name: {'COLUMN': array}"):
        model.predict(X[:, :2])
    assert model.predict({"a": X[:, 0], "b": X[:, 1]}).shape == (24,)


def test_scalers_of_fit(hint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    with hint("write scaler='standard'"):
        fitted(target="price", scaler="zzzzzz")
    assert fitted(target="price", scaler="standard")
    with monkeypatch.context() as patch, hint("python -m pip install scikit-learn"):
        patch.setitem(sys.modules, "sklearn.preprocessing", None)
        fitted(target="price", scaler="standard")
    assert "scikit-learn" in importlib.metadata.packages_distributions()["sklearn"]
    assert fitted(target="price", scaler="standard")  # after python -m pip install scikit-learn


def test_models_that_were_fitted(hint: Any, tmp_path: Path) -> None:
    given = graph()
    with hint("write FittedModel(Experiment(graph), Loss('mse'))"):
        FittedModel(given)  # type: ignore[arg-type]
    model = FittedModel(aa.Experiment("fit", given, progress="none"), aa.Loss("mse"))
    assert model.predict({"x": X}).shape == (24, 1)
    assert FittedModel(aa.Experiment(graph=given, label="fit"), aa.Loss("mse")).graph is given
    with hint("run a phase: model.experiment.run_phase(...)"):
        _ = model.results
    model.experiment.run_phase(train())
    assert model.results.loss.size == 1
    two = graph(aa.ModelNode("net", net(), DATA.reference()), aa.ModelNode("other", net(), DATA.reference()))
    with hint("use the graph itself: ModelGraph.load(folder), EvalPhase"):
        FittedModel(aa.Experiment("fit", two))
    folder = tmp_path / "graph"
    two.save(folder)
    again = aa.ModelGraph.load(folder, feature_sets=[DATA])
    assert again.run(aa.EvalPhase("test", data="all", outputs=["net"]), progress="none").prediction("net").size


def custom_loss(outputs: np.ndarray, targets: np.ndarray) -> Any:
    """A loss with its gradients."""
    difference = outputs - targets.reshape(outputs.shape)
    return (difference**2).sum(), len(outputs), (2 * difference, None)


def test_what_outputs_mean(hint: Any) -> None:
    model = fitted({**TEXTS, "kind": np.array(list("xy") * 12)}, target="kind", loss=custom_loss)
    with hint("write predict(data, outputs=True) for the outputs of the model"):
        model.predict(TEXTS)
    data = TEXTS
    assert model.predict(data, outputs=True).shape == (24, 1)


class Learning:
    def fit(self, features: np.ndarray, targets: np.ndarray) -> None:
        self.mean_ = targets.mean()

    partial_fit = fit

    def predict(self, features: np.ndarray) -> np.ndarray:
        return np.full((len(features), 1), self.mean_, "float32")


def test_range_tests(hint: Any) -> None:
    experiment, phase = aa.Experiment("test", graph(), progress="none"), train(batch_size=4)
    with hint("write find_learning_rate(graph, phase); for an Experiment, pass its .graph"):
        aa.find_learning_rate(experiment, phase)  # type: ignore[arg-type]
    assert len(aa.find_learning_rate(experiment.graph, phase, n_steps=12).rates)
    with hint("write TrainPhase('train', data='train', losses=[...])"):
        aa.find_learning_rate(experiment.graph, aa.EvalPhase("test", data="all"))  # type: ignore[arg-type]
    whole = graph(aa.ModelNode("net", net(), features(splits=True).reference()))
    assert aa.find_learning_rate(whole, aa.TrainPhase("train", data="train", losses=[LOSS]), n_steps=12)
    with hint("write min_lr=1e-6, max_lr=1.0"):
        aa.find_learning_rate(experiment.graph, phase, min_lr=1.0, max_lr=0.5)
    assert aa.find_learning_rate(experiment.graph, phase, min_lr=1e-6, max_lr=1.0, n_steps=12)
    nodes = [aa.ModelNode("net", net(), DATA.reference())]
    with hint("write ModelGraph(nodes, 'adam')"):
        aa.find_learning_rate(aa.ModelGraph(nodes), phase)
    assert aa.find_learning_rate(aa.ModelGraph(nodes, "adam"), phase, n_steps=12)
    huge = graph(aa.ModelNode("net", net(), DATA.reference()))
    with np.errstate(all="ignore"):
        with hint("start with a smaller min_lr, or check the losses of a normal phase for NaN and infinity"):
            aa.find_learning_rate(huge, phase, min_lr=1e12, max_lr=1e13)
        assert aa.find_learning_rate(huge, phase, min_lr=1e-9, max_lr=1e-6, n_steps=12)


def test_range_tests_of_estimators(hint: Any) -> None:
    given = graph(aa.ModelNode("net", net(), DATA.reference()), aa.ModelNode("mean", Learning(), DATA.reference()))
    phase = aa.TrainPhase("train", data="all", losses=[LOSS], batch_size=4)
    with hint("freeze it for the test: graph.freeze({})"):
        aa.find_learning_rate(given, phase, n_steps=12)
    given.freeze("mean")
    assert aa.find_learning_rate(given, phase, n_steps=12)


def test_prepared_objects(hint: Any) -> None:
    with hint("write prepare(net, optimizer, loader)"):
        aa.prepare()
    model, loader = net(), [X, X]
    placed, batches = aa.prepare(model, loader, accelerator="cpu")  # NumPy has no optimizer objects
    assert placed is model and len(list(batches)) == 2


def test_plots_of_predictions(hint: Any) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    nodes = [aa.ModelNode(label, net(), DATA.reference()) for label in ("net", "other")]
    results = evaluated(graph(*nodes), outputs=["net", "other"], losses=[LOSS])
    with hint("name one: plot('NODE')"):
        results.plot()
    assert results.plot("net")
    two = features(y=X[:, :1], z=X[:, :2])
    results = evaluated(graph(aa.ModelNode("net", net(), two.reference())), outputs=["net"])
    with hint("name a matching one: plot(targets='COLUMN')"):
        results.plot(targets="data.z")
    assert results.plot(targets="data.y")
    silent = graph(aa.ModelNode("net", Learning(), DATA.reference()))
    results = silent.run(aa.TrainPhase("train", data="all"), progress="none")
    with hint("write TrainPhase(..., losses=[...]) or validation=EvalPhase(..., metrics=[...])"):
        results.plot()
    validation = aa.EvalPhase("check", data="all", metrics=["mse"])
    assert graph().run(aa.TrainPhase("train", data="all", losses=[LOSS]), progress="none").plot()
    assert silent.run(aa.TrainPhase("train", data="all", validation=validation), progress="none").plot()


def test_what_is_installed(hint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    pytest.importorskip("pandas")
    results = graph().run(train(), progress="none")
    with monkeypatch.context() as patch, hint("python -m pip install 'anyaccel[plot]'"):
        patch.setitem(sys.modules, "matplotlib.pyplot", None)
        patch.setitem(sys.modules, "matplotlib", None)
        results.plot()
    assert any(
        text.startswith("matplotlib") and "plot" in text for text in importlib.metadata.requires("anyaccel") or ()
    )
    assert results.plot()
    with monkeypatch.context() as patch, hint("python -m pip install pandas, or use to_arrow()"):
        patch.setitem(sys.modules, "pandas", None)
        results.to_pandas()
    assert len(results.to_pandas()) == results.to_arrow().num_rows == 1


def test_predictions_in_one_table(hint: Any) -> None:
    other = aa.FeatureSet.from_dict("others", {"x": X[:8], "y": X[:8, :1]}, ["x"], ["y"])
    nodes = [aa.ModelNode("net", net(), DATA.reference()), aa.ModelNode("other", net(), other.reference())]
    given = graph(*nodes)
    with hint("run an EvalPhase for each feature set, with outputs=[...] for its nodes"):
        given.run(aa.EvalPhase("test", data={"data": "all", "others": "all"}), progress="none").to_arrow()
    for label, rows in (("net", 24), ("other", 8)):
        results = given.run(aa.EvalPhase("test", data="all", outputs=[label]), progress="none")
        assert results.to_arrow().num_rows == rows


class Centered:
    def fit(self, x: np.ndarray) -> None:
        self.mean_ = x.mean(0)

    def transform(self, x: np.ndarray) -> np.ndarray:
        return x - self.mean_

    def inverse_transform(self, x: np.ndarray) -> np.ndarray:
        return x + self.mean_


def test_predictions_in_original_units(hint: Any) -> None:
    feature_set = features().fit_transform(Centered(), "y", fit_on="all")
    loose = aa.ModelNode("net", net(), feature_set.reference(target=[]))
    results = evaluated(graph(loose), outputs=["net"])
    with hint("name the columns: feature_set.inverse(results.prediction({}), columns=[...])"):
        results.prediction("net", undo=True)
    given = feature_set.inverse(results.prediction("net"), columns=["y"])
    assert given == pytest.approx(results.prediction("net") + X[:, :1].mean(0))


class OneHot:
    """Words as rows of the unit matrix."""

    def fit(self, x: np.ndarray) -> None:
        self.words = sorted(set(x[:, 0]))

    def transform(self, x: np.ndarray) -> np.ndarray:
        return np.array([[float(word == one) for one in self.words] for word in x[:, 0]], np.float32)

    def inverse_transform(self, x: np.ndarray) -> np.ndarray:
        return np.array(self.words, dtype=object)[x.argmax(axis=1)][:, None]


def test_plots_in_original_units(hint: Any) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    columns = {"x": X, "n": np.arange(24) % 3, "kind": list("abc") * 8}
    data = aa.FeatureSet.from_dict("data", columns, ["x"], ["n"], ["kind"])
    data = data.fit_transform(OneHot(), "kind", fit_on="all", role="target", into="class")
    given = graph(aa.ModelNode("net", net(3), data.reference(target=["class"])))
    results = evaluated(given, outputs=["net"], losses=[aa.AppliedLoss("mse", on="net")])
    with hint("leave undo out, or name a target with matching values: plot(targets='COLUMN')"):
        results.plot(undo=True, targets="n")
    assert results.plot(targets="n")  # without undo
    assert results.plot(undo=True, targets="class")


class Complex(Module):
    """Gives complex numbers."""

    def apply(self, values: Any, inputs: Any, *, train: bool, key: int) -> VjpResult:
        return VjpResult((inputs[0] * np.complex64(1j),), lambda cotangents: ({}, (None,)))


def test_results_that_are_saved(hint: Any, tmp_path: Path) -> None:
    nodes = [aa.ModelNode("waves", Complex(), DATA.reference()), aa.ModelNode("net", net(), DATA.reference())]
    given = graph(*nodes)
    with hint("leave this output out: EvalPhase(outputs=[...])"):
        evaluated(given, outputs=["net", "waves"]).save(tmp_path / "one")
    results = given.run(aa.EvalPhase("test", data="all", outputs=["net"]), progress="none")
    results.save(tmp_path / "two")
    assert (tmp_path / "two").exists()


def test_losses_of_fit(hint: Any) -> None:
    table = {"a": X[:, 0], "b": X[:, 1], "price": X[:, 2], "kind": np.arange(24) % 3}
    with hint("write loss='cross_entropy' for classes, loss='mse' for numbers"):
        fitted(lambda: iter([(X, X[:, :1])]), loss=None)
    assert fitted(table, 3, target="kind", loss="cross_entropy") and fitted(table, target="price", loss="mse")


def test_validations_by_a_phase(hint: Any) -> None:
    other = features()
    with hint("write validation=EvalPhase('LABEL', data='SPLIT'), or validation=TABLE with metrics=[...]"):
        fitted(target="price", validation=aa.EvalPhase("check", data=other))
    split = aa.EvalPhase("check", data="val")
    with hint("write EvalPhase(..., metrics=[...])"):
        fitted(features(splits=True), validation=split, metrics="mse")
    within = aa.EvalPhase("check", data="val", metrics=["mse"])
    assert fitted(features(splits=True), validation=within).results.figure("val_mse").size
    assert fitted(target="price", validation={**TABLE}, metrics=["mse"]).results.figure("val_mse").size


def test_the_phase_of_a_loaded_model(hint: Any, tmp_path: Path) -> None:
    fitted(target="price").save(tmp_path)
    model = aa.load(tmp_path)
    with hint("run a phase: model.graph.run(...)"):
        _ = model.phase
    data = model.graph.feature_sets["data"]
    rows = aa.FeatureSet.from_dict("data", {"a": X[:, 0], "b": X[:, 1], "price": X[:, 2]}, data.features, ["price"])
    phase = aa.TrainPhase("more", data={"data": rows}, losses=aa.AppliedLoss("mse"))
    assert model.graph.run(phase, progress="none").loss.size == 1


def test_weights_of_losses(hint: Any) -> None:
    table = {"a": X[:, 0], "u": X[:, 1]}
    for loss in (("mse", 0.1), {"mse": 0.1}, aa.AppliedLoss("mse", weight=0.1)):
        with hint("for weights, pass a list: loss=[AppliedLoss('mse', {}, weight=0.1), ...]"):
            fitted(table, loss={"u": loss})
    data = aa.FeatureSet.from_dict("rows", {"x": X, "u": X[:, 1]}, ["x"], ["u"])
    batches = [{"a": X[:, 0], "u": X[:, 1]}]
    source = aa.IterableSource("stream", batches, features=["a"], target="u")
    for rows, label in ((table, "data"), (data, "rows"), (source, "stream")):
        with pytest.raises(aa.errors.PhaseError) as error:
            fitted(rows, loss={"u": ("mse", 0.1)})
        assert f"inputs=['outputs', '{label}.u'], label='u', weight=0.1" in error.value.hint
        loss = aa.AppliedLoss("mse", inputs=["outputs", f"{label}.u"], label="u", weight=0.1)
        target = "u" if label != "stream" else None
        part, whole = fitted(rows, loss=[loss], target=target), fitted(rows, loss={"u": "mse"})
        assert part.results.loss.size == whole.results.loss.size == 1
