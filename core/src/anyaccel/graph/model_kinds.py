"""Model kinds: what a graph asks of a node's model besides computing; a model that is no framework's answers itself.

An object that no framework owns may be a model by a distribution's extension of the point `node_models`: a function of
the object that gives the model for it, a `ModelKind` and of a framework that computes it, or None.
"""

from __future__ import annotations

from typing import Any


class ModelKind:
    """How a graph and its phases treat a model; by itself as one of a framework, which gradients train."""

    fixed = ""
    """What messages call a model that is computed as it is, in no precision, sharding or blocks; `""` for others."""

    joins_integers = False
    """Whether several columns of integers may be one input."""

    tries_other_inputs = True
    """Whether it is tried with samples, and with scalars as [1], where it does not take zeros."""

    passes_nan_on = True
    """Whether NaN in its inputs is in its outputs."""

    @property
    def has_outputs(self) -> bool:
        """Whether it gives outputs yet."""
        return True

    @property
    def learns_from_steps(self) -> bool:
        """Whether it can learn from each step of a TrainPhase without gradients; see `anyaccel.phases.learners`."""
        return False

    def shown_name(self, model: Any) -> str:
        """The name of the model's class for people."""
        return type(model).__name__

    def held_by(self, model: Any) -> Any:
        """The object that has the state, of which only one phase at a time makes use."""
        return model

    def check_inputs(self, node: Any) -> None:
        """Check what feeds a node with the model.

        Raises:
            GraphError: the model cannot take it.
        """

    def dtype_hint(self, label: str, dtype: str) -> str:
        """How the model of a node can give outputs of a dtype; `""` if it cannot."""
        return ""


_OF_A_FRAMEWORK = ModelKind()


def kind_of(model: Any) -> ModelKind:
    """How a model is treated."""
    return model if isinstance(model, ModelKind) else _OF_A_FRAMEWORK
