"""Step profile: `torch.profiler` with the names of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.profiler import ProfilerActivity, profile, record_function, supported_activities

from anyaccel.adapter.step_profiler import Mark, ProfilesSteps
from anyaccel.device import Device


class TorchProfiler(ProfilesSteps):
    """`torch.profiler`, with the names of nodes."""

    @contextmanager
    def profile_steps(self, path: Path, nodes: Mapping[str, Any], devices: Sequence[Device]) -> Iterator[Mark]:
        """Compiled steps do not call modules, so that nodes have no names in them."""
        if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]  # noqa: SLF001  (a second would end the first)
            raise RuntimeError("torch is already recording another profile")
        activities = {ProfilerActivity.CPU}
        if any(device.kind not in ("cpu", "sim") for device in devices):
            activities |= set(supported_activities())  # type: ignore[no-untyped-call]
        recording = profile(activities=activities, acc_events=True)
        with _named(nodes):
            recording.start()
            try:
                yield record_function
            finally:
                recording.stop()
                recording.export_chrome_trace(str(path))


@contextmanager
def _named(nodes: Mapping[str, Any]) -> Iterator[None]:
    """A range for each call of a node's module."""
    names = {id(model): name for name, model in nodes.items() if model is not None}
    entered: list[record_function] = []

    def before(module: Any, inputs: Any) -> None:
        if id(module) in names:
            entered.append(record_function(names[id(module)]))
            entered[-1].__enter__()  # type: ignore[no-untyped-call]

    def after(module: Any, inputs: Any, outputs: Any) -> None:
        if id(module) in names and entered:
            entered.pop().__exit__(None, None, None)

    hooks = [register_module_forward_pre_hook(before), register_module_forward_hook(after, always_call=True)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
