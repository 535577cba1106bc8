"""Run: the state of one execution of a phase, as plugins and callbacks see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from anyaccel.adapter.device_description import nvidia_utilization
from anyaccel.adapter.step_costs import StepCost, StepCosts
from anyaccel.backend import Memory
from anyaccel.data import Rows
from anyaccel.device import Device
from anyaccel.distributions import missing
from anyaccel.errors import GraphError, PhaseError
from anyaccel.extensions import extensions
from anyaccel.graph import ModelGraph, ModelNode, Plan
from anyaccel.phases.executor.cross_segment import Losses, PipelineStage
from anyaccel.phases.executor.pipeline import Pipeline
from anyaccel.phases.loading.residency import state_slots
from anyaccel.phases.loss_accumulator import EpochTiming, LossAccumulator, step_means
from anyaccel.phases.memory_error import release_frames
from anyaccel.precision import LossScaleState
from anyaccel.printable import printable, size
from anyaccel.registry import registry
from anyaccel.results.events import Event, log
from anyaccel.results.records import Epoch, EvaluationValues, Fitted


class Run:
    """One execution of a phase, as callbacks and plugins see it: its progress and losses so far. Call `stop` to end it.

    Args:
        phase: The phase.
        graph: The graph it runs on.
        experiment: Label of the experiment, or `""`.

    Attributes:
        phase, graph, experiment: The arguments.
        plan: The plan; None until it is made.
        epoch: Number of the epoch within this run, from 0.
        step: Number of the step within the epoch, from 0.
        history: The completed epochs.
        timing: Steps, samples and seconds of the last epoch in this process; None before the first has ended.
        batch_size: Largest number of rows of a step; 0 until it is known.
        evaluation: The values of an EvalPhase once it has ended; otherwise None.
        fitted: The nodes that a FitPhase has fitted so far, in order.
        rows: The data of the phase by feature set, once known; for a source of batches, some of its first rows.
        error: The exception that ended the run, or None.
        stop_reason: Why the run was asked to stop; `""` if it was not.
        looping: Whether the training loop has started.
        events: Decisions and incidents so far.
        heard: Function that receives every event that is not `verbose`.
        last_losses: Function that returns the losses of the steps for `step_losses`.
        final_snapshot: The argument of `return_to`; None if it was not called.
        final_state: The state that the graph returns to after a run resumed from a checkpoint, if `return_to` was
            called before that checkpoint; otherwise None.
        is_main_process: Whether this process shows, tracks and writes the run: the first of several processes.
    """

    def __init__(self, phase: Any, graph: ModelGraph, experiment: str = "") -> None:
        self.phase = phase
        self.graph = graph
        self.experiment = experiment
        self.is_main_process = True
        self.plan: Plan | None = None
        self.epoch = 0
        self.step = 0
        self.history: list[Epoch] = []
        self.timing: EpochTiming | None = None
        self.batch_size = 0
        self.evaluation: EvaluationValues | None = None
        self.fitted: list[Fitted] = []
        self.rows: Mapping[str, Rows] = {}
        self.error: BaseException | None = None
        self.stop_reason = ""
        self.looping = False
        self.events: list[Event] = []
        self.heard: Callable[[Event], None] | None = None
        self.last_losses: Callable[[], list[Losses]] = list
        self._pipeline: Pipeline | None = None
        self._work = NOT_MEASURED
        self.final_snapshot: Any = None
        self.final_state: Mapping[str, np.ndarray] | None = None

    def __repr__(self) -> str:
        return f"Run({self.phase.label!r}, {len(self.history)} epochs done)"

    @property
    def done(self) -> tuple[str, ...]:
        """Labels of the nodes that a FitPhase has fitted so far."""
        return tuple(one.node for one in self.fitted)

    @property
    def stopped(self) -> bool:
        """Whether the run was asked to stop."""
        return bool(self.stop_reason)

    def stop(self, reason: str) -> None:
        """Stop the run after this epoch.

        In `step_end`, the run stops after this step and keeps the partial epoch. In `epoch_start`, it stops before this
        epoch.
        """
        self.stop_reason = self.stop_reason or reason or "asked to stop"

    def log_event(self, kind: str, message: str, *, verbose: bool = False) -> None:
        """Add an event to the results and the log, and show it in the progress.

        Args:
            kind: `"compile"`, `"residency"`, `"memory"`, `"source"`, `"transfer"`, `"rate"`, `"checkpoint"`,
                `"precision"`, `"profile"` or `"context"`.
            message: The event and its reason.
            verbose: Do not show it in the progress.
        """
        epoch, step = (self.epoch, self.step) if self.looping else (-1, -1)
        event = Event(epoch, step, kind, printable(message), verbose)
        self.events.append(event)
        log(event, self.phase.label)
        if self.heard is not None and not verbose:
            self.heard(event)

    @property
    def stats(self) -> RunStats:
        """Memory of the devices and nodes, and the speed of the last epoch. Read it in `epoch_end`, because it takes a
        moment.
        """
        return run_stats(self.plan, self.graph, self.timing, self._work, trains=self.phase.trains)

    def measure_step(self) -> RunStats:
        """Measure the operations and activations of a training step, include them in `stats` from now on, and return
        `stats`.

        The devices are not used: it runs on a copy of the models and takes about a second. Call it in `after_loading`.

        Raises:
            PhaseError: the run trains nothing, or its programs are not built.
        """
        if not self.phase.trains:
            problem = f"phase {self.phase.label!r} has no training steps to measure"
            raise PhaseError(problem, available="a TrainPhase", hint="call this in a callback of a TrainPhase")
        pipeline = self._programs()
        if self.plan is not None and pipeline.stages:
            self._work = measured_work(self.plan, pipeline.stages, self.batch_size, self.phase.step is not None)
        return self.stats

    def step_losses(self) -> dict[str, float]:
        """Return the mean losses of the steps since `step_end` was last called, by label. Waits for the devices.

        That is the last step, unless callbacks ask for every n-th (`Callback.every_n_steps`). With several processes,
        each returns the losses of its own rows; the losses of epochs cover all rows.
        """
        losses = LossAccumulator()
        losses.add(self.last_losses())
        return losses.means()

    def model(self, label: str) -> Any:
        """Return the model of a node with its current values, even between two steps.

        Raises:
            GraphError: the graph has no such node, or the node has no model.
        """
        node = self.graph[label]
        if not hasattr(node, "model"):
            raise GraphError(
                f"node {label!r} has no model",
                available=", ".join(name for name, node in self.graph.nodes.items() if hasattr(node, "model")),
                hint="give the label of one of these",
            )
        if self._pipeline is not None:
            self._pipeline.sync_values()
        return node.model

    @property
    def loss_scale(self) -> LossScaleState | None:
        """The state of the loss scale, after waiting for the steps so far; None if losses are not scaled."""
        scalings = () if self._pipeline is None else self._pipeline.loss_scalings
        return next((scaling.state for scaling in scalings), None)

    def attach(self, pipeline: Pipeline | None) -> None:
        """Set the programs of this run; None releases them and everything that the run holds on devices."""
        self._pipeline = pipeline
        self.final_snapshot, self.last_losses = None, list

    def snapshot(self) -> Any:
        """Return a copy of everything that training changes: parameters, buffers, optimizer state, random state."""
        return self._programs().snapshot()

    def restore(self, snapshot: Any) -> None:
        """Restore a snapshot of this run."""
        self._programs().restore(snapshot)

    def return_to(self, snapshot: Any) -> None:
        """Restore this snapshot when the run ends without an error. If called several times, the last call is used."""
        self.final_snapshot, self.final_state = snapshot, None

    def finalize(self) -> None:
        """Restore the snapshot of `return_to`, if any; called after the last epoch."""
        if self.final_snapshot is not None:
            self.restore(self.final_snapshot)

    def _programs(self) -> Pipeline:
        if self._pipeline is None:
            raise PhaseError(
                f"phase {self.phase.label!r} is not running, so there is no state to snapshot or restore",
                hint="call this in a callback, after after_loading and before the last epoch_end",
            )
        return self._pipeline


# -- FinishedSteps: the training steps that one call has done, with their losses ---------------------------------------


class FinishedSteps:
    """Consecutive steps of an epoch, passed to `steps_done` of plugins and callbacks.

    You can store it: it holds the losses, on their device until you read them.

    Attributes:
        epoch: Number of the epoch within the run, from 0.
        numbers: Numbers of the steps within the epoch, from 0.
    """

    def __init__(self, epoch: int, numbers: range, losses: Sequence[Losses]) -> None:
        self.epoch, self.numbers = epoch, numbers
        self._losses = losses

    def __repr__(self) -> str:
        return f"FinishedSteps(epoch {self.epoch}, steps {self.numbers[0]} to {self.numbers[-1]})"

    def __len__(self) -> int:
        return len(self.numbers)

    def losses(self) -> dict[str, np.ndarray]:
        """Return the mean loss of each step, float64 [number of steps], by label. Waits for the device.

        With a custom step, these are the figures that it returned, by name. A step without rows for a loss is NaN.
        """
        return step_means(self._losses, len(self))


# -- RunStats: the memory of a run's devices and nodes, and its speed, at the moment of asking -------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStats:
    """The memory of a framework on a device, in bytes.

    Attributes:
        used: Bytes in use now, as the framework reports; None if it does not.
        peak: Largest use since the process began, or since the framework's counter was reset.
        total: Bytes of the device.
        identity: Identity of an NVIDIA GPU for NVML; `""` for other devices.
    """

    device: Device
    framework: str
    used: int | None
    peak: int | None
    total: int | None
    identity: str = field(default="", repr=False)

    @property
    def utilization(self) -> float | None:
        """The current utilization of the GPU as reported by NVML, from 0 to 1; otherwise None."""
        return nvidia_utilization(self.identity) if self.identity else None

    def __str__(self) -> str:
        parts = ((self.used, "used"), (self.peak, "at the peak"), (self.total, "in total"))
        words = ", ".join(f"{size(nbytes)} {what}" for nbytes, what in parts if nbytes is not None)
        part = self.utilization
        busy = "" if part is None else f", busy {part:.0%} of the time"
        return f"{self.device} ({self.framework}): {words or 'the framework does not report memory'}{busy}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStats:
    """The memory that the model of a node needs, in bytes. Nodes that share a model each have its figures.

    Attributes:
        parameters: Bytes of the parameters.
        gradients: Bytes of their gradients; 0 if the phase does not train them.
        optimizer: Bytes of the optimizer state; None for a custom optimizer.
        activations: Bytes that the forward pass keeps for the backward pass; None before `Run.measure_step`, or if that
            cannot tell.
    """

    node: str
    framework: str
    device: Device
    parameters: int
    gradients: int
    optimizer: int | None
    activations: int | None = None

    def __str__(self) -> str:
        state = "its own" if self.optimizer is None else size(self.optimizer)
        figures = f"{size(self.parameters)} parameters, {size(self.gradients)} gradients, {state} optimizer"
        kept = "" if self.activations is None else f", {size(self.activations)} activations"
        return f"{self.node} on {self.device}: {figures}{kept}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStats:
    """Figures of a run; `print` shows them.

    Attributes:
        devices: Each framework on each device of the plan.
        nodes: The nodes with a model, in the order of computation.
        steps_per_second, samples_per_second: Speed of the last complete epoch, without its validation; None before the
            first. With several processes, each reports its own rows.
        flops_per_step: Operations of a step, measured by `Run.measure_step`; None before, or if unknown.
        model_flops_utilization: Operations per second as a fraction, from 0 to 1, of the rate that the makers of the
            devices state for the dtype of the computation; None if one of the two is unknown.
        not_covered: The reasons, by name, for figures of `Run.measure_step` that are None.
    """

    devices: tuple[DeviceStats, ...] = ()
    nodes: tuple[NodeStats, ...] = ()
    steps_per_second: float | None = None
    samples_per_second: float | None = None
    flops_per_step: int | None = None
    model_flops_utilization: float | None = None
    not_covered: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        speed = [] if self.steps_per_second is None else [f"{self.steps_per_second:,.0f} steps/s"]
        if self.samples_per_second is not None:
            speed = [f"{self.samples_per_second:,.0f} samples/s, {speed[0]}"]
        work = [] if self.flops_per_step is None else [f"{self.flops_per_step:,} operations per step"]
        if self.model_flops_utilization is not None:
            work.append(f"{self.model_flops_utilization:.1%} of the peak rate")
        return "\n".join([*map(str, self.devices), *map(str, self.nodes), *filter(None, [", ".join(work)]), *speed])

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain data for JSON."""
        plain = asdict(self)
        for entry in (*plain["devices"], *plain["nodes"]):
            entry["device"] = str(Device(**entry["device"]))
        for entry, device in zip(plain["devices"], self.devices, strict=True):
            entry["utilization"] = device.utilization
        return plain


