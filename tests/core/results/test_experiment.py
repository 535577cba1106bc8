"""Experiment: phases over one graph, and what is kept of each."""

from __future__ import annotations

import numpy as np
import pytest

from anyaccel import (
    AppliedLoss,
    Callback,
    EarlyStopping,
    EvalPhase,
    Experiment,
    FeatureSet,
    ModelGraph,
    ModelNode,
    SequentialMLP,
    TrainPhase,
)
from anyaccel.errors import GraphError, PhaseError, ResultError, SplitError
from anyaccel.results import EvalResults, TrainResults

LOSS = AppliedLoss("mse", on="guess")


def test_runs_are_kept_in_their_order(experiment):
    results = experiment.run(TrainPhase("t", data="all", losses=[LOSS]), EvalPhase("e", data="last"))
    assert [type(one) for one in results] == [TrainResults, EvalResults]
    assert experiment.history == results and experiment.last_run is results[1]
    assert repr(experiment) == "Experiment('e', 2 runs)"


def test_an_experiment_runs_its_own_phases_if_none_is_given(experiment):
    own = Experiment("own", experiment.graph, [EvalPhase("a", data="all"), EvalPhase("b", data="last")])
    assert [one.label for one in own.run()] == ["a", "b"]
    assert [one.label for one in own.run(EvalPhase("c", data="all"))] == ["c"]


def test_without_phases_there_is_nothing_to_run(experiment):
    with pytest.raises(PhaseError, match=r"experiment 'e' has no phases. Hint: write Experiment\(..., phases="):
        experiment.run()


def test_before_any_run_there_is_no_last_one(experiment):
    with pytest.raises(ResultError, match=r"experiment 'e' has not run yet. Hint: call run_phase\(...\)"):
        _ = experiment.last_run


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("train", r"pass the phase itself, not its label: run\(TrainPhase\(...\)\)"),
        (None, "pass a TrainPhase, EvalPhase or FitPhase"),
        (3, "pass a TrainPhase, EvalPhase or FitPhase"),
        ([], "pass a TrainPhase, EvalPhase or FitPhase"),
        ([EvalPhase("a", data="all")], r"pass phases one by one: run\(\*phases\)"),
        (EvalPhase, r"create one: EvalPhase\('name', data='train', ...\)"),
    ],
)
@pytest.mark.parametrize("how", ["run_phase", "plan", "run", "phases"])
def test_what_is_no_phase_is_named_before_anything_runs(how, given, hint, experiment):
    with pytest.raises(PhaseError, match=rf"experiment 'e' cannot run .* Hint: {hint}"):
        if how == "phases":
            Experiment("e", experiment.graph, [given])
        else:
            getattr(experiment, how)(given)
    assert experiment.history == []


@pytest.mark.parametrize("graph", [None, [], "graph"])
def test_what_is_no_graph_is_named(graph):
    with pytest.raises(PhaseError, match=rf"experiment 'e': graph must be a ModelGraph, got {type(graph).__name__}"):
        Experiment("e", graph)


def test_an_experiment_has_a_label_like_a_node(experiment):
    with pytest.raises(GraphError, match=r"is not a valid label of an experiment"):
        Experiment("a/b", experiment.graph)


def test_a_plan_can_be_had_without_running(experiment):
    plan = experiment.plan(TrainPhase("t", data="all", losses=[LOSS]))
    assert [one.node for one in plan.assignments] == ["guess"]
    assert plan.notes == ("wide takes no part: no loss depends on it",)
    assert experiment.history == [] and experiment.graph.progress == {}


def test_the_plan_of_a_run_is_in_its_result(experiment):
    phase = EvalPhase("e", data="all")
    assert experiment.run_phase(phase).plan == experiment.plan(phase)


@pytest.mark.parametrize("kind", ["train", "eval"])
def test_a_phase_that_fails_is_kept_with_its_error(kind, experiment):
    phase = TrainPhase("t", data="nope", losses=[LOSS]) if kind == "train" else EvalPhase("t", data="nope")
    with pytest.raises(SplitError, match=r"'fs' has no split 'nope'"):
        experiment.run_phase(phase)
    assert isinstance(experiment.last_run.error, SplitError)
    assert "SplitError" in experiment.last_run.to_dict()["error"]


def test_what_a_phase_does_not_need_it_is_not_asked_for(data):
    """Two feature sets of different lengths in one graph: a phase over one of them does not look at the other."""
    other = FeatureSet.from_dict("other", {"x": np.ones((4, 2), "float32")}, "x")
    nodes = [ModelNode("a", SequentialMLP(), data.reference()), ModelNode("b", SequentialMLP(), other.reference())]
    experiment = Experiment("e", ModelGraph(nodes))
    for given in ("last", {"fs": "last"}, data["last"], {"fs": data["last"]}):
        result = experiment.run_phase(EvalPhase("p", data=given, outputs=["a"]))
        assert list(result.rows) == ["fs"]
        assert result.to_arrow().column("row").to_pylist() == [5, 4]
    with pytest.raises(SplitError, match=r"'other' has no split 'last'"):
        experiment.run_phase(EvalPhase("p", data="last", outputs=["a", "b"]))


