"""FrameworkSettings with torch: its flags hold inside a phase, and are as before after it, however it ends."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import anyaccel as aa
from anyaccel.errors import PhaseError
from anyaccel.plugin_testing import TinyBackend
from anyaccel_devtools.commands.plan import advise
from anyaccel_torch.settings import BOOLEANS

X = np.ones((8, 3, 4, 4), "float32")
ROWS = aa.FeatureSet.from_dict("d", {"x": X, "y": X[:, :1, 0, 0]}, ["x"], ["y"])


def graph():
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 1))
    return aa.ModelGraph([aa.ModelNode("net", net, ROWS.reference())], "sgd")


def read():
    return {name: eval_name(name) for name in BOOLEANS}


def eval_name(name):
    at = torch
    for part in name.split(".")[1:]:
        at = getattr(at, part)
    return at


class Reading(aa.Callback):
    def __init__(self, fails=""):
        self.seen, self.fails = [], fails

    def after_placement(self, run):
        self.seen.append(read())

    def epoch_end(self, run):
        self.seen.append(read())
        if self.fails:
            raise ZeroDivisionError


def train_with(settings, reading, phase=aa.TrainPhase):
    losses = [aa.AppliedLoss("mse", on="net")]
    made = phase("p", data="all", losses=losses, callbacks=[aa.FrameworkSettings(settings), reading])
    aa.Experiment(graph(), progress="none").run_phase(made)


@pytest.mark.parametrize("phase", [aa.TrainPhase, aa.EvalPhase])
@pytest.mark.parametrize("name", BOOLEANS)
def test_a_setting_holds_inside_a_phase_and_is_as_before_after_it(name, phase):
    before, reading = read(), Reading()
    train_with({name: not before[name]}, reading, phase)
    assert reading.seen and all(seen == before | {name: not before[name]} for seen in reading.seen)
    assert read() == before


def test_all_together_and_after_an_error():
    before, reading = read(), Reading(fails="yes")
    with pytest.raises(ZeroDivisionError):
        train_with({name: not value for name, value in before.items()}, reading)
    assert reading.seen[-1] == {name: not value for name, value in before.items()}
    assert read() == before


def test_a_phase_inside_another_has_its_own():
    before = read()
    name = BOOLEANS[0]

    class Inner(aa.Callback):
        def epoch_end(self, run):
            train_with({name: before[name]}, inner)
            outer.append(read()[name])

    inner, outer = Reading(), []
    train_with({name: not before[name]}, Inner())
    assert inner.seen[0][name] == before[name] and outer == [not before[name]]
    assert read() == before


def test_a_phase_of_another_thread_that_would_change_them_meanwhile_is_refused():
    """The one that ended last would leave the values of the other."""
    before, refused = read(), []
    name = BOOLEANS[0]

    def other():
        with pytest.raises(PhaseError) as told:
            train_with({name: True}, Reading())
        refused.append(str(told.value))

    class Meanwhile(aa.Callback):
        def epoch_end(self, run):
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()

    train_with({name: not before[name]}, Meanwhile())
    assert read() == before and "a phase in another thread has them too" in refused[0]
    thread = threading.Thread(target=train_with, args=({name: not before[name]}, after := Reading()))
    thread.start()
    thread.join()
    assert after.seen[0][name] != before[name] and read() == before


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"torch.backends.cudnn.benchmrk": True}, "did you mean 'torch.backends.cudnn.benchmark'"),
        ({"torch.backends.cudnn.benchmark": 1}, "benchmark cannot be 1. Available: True, False"),
        ({"torch.nn.Linear": True}, "no framework of its graph has the setting"),
    ],
)
def test_a_wrong_setting_is_refused_before_anything_moves(values, told):
    before, reading = read(), Reading()
    with pytest.raises(PhaseError, match=told):
        train_with(values, reading)
    assert not reading.seen and read() == before


@pytest.mark.parametrize("values", [{}, {1: True}, "benchmark", None])
def test_values_are_a_mapping_of_names(values):
    with pytest.raises(PhaseError, match="FrameworkSettings: values"):
        aa.FrameworkSettings(values)


def test_the_advice_says_what_to_write_and_is_content_with_it():
    x = np.ones((64, 3, 8, 8), "float32")
    data = aa.FeatureSet.from_dict("d", {"x": x, "y": x[:, :1, 0, 0]}, ["x"], ["y"])
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 1))
    images = aa.ModelGraph([aa.ModelNode("net", net, data.reference())], "sgd")

    def item(callbacks):
        losses = [aa.AppliedLoss("mse", on="net")]
        phase = aa.TrainPhase("t", data="all", losses=losses, accelerator="gpu", callbacks=callbacks)
        plan = aa.Experiment(images).plan(phase, "1x A100-80GB")
        return next(each for each in advise(phase, images, plan) if "cudnn.benchmark" in each.practice)

    wanted = item([])
    assert wanted.verdict == "do"
    assert "callbacks=[FrameworkSettings({'torch.backends.cudnn.benchmark': True})]" in wanted.figure
    assert item([aa.FrameworkSettings({"torch.backends.cudnn.benchmark": True})]).verdict == "done"


def test_a_framework_without_settings_is_told():
    callback, phase = aa.FrameworkSettings({"x.y": True}), SimpleNamespace(label="p")
    plan = SimpleNamespace(
        assignments=(SimpleNamespace(framework="f", backend=SimpleNamespace(capability=lambda kind: None)),)
    )
    plan = SimpleNamespace(assignments=(SimpleNamespace(framework="f", backend=TinyBackend("f")),))
    with pytest.raises(PhaseError, match=r"no framework of its graph has the setting 'x\.y'\. Hint: leave it out"):
        callback.before_placement(phase, plan, object())


def test_the_code_of_a_fit_writes_them() -> None:
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 1))
    settings = {"torch.backends.cudnn.benchmark": True}
    fitted = aa.fit(net, ROWS, loss="mse", epochs=1, callbacks=[aa.FrameworkSettings(settings)], progress="none")
    assert f"callbacks=[aa.FrameworkSettings({settings!r})]" in fitted.code()
