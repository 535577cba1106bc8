"""Every error of anyaccel. One base class; each says what was asked, what there is, and what to do."""

from __future__ import annotations


class AnyaccelError(Exception):
    """Base of every error that anyaccel raises on purpose.

    Args:
        asked: what was asked for, and why it cannot be had.
        there: what there is instead; left out of the message when empty.
        remedy: what to do next; left out of the message when empty.
    """

    def __init__(self, problem: str, *, available: str = "", hint: str = "") -> None:
        self.problem = problem
        self.available = available
        self.hint = hint
        parts = [problem, f"Available: {available}" if available else "", f"Hint: {hint}" if hint else ""]
        text = ". ".join(part.removesuffix(".") for part in parts if part)
        super().__init__(text if text.endswith("?") else f"{text}.")


class DeviceParseError(AnyaccelError, ValueError):
    """A device was spelt in a way that names no place."""


class DeviceUnavailableError(AnyaccelError):
    """A device that is not on this machine, or not of the vendor that was named."""


class DeviceMismatchError(AnyaccelError):
    """Two operands of one operation are on different devices."""


class OutOfMemoryError(AnyaccelError, MemoryError):
    """A device has not enough free memory for what was to be put there."""


class MemoryShareError(AnyaccelError):
    """A framework took a device's memory before it could be told that others use the device too."""


class MoveError(AnyaccelError, TypeError):
    """An object cannot be moved or placed without changing it (its dtype, say)."""


class FrameworkError(AnyaccelError):
    """A framework that nobody serves here, or not on this kind of device."""


class NoBackendError(AnyaccelError, TypeError):
    """No loaded backend owns an object."""


class AmbiguousOwnerError(AnyaccelError, TypeError):
    """Two backends claim the same object."""


class PluginError(AnyaccelError):
    """A plugin that is installed but broken, or that claims what is not its own."""


class CapabilityError(AnyaccelError):
    """A backend was asked for a capability that it does not declare."""


class ConfigError(AnyaccelError, ValueError):
    """A configuration that is malformed or names what is not registered."""


class DataError(AnyaccelError, ValueError):
    """Data that cannot be taken as it is."""


class ColumnError(DataError):
    """A column that is not there, has nulls, or has a shape or dtype that does not fit."""


class SourceError(DataError):
    """A source of batches that yields what cannot be taken: nothing, unequal columns, another dtype or shape."""


class SplitError(DataError):
    """A split that is empty, unknown, taken twice, overlaps another, tears a group or stratum, or has wrong ratios."""


class SamplerError(DataError):
    """A sampler whose settings are wrong or yield no batch."""


class TransformError(DataError):
    """A transform that cannot be fitted, applied or undone, or that is not there (any more)."""


class GraphError(AnyaccelError, ValueError):
    """A graph that cannot be: a cycle, a duplicate label, an unknown node."""


class ShapeError(GraphError):
    """Shapes or dtypes that do not fit; names the node and both sides."""


class SpecError(AnyaccelError, ValueError):
    """An optimizer, loss, schedule or metric that is unknown or wrongly set."""


class PhaseError(AnyaccelError, ValueError):
    """A phase that cannot run on this graph."""


class CompileError(AnyaccelError):
    """Steps that cannot be compiled, and why; they run uncompiled."""


class EstimatorError(AnyaccelError, ValueError):
    """An estimator that cannot do what its node or its phase asks of it."""


class StateError(AnyaccelError, ValueError):
    """A state that does not belong to this graph."""


class ResultError(AnyaccelError, KeyError):
    """A result that was asked of a run that does not have it."""

    __str__ = Exception.__str__


class FallbackWarning(UserWarning):
    """A node runs on the CPU because its framework is not served on the device of the phase."""


class CompileWarning(UserWarning):
    """Steps that were to be compiled run uncompiled."""


class NaNWarning(UserWarning):
    """Data of a TrainPhase hold NaN and go to a node that is trained by gradients: its losses will be NaN."""
