"""Capability `framework_settings`: global settings of a framework while a phase runs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from anyaccel.capability import Capability


class HasSettings(Capability):
    """Capability: set global settings for `FrameworkSettings`."""

    kernel_trials: ClassVar[str] = ""
    """The setting that, where it is True, has kernels chosen by trial, for batches of one shape; `""` without one."""

    @abstractmethod
    def settings(self) -> Mapping[str, tuple[Any, ...]]:
        """Return the values that each setting may have, by its full name; must not import the framework."""

    @abstractmethod
    def with_settings(self, values: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Return a context that sets these of `settings`, and restores the previous values on exit."""
