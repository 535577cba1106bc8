"""`anyaccel demo`: train and test a graph of two nodes on real data."""

from __future__ import annotations

from typing import Any

from anyaccel.backend import Compute
from anyaccel.cli.console import console, print_json, print_line
from anyaccel.data import SimpleSampler, digits
from anyaccel.device import Device
from anyaccel.errors import CapabilityError, FrameworkError
from anyaccel.experiment import Experiment
from anyaccel.graph import ModelGraph, ModelNode
from anyaccel.graph.applied_loss import AppliedLoss
from anyaccel.launched import is_main_process, launched
from anyaccel.phases import EvalPhase, TrainPhase
from anyaccel.phases.process_groups import shared_groups
from anyaccel.plugin_loader import BUILT_IN
from anyaccel.registry import Registry, registry
from anyaccel.results import EvalResults, TrainResults
from anyaccel.specs import Optimizer

_MODEL = "SequentialMLP"


def run(framework: str | None, device: str | None, epochs: int, seed: int, as_json: bool) -> None:
    """Choose framework and device if they are None, train, test, and print plan and results."""
    plugins = registry()
    if framework is not None:
        # Raise FrameworkError if the plugin of a framework is installed, and the framework itself is not
        backend = plugins.find(framework)
        if not _devices(plugins, framework):
            reason = plugins.ask(backend, "unavailable_reason", Device("cpu"))
            raise FrameworkError(
                f"{framework} has no device here" + (f" ({reason})" if reason else ""),
                available=", ".join(name for name in plugins.frameworks if name != framework),
                hint=f"install {framework}, or run `anyaccel devices` to see why it has no device",
            )
    framework = framework or choose_framework(plugins, Device.parse(device) if device else None)
    if launched() is not None:
        shared_groups("a demo of several processes").join(framework)  # before it starts
    device = device or str(best_device_of(plugins, framework))
    experiment = make_experiment(framework, seed, quiet=as_json)
    training, test = make_phases(device, epochs, seed)
    shows = is_main_process()
    if shows and not as_json:
        print_line(str(experiment.plan(training)))
    trained: TrainResults = experiment.run_phase(training)
    tested: EvalResults = experiment.run_phase(test)
    if not shows:
        return
    if as_json:
        print_json(
            {
                "framework": framework,
                "device": _device(trained),
                "epochs": len(trained.epochs),
                "loss": [epoch["loss"] for epoch in trained.to_dict()["epochs"]],
                "accuracy": tested.metrics["accuracy"],
                "steps_per_second": _steps_per_second(trained),
                "plan": trained.plan.to_dict() if trained.plan else None,
            }
        )
    else:
        print_line(
            f"test accuracy {tested.metrics['accuracy']:.4f} on {_device(trained)} with {framework}, "
            f"{_steps_per_second(trained):,.0f} steps/s over {epochs} epochs",
            style="bold",
        )


def choose_framework(plugins: Registry, device: Device | None) -> str:
    """Return a framework with a device other than the CPU, otherwise any installed one, otherwise NumPy.

    Args:
        plugins: the registry.
        device: a device that the framework must have.

    Raises:
        FrameworkError: no framework that can compute has the device.
    """
    frameworks = []
    for name in plugins.frameworks:
        backend = plugins.find(name)
        try:
            if _devices(plugins, name) and isinstance(backend, Compute) and _MODEL in backend.models():
                frameworks.append(name)
        except (Exception, SystemExit):  # a broken plugin does not keep the others from the demo
            continue
    if device is not None:
        frameworks = [name for name in frameworks if device in _devices(plugins, name)]
    if not frameworks:
        raise FrameworkError(
            f"no framework here computes on {device}",
            available=", ".join(
                f"{name} on {', '.join(map(str, _devices(plugins, name)))}" for name in plugins.frameworks
            ),
            hint="choose one of these devices; `anyaccel devices` shows why others are missing",
        )
    return min(frameworks, key=lambda name: (name == BUILT_IN, best_device_of(plugins, name).kind == "cpu", name))


def _devices(plugins: Registry, framework: str) -> list[Device]:
    return [device for _, device in plugins.devices(framework)]


def best_device_of(plugins: Registry, framework: str) -> Device:
    """Return the first device of a framework that is neither a CPU nor simulated, otherwise the CPU."""
    plugins.kinds(framework)
    accelerators = [device for device in _devices(plugins, framework) if device.kind not in ("cpu", "sim")]
    return accelerators[0] if accelerators else Device("cpu")


def make_experiment(framework: str, seed: int, *, quiet: bool) -> Experiment:
    """Return the experiment: digit images, an encoder and a head, in one framework."""
    data = digits()
    data.split_random({"train": 0.8, "test": 0.2}, seed=seed)
    mlp: Any = registry().computing(framework).models().get(_MODEL)
    if mlp is None:
        raise CapabilityError(f"the backend of {framework} has no {_MODEL}", hint="choose another framework")
    encoder = ModelNode(
        "encoder", mlp(output_shape=(64,), n_layers=2, hidden_dim=128), data.reference(), framework=framework
    )
    head = ModelNode("head", mlp(output_shape=(10,), n_layers=1), "encoder", framework=framework)
    graph = ModelGraph([encoder, head], Optimizer("adam", lr=1e-3), "digits-demo", seed=seed)
    return Experiment("demo", graph, progress="none" if quiet or not console(stderr=True).is_terminal else "rich")


def make_phases(device: str, epochs: int, seed: int) -> tuple[TrainPhase, EvalPhase]:
    """Return the training phase and the test phase."""
    loss = AppliedLoss("cross_entropy", on="head")
    sampler = SimpleSampler(32, shuffle=True, seed=seed)
    train = TrainPhase.from_split(
        "train", split="train", sampler=sampler, losses=[loss], epochs=epochs, accelerator=device
    )
    return train, EvalPhase.from_split("test", split="test", losses=[loss], metrics=["accuracy"], accelerator=device)


def _device(trained: TrainResults) -> str:
    return str(trained.plan.device("head")) if trained.plan else ""


def _steps_per_second(trained: TrainResults) -> float:
    return sum(epoch.steps for epoch in trained.epochs) / max(sum(epoch.seconds for epoch in trained.epochs), 1e-9)
