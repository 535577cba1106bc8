"""Experiments in folders: graph, phases, callbacks and results; and runs that go on."""

from __future__ import annotations

import numpy as np
import pytest

from anyaccel import (
    AppliedLoss,
    Callback,
    Checkpoint,
    EarlyStopping,
    EvalPhase,
    Experiment,
    FeatureSet,
    ModelGraph,
    ModelNode,
    SequentialMLP,
    SimpleSampler,
    TrainPhase,
    saved_folder,
)
from anyaccel.errors import ConfigError, PhaseError, StateError
from anyaccel.numpy_backend import Dense, Sequential
from anyaccel.results import EvalResults

LOSS = AppliedLoss("mse", on="guess")
STOPPING = EarlyStopping("loss", patience=3, min_delta=0.5, mode="max", restore_best=True)


class Quiet(Callback):
    """A callback without a configuration."""


class Counting(Callback):
    """A callback with one."""

    def __init__(self, start=0):
        self.start = start

    def get_config(self):
        return {"start": self.start}


class OwnPhase(EvalPhase):
    """A phase of a class of its own."""


def train(**settings):
    return TrainPhase("t", data="all", losses=[LOSS], batch_size=4, **settings)


def graph_of(data, label="graph"):
    node = ModelNode("guess", SequentialMLP((1,), n_layers=1, dropout=0.1), data.reference())
    return ModelGraph([node], "adam", label, seed=1)


def saved(data, folder, *phases, **settings):
    experiment = Experiment("mine", graph_of(data), phases, progress="none", **settings)
    experiment.graph.build()
    experiment.save(folder)
    return experiment


def test_an_experiment_comes_back_and_goes_on(data, tmp_path):
    first = Experiment("mine", graph_of(data), [train(epochs=2), EvalPhase("v", data="last")], progress="none")
    first.run()
    first.save(tmp_path)
    loaded = Experiment.load(tmp_path, feature_sets=[data], progress="none")
    assert loaded.label == "mine" and [phase.label for phase in loaded.phases] == ["t", "v"]
    assert loaded.history[0] == first.history[0]
    assert loaded.last_run.to_arrow().equals(first.last_run.to_arrow())
    assert loaded.compare().rows == first.compare().rows
    for mine, others in zip(loaded.run(), first.run(), strict=True):
        assert mine.number == others.number
        np.testing.assert_array_equal(mine.loss, others.loss)
    assert [epoch.number for epoch in loaded.history[2].epochs] == [2, 3]
    loaded.save(tmp_path)
    assert len(Experiment.load(tmp_path).history) == 4


def test_its_folder_is_that_of_a_graph_too(data, tmp_path):
    experiment = saved(data, tmp_path)
    experiment.run(train())
    experiment.save(tmp_path)
    graph = ModelGraph.load(tmp_path)
    for name, array in experiment.graph.state().items():
        np.testing.assert_array_equal(graph.state()[name], array)


def test_with_another_model_what_fits_is_loaded_if_asked(data, tmp_path):
    before = ModelGraph([ModelNode("guess", SequentialMLP((1,), n_layers=2), data.reference())], "adam", seed=1).build()
    Experiment("mine", before, [train()], progress="none").save(tmp_path / "e")
    own = {"models": {"guess": SequentialMLP((1,), n_layers=3)}, "feature_sets": [data], "progress": "none"}
    with pytest.raises(StateError, match=r"layers\.2.*strict=False"):
        Experiment.load(tmp_path / "e", **own)
    with pytest.warns(UserWarning, match=r"left out of graph.*layers\.1"):
        again = Experiment.load(tmp_path / "e", **own, strict=False)
    name = "guess/parameters/layers.0.weight"
    np.testing.assert_array_equal(again.graph.state()[name], before.state()[name])
    assert "guess/parameters/layers.2.weight" in again.graph.state()
    assert again.run() is not None