def run_stats(
    plan: Plan | None, graph: ModelGraph, timing: EpochTiming | None, work: MeasuredWork, *, trains: bool
) -> RunStats:
    """Return the current figures of a run. This reads the memory of its devices but does not wait for them.

    Args:
        plan: The plan; None before it is made.
        graph: The graph with the models.
        timing: Timing of the last complete epoch; None before the first.
        work: The measurement of a step.
        trains: Whether the phase trains the models that are not frozen.
    """
    if plan is None:
        return RunStats()
    devices: dict[tuple[str, Device], DeviceStats] = {}
    nodes: list[NodeStats] = []
    for assignment in plan.assignments:
        framework, device, node = assignment.framework, assignment.device, graph[assignment.node]
        if (framework, device) not in devices:
            backend = registry().find(framework, device.kind)
            memory, measured = backend.capability(Memory), backend.device_info(device)
            info = None if memory is None else memory.memory(device)
            devices[framework, device] = DeviceStats(
                device=device,
                framework=framework,
                used=(info.used if info else 0) or None,
                peak=(info.peak if info else 0) or None,
                total=(info.total if info else 0) or None,
                identity=measured.identity if measured.vendor == "nvidia" else "",
            )
        if isinstance(node, ModelNode):
            optimizer = (node.optimizer or graph.optimizer) if trains and not assignment.frozen else None
            state: int | None = 0
            if optimizer is not None:
                state = assignment.nbytes * state_slots(optimizer) if optimizer.own is None else None
            nodes.append(
                NodeStats(
                    node=assignment.node,
                    framework=framework,
                    device=device,
                    parameters=assignment.nbytes,
                    gradients=0 if optimizer is None else assignment.nbytes,
                    optimizer=state,
                    activations=work.cost.activations.get(assignment.node),
                )
            )
    timed = timing if timing is not None and timing.seconds > 0 else None
    steps = None if timed is None else timed.steps / timed.seconds
    return RunStats(
        devices=tuple(devices.values()),
        nodes=tuple(nodes),
        steps_per_second=steps,
        samples_per_second=None if timed is None else timed.samples / timed.seconds,
        flops_per_step=work.cost.flops,
        model_flops_utilization=work.utilization(steps),
        not_covered=dict(work.not_covered),
    )


