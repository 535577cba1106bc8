"""Rows: the reading side that a feature set and its views share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from anyaccel.data.columns import column_spec, is_numeric
from anyaccel.data.roles import no_column, read_roles
from anyaccel.segment import TensorSpec


class Rows(ABC):
    """Rows of named columns, each with a role: feature, target or tag.

    Args:
        label: of the feature set that the rows belong to.
        schema: Arrow schema whose fields carry their roles.
    """

    def __init__(self, label: str, schema: Any) -> None:
        self._label = label
        self._schema = schema
        self._roles = read_roles(label, schema)

    @property
    def label(self) -> str:
        """Label of the feature set."""
        return self._label

    @property
    def schema(self) -> Any:
        """The Arrow schema; each field has its role in its metadata as `anyaccel.role`."""
        return self._schema

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns."""
        return tuple(self._roles)

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the columns that go into models."""
        return self._of_role("feature")

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the columns that losses compare with."""
        return self._of_role("target")

    @property
    def tags(self) -> tuple[str, ...]:
        """Names of the columns that only describe the rows, of any Arrow type."""
        return self._of_role("tag")

    def role(self, name: str) -> str:
        """`"feature"`, `"target"` or `"tag"`.

        Raises:
            ColumnError: there is no such column.
        """
        if name not in self._roles:
            raise no_column(self._label, name, self._roles)
        return self._roles[name]

    def spec(self, name: str) -> TensorSpec:
        """Shape per sample and dtype of a column.

        Raises:
            ColumnError: there is no such column, or it is a tag that holds no numbers.
        """
        self.role(name)
        return column_spec(name, self._schema.field(name).type)

    @abstractmethod
    def __len__(self) -> int:
        """Number of rows."""

    @abstractmethod
    def array(self, name: str) -> np.ndarray:
        """Values of a column, [n, *shape] in its own dtype, read-only.

        Raises:
            ColumnError: there is no such column, or it is a tag that holds no numbers.
        """

    @abstractmethod
    def column(self, name: str) -> Any:
        """A column as an Arrow chunked array; the way to read tags of any type.

        Raises:
            ColumnError: there is no such column.
        """

    @abstractmethod
    def to_arrow(self) -> Any:
        """An Arrow table of all columns, with their roles in the field metadata."""

    def _of_role(self, role: str) -> tuple[str, ...]:
        return tuple(name for name, its in self._roles.items() if its == role)

    def _described(self) -> str:
        parts = []
        for role, names in (("features", self.features), ("targets", self.targets), ("tags", self.tags)):
            shown = [f"{name} {self._type_of(name)}" for name in names]
            parts += [f"{role}: {', '.join(shown)}"] if shown else []
        return "; ".join([f"{len(self)} rows", *parts])

    def _type_of(self, name: str) -> str:
        kind = self._schema.field(name).type
        return str(column_spec(name, kind) if is_numeric(kind) else kind)