def test_other_names_and_another_order_of_axes_are_mapped(data, tmp_path):
    """As of a model of another framework: the layers of the saved one are called otherwise, and are turned."""
    before = saved(data, tmp_path, train())
    before.run()
    before.save(tmp_path)
    renamed = Sequential(Sequential(Dense(1)))
    own = {"models": {"guess": renamed}, "feature_sets": [data], "progress": "none"}
    with pytest.raises(StateError, match=r"layers\.0\.weight"):
        Experiment.load(tmp_path, **own)
    mapping = {"names": lambda name: name.replace("layers.0", "0.0"), "change": lambda name, array: array[..., ::-1]}
    again = Experiment.load(tmp_path, **own, **mapping)
    assert again.history[0] == before.history[0]
    for place in ("parameters", "optimizer/m"):
        turned = before.graph.state()[f"guess/{place}/layers.0.weight"][..., ::-1]
        np.testing.assert_array_equal(again.graph.state()[f"guess/{place}/0.0.weight"], turned)


def test_callbacks_come_back(data, tmp_path):
    experiment = saved(data, tmp_path, train(callbacks=[STOPPING]), callbacks=[EarlyStopping(), Counting(3)])
    loaded = Experiment.load(tmp_path, allow=[Counting])
    (stopping,) = loaded.phases[0].callbacks
    assert type(stopping) is EarlyStopping and stopping.get_config() == STOPPING.get_config()
    assert [type(each) for each in loaded.callbacks] == [EarlyStopping, Counting] and loaded.callbacks[1].start == 3
    assert loaded.callbacks[0].get_config() == experiment.callbacks[0].get_config()


def test_a_callback_without_a_configuration_is_given_again(data, tmp_path):
    saved(data, tmp_path, callbacks=[Quiet()])
    problem = r"^experiment 'mine': the callback .*:Quiet was not saved: it has no get_config\(\)\. Hint: pass them"
    with pytest.raises(ConfigError, match=problem):
        Experiment.load(tmp_path)
    quiet = Quiet()
    assert Experiment.load(tmp_path, callbacks=[quiet]).callbacks == (quiet,)
    assert Experiment.load(tmp_path, callbacks=[]).callbacks == ()


def test_a_callback_of_an_unknown_class_is_not_imported(data, tmp_path):
    saved(data, tmp_path, callbacks=[Counting()])
    with pytest.raises(ConfigError, match=r"Counting has an unknown class; nothing was.*\[Counting\]"):
        Experiment.load(tmp_path)


@pytest.mark.parametrize(
    ("phase", "reason"),
    [
        (lambda: TrainPhase("t", data="all", step=lambda models, batch, optimizers: {}), "has a custom step"),
        (lambda: EvalPhase("t", data=other_data()), "phase 't' cannot be saved: its data have no name"),
        (lambda: OwnPhase("t", data="all"), "it has a custom class, OwnPhase"),
        (lambda: train(callbacks=[Quiet()]), r"the callback .*:Quiet was not saved: it has no get_config\(\)"),
    ],
)
def test_a_phase_without_a_configuration_is_given_again(phase, reason, data, tmp_path):
    saved(data, tmp_path, phase())
    with pytest.raises(ConfigError, match=rf"^phase 't'.*{reason}.*Hint: pass the phases: load\(folder, phases=\["):
        Experiment.load(tmp_path)
    assert [each.label for each in Experiment.load(tmp_path, phases=[train()]).phases] == ["t"]
    assert Experiment.load(tmp_path, phases=[]).phases == ()


def other_data():
    return FeatureSet.from_dict("fs", {"x": np.zeros((2, 2), "float32"), "y": np.zeros(2, "float32")}, "x", "y")


