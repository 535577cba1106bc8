"""Hints of experiments and results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyaccel as aa

X = np.random.default_rng(0).standard_normal((24, 3)).astype("float32")
LOSS = aa.AppliedLoss("mse", on="net")


def data(**columns: Any) -> aa.FeatureSet:
    columns = columns or {"y": X[:, :1]}
    features = aa.FeatureSet.from_dict("data", {"x": X, **columns}, ["x"], list(columns))
    features.add_splits({"train": range(16), "val": range(16, 24)})
    return features


def graph(width: int = 1, features: aa.FeatureSet | None = None) -> aa.ModelGraph:
    node = aa.ModelNode("net", aa.SequentialMLP(width), (features or data()).reference())
    return aa.ModelGraph([node], "sgd")


def experiment(*args: Any, **settings: Any) -> aa.Experiment:
    return aa.Experiment("test", graph(*args), progress="none", **settings)


def train(**settings: Any) -> aa.TrainPhase:
    return aa.TrainPhase("train", data="train", losses=[LOSS], **settings)


def test_words_of_others_on_experiments(hint: Any, tmp_path: Path) -> None:
    given = experiment()
    with hint("use run(TrainPhase('train', data='train', losses=[...]))"):
        given.fit()
    (trained,) = given.run(aa.TrainPhase("train", data="train", losses=[LOSS]))
    with hint("use run_phase(EvalPhase('test', data='all', metrics=['mse']))"):
        given.evaluate()
    assert "mse" in given.run_phase(aa.EvalPhase("test", data="all", metrics=["mse"])).metrics
    with hint("use run_phase(EvalPhase('predict', data='all')).prediction('NODE')"):
        given.predict(X)
    assert len(given.run_phase(aa.EvalPhase("predict", data="all")).prediction("net")) == 24
    with hint("use experiment.history, or last_run for the last run"):
        _ = given.results
    assert given.history[0] is trained and given.last_run is given.history[-1]
    with hint("use experiment.graph, and experiment.graph['NODE'].model"):
        _ = given.model
    assert given.graph["net"].model is not None
    with hint("use experiment.graph.state(), or save(folder)"):
        given.state_dict()
    state = given.graph.state()
    given.save(folder=tmp_path / "saved")
    with hint("use experiment.graph.load_state(state), or Experiment.load(folder)"):
        given.load_state_dict(state)
    given.graph.load_state(state)
    assert aa.Experiment.load(tmp_path / "saved").history


def test_words_of_others_for_running(hint: Any) -> None:
    given = experiment()
    with hint("pass phases to run(phase, ...)"):
        given.add(train())
    with hint("use run(phase, ...)"):
        given.start()
    assert len(given.run(train(), train())) == 2
    with hint("set it on a phase: TrainPhase(..., accelerator='cpu')"):
        given.to("cpu")
    given.run(aa.TrainPhase("train", data="train", losses=[LOSS], accelerator="cpu"))
    with hint("use anyaccel.find_learning_rate(experiment.graph, phase)"):
        given.lr_find()
    assert aa.find_learning_rate(given.graph, train(), n_steps=12)
    with hint("use plan(phase), or experiment.graph.summary()"):
        given.summary()
    assert given.plan(train()) and given.graph.summary()


def test_experiments_are_given_their_parts(hint: Any, tmp_path: Path) -> None:
    with hint("write Experiment(label, graph), with the ModelGraph to run"):
        aa.Experiment.from_active_context()
    with hint("Experiment(label, ModelGraph([...]))"):
        aa.Experiment("test", aa.SequentialMLP(1))  # type: ignore[arg-type]
    assert aa.Experiment("test", aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP(1), data().reference())]))
    with hint("write phases=[TrainPhase(...)]"):
        experiment(phases="train")
    assert experiment(phases=[aa.TrainPhase("train", data="train", losses=[LOSS])]).run()
    with hint("write Experiment(..., phases=[...]), or run(phase)"):
        experiment().run()
    assert aa.Experiment("test", graph(), phases=[train()], progress="none").run() and experiment().run(train())
    with hint("call run_phase(...)"):
        _ = experiment().last_run
    given = experiment()
    given.run_phase(train())
    assert given.last_run


def test_phases_that_cannot_run(hint: Any) -> None:
    phases = [train(), train()]
    with hint("pass phases one by one: run(*phases)"):
        experiment().run(phases)  # type: ignore[arg-type]
    assert len(experiment().run(*phases)) == 2
    with hint("create one: {}('name', data='train', ...)"):
        experiment().run(aa.TrainPhase)  # type: ignore[arg-type]
    assert experiment().run(aa.TrainPhase("name", data="train", losses=[LOSS]))
    with hint("pass the phase itself, not its label: run(TrainPhase(...))"):
        experiment().run("train")  # type: ignore[arg-type]
    assert experiment().run(aa.TrainPhase("train", data="train", losses=[LOSS]))
    with hint("write graph.run(TrainPhase(...))"):
        graph().run()
    assert graph().run(aa.TrainPhase("train", data="train", losses=[LOSS]), progress="none")


class Own(aa.Callback):
    def epoch_end(self, run: Any) -> None:
        """Does nothing, and has no configuration."""


def test_callbacks_of_a_saved_experiment(hint: Any, tmp_path: Path) -> None:
    given = experiment(callbacks=[Own()])
    given.save(tmp_path / "saved")
    with hint("pass them: load(folder, callbacks=[...]), or callbacks=[] for none"):
        aa.Experiment.load(tmp_path / "saved")
    assert aa.Experiment.load(tmp_path / "saved", callbacks=[Own()]).callbacks
    assert not aa.Experiment.load(tmp_path / "saved", callbacks=[]).callbacks


def test_words_of_others_on_results(hint: Any) -> None:
    given = experiment()
    trained = given.run_phase(train(validation=aa.EvalPhase("val", data="val", losses=[LOSS], metrics=["mae"])))
    with hint("use prediction('NODE') of an EvalPhase"):
        _ = trained.predictions_
    evaluated = given.run_phase(aa.EvalPhase("test", data="all", metrics=["mae"]))
    assert len(evaluated.prediction("net")) == 24
    with hint("use metrics['accuracy'] of an EvalPhase with metrics=['accuracy']"):
        _ = evaluated.accuracy
    classes = data(label=np.arange(24) % 2)
    net = graph(2, classes)
    assert net.run(aa.EvalPhase("test", data="all", metrics=["accuracy"]), progress="none").metrics["accuracy"] >= 0
    with hint("use figures and figure('NAME') of a TrainPhase: figure('loss')"):
        _ = trained.history
    assert trained.figures and trained.figure("loss").size
    with hint("write results.{}"):
        trained["loss"]
    assert trained.loss.size
    with hint("write results.figure({})"):
        trained["val_mae"]
    assert trained.figure("val_mae").size
    with hint("write results.metrics[{}]"):
        evaluated["mae"]
    assert evaluated.metrics["mae"] > 0
    with hint("write results.to_dict()"):
        evaluated[0]
    assert evaluated.to_dict()["metrics"]
    with hint("a TrainPhase has them per epoch: figure('val_accuracy')"):
        _ = trained.metrics
    assert trained.figure("val_mae").size
    with hint("use figure('val_loss') of a TrainPhase with a validation"):
        _ = evaluated.val_loss
    assert trained.figure("val_loss").size
    with hint("; it is a figure: figure({})"):
        _ = trained.val_mae
    assert trained.figure("val_mae").size
    with hint("use experiment.graph"):
        _ = trained.model
    assert given.graph["net"].model
    with hint("use to_pandas()"):
        _ = trained.df
    assert len(trained.to_pandas()) == 1


def test_figures_that_are_not_there(hint: Any) -> None:
    trained = experiment().run_phase(train())
    with hint("add a validation to the phase: TrainPhase(..., validation='val')"):
        trained.figure("val_loss")
    assert (
        experiment()
        .run_phase(aa.TrainPhase("t", data="train", losses=[LOSS], validation="val"))
        .figure("val_loss")
        .size
    )
    with hint("write figures=['loss']"):
        aa.compare(trained, figures=3)  # type: ignore[arg-type]
    assert aa.compare(trained, figures=["loss"])
    with hint("pass the result of run_phase(...), or experiment.history"):
        aa.compare("train")  # type: ignore[arg-type]
    given = experiment()
    assert aa.compare(given.run_phase(train()), given.history)


def test_predictions_that_were_not_kept(hint: Any) -> None:
    features = data()
    net = graph(features=features)
    nothing = net.run(aa.EvalPhase("test", data="all", outputs=[], metrics=["mse"]), progress="none")
    with hint("name it in EvalPhase(outputs=[{}])"):
        nothing.prediction("net")
    assert len(net.run(aa.EvalPhase("test", data="all", outputs=["net"]), progress="none").prediction("net"))
    with hint("name nodes in EvalPhase(outputs=[...])"):
        nothing.to_arrow()
    assert net.run(aa.EvalPhase("test", data="all", outputs=["net"]), progress="none").to_arrow().num_rows == 24


def test_plots(hint: Any) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    features = data(label=np.arange(24) % 5)
    wide = graph(8, features)
    shown = wide.run(aa.EvalPhase("test", data="all"), progress="none")
    with hint("if they are scores, add a metric: EvalPhase(..., metrics=['accuracy'])"):
        shown.plot(targets="label")
    assert wide.run(aa.EvalPhase("test", data="all", metrics=["accuracy"]), progress="none").plot(targets="label")
    trained = experiment().run_phase(train())
    with hint("pass one Axes: figure, ax = pyplot.subplots(), or axes[0] of several"):
        trained.plot(ax=pyplot)
    figure, ax = pyplot.subplots()
    assert trained.plot(ax=ax)
    several, axes = pyplot.subplots(2)
    assert trained.plot(ax=axes[0]) and figure and several
    pyplot.close("all")
