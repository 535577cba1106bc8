"""EarlyStopping: when it stops, and what it goes back to."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples

from anyaccel import Experiment, Optimizer
from anyaccel.errors import PhaseError
from anyaccel.metrics import Metric
from anyaccel.numpy_backend import BatchNorm, Dense, Dropout, Sequential
from anyaccel.phases import Checkpoint, EarlyStopping, ReduceLROnPlateau

pytestmark = pytest.mark.filterwarnings("ignore::anyaccel.errors.NaNWarning")


@pytest.fixture
def scripted(data, line, experiment, train, evaluate):
    """`scripted(figures, stopper, ...)` trains while a metric `score` of the validation gives these figures in turn."""

    def run(figures, *callbacks, graph=None, **settings):
        script = iter(figures)
        score = Metric(lambda outputs, targets: next(script), on="net", label="score")
        phase = train(
            epochs=settings.pop("epochs", len(figures)),
            validation=evaluate("check", losses=[], metrics=[score]),
            callbacks=callbacks,
            **settings,
        )
        return experiment(graph or line()).run_phase(phase)

    return run


def stopper(monitor="val_score", **settings):
    return EarlyStopping(monitor, **{"patience": 2, "mode": "min", **settings})


# -- when --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("figures", "settings", "epochs"),
    [
        ([3, 2, 1, 0], {}, 4),
        ([3, 2, 2, 2, 1], {}, 4),
        ([3, 2, 2.5, 1, 1, 1, 0], {}, 6),
        ([3, 3, 3], {"patience": 1}, 2),
        ([1, 2, 3, 3, 3, 9], {"mode": "max"}, 5),
        ([3, 2, 1], {"mode": "max"}, 3),
        ([3.0, 2.95, 2.9, 2.8], {"min_delta": 0.1}, 3),
        ([3.0, 2.85, 2.7, 2.5], {"min_delta": 0.1}, 4),
        ([0.5, 0.55, 0.58, 0.9], {"mode": "max", "min_delta": 0.1}, 3),
        ([math.nan, math.nan, 1, 1], {}, 2),
        ([math.nan, 1, math.nan, 2, 0], {}, 4),
        ([math.inf, math.inf, math.inf, 1], {}, 3),
        ([-1, -2, -2, -2, -5], {}, 4),
    ],
)
def test_it_stops_after_so_many_epochs_without_a_better_figure(figures, settings, epochs, scripted):
    result = scripted(figures, stopper(**settings))
    assert len(result.epochs) == epochs
    wanted = f"val_score has not improved for {settings.get('patience', 2)} epochs"
    if epochs < len(figures):
        nan = " and is NaN now" if math.isnan(figures[epochs - 1]) else ""
        assert result.stop_reason == wanted + nan
    else:
        assert result.stop_reason in ("", wanted)


@settings(max_examples=examples(60))
@given(
    figures=st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.0, math.nan]), min_size=1, max_size=8),
    patience=st.integers(1, 3),
    mode=st.sampled_from(["min", "max"]),
    min_delta=st.sampled_from([0.0, 1.0, 1.5]),
)
def test_it_agrees_with_its_definition(figures, patience, mode, min_delta):
    """By the definition alone: an epoch is better if it beats the best before it by more than `min_delta`."""

    class Fake:
        stopped, snapshots = "", 0
        phase = type("P", (), {"validation": None, "epochs": 99, "on_nan": "ignore", "label": "t"})

        def __init__(self):
            self.history = []

        def stop(self, reason):
            self.stopped = reason

        def log_event(self, kind, message):
            assert kind == "metric" and "which is NaN" in message

    best, best_epoch, waited, wanted = None, -1, 0, None
    for i, figure in enumerate(figures):
        gain = None if best is None else (best - figure if mode == "min" else figure - best)
        if not math.isnan(figure) and (best is None or gain > min_delta):
            best, best_epoch, waited = figure, i, 0
        else:
            waited += 1
        if waited >= patience:
            wanted = i
            break
    run, callback = Fake(), EarlyStopping("loss", patience=patience, mode=mode, min_delta=min_delta)
    for i, figure in enumerate(figures):
        run.epoch = i
        run.history.append(type("E", (), {"figures": {"loss": figure}, "validated": False}))
        callback.epoch_end(run)
        if run.stopped:
            break
    assert (i if run.stopped else None) == wanted
    assert callback.best_epoch == best_epoch
    assert callback.best == best if best is not None else math.isnan(callback.best)


def test_it_begins_anew_with_every_phase(scripted):
    callback = stopper(patience=2)
    assert len(scripted([1, 1, 1, 1], callback).epochs) == 3
    assert len(scripted([5, 5, 5, 5], callback).epochs) == 3
    assert (callback.best, callback.best_epoch) == (5, 0)


def test_it_tells_the_best_figure_as_it_was_given(scripted):
    callback = stopper(mode="max", patience=9)
    scripted([0.1, 0.7, 0.3], callback)
    assert (callback.best, callback.best_epoch, callback.waited) == (0.7, 1, 1)
    assert math.isnan(EarlyStopping().best)


def test_it_may_watch_the_training_loss(line, experiment, train):
    result = experiment(line()).run_phase(train(epochs=3, callbacks=[EarlyStopping("loss", patience=1, min_delta=99)]))
    assert len(result.epochs) == 2 and result.stop_reason == "loss has not improved for 1 epochs"


def test_epochs_without_a_validation_do_not_count(scripted):
    result = scripted([3, 3, 0, 0], stopper(patience=1), epochs=8, validate_every=2)
    assert len(result.epochs) == 4


# -- what it goes back to ----------------------------------------------------------------------------------------------


def noisy():
    return Sequential(Dense(4), BatchNorm(), Dropout(0.3), Dense(1))


def without_progress(state):
    return {name: array for name, array in state.items() if not name.startswith("progress")}


@pytest.mark.parametrize("where", ["cpu", "sim:0"])
@pytest.mark.parametrize(
    ("figures", "best"),
    [([3, 1, 2, 2, 2], 1), ([3, 2, 1], 2), ([1, 2], 0), ([4, 1, 3, 2], 1), ([4, 3, math.nan], 1)],
    ids=["stopped", "the last", "the first", "stopped at the end", "nan"],
)
@pytest.mark.usefixtures("sims")
def test_it_goes_back_to_the_parameters_and_optimizer_of_the_best_epoch(
    figures, best, where, line, scripted, experiment, train, same
):
    graph, shadow = line(noisy()), line(noisy())
    scripted(figures, stopper(restore_best=True), graph=graph, accelerator=where)
    experiment(shadow).run_phase(train(epochs=best + 1))
    same(without_progress(shadow.state()), without_progress(graph.state()))


def test_it_keeps_the_last_parameters_unless_it_is_asked_to(line, scripted, experiment, train, same):
    graph, shadow = line(noisy()), line(noisy())
    scripted([3, 1, 2, 2, 2], stopper(), graph=graph)
    experiment(shadow).run_phase(train(epochs=4))
    same(shadow.state(), graph.state())


def test_training_goes_on_from_the_best_epoch(line, scripted, experiment, train, same):
    graph, shadow = line(noisy()), line(noisy())
    scripted([3, 1, 2, 2], stopper(restore_best=True), graph=graph)
    experiment(shadow).run_phase(train(epochs=2))
    shadow.progress["train"] = graph.progress["train"] == 4 and 4
    for one in (graph, shadow):
        experiment(one).run_phase(train(epochs=2))
    same(shadow.state(), graph.state())


def test_it_goes_back_where_another_callback_stopped_the_run(at, line, scripted, experiment, train, same):
    """Also one that is told of the end of the epoch after it, or in an epoch without a validation."""
    later = at("epoch_end", lambda run: run.stop("time is up") if run.epoch == 2 else None)
    for more, best in (({}, 0), ({"validate_every": 2, "epochs": 9}, 1)):
        graph, shadow = line(noisy()), line(noisy())
        result = scripted([1, 2, 3, 4], stopper(patience=9, restore_best=True), later, graph=graph, **more)
        assert (len(result.epochs), result.stop_reason) == (3, "time is up")
        experiment(shadow).run_phase(train(epochs=best + 1))
        same(without_progress(shadow.state()), without_progress(graph.state()))


def test_it_does_not_go_back_after_an_error(at, line, scripted, experiment, train, same):
    def fail(run):
        if run.epoch == 2:
            raise KeyboardInterrupt

    graph, shadow = line(noisy()), line(noisy())
    with pytest.raises(KeyboardInterrupt):
        scripted([1, 2, 3, 4], stopper(patience=9, restore_best=True), at("epoch_end", fail), graph=graph)
    experiment(shadow).run_phase(train(epochs=3))
    same(shadow.state(), graph.state())


def test_a_snapshot_does_not_outlive_its_phase(sims, line, scripted, owned):
    graph, callback = line(noisy()), stopper(restore_best=True)
    scripted([3, 1, 2, 2, 2], callback, graph=graph, accelerator="sim:0")
    assert callback.best == 1
    assert sims[0].used == owned(graph, "sim:0")


def test_snapshots_can_be_used_again_and_again(at, line, experiment, train, same):
    taken, states = [], []

    def look(run):
        if run.epoch == 0:
            taken.append(run.snapshot())
        else:
            run.restore(taken[0])

    for epochs in (1, 2, 4):
        graph = line(noisy())
        taken.clear()
        experiment(graph).run_phase(train(epochs=epochs, callbacks=[at("epoch_end", look)]))
        states.append(without_progress(graph.state()))
    same(states[0], states[1])
    same(states[0], states[2])


# -- what is refused ---------------------------------------------------------------------------------------------------


VALIDATE = "add a validation: TrainPhase(validation='SPLIT'), or an EvalPhase with metrics."


@pytest.mark.parametrize(
    ("monitor", "remedy"),
    [
        ("val_score", VALIDATE),
        ("val_loss", VALIDATE),
        ("val_loss.net", VALIDATE),
        ("loss.nit", "did you mean 'loss.net'?"),
        ("accuracy", "monitor one of these, or add a metric to the validation."),
    ],
)
@pytest.mark.parametrize("where", ["phase", "checkpoint", "experiment", "optimizer"])
def test_a_figure_that_there_is_not_is_an_error_before_anything_is_trained(
    monitor, remedy, where, line, experiment, train, tmp_path, values
):
    who = {"optimizer": "ReduceLROnPlateau", "checkpoint": "Checkpoint(keep_best=...)"}.get(where, "EarlyStopping")
    message = (
        f"{who} monitors {monitor!r}, but the epochs of 'train' have no such value. Available: loss, loss.net. Hint: "
        f"{remedy}"
    )
    if where in ("phase", "checkpoint"):
        callbacks = [EarlyStopping(monitor, mode="min")] if where == "phase" else []
        checkpoint = Checkpoint(tmp_path, keep_best=monitor, mode="min") if where == "checkpoint" else None
        with pytest.raises(PhaseError) as caught:
            train(callbacks=callbacks, checkpoint=checkpoint)
        assert str(caught.value) == message
        return
    schedule = ReduceLROnPlateau(monitor, mode="min")
    graph = line(optimizer=Optimizer("sgd", schedule=schedule)) if where == "optimizer" else line()
    ours = experiment(graph)
    if where == "experiment":
        ours = Experiment("e", graph, progress="none", callbacks=[EarlyStopping(monitor, mode="min")])
    before = values(graph.build())
    with pytest.raises(PhaseError) as caught:
        ours.run_phase(train(epochs=3))
    assert str(caught.value) == message
    assert not ours.history[-1].epochs
    assert all(np.array_equal(value, before[name]) for name, value in values(graph).items())


def test_a_misspelt_figure_of_the_validation_is_an_error_when_the_phase_is_made(train):
    with pytest.raises(PhaseError, match=r"monitors 'val_los', .* Available: loss, loss.net, val_loss, val_loss.net"):
        train(epochs=5, validation="val", validate_every=2, callbacks=[EarlyStopping("val_los", mode="min")])
    train(epochs=5, validation="val", validate_every=2, callbacks=[EarlyStopping("val_loss")])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mode": "least"}, r"mode='least'\. Available: 'auto', 'min', 'max'"),
        ({"patience": 0}, r"EarlyStopping: patience=0 is not an int of at least 1\. Hint: write patience=5"),
        (
            {"min_delta": -1.0},
            r"min_delta=-1.0 is not a number of 0 or more\. Hint: write min_delta=0.0",
        ),
        ({"min_delta": math.nan}, r"EarlyStopping: min_delta=nan is not a number"),
        ({"restore_best": "no"}, r"EarlyStopping: restore_best='no' is not True or False"),
    ],
)
def test_settings_out_of_range_are_refused(settings, words):
    with pytest.raises(PhaseError, match=words):
        EarlyStopping(**settings)


def test_a_metric_that_is_better_when_high_is_watched_so(line, experiment, train, evaluate):
    def epochs_until_stopped(values, label, **settings):
        script = iter(values)
        score = Metric(lambda outputs, targets: next(script), on="net", label=label)
        stop = EarlyStopping(f"val_{label}", patience=1, **settings)
        phase = train(epochs=5, callbacks=[stop], validation=evaluate("check", losses=[], metrics=[score]))
        return len(experiment(line()).run_phase(phase).epochs)

    rising = [0.1, 0.2, 0.3, 0.4, 0.5]
    assert epochs_until_stopped(rising, "accuracy") == 5
    assert epochs_until_stopped(rising, "f1_macro") == 5
    assert epochs_until_stopped(rising, "rmse") == 2
    assert epochs_until_stopped(rising, "accuracy", mode="min") == 2
    assert epochs_until_stopped(rising, "score", mode="max") == 5
    with pytest.raises(PhaseError, match=r"cannot tell whether a high or a low 'val_score' is better\. Hint"):
        epochs_until_stopped(rising, "score")


def test_a_figure_that_is_an_array_of_one_number_is_a_number(scripted):
    assert len(scripted([np.float32(1), np.float32(1), np.float32(1)], stopper()).epochs) == 3
