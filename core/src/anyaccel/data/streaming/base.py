"""Base classes of sources, which have a label, columns with roles, and an example of the rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np

from anyaccel.call_hints import constructor_hints
from anyaccel.data.arrow_columns import Pad
from anyaccel.data.feature_set import FeatureSet, Reference
from anyaccel.data.roles import Names, RoleNames, WithRoles, assign_roles, check_label, listed, names_of
from anyaccel.data.streaming.random_states import RandomStates, States
from anyaccel.data.streaming.source_errors import error_context
from anyaccel.printable import printable
from anyaccel.segment import TensorSpec

EXAMPLE_ROWS = 4
"""Rows that an example has at most."""
Columns = Mapping[str, np.ndarray]
"""Arrays in host memory by column name, [rows, *shape]."""


@constructor_hints
class Source(WithRoles, ABC):
    """Rows that are read while a phase runs. A `BatchSource` yields batches; a `MapSource` returns requested rows.

    Args:
        label: Label of the feature set that the graph is connected to, or of the source's own `example`.
        features, target, tags: Names of columns by role.

    Raises:
        DataError: a label that is not text or has a dot.
        ColumnError: invalid roles.

    Example:
        >>> import anyaccel as aa, numpy as np
        >>> batches = [(np.ones((4, 2)), np.zeros(4)) for _ in range(3)]
        >>> source = aa.IterableSource("stream", batches, features=["x"], target=["y"])
        >>> isinstance(source, aa.Source), source.spec("x").shape
        (True, (2,))
    """

    pads: dict[str, Pad]
    """How columns are padded whose rows differ in length, by name."""
    left_out: tuple[str, ...] = ()
    """Names of columns that its batches or rows may have after the others, such as targets in predictions."""
    repeats: bool = False
    """Whether an epoch gives the same rows in the same order every time it is read."""
    passes_thread_rng: bool | None = None
    """Whether reading it seeds a framework's global generator, or draws from it so that no stream of a thread can take
    its place; None before its first rows were read."""

    def __init__(self, label: str, features: Names, target: Names = (), tags: Names = ()) -> None:
        check_label(label)
        columns = [name for names in (features, target, tags) for name in names_of(names)]
        super().__init__(label, assign_roles(label, list(dict.fromkeys(columns)), RoleNames(features, target, tags)))
        self._example: FeatureSet | None = None
        self.pads: dict[str, Pad] = {}
        self._random_states = RandomStates(())

    def __repr__(self) -> str:
        rows = "" if self.rows is None else f"{self.rows:,} rows; "
        steps = "" if self.steps is None else f"{self.steps:,} batches; "
        return printable(f"{type(self).__name__}({self._label!r}, {rows}{steps}columns: {listed(self.columns)})")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def rows(self) -> int | None:
        """Number of rows in an epoch, None if unknown."""
        return None

    @property
    def steps(self) -> int | None:
        """Number of batches in an epoch, None if unknown."""
        return None

    @property
    def example(self) -> FeatureSet:
        """A few of its rows as a feature set, to connect a graph to; all rows have its shapes and dtypes.

        It is read on first use and then stored.

        Raises:
            SourceError: the source has no rows, or invalid ones.
        """
        return self._example or self._keep_example(self._first())

    def spec(self, name: str) -> TensorSpec:
        """Return the shape per sample and the dtype of a column, as in the example.

        Raises:
            ColumnError: the column does not exist, or it is a tag that is not numeric.
            SourceError: see `example`.
        """
        return self.example.spec(name)

    def reference(
        self, features: Names = None, target: Names = None, tags: Names = None, stream: str | None = None
    ) -> Reference:
        """Choose columns for a graph, as `FeatureSet.reference` of the example does.

        Raises:
            ColumnError: a name that is not a column of that role, or given twice.
            SamplerError: an invalid name of a stream.
            SourceError: see `example`.
        """
        return self.example.reference(features, target, tags, stream)

    def notes(self) -> tuple[str, ...]:
        """Return notes for the user about its reading, such as more workers than cores."""
        return ()

    def random_states(self) -> dict[str, Any]:
        """Return the states of the generators that it draws from: NumPy's and Python's, and its own."""
        return self._random_states.states()

    def load_random_states(self, states: States) -> None:
        """Restore the output of `random_states`, in this process or another one.

        Raises:
            SourceError: it does not have the same generators.
        """
        with error_context(f"source {self._label!r}"):
            self._random_states.load(states)

    def close(self) -> None:
        """Release everything that is held between two epochs; the next use opens it again."""

    @abstractmethod
    def _first(self) -> Columns:
        """Return some of its first rows."""

    def _keep_example(self, columns: Columns) -> FeatureSet:
        if self._example is None:
            few = {name: column[:EXAMPLE_ROWS] for name, column in columns.items()}
            with error_context(f"source {self._label!r}"):
                pads = {name: replace(pad, mask=None) for name, pad in self.pads.items()}
                roles = (self.features, self.targets, self.tags)
                self._example = FeatureSet.from_dict(self._label, few, *roles, pad=pads)
        return self._example


@constructor_hints
class BatchSource(Source):
    """Base class of sources that decide themselves the rows of each batch and their order.

    Example:
        >>> import anyaccel as aa, numpy as np
        >>> batches = [{"x": np.full((4, 2), i)} for i in range(3)]
        >>> source = aa.IterableSource("counts", batches, features=["x"])
        >>> isinstance(source, aa.BatchSource), [int(batch["x"][0, 0]) for batch in source.batches(0)]
        (True, [0, 1, 2])
    """

    read_ahead: int | None = None
    """0 if each batch is asked for only when the step before it is done; None if a thread may read ahead."""
    once: bool = False
    """Whether it can be read only once, each epoch going on where the one before stopped."""

    def held_states(self, epoch: int) -> States | None:
        """Return the random states before the first batch of an epoch, if that batch was read already and is held."""
        return None

    def hold_again(self, states: States | None) -> None:
        """Read the first batch again from these states; with None, hold nothing that can be read again.

        Raises:
            SourceError: it does not have the same generators, or cannot be read.
        """

    @abstractmethod
    def batches(self, epoch: int) -> Generator[Columns]:
        """Yield the batches of an epoch (0 is the first), each as arrays in host memory by column name, [rows, *shape].

        All columns of a batch have the same number of rows, at least one; features and targets have the shapes and
        dtypes of the example, and those in `pads` may differ in their second axis. The arrays may be overwritten once
        the next batch is requested. Closing the iterator closes everything that it opened.

        Raises:
            SourceError: from the iterator, for an invalid batch or no batch; from the call itself, if the source cannot
                be read (again).
        """
