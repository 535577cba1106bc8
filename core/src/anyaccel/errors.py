"""Every error and warning of anyaccel. All errors derive from `AnyaccelError`."""

from __future__ import annotations

from anyaccel.printable import printable


class AnyaccelError(Exception):
    """Base class of every error that anyaccel raises on purpose; reads `problem; cause. Available: ... Hint: ...`.

    Args:
        problem: The problem, with the value that was given.
        cause: The reason, or the figure or rule that it violates; it becomes a part of `problem`.
        available: A list of options; left out of the message when empty.
        hint: The next action; left out of the message when empty.

    Example:
        >>> import anyaccel as aa
        >>> try:
        ...     aa.Optimizer("adamm")
        ... except aa.errors.AnyaccelError as error:
        ...     print(type(error).__name__)
        SpecError
    """

    def __init__(self, problem: str, *, cause: str = "", available: str = "", hint: str = "") -> None:
        problem = f"{problem.removesuffix('.')}; {cause}" if cause else problem
        texts = self.problem, self.available, self.hint = [printable(text) for text in (problem, available, hint)]
        parts = [title + said for title, said in zip(("", "Available: ", "Hint: "), texts, strict=True) if said]
        text = ". ".join(part.removesuffix(".") for part in parts)
        super().__init__(text if text.endswith("?") else f"{text}.")


class ArgumentError(AnyaccelError, TypeError):
    """A call has an unknown argument, lacks one, or has too many."""


class DeviceParseError(AnyaccelError, ValueError):
    """A text or object that does not name a device."""


class DeviceUnavailableError(AnyaccelError):
    """The device is not on this machine, or its vendor differs from the one requested."""


class DeviceMismatchError(AnyaccelError):
    """Tensors of one operation or container are on different devices."""


class OutOfMemoryError(AnyaccelError, MemoryError):
    """A device does not have enough free memory."""


class MemoryShareError(AnyaccelError):
    """A framework reserved a device's memory before another framework of the same plan could share it."""


class MoveError(AnyaccelError, TypeError):
    """An object cannot be moved or placed without changing it, for example its dtype."""


class TransferError(AnyaccelError, AssertionError):
    """Inside `no_transfers`, a value was moved between devices, or the host waited for one."""


class FrameworkError(AnyaccelError):
    """No installed plugin runs the framework, or none runs it on this kind of device."""


class NoBackendError(AnyaccelError, TypeError):
    """No backend owns the object."""


class AmbiguousOwnerError(AnyaccelError, TypeError):
    """Several backends claim the same object."""


class PluginError(AnyaccelError):
    """A plugin is installed but broken, uses other names of the contract, or claims the devices of another plugin."""


class MissingDistributionError(PluginError, ModuleNotFoundError):
    """A name, command, argument or saved object belongs to a distribution of anyaccel that is not installed."""

    __str__ = Exception.__str__


class MissingRequestsError(MissingDistributionError, DeviceParseError):
    """A request for devices was given, but the distribution of requests is not installed."""


class CapabilityError(AnyaccelError):
    """A backend does not declare the capability that an operation needs."""


class ConfigError(AnyaccelError, ValueError):
    """A configuration is malformed, or names something that is not registered."""


class DataError(AnyaccelError, ValueError):
    """Data that cannot be used as given."""


class MissingFileError(DataError, FileNotFoundError):
    """The file or folder to read data from does not exist."""


class ColumnError(DataError):
    """A column is missing, has nulls, or has an unsuitable shape or dtype."""


class SourceError(DataError):
    """A source of batches yields nothing, columns of unequal length, or a changing dtype or shape."""


class SplitError(DataError):
    """A split is empty, unknown, duplicated or overlapping, cuts through a group or stratum, or has wrong ratios."""


class SamplerError(DataError):
    """A sampler has wrong settings, or yields no batch."""


class TransformError(DataError):
    """A transform cannot be fitted, applied or inverted, or does not exist."""


class GraphError(AnyaccelError, ValueError):
    """An invalid graph: a cycle, a duplicate label, an unknown node."""


class ShapeError(GraphError):
    """Shapes or dtypes do not match; names the node and both sides."""


class SpecError(AnyaccelError, ValueError):
    """An optimizer, loss, schedule or metric is unknown or has wrong settings."""


class PhaseError(AnyaccelError, ValueError):
    """A phase cannot run on its graph."""


class CompileError(AnyaccelError):
    """Training steps cannot be compiled; they run uncompiled."""


class EstimatorError(AnyaccelError, ValueError):
    """An estimator lacks what its node or phase needs."""


class StateError(AnyaccelError, ValueError):
    """A state does not match the graph or model."""


class ResultError(AnyaccelError, KeyError):
    """A run does not have the result that was asked for."""

    __str__ = Exception.__str__


ENVIRONMENT_ERRORS = (OSError, MemoryError, ImportError, Warning)
"""Failures of the machine, not of what a user gave: of files and folders (a cache that cannot be written), memory and
packages, and warnings that are errors (`python -W error`). Code that turns any failure of a model or function into an
error of anyaccel lets these pass as they are."""


class FallbackWarning(UserWarning):
    """A node runs on the CPU because no plugin runs its framework on the phase's device."""


class CompileWarning(UserWarning):
    """Training steps that should have been compiled run uncompiled."""


class UndefinedMetricWarning(UserWarning):
    """A metric is not defined for the rows that it measured; its value is the one of scikit-learn, mostly NaN."""


class TableWarning(UserWarning):
    """Columns of a table are left out, or rows to predict contain values that the training rows did not have."""


class NaNWarning(UserWarning):
    """A loss of a TrainPhase is NaN or infinite, or will be because data with NaN reach a node trained by gradients.

    It is also issued if a value that a callback or a checkpoint monitors is NaN.
    """
