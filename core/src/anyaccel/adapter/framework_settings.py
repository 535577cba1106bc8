"""Capability `framework_settings`: global settings of a framework that hold while a phase runs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from anyaccel.capability import Capability


class HasSettings(Capability):
    """Capability: what `FrameworkSettings` asks of a backend."""

    kernel_trials: ClassVar[str] = ""
    """The setting that, where it is True, has kernels chosen by trial, for batches of one shape; `""` without one."""

    @abstractmethod
    def settings(self) -> Mapping[str, tuple[Any, ...]]:
        """The values that each setting may have, by its full name; must not import the framework."""

    @abstractmethod
    def with_settings(self, values: Mapping[str, Any]) -> AbstractContextManager[None]:
        """A context in which these of `settings` hold; afterwards they are as before."""