# -- -------------------------------------------------------------------------------------------------------------------
# Measured work: the operations and activations of a step, beside the rates that the makers of its devices state.


_DTYPES = {"bf16-mixed": "bf16", "bf16": "bf16", "fp16-mixed": "fp16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredWork:
    """The measurement of a step.

    Attributes:
        cost: Cost of a step.
        rate: Operations per second of its devices together; None if unknown.
        not_covered: Why a figure is unknown, by name.
    """

    cost: StepCost = field(default_factory=StepCost)
    rate: float | None = None
    not_covered: Mapping[str, str] = field(default_factory=dict)

    def utilization(self, steps_per_second: float | None) -> float | None:
        """Return the fraction of the peak rate that this number of steps per second reaches."""
        if steps_per_second is None or self.cost.flops is None or self.rate is None:
            return None
        return self.cost.flops * steps_per_second / self.rate


NOT_MEASURED = MeasuredWork(
    not_covered=dict.fromkeys(("flops_per_step", "activations"), "run.measure_step() was not called")
)


def measured_work(plan: Plan, stages: Sequence[PipelineStage], batch_size: int, custom_step: bool) -> MeasuredWork:
    """Measure a training step of `batch_size` rows, if a backend can do that without its devices.

    Args:
        plan: The plan, with the place and precision of each node.
        stages: The segments, with their backends.
        batch_size: Rows of a step.
        custom_step: Whether the step is a custom step.
    """
    gaps, cost, why = dict[str, str](), StepCost(), ""
    if custom_step or len(stages) != 1:
        why = "the phase has a custom step" if custom_step else "a step has several segments"
    elif (costs := stages[0].backend.capability(StepCosts)) is None:
        why = f"the plugin of {stages[0].backend.framework} does not report the work of a step"
    else:
        try:
            cost = costs.step_cost(stages[0].segment, batch_size)
        except Exception as error:  # of a user's model or loss, which may take no rows of zeros
            release_frames(error)
            why = f"measuring a step failed: {type(error).__name__}: {error}"
    if not cost.activations:
        gaps["activations"] = why
    if cost.flops is None:
        gaps["flops_per_step"] = why or f"the plugin of {stages[0].backend.framework} does not count operations"
    rate, unknown = _rate(plan)
    if unknown:
        gaps["model_flops_utilization"] = unknown
    return MeasuredWork(cost=cost, rate=rate, not_covered=gaps)


def _rate(plan: Plan) -> tuple[float | None, str]:
    """Return the stated operations per second for the devices of a plan, and why that is unknown."""
    precisions = {assignment.precision for assignment in plan.assignments if assignment.parameters}
    if not precisions <= _DTYPES.keys() or len(precisions) != 1:
        names = ", ".join(sorted(precision or "none" for precision in precisions))
        return None, f"peak rates are given for one 16-bit dtype, but precision is {names}"
    rates = extensions("compute_rate")
    if not rates:
        return None, str(missing("anyaccel-resources", "the table of rates"))
    dtype = _DTYPES[precisions.pop()]
    total = 0.0
    for framework, device in dict.fromkeys(
        (assignment.framework, assignment.device) for assignment in plan.assignments
    ):
        name = registry().find(framework, device.kind).device_info(device).name
        rate = next(filter(None, (stated(name, dtype) for stated in rates)), None)
        if rate is None:
            return None, f"the rate of {name} ({device}) in {dtype} is unknown"
        total += rate.per_second
    return total * max(len(plan.replicas), 1), ""
