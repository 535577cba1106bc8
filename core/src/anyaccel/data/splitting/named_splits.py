"""The splits of a feature set by name; a name always means the same rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import numpy as np

from anyaccel.arguments import shown
from anyaccel.data.roles import has_surrogates, listed
from anyaccel.data.rows import Rows
from anyaccel.errors import SplitError
from anyaccel.suggestions import did_you_mean

ALL = "all"
"""Stands for all rows, and for no split."""

View = TypeVar("View", bound=Rows)


class NamedSplits(Generic[View]):
    """Views of one feature set, registered by name.

    Args:
        label: Label of the feature set.
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self.by_name: dict[str, View] = {}

    def get(self, name: Any, columns: tuple[str, ...]) -> View:
        """Return the split with this name; `columns` are the splits of the feature set, for the message.

        Raises:
            SplitError: there is no such split.
        """
        if isinstance(name, str) and name in self.by_name:
            return self.by_name[name]
        hint = "create splits with split_random({'train': 0.8, ...})"
        hint = did_you_mean(name, self.by_name) if self.by_name else hint
        raise SplitError(
            f"{self._label!r} has no split {name!r}",
            available=listed([*self.by_name, ALL]),
            hint=f"it is a column: data.array({name!r})" if name in columns else hint,
        )

    def check_names(self, rows: Any) -> None:
        """Check that the argument is a mapping by valid names of splits.

        Raises:
            SplitError: it is not.
        """
        if not isinstance(rows, Mapping):
            problem = f"the splits of {self._label!r} must be a mapping by name, got {shown(rows)}"
            raise SplitError(problem, hint="write add_splits({'train': [0, 1], 'test': [2]})")
        for name in rows:
            self.check_name(name)

    def check_name(self, name: Any) -> None:
        """Check that a split may have this name.

        Raises:
            SplitError: it is not text, or `"all"`.
        """
        if not isinstance(name, str) or not name or has_surrogates(name):
            problem = f"the name of a split of {self._label!r} must be text, got {shown(name)}"
            raise SplitError(problem, hint="write add_split('NAME', rows)")
        if name == ALL:
            raise self._name_taken(name, "choose another name")

    def known_or(self, name: str, view: View) -> View:
        """Return the registered view with this name, which must have the same rows; `view` if there is none.

        A notebook cell may run again and create its splits again.

        Raises:
            SplitError: the name is taken by other rows.
        """
        existing = self.by_name.get(name)
        if existing is None or np.array_equal(_rows_of(existing), _rows_of(view)):
            return existing or view
        hint = "create the feature set again in the same cell, or choose another name"
        raise self._name_taken(name, hint, " of other rows")

    def _name_taken(self, name: str, hint: str, of: str = "") -> SplitError:
        return SplitError(
            f"{self._label!r} already has a split {name!r}{of}",
            cause=f"it has {listed([*self.by_name, ALL])}",
            hint=hint,
        )


def _rows_of(view: Rows) -> np.ndarray:
    return np.arange(len(view)) if view.indices is None else view.indices