def test_predictions_of_different_numbers_of_rows_are_no_table(data):
    other = FeatureSet.from_dict("other", {"x": np.ones((4, 2), "float32")}, "x")
    nodes = [ModelNode("a", SequentialMLP(), data.reference()), ModelNode("b", SequentialMLP(), other.reference())]
    result = Experiment("e", ModelGraph(nodes)).run_phase(EvalPhase("p", data="all"))
    assert (len(result.prediction("a")), len(result.prediction("b"))) == (6, 4)
    with pytest.raises(ResultError) as caught:
        result.to_arrow()
    assert str(caught.value) == (
        "run 'p' has predictions with different numbers of rows, which do not fit into one table; a: 6, b: 4. "
        "Hint: run an EvalPhase for each feature set, with outputs=[...] for its nodes."
    )


def test_the_graph_goes_on_from_phase_to_phase(experiment):
    phase = TrainPhase("t", data="all", losses=[LOSS], epochs=2)
    first, second = experiment.run(phase, phase)
    assert [epoch.number for epoch in (*first.epochs, *second.epochs)] == [0, 1, 2, 3]
    assert second.loss[-1] < first.loss[0]


def test_all_phases_are_checked_before_the_first_runs(experiment):
    before = experiment.graph.state()
    with pytest.raises(SplitError, match=r"'fs' has no split 'nope'"):
        experiment.run(TrainPhase("t", data="all", losses=[LOSS]), EvalPhase("e", data="nope"))
    assert experiment.history == [] and experiment.graph.state().keys() == before.keys()


class Unfreezing(Callback):
    """Changes the graph when a phase begins, before it is planned."""

    def phase_start(self, run):
        run.graph.unfreeze()


@pytest.mark.parametrize("of_the_phase", [False, True])
def test_phases_are_not_refused_for_what_a_callback_changes_first(experiment, of_the_phase):
    graph, callbacks = experiment.graph.freeze(), [Unfreezing()]
    own = Experiment("own", graph, callbacks=[] if of_the_phase else callbacks, progress="none")
    phase = TrainPhase("t", data="all", losses=[LOSS], callbacks=callbacks if of_the_phase else [])
    assert len(own.run(phase, phase)) == 2


def test_phases_before_one_with_a_callback_are_checked(experiment):
    wrong, own = EvalPhase("e", data="nope"), TrainPhase("t", data="all", losses=[LOSS], callbacks=[Unfreezing()])
    with pytest.raises(SplitError, match=r"'fs' has no split 'nope'"):
        first = TrainPhase("a", data="all", losses=[LOSS], callbacks=[EarlyStopping("loss")])
        experiment.run(first, wrong, own)
    assert experiment.history == []


# -- a graph runs phases itself ----------------------------------------------------------------------------------------


def fresh():
    data = FeatureSet.from_dict("d", {"x": np.arange(12.0)[:, None], "y": np.arange(12.0)[:, None]}, ["x"], ["y"])
    return ModelGraph([ModelNode("guess", SequentialMLP(), data.reference())], "adam", label="g")


def test_a_graph_runs_one_phase_as_an_experiment_does():
    by_graph = fresh().run(TrainPhase("t", data="all", losses=[LOSS], epochs=3), progress="none")
    alone = Experiment("e", fresh(), progress="none").run_phase(TrainPhase("t", data="all", losses=[LOSS], epochs=3))
    assert isinstance(by_graph, TrainResults)
    assert list(by_graph.loss) == list(alone.loss)


def test_a_graph_runs_several_phases_or_a_list_and_goes_on_where_it_was():
    phase, check = TrainPhase("t", data="all", losses=[LOSS], epochs=2), EvalPhase("e", data="all")
    graph = fresh()
    several = graph.run(phase, check, progress="none")
    listed = graph.run([phase, check], progress="none")
    assert [type(one) for one in several] == [type(one) for one in listed] == [TrainResults, EvalResults]
    whole = Experiment("e", fresh(), progress="none").run_phase(TrainPhase("t", data="all", losses=[LOSS], epochs=4))
    assert [*several[0].loss, *listed[0].loss] == pytest.approx(whole.loss, rel=1e-6)
    assert isinstance(graph.run([check], progress="none"), list)


def test_a_graph_gives_phases_callbacks():
    stop = EarlyStopping("loss", patience=1, min_delta=1e9)
    results = fresh().run(TrainPhase("t", data="all", losses=[LOSS], epochs=9), callbacks=[stop], progress="none")
    assert len(results.loss) == 2


@pytest.mark.parametrize("phases", [(), ([],)])
def test_a_graph_without_phases_has_nothing_to_run(phases):
    with pytest.raises(PhaseError, match=r"graph 'g' received no phases. Hint: write graph.run\(TrainPhase\(...\)\)"):
        fresh().run(*phases)
