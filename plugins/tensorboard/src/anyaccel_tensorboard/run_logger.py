"""RunLogger: writes a run to its event file: texts when it begins, figures after each epoch, the outcome at the end."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_TENSOR, Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.summary.writer.record_writer import RecordWriter

from anyaccel.adapter.device_description import start_nvml
from anyaccel.device import Device
from anyaccel.errors import MissingDistributionError, PhaseError
from anyaccel.registry import registry
from anyaccel.specs import Optimizer, Schedule
from anyaccel.trackers import Tracker, settings_of
from anyaccel_tensorboard.run_dirs import create_run_dir


class RunLogger(Tracker):
    """The event file of one run, in its own folder: `ROOT/EXPERIMENT/PHASE-N`.

    Raises:
        PhaseError: the folder cannot be written.
    """

    def __init__(self, run: Any, root: Path) -> None:
        self._run = run
        self._rates: tuple[ScheduledRate, ...] = ()
        self._nvidia = NvidiaStats()
        self._n_plans, self._n_epoch_steps = 0, 0
        self._unwritten: list[dict[str, float]] = []  # losses of the steps since some were written
        try:
            self._file = EventFile(create_run_dir(root, run.experiment or run.graph.label, run.phase.label))
        except OSError as error:
            raise PhaseError(
                f"phase {run.phase.label!r} cannot be logged: TensorBoard's folder {str(root)!r} cannot be written "
                f"({error})",
                hint="log to another folder, or turn logging off",
            ) from error
        try:
            self._file.text("settings", settings_text(run))
        except BaseException:
            with suppress(PhaseError):
                self._file.close()
            raise

    def log_plan(self, plan: Any) -> None:
        """Write the plan and the graph. A FitPhase whose estimators depend on each other has several plans."""
        self._file.text("plan", plan_text(self._run), self._n_plans)
        self._file.text("graph", graph_text(self._run), self._n_plans)
        self._n_plans += 1
        self._rates = scheduled_rates(self._run)

    def write_steps(self, steps: Any, every_n: int) -> None:
        """Write the mean losses of each group of steps of an epoch, numbered by its last step in the run.

        Args:
            steps: The steps since the last call; the loss of each is read from its device.
            every_n: Number of steps of a mean.
        """
        losses = steps.losses()
        for i, number in enumerate(steps.numbers):
            if number % every_n == 0:
                self._unwritten = []
            self._unwritten.append({label: float(values[i]) for label, values in losses.items()})
            if (number + 1) % every_n == 0:
                means = {
                    f"step/loss.{label}": _mean(row[label] for row in self._unwritten if label in row)
                    for label in losses
                }
                self._file.scalars(self._n_epoch_steps + number, means)

    def log_epoch(self, run: Any) -> None:
        """Write all figures of the last epoch, by its number, as one event."""
        epoch = run.history[-1]
        if len(run.history) == 1:
            self._nvidia = nvidia_stats(run.plan)  # not earlier: device_info may initialise a device
        self._n_epoch_steps += epoch.steps
        values = {
            **({"train/loss": epoch.loss} if epoch.losses else {}),
            **{f"train/loss.{label}": value for label, value in epoch.losses.items()},
            **{rate.tag: rate.after(self._n_epoch_steps) for rate in self._rates},
            **{f"validation/{name}": value for name, value in epoch.validation.items()},
            "speed/epoch_seconds": epoch.seconds,
            **speed_and_memory(run.stats),
            **self._nvidia.read(),
        }
        self.log(values, epoch.number)

    def log_evaluation(self, run: Any) -> None:
        """Write the figures of an evaluation; its step is the number of epochs the graph was trained."""
        figures = {f"evaluation/{name}": value for name, value in run.evaluation.named.items()}
        self.log(figures, sum(run.graph.progress.values()))

    def log(self, figures: Mapping[str, float], step: int) -> None:
        """Write numbers by tag."""
        self._file.scalars(step, figures)

    def finish(self, error: BaseException | None) -> None:
        """Write the outcome, and close the file."""
        run = self._run
        try:
            if run.fitted:
                self._file.text("fitted", fitted_text(run))
            if run.stop_reason:
                self._file.text("stopped", code_block(run.stop_reason))
            if error is not None:
                self._file.text("error", error_text(error))
        finally:
            try:
                self._file.close()
            finally:
                self._nvidia.close()


def _mean(values: Iterable[float]) -> float:
    """Return the mean of the values that are numbers, NaN if none is. A step without rows for a loss is left out."""
    numbers = [value for value in values if not math.isnan(value)]
    return sum(numbers) / len(numbers) if numbers else math.nan


# -- Speed and memory of a run, and NVIDIA statistics of the devices of its plan ---------------------------------------


def speed_and_memory(stats: Any) -> dict[str, float]:
    """Return figures of `run.stats` by tag; unknown figures are left out.

    These are `speed/steps_per_second` and `samples_per_second`, and `memory/DEVICE/FRAMEWORK/used_bytes`, `peak_bytes`
    and `total_bytes`; after `run.measure_step()` also `model_flops_utilization`, and `memory/NODE/activations_bytes`.
    """
    sizes = {
        f"memory/{device_stats.device}/{device_stats.framework}/{name}_bytes": getattr(device_stats, name)
        for device_stats in stats.devices
        for name in ("used", "peak", "total")
    }
    names = ("steps_per_second", "samples_per_second", "model_flops_utilization")
    values = {**{f"speed/{name}": getattr(stats, name) for name in names}, **sizes}
    for node in stats.nodes:
        values[f"memory/{node.node}/activations_bytes"] = node.activations
    return {tag: value for tag, value in values.items() if value is not None}


def nvidia_stats(plan: Any) -> NvidiaStats:
    """Return statistics of the NVIDIA GPUs of a plan; empty if it has no such GPU, or if NVML is not available."""
    # The identities of a plan's NVIDIA GPUs; device numbers differ between frameworks and NVML.
    identities: dict[Device, str] = {}
    for node in plan.assignments:
        info = registry().find(node.framework, node.device.kind).device_info(node.device)
        if info.vendor == "nvidia" and info.identity:
            identities[node.device] = info.identity
    nvml = start_nvml() if identities else None
    return NvidiaStats() if nvml is None else NvidiaStats(nvml, identities)


class NvidiaStats:
    """Read statistics of some GPUs by NVML, by default of none.

    Args:
        nvml: The module `pynvml`, started; `close` shuts it down.
        identities: UUID (`GPU-...`, `MIG-...`) or PCI address by device.
    """

    def __init__(self, nvml: Any = None, identities: Mapping[Device, str] | None = None) -> None:
        self._nvml = nvml
        self._readers: dict[str, Callable[[], float]] = {}
        statistics: dict[str, Callable[[Any], float]] = {
            "utilization_percent": lambda handle: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            "memory_used_bytes": lambda handle: nvml.nvmlDeviceGetMemoryInfo(handle).used,
            "temperature_celsius": lambda handle: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            "power_watts": lambda handle: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,  # from milliwatts
        }
        for device, identity in (identities or {}).items():
            is_uuid = identity.startswith(("GPU-", "MIG-"))
            find = nvml.nvmlDeviceGetHandleByUUID if is_uuid else nvml.nvmlDeviceGetHandleByPciBusId
            try:
                handle = find(identity)
            except nvml.NVMLError:
                continue
            self._readers.update({f"nvml/{device}/{name}": partial(read, handle) for name, read in statistics.items()})

    def read(self) -> dict[str, float]:
        """Return `nvml/DEVICE/utilization_percent`, `.../memory_used_bytes`, `.../temperature_celsius`,
        `.../power_watts`.

        Statistics that a GPU does not support are left out.
        """
        values = {}
        for tag, read in self._readers.items():
            with suppress(self._nvml.NVMLError):
                values[tag] = float(read())
        return values

    def close(self) -> None:
        """Shut NVML down; it counts its users."""
        nvml, self._nvml, self._readers = self._nvml, None, {}
        if nvml is not None:
            with suppress(nvml.NVMLError):  # another user has shut it down already
                nvml.nvmlShutdown()


# -- EventFile: an event file in TensorBoard's format, written by TensorBoard's own `RecordWriter` ---------------------
#
# Its public writers start a thread, import TensorFlow where it is installed, and may overwrite files.


class EventFile:
    """A new event file in an existing folder. Every call flushes its output.

    Raises:
        OSError: the file cannot be made, or exists already.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"events.out.tfevents.{int(time.time()):010d}.anyaccel"
        self._file = self._path.open("xb")
        self._records = RecordWriter(self._file)
        try:
            self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))
        except BaseException:
            self.close()
            raise

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write numbers of one step by tag, as float32.

        Raises:
            PhaseError: the file cannot be written any more.
        """
        self._add(step, (Summary.Value(tag=_utf8(tag), simple_value=value) for tag, value in values.items()))

    def text(self, tag: str, markdown: str, step: int = 0) -> None:
        """Write a text in Markdown.

        Raises:
            PhaseError: the file cannot be written any more.
        """
        tensor = TensorProto(
            dtype=DT_STRING,
            tensor_shape=TensorShapeProto(),
            string_val=[markdown.encode("utf-8", errors="replace")],
        )
        metadata = create_summary_metadata(display_name="", description="")
        metadata.data_class = DATA_CLASS_TENSOR
        self._add(step, [Summary.Value(tag=tag, tensor=tensor, metadata=metadata)])

    def close(self) -> None:
        """Close the file, even if flushing fails.

        Raises:
            PhaseError: the rest could not be written.
        """
        try:
            self._records.close()
        except OSError as error:
            raise self._error(error) from error

    def _add(self, step: int, values: Iterable[Any]) -> None:
        self._write(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def _write(self, event: Any) -> None:
        try:
            self._records.write(event.SerializeToString())
            self._records.flush()
        except OSError as error:
            raise self._error(error) from error

    def _error(self, error: OSError) -> PhaseError:
        return PhaseError(
            f"TensorBoard's file {str(self._path)!r} can no longer be written: {error}",
            hint="free disk space, or log to another folder",
        )


def _utf8(tag: str) -> str:
    """Return a tag as valid UTF-8: users' labels may contain lone surrogates."""
    return tag.encode("utf-8", errors="replace").decode("utf-8")


