"""`anyaccel demo`: a two-node graph, trained and tested on real data."""

from __future__ import annotations

from typing import Any

from anyaccel.backend import Compute
from anyaccel.cli.console import console, print_json, print_line
from anyaccel.data import SimpleSampler, digits
from anyaccel.device import Device
from anyaccel.errors import CapabilityError, FrameworkError
from anyaccel.experiment import Experiment
from anyaccel.graph import ModelGraph, ModelNode
from anyaccel.phases import EvalPhase, TrainPhase
from anyaccel.plugin_loader import BUILT_IN
from anyaccel.registry import Registry, registry
from anyaccel.results import EvalResults, TrainResults
from anyaccel.specs import AppliedLoss, Optimizer


def run(framework: str | None, device: str | None, epochs: int, seed: int, as_json: bool) -> None:
    """Choose who computes and where, train, test, and tell."""
    found = registry()
    if framework is not None:
        _check_there(found, framework)
    who = framework or choose_framework(found, Device.parse(device) if device else None)
    where = device or str(best_of(found, who))
    experiment = make(who, seed, quiet=as_json)
    training, test = phases(where, epochs, seed)
    if not as_json:
        print_line(str(experiment.plan(training)))
    trained: TrainResults = experiment.run_phase(training)
    tested: EvalResults = experiment.run_phase(test)
    if as_json:
        print_json(_told(who, trained, tested))
    else:
        print_line(
            f"test accuracy {tested.metrics['accuracy']:.4f} on {_device(trained)} with {who}, "
            f"{_speed(trained):,.0f} steps/s over {epochs} epochs",
            style="bold",
        )


def choose_framework(found: Registry, device: Device | None) -> str:
    """Who computes if nobody says: a framework with a device other than the CPU, else any installed, else NumPy.

    Raises:
        FrameworkError: no framework that can compute has the device that was named.
    """
    able = [name for name in found.frameworks if _computes(found, name)]
    if device is not None:
        able = [
            name for name in able if any(device in one.devices() for one in found.backends if one.framework == name)
        ]
    if not able:
        raise FrameworkError(
            f"no framework here computes on {device}",
            available=", ".join(f"{name} on {', '.join(map(str, _devices(found, name)))}" for name in found.frameworks),
            hint="choose one of these devices; `anyaccel devices` says why others are missing",
        )
    return min(able, key=lambda name: (name == BUILT_IN, best_of(found, name).kind == "cpu", name))


def _devices(found: Registry, framework: str) -> list[Device]:
    return [device for one in found.backends if one.framework == framework for device in one.devices()]


def _check_there(found: Registry, framework: str) -> None:
    """Make sure that a framework that was named is there, and not only its plugin."""
    backend = found.find(framework)
    if not _devices(found, framework):
        reason = backend.unavailable_reason(Device("cpu"))
        raise FrameworkError(
            f"{framework} has no device here" + (f" ({reason})" if reason else ""),
            available=", ".join(found.frameworks),
            hint=f"install or mend {framework} itself: its plugin is there",
        )


def _computes(found: Registry, framework: str) -> bool:
    """Whether it is really there (a plugin may be installed and its framework not) and has the model of the demo."""
    backend = found.find(framework)
    return bool(_devices(found, framework)) and isinstance(backend, Compute) and "SequentialMLP" in backend.models()


def best_of(found: Registry, framework: str) -> Device:
    """The best device of a framework: the first that is no CPU and not simulated, else the CPU."""
    found.kinds(framework)
    real = [device for device in _devices(found, framework) if device.kind not in ("cpu", "sim")]
    return real[0] if real else Device("cpu")


def make(framework: str, seed: int, *, quiet: bool) -> Experiment:
    """The experiment: pixels to an encoder to a head, in one framework."""
    data = digits()
    data.split_random({"train": 0.8, "test": 0.2}, seed=seed)
    mlp: Any = registry().computing(framework).models().get("SequentialMLP")
    if mlp is None:
        raise CapabilityError(f"the backend of {framework} has no SequentialMLP", hint="choose another framework")
    encoder = ModelNode(
        "encoder", mlp(output_shape=(64,), n_layers=2, hidden_dim=128), data.reference(), framework=framework
    )
    head = ModelNode("head", mlp(output_shape=(10,), n_layers=1), "encoder", framework=framework)
    graph = ModelGraph([encoder, head], Optimizer("adam", lr=1e-3), "digits-demo", seed=seed)
    return Experiment("demo", graph, progress="none" if quiet or not console(stderr=True).is_terminal else "rich")


def phases(device: str, epochs: int, seed: int) -> tuple[TrainPhase, EvalPhase]:
    """Training and test."""
    loss = AppliedLoss("cross_entropy", on="head")
    sampler = SimpleSampler(32, shuffle=True, seed=seed)
    train = TrainPhase.from_split(
        "train", split="train", sampler=sampler, losses=[loss], n_epochs=epochs, accelerator=device
    )
    return train, EvalPhase.from_split("test", split="test", losses=[loss], metrics=["accuracy"], accelerator=device)


def _told(framework: str, trained: TrainResults, tested: EvalResults) -> dict[str, Any]:
    return {
        "framework": framework,
        "device": _device(trained),
        "epochs": len(trained.epochs),
        "loss": [epoch["loss"] for epoch in trained.to_dict()["epochs"]],
        "accuracy": tested.metrics["accuracy"],
        "steps_per_second": _speed(trained),
        "plan": trained.plan.to_dict() if trained.plan else None,
    }


def _device(trained: TrainResults) -> str:
    return str(trained.plan.device("head")) if trained.plan else ""


def _speed(trained: TrainResults) -> float:
    return sum(epoch.steps for epoch in trained.epochs) / max(sum(epoch.seconds for epoch in trained.epochs), 1e-9)
