"""What a phase leaves to its graph: the node of a loss, and the device."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from anyaccel import (
    AppliedLoss,
    EvalPhase,
    Experiment,
    FeatureSet,
    ModelGraph,
    ModelNode,
    SequentialMLP,
    TrainPhase,
    simulate,
)
from anyaccel.device import Device
from anyaccel.errors import PhaseError
from anyaccel.phases import Phase
from anyaccel.phases.bound_phase import best_common_device, bound


def data():
    x = np.random.default_rng(0).normal(size=(32, 2))
    return FeatureSet.from_dict("data", {"x": x, "y": x[:, 0]}, "x", "y")


def graph(*labels):
    table = data()
    return ModelGraph([ModelNode(label, SequentialMLP(), table) for label in labels or ["net"]], "adam")


def test_a_loss_without_a_node_is_on_the_only_output():
    train, evaluate = (
        TrainPhase(data="all", losses=AppliedLoss("mse")),
        EvalPhase(data="all", losses=[AppliedLoss("mse")]),
    )
    trained, evaluated = Experiment(graph(), progress="none").run(train, evaluate)
    named = TrainPhase(data="all", losses=AppliedLoss("mse", on="net"))
    expected = Experiment(graph(), progress="none").run_phase(named)
    np.testing.assert_array_equal(trained.loss, expected.loss)
    assert trained.epochs[0].figures.keys() == expected.epochs[0].figures.keys()
    assert list(evaluated.losses) == ["net"]


def test_of_several_outputs_one_must_be_named():
    phase = TrainPhase(data="all", losses=AppliedLoss("mse"))
    message = (
        r"phase 'train' has the loss 'mse' on no particular node, but the graph has several outputs\. "
        r"Available: a, b\."
    )
    for call in (Experiment(graph("a", "b"), progress="none").run_phase, Experiment(graph("a", "b")).plan):
        with pytest.raises(PhaseError, match=message + r" Hint: name one: AppliedLoss\('mse', on='a'\)"):
            call(phase)


def test_a_phase_that_leaves_nothing_open_is_used_as_it_is():
    phase = TrainPhase(data="all", losses=AppliedLoss("mse", on="net"), validation=EvalPhase(data="all"))
    assert bound(phase, graph()) is phase
    again = Phase.from_config(TrainPhase(data="all", losses=AppliedLoss("mse"), accelerator="auto").get_config())
    assert again.chooses_device and again.losses == (AppliedLoss("mse"),)


def test_labels_have_defaults():
    assert [cls(data="all").label for cls in (TrainPhase, EvalPhase)] == ["train", "eval"]
    experiment = Experiment(ModelGraph([ModelNode(SequentialMLP(), data())], label="wine"), progress="none")
    assert experiment.label == "wine" and list(experiment.graph.nodes) == ["model"]


class Fakes:
    """A registry of two frameworks that lists their devices, and records which were asked."""

    def __init__(self, **devices):
        self.listed, self.asked = devices, []

    def devices(self, framework=None):
        self.asked.append(framework)
        return [(framework, Device.parse(name)) for name in self.listed[framework]]


@pytest.mark.parametrize(
    ("devices", "best"),
    [
        ({"one": ["cpu", "gpu:0", "gpu:1"]}, "gpu:0"),
        ({"one": ["cpu", "mps"]}, "mps:0"),
        ({"one": ["cpu", "sim:0"]}, "cpu:0"),
        ({"one": ["cpu", "gpu:0", "gpu:1"], "two": ["cpu", "gpu:1"]}, "gpu:1"),
        ({"one": ["cpu", "gpu:0"], "two": ["cpu"]}, "cpu:0"),
    ],
)
def test_the_best_device_is_one_that_all_frameworks_have(monkeypatch, devices, best):
    fakes = Fakes(**devices, other=["gpu:7"])
    monkeypatch.setattr("anyaccel.phases.bound_phase.registry", lambda: fakes)
    assert str(best_common_device(sorted(devices))) == best
    assert fakes.asked == sorted(devices)  # no other framework is asked, and so none is loaded


def test_auto_is_the_cpu_where_nothing_better_is():
    with simulate(1):
        phase = TrainPhase(
            data="all",
            losses=AppliedLoss("mse"),
            accelerator="auto",
            validation=EvalPhase(data="all", accelerator="auto"),
        )
        results = Experiment(graph(), progress="none").run_phase(phase)
    assert [str(assignment.device) for assignment in results.plan.assignments] == ["cpu:0"]
    assert np.isfinite(results.figure("val_loss")).all()


@pytest.mark.parametrize("cls", [TrainPhase, EvalPhase])
def test_every_setting_stands_in_the_signature_and_in_the_text(cls):
    parameters = inspect.signature(cls).parameters
    assert set(inspect.signature(Phase).parameters) <= set(parameters)
    assert not [each for each in parameters.values() if each.kind is inspect.Parameter.VAR_KEYWORD]
    text = inspect.getdoc(cls)
    assert not [name for name in parameters if f"\n    {name}:" not in text]
