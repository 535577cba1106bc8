"""Hints for methods that objects of other libraries have: the corresponding code here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from anyaccel.suggestions import did_you_mean


class AttributeHints:
    """Base class of public classes; its AttributeError suggests the probably intended name.

    A subclass has `attribute_hints`: names that other libraries use, separated by spaces, and a hint for them.
    """

    __slots__ = ()
    attribute_hints: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # type checkers are to know the real attributes alone

        def __getattr__(self, name: str) -> Any:
            if hasattr(type(self), name):  # a property that raised AttributeError: its error is the one to see
                return object.__getattribute__(self, name)
            hint = "" if name.startswith("_") else self._hint_for(name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    def _hint_for(self, name: str) -> str:
        for names, hint in self.attribute_hints.items():
            if name in names.split():
                return f". Hint: {hint}."
        public = [attribute for attribute in dir(type(self)) if not attribute.startswith("_")]
        hint = did_you_mean(name, public, "", cutoff=0.75)
        return f". Hint: {hint}" if hint else ""
