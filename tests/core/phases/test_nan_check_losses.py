"""NaN and infinite losses: which step and node are named, and what `on_nan` does."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from anyaccel import AppliedLoss
from anyaccel.backend import ComputingBackend
from anyaccel.data import FeatureSet, SimpleSampler
from anyaccel.errors import NaNWarning, PhaseError
from anyaccel.graph import ModelGraph, ModelNode
from anyaccel.numpy_backend import Dense, NumpyBackend
from anyaccel.phases import Callback, EvalPhase, TrainPhase
from anyaccel.phases.executor.cross_segment import Losses
from anyaccel.phases.loss_accumulator import LossAccumulator
from anyaccel.specs import Loss

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy tells of infinities

VALUES = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}


def squares(outputs, targets):
    """Sum, weight and gradients; unlike a named loss it may leave out NaN, so that NaN in its targets is no mistake."""
    difference = outputs - targets
    return (difference**2).sum(), outputs.size, (2 * difference, None)


OWN = AppliedLoss(Loss(squares), on="net", label="squares")


def table(row: int = 9, value: float = np.nan) -> FeatureSet:
    """Sixteen rows to train on, of which one has a target that is not finite, and eight that are fine."""
    draw = np.random.default_rng(0)
    y = draw.normal(size=(24, 1)).astype("float32")
    y[row] = value
    data = FeatureSet.from_dict("data", {"x": draw.normal(size=(24, 3)).astype("float32"), "y": y}, ["x"], ["y"])
    data.add_splits({"train": np.arange(16), "val": np.arange(16, 24)})
    return data


def line(data: FeatureSet) -> ModelGraph:
    return ModelGraph([ModelNode("net", Dense(1), data.reference())], "sgd")


def phase(**settings) -> TrainPhase:
    return TrainPhase("t", **{"data": "train", "losses": [OWN], "sampler": SimpleSampler(4), "epochs": 3, **settings})


class EveryStep(Callback):
    """Listens to steps, so that each is a call of its own."""

    def step_end(self, run):
        pass


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("callbacks", [(), (EveryStep(),)], ids=["calls of steps", "single steps"])
def test_a_loss_that_is_not_finite_is_one_warning_with_node_and_step(experiment, name, callbacks):
    with pytest.warns(NaNWarning) as told:
        result = experiment(line(table(value=VALUES[name]))).run_phase(phase(callbacks=callbacks))
    value = "inf" if name == "-inf" else name  # a square
    told = [warning for warning in told if warning.category is NaNWarning]
    assert len(told) == 1, "once, not in every epoch"
    assert str(told[0].message) == (
        f"phase 't': loss 'squares' on node 'net' is {value} at step 3 of epoch 1. Hint: lower lr, set "
        "clip_norm=1.0 of the Optimizer, or look for NaN in the data and in your own losses; on_nan='stop' ends the "
        "run when this happens, on_nan='ignore' silences this warning"
    )
    assert told[0].filename == __file__
    assert len(result.epochs) == 3 and not result.stop_reason


@pytest.mark.parametrize("settings", [{"accumulate": 2}, {"sampler": {"data": SimpleSampler(4)}}], ids=str)
def test_the_step_is_an_optimizer_step_whatever_it_is_made_of(experiment, settings):
    step = 2 if "accumulate" in settings else 3
    with pytest.warns(NaNWarning, match=f"is nan at step {step} of epoch 1"):
        experiment(line(table())).run_phase(phase(**settings))


def test_stop_ends_the_run_after_the_epoch_and_warns(experiment):
    with pytest.warns(NaNWarning, match="step 3 of epoch 1") as told:
        result = experiment(line(table())).run_phase(phase(on_nan="stop"))
    assert len(result.epochs) == 1
    assert result.stop_reason == "loss 'squares' on node 'net' is nan at step 3 of epoch 1"
    assert "on_nan" not in str(told[0].message), "which is set already"


def test_stop_ends_a_run_that_was_warned_of_its_data(experiment):
    with pytest.warns(NaNWarning, match="targets 'y' hold NaN in 1 of 16 rows") as told:
        result = experiment(line(table())).run_phase(phase(on_nan="stop", losses=[AppliedLoss("mse", on="net")]))
    assert len(told) == 1 and len(result.epochs) == 1 and "step 3 of epoch 1" in result.stop_reason


def test_ignore_says_nothing_of_losses_and_data_and_goes_on(experiment):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = experiment(line(table())).run_phase(phase(on_nan="ignore"))
        named = experiment(line(table())).run_phase(phase(on_nan="ignore", losses=[AppliedLoss("mse", on="net")]))
    assert len(result.epochs) == len(named.epochs) == 3 and np.isnan(result.loss).all()
    assert "hold NaN" in str(named.plan), "the plan says it still"


def test_a_later_epoch_is_named_when_that_is_the_first(experiment):
    class Diverge(Callback):
        def epoch_start(self, run):
            if run.epoch == 1:
                run.graph["net"].model.parameters["weight"][...] = np.inf

    with pytest.warns(NaNWarning, match="at step 1 of epoch 2"):
        experiment(line(table(value=0.0))).run_phase(phase(callbacks=[Diverge()]))


def test_a_validation_that_is_not_finite_is_named(experiment):
    with pytest.warns(NaNWarning, match="loss 'squares' on node 'net' is nan in the validation after epoch 1"):
        result = experiment(line(table(row=20))).run_phase(phase(validation="val", on_nan="stop"))
    assert len(result.epochs) == 1 and np.isfinite(result.loss).all()


def test_finite_losses_are_no_warning(experiment):
    with warnings.catch_warnings():
        warnings.simplefilter("error", NaNWarning)
        experiment(line(table(value=0.0))).run_phase(phase(validation="val", on_nan="stop"))


def test_an_unknown_on_nan_is_an_error_and_the_setting_is_saved(experiment):
    with pytest.raises(
        PhaseError, match=r"unknown on_nan='sotp'\. Available: 'warn', 'stop', 'ignore'\. Hint: did you"
    ):
        phase(on_nan="sotp")
    saved = phase(on_nan="stop", losses=[AppliedLoss("mse", on="net")]).get_config()
    assert EvalPhase.from_config(saved).on_nan == "stop"


def test_losses_come_to_the_host_once_an_epoch_if_they_are_finite(experiment, monkeypatch):
    copies = []
    to_host = NumpyBackend.to_host
    monkeypatch.setattr(NumpyBackend, "to_host", lambda self, tensor: copies.append(1) or to_host(self, tensor))
    experiment(line(table(value=0.0))).run_phase(phase())
    finite = len(copies)
    copies.clear()
    experiment(line(table(value=0.0))).run_phase(phase(on_nan="ignore"))
    assert len(copies) == finite


def pairs(backend: ComputingBackend, **values: float) -> Losses:
    return Losses(backend, 0, tuple(values), pairs={label: (value, 1.0) for label, value in values.items()})


def test_the_step_of_an_entry_is_that_of_its_call():
    backend, losses = NumpyBackend(), LossAccumulator()
    losses.add([Losses(backend, 4, ("a",), np.array([[1.0], [2.0], [np.nan]]), 2)], 0, 2)  # the last row does not count
    losses.add([pairs(backend, a=1.0), pairs(backend, b=1.0)] * 3, 2, 3)
    assert losses.first_not_finite() == {}
    losses.add([pairs(backend, a=np.nan)], 5)
    losses.truncate(7, 5)
    losses.add([pairs(backend, a=1.0), pairs(backend, b=np.inf)] * 2, 5, 2)
    losses.add([Losses(backend, 4, ("a",), np.array([[1.0], [np.inf], [np.nan]]), 3)], 7, 3)
    assert losses.first_not_finite() == {"b": (5, np.inf), "a": (8, np.inf)}