# -- Learning rates that change while a run trains ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScheduledRate:
    """The learning rate of an optimizer that had done `steps_before` steps when the run began."""

    tag: str
    optimizer: Optimizer
    steps_before: int

    def after(self, steps: int) -> float:
        """Return the rate of the last of `steps` steps of the run."""
        return self.optimizer.rate(max(self.steps_before + steps - 1, 0))


def scheduled_rates(run: Any) -> tuple[ScheduledRate, ...]:
    """Return a rate for each optimizer that has a schedule and something to train; called before the first step.

    The tag is `train/learning_rate` for the graph's optimizer, and `train/learning_rate.NODE` for the optimizer of a
    node. Where steps alternate between samplers, the result is empty: how many steps each node has done is not known
    here.
    """
    rates: dict[str, ScheduledRate] = {}
    if run.phase.kind != "train" or (run.phase.schedule or "").startswith("alternate"):
        return ()
    for node in run.plan.assignments:
        own = getattr(run.graph[node.node], "optimizer", None)
        optimizer = own or run.graph.optimizer
        if node.frozen or not node.parameters or optimizer is None or optimizer.schedule == Schedule():
            continue
        tag = "train/learning_rate" if own is None else f"train/learning_rate.{node.node}"
        states = run.graph.optimizer_states
        rates.setdefault(tag, ScheduledRate(tag, optimizer, states[node.node].step if node.node in states else 0))
    return tuple(rates.values())


