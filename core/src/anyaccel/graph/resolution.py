"""Resolution: what a phase asks of a graph, and what `resolve` makes of it: a plan, and what carries it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from anyaccel.accelerator import Accelerator
from anyaccel.backend import ComputingBackend
from anyaccel.device import Device
from anyaccel.graph.applied_loss import AppliedLoss
from anyaccel.graph.plan import Plan
from anyaccel.graph.shape_inference import Shapes
from anyaccel.precision import ComputesPrecision, LossScale
from anyaccel.segment import Segment


@dataclass(frozen=True, slots=True)
class Request:
    """What a phase asks of a graph.

    Attributes:
        phase: the phase's label.
        wants: labels of the nodes whose outputs are kept.
        streams: the streams of each feature set's sampler, by the feature set's label.
        learners: labels of the estimators that learn on the host.
        precision: that of nodes without one of their own; None for that of their models.
        sharding: of the parameters of nodes without a setting of their own, among replicas; None for none.
        loss_scale: by what losses are multiplied where a node is computed in float16.
        matmul_precision: of matrix products, as frameworks name it: a value for all, or by framework; None for none.
        custom_step: whether steps are the user's own, which may use every node; losses are those of the validation.
        devices: of the replicas that this process trains, the first of which has the nodes; empty where the accelerator
            says it.
    """

    phase: str
    accelerator: Accelerator | None = None
    losses: tuple[AppliedLoss, ...] = ()
    training: bool = False
    wants: tuple[str, ...] = ()
    strict: bool = False
    policy: str | None = None
    streams: Mapping[str, Sequence[str]] = field(default_factory=dict)
    learners: tuple[str, ...] = ()
    custom_step: bool = False
    devices: tuple[Device, ...] = ()
    precision: str | None = None
    sharding: str | None = None
    loss_scale: LossScale = field(default_factory=LossScale)
    matmul_precision: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """A plan, and what carries it out.

    Attributes:
        segments: in topological order.
        backends: the backend of each segment.
        live: names of the values through which gradients flow: a trained node gives them, or depends on one.
        shapes: of the whole graph.
        matmul_precisions: backends with the setting of the precision of matrix products that holds in the phase.
        step_columns: names of columns by the names that a step of the user's own finds them under.
    """

    plan: Plan
    segments: tuple[Segment, ...]
    backends: tuple[ComputingBackend, ...]
    live: frozenset[str]
    shapes: Shapes
    step_columns: Mapping[str, str] = field(default_factory=dict)
    matmul_precisions: Sequence[tuple[ComputesPrecision, Any]] = ()
