"""Computes on every device of one backend, and prints checks as JSON: the child of `anyaccel doctor --probe`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from anyaccel.backend import Backend, Compute, Exchange
from anyaccel.cli.device_probe import served_kinds
from anyaccel.data import FeatureSet, SimpleSampler
from anyaccel.device import Device
from anyaccel.errors import AnyaccelError
from anyaccel.experiment import Experiment
from anyaccel.graph import AppliedLoss, ModelGraph, ModelNode
from anyaccel.phases import TrainPhase
from anyaccel.plugin_loader import BUILT_IN
from anyaccel.registry import registry
from anyaccel.specs import Optimizer
from anyaccel_devtools.commands.doctor import MARK
from anyaccel_devtools.doctor import Check, HealthChecks

_MODEL = "SequentialMLP"
_TOLERANCE = 1e-3  # of losses in float32, or with TF32


def probe(plugin_name: str, index: int) -> list[Check]:
    """Return checks of a plugin's backend: for each device, its own checks, and whether it computes the same as
    NumPy.
    """
    plugin = next(plugin for plugin in registry().plugins if plugin.name == plugin_name)
    backend = plugin.backends[index]
    kinds = served_kinds(backend)
    devices = [device for device in registry().ask(backend, "devices") if device.kind in kinds]
    return [check for device in devices for check in _device_checks(backend, device)]


def _device_checks(backend: Backend, device: Device) -> Iterator[Check]:
    name = f"{backend.framework} on {device}"
    try:
        if (checks := backend.capability(HealthChecks)) is not None:
            yield from checks.device_checks(device)
        yield _computes(name, backend, device)
    except Exception as error:
        told = error.problem if isinstance(error, AnyaccelError) else str(error)
        hint = error.hint if isinstance(error, AnyaccelError) else ""
        message = f"{type(error).__name__}: {' '.join(told.split())[:500]}"
        yield Check(name=name, status="FAIL", message=message, fix=hint or "update the framework, or its driver")


def _computes(name: str, backend: Backend, device: Device) -> Check:
    if isinstance(backend, Compute) and _MODEL in backend.models():
        framework: str = getattr(backend, "framework")  # noqa: B009 - every Compute is a Backend
        losses, expected = _losses(framework, device), _losses(BUILT_IN, Device("cpu"))
        if not np.allclose(losses, expected, rtol=_TOLERANCE):
            return _wrong(name, f"a small network has losses {losses}, but {expected} with NumPy")
        return Check(
            name=name, status="PASS", message=f"a small network trains the same as with NumPy, loss {losses[-1]:.4f}"
        )
    if isinstance(backend, Exchange):
        sent = np.arange(12, dtype=np.float32).reshape(3, 4)
        back = backend.to_host(backend.gather_rows(backend.from_host(sent, device), 1, 3))
        if not np.array_equal(back, sent[1:3]):
            return _wrong(name, "rows sent there change on the way back")
        return Check(name=name, status="PASS", message="arrays can be copied there and back")
    return Check(name=name, status="PASS", message="listed; its backend only places and moves")


def _wrong(name: str, message: str) -> Check:
    fix = "update the driver and the framework; if that does not help, report it with the output of `anyaccel env`"
    return Check(name=name, status="FAIL", message=message, fix=fix)


def _losses(framework: str, device: Device) -> list[float]:
    """Return losses of three epochs of a small network, with the same weights and rows in every framework."""
    x = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32)
    data = FeatureSet.from_dict("data", {"x": x, "y": x[:, :1] * 2}, ["x"], ["y"])
    mlp: Any = registry().computing(framework).models()[_MODEL]
    net = ModelNode("net", mlp(output_shape=(1,), n_layers=2, hidden_dim=16), data.reference(), framework=framework)
    phase = TrainPhase(
        "probe",
        data="all",
        losses=[AppliedLoss("mse", on="net")],
        sampler=SimpleSampler(16, shuffle=True, seed=0),
        epochs=3,
        accelerator=str(device),
        strict=True,
    )
    graph = ModelGraph([net], Optimizer("adam", lr=1e-2), seed=0)
    return [float(loss) for loss in Experiment("probe", graph, progress="none").run_phase(phase).loss]


if __name__ == "__main__":
    answer = [check.to_dict() for check in probe(sys.argv[1], int(sys.argv[2]))]
    sys.stdout.write(f"\n{MARK}{json.dumps(answer)}\n")  # on a line of its own, whatever else was printed
