"""Learners: nodes that learn from each step of a TrainPhase without gradients, on the host.

Who knows such models extends the point `learners` with a `Learning`. It is asked for graphs that have models which
`learn_from_steps`, and for no others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from anyaccel.data import Rows
from anyaccel.distributions import missing
from anyaccel.extensions import sole_extension
from anyaccel.graph import ModelGraph
from anyaccel.graph.applied_loss import AppliedLoss
from anyaccel.phases.executor.cross_segment import SpanOf
from anyaccel.phases.loop_extension import LoopExtension

ToHost = Callable[[str, Any], np.ndarray]


class Learners(LoopExtension):
    """The nodes that learn in one phase; the base class is empty."""

    labels: tuple[str, ...] = ()

    @property
    def upstreams(self) -> Sequence[str]:
        """Labels of the nodes whose outputs they learn from."""
        return ()

    def step(self, values: Mapping[str, Any], span_of: SpanOf, to_host: ToHost) -> None:
        """Let each node learn from a training step.

        Args:
            values: Outputs of the nodes in this step, by name, on their devices.
            span_of: Rows of each feature set in the step.
            to_host: Function that copies a value to the host.
        """

    def predict(self, label: str, outputs: Mapping[str, np.ndarray], rows: Mapping[str, Rows]) -> np.ndarray:
        """Return the current output of a node, computed on the host from outputs of earlier nodes and columns."""
        raise NotImplementedError(f"{type(self).__name__} has no node {label!r}")

    def snapshot(self) -> Any:
        """Return a copy of the learned state."""

    def restore(self, snapshot: Any) -> None:
        """Go back to a snapshot."""


class Learning(ABC):
    """Finds the nodes that learn, and lets them learn."""

    @abstractmethod
    def nodes(self, phase_label: str, losses: Sequence[AppliedLoss], graph: ModelGraph) -> list[str]:
        """Return labels of the nodes that learn in a TrainPhase, in the order of computation.

        Raises:
            PhaseError: a loss on one of them, one that cannot learn yet, or one model that is to learn two things.
        """

    @abstractmethod
    def learners(
        self, labels: Sequence[str], graph: ModelGraph, rows: Mapping[str, Rows], streams: Mapping[str, Sequence[str]]
    ) -> Learners:
        """Return the object that lets nodes learn in a phase.

        Args:
            labels: Labels of the nodes.
            graph: The graph with the nodes.
            rows: Data of the phase, by feature set.
            streams: Names of the streams of each feature set's sampler.

        Raises:
            AnyaccelError: a node cannot learn from these data.
        """


def learning() -> Learning:
    """Return the object that lets nodes learn from steps.

    Raises:
        MissingDistributionError: no installed distribution offers it.
        PluginError: two distributions do.
    """
    installed: Learning | None = sole_extension("learners")
    if installed is None:  # its package is on the path, and not installed
        raise missing("anyaccel-sklearn", "a model that learns from each step without gradients")
    return installed