# -- Texts about a run, as Markdown. All names of users are in code blocks, so that they are shown verbatim ------------


def code_block(text: str) -> str:
    """Return a text as an indented code block, which no text can end."""
    return "\n".join(f"    {line}" for line in text.splitlines())


def settings_text(run: Any) -> str:
    """Return experiment, graph and phase with their settings, as JSON."""
    return code_block(json.dumps(settings_of(run), indent=2, default=repr, ensure_ascii=False))


def plan_text(run: Any) -> str:
    """Return the plan as text."""
    return code_block(str(run.plan))


def graph_text(run: Any) -> str:
    """Return a table of the nodes, and the graph in Mermaid if what draws it is installed."""
    table = code_block(run.graph.summary())
    try:
        return "\n\n".join([table, "Mermaid:", code_block(run.graph.visualize(plan=run.plan))])
    except MissingDistributionError:
        return table


def fitted_text(run: Any) -> str:
    """Return the estimators that a FitPhase has fitted."""
    lines = (f"{fit.node}: {fit.estimator} to {fit.rows:,} rows in {fit.seconds:.3g} s" for fit in run.fitted)
    return code_block("\n".join(lines))


def error_text(error: BaseException) -> str:
    """Return type, message and notes of an exception."""
    return code_block("\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())]))