def test_a_folder_of_something_else_is_refused(experiment, tmp_path):
    experiment.graph.build().save(tmp_path / "graph")
    with pytest.raises(ConfigError, match=r"holds no experiment\. Available: graph"):
        Experiment.load(tmp_path / "graph")
    with pytest.raises(ConfigError, match=r"holds no experiment, and would be overwritten.*choose a name for"):
        experiment.save(tmp_path / "graph")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda part: part.pop("results"), r"is not a saved experiment\. Hint: pass the folder"),
        (lambda part: part.update(phases={}), r"is not a saved experiment"),
        (lambda part: part.update(phases=[1]), r"1 is not a saved phase"),
        (lambda part: part.update(callbacks=[1]), r"experiment 'mine': \[1\] are not saved callbacks"),
        (
            lambda part: part.update(callbacks=[{"class": "EarlyStopping", "config": {"odd": 1}}]),
            r"the callback EarlyStopping does not accept its configuration: .*'odd'",
        ),
        (lambda part: part.update(results=[1]), r"1 are not saved results"),
    ],
)
def test_a_malformed_folder_is_told(change, message, data, tmp_path):
    saved(data, tmp_path)
    manifest, state = saved_folder.read(tmp_path, "graph")
    change(manifest["experiment"])
    saved_folder.write(tmp_path, {"experiment": manifest["experiment"], "graph": manifest["graph"]}, state)
    with pytest.raises(ConfigError, match=message):
        Experiment.load(tmp_path)


# -- going on ----------------------------------------------------------------------------------------------------------


def checkpointed(folder, epochs, label="t"):
    settings = {"sampler": SimpleSampler(2, shuffle=True), "epochs": epochs, "checkpoint": folder}
    return TrainPhase(label, data="all", losses=[LOSS], **settings)


def test_a_graph_goes_on_from_a_checkpoint(data, tmp_path):
    whole = graph_of(data).run(checkpointed(None, 4), progress="none")
    graph_of(data).run(checkpointed(tmp_path, 2), progress="none")
    resumed = graph_of(data).run(checkpointed(tmp_path, 4), progress="none", resume="auto")
    np.testing.assert_array_equal(resumed.loss, whole.loss)
    with pytest.raises(PhaseError, match=r"has checkpoints of an earlier run.*resume from them"):
        graph_of(data).run(checkpointed(tmp_path, 4), progress="none")


def test_of_several_phases_those_with_a_checkpoint_go_on(data, tmp_path):
    def phases(epochs):
        later = checkpointed(tmp_path / "b", epochs, "later")
        return checkpointed(tmp_path / "a", 2), later, EvalPhase("v", data="all")

    graph_of(data).run(*phases(1), progress="none")
    first, later, evaluated = graph_of(data).run(*phases(3), progress="none", resume="auto")
    assert len(first.epochs) == 2 and len(later.epochs) == 3 and isinstance(evaluated, EvalResults)
    assert [event.kind for event in (first.events[0], later.events[0])] == ["checkpoint", "checkpoint"]
    plain = [checkpointed(None, 2), checkpointed(None, 3, "later"), EvalPhase("v", data="all")]
    expected = graph_of(data).run(*plain, progress="none")[2]
    np.testing.assert_array_equal(evaluated.prediction("guess"), expected.prediction("guess"))


@pytest.mark.parametrize("phases", [1, 2])
def test_without_any_checkpoint_there_is_nothing_to_go_on_from(phases, data):
    with pytest.raises(
        PhaseError, match=r"phase 't' has no checkpoint to resume from\. Hint: write checkpoint='runs/a' in fit"
    ):
        graph_of(data).run(*[train()] * phases, progress="none", resume="auto")
    with pytest.raises(PhaseError, match=r"unknown resume='on'\. Available: 'auto', 'never'"):
        graph_of(data).run(*[train()] * phases, progress="none", resume="on")


@pytest.mark.parametrize("every", ["epoch", 3, "10min"])
def test_the_checkpoint_of_a_phase_is_part_of_its_configuration(every, data, tmp_path):
    given = Checkpoint(tmp_path / "run", every=every, keep=2, keep_best="loss", on_failure="stop", wait=True)
    saved(data, tmp_path / "saved", train(checkpoint=given))
    read = Experiment.load(tmp_path / "saved").phases[0].checkpoint
    assert read.get_config() == given.get_config() and read.folder == given.folder
