"""Transforms of columns: fitted on some rows, applied to all, undone for the data and for predictions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from anyaccel.data.arrow_columns import KINDS, is_numeric
from anyaccel.data.feature_set_view import FeatureSetView
from anyaccel.data.roles import ROLES, Names, listed, names_of, no_column
from anyaccel.data.rows import Rows
from anyaccel.data.transforms.fitted_transform import FittedTransform, join, split_joined
from anyaccel.data.transforms.sklearn_calls import check_transform, described, transformed
from anyaccel.data.transforms.transform_log import Step, check_fits, fit, matrix, owners, put
from anyaccel.errors import TransformError

if TYPE_CHECKING:
    from anyaccel.data.feature_set import FeatureSet


class Transforming(Rows):
    """The transforms of a feature set. Every change gives a new feature set; rows, label and splits stay."""

    _steps: tuple[Step, ...] = ()

    @abstractmethod
    def split(self, name: str) -> FeatureSetView:
        """The split of this name, or the view of all rows for `"all"`."""

    @property
    @abstractmethod
    def splits(self) -> Mapping[str, FeatureSetView]:
        """The registered splits by name."""

    @abstractmethod
    def _remade(self, table: Any, steps: tuple[Step, ...]) -> FeatureSet:
        """A feature set of the same rows, label and splits with these columns and transforms."""

    @property
    def transforms(self) -> tuple[FittedTransform, ...]:
        """The transforms in these columns, the oldest first; those of columns that were left out are kept."""
        return tuple(step.fitted for step in self._steps)

    def fit_transform(
        self,
        transform: Any,
        columns: Names,
        *,
        fit_on: str | FeatureSetView | None = None,
        role: str | None = None,
        into: str | None = None,
    ) -> FeatureSet:
        """A new feature set in which columns are transformed: fitted to the rows of one split, applied to all rows.

        Args:
            transform: an object with `fit(X)` and `transform(X)` in the style of scikit-learn; a copy of it is fitted.
                `X` is [n, numbers]: each column flat, side by side; an object array if one of them is not of numbers.
            columns: name of a column, or several, of any role. They keep their shape if the transform gives as many
                numbers as it takes; a single column gets shape (k,) if not. Floats stay as narrow as they were.
            fit_on: a split's name, or a view of this feature set. `"all"` also takes the rows that you evaluate on.
            role: `"feature"`, `"target"` or `"tag"`, for the result; by default that of its column. It has to be said
                where numbers are made of a tag that holds none.
            into: name of one new column beside the others for the result, of whatever width; without it the result
                takes the place of the columns.

        Raises:
            TransformError: `fit_on` is missing, or the transform does not fit these columns or gives what cannot be
                (other rows, NaN of finite numbers, unseen categories), or a tag becomes numbers and `role` is missing.
            SplitError: there is no such split.
            ColumnError: there is no such column, or it has nulls.
        """
        check_transform(transform)
        names = self._named(columns)
        what = described(transform, names, self._label)
        fit_name, rows = self._fit_rows(fit_on, what)
        new_role = self._new_role(names, role, into, what)
        table = self.to_arrow()
        fitted, made = fit(table, transform, names, (fit_name, rows), new_role, into, what)
        if role is None:
            self._check_tags(names, made, what)
        return self._remade(*put(table, self._steps, fitted, made, what))

    def transform_like(self, other: FeatureSet | FeatureSetView) -> FeatureSet:
        """A new feature set to which the transforms of another are applied as they were fitted there, in order.

        Targets and tags that are missing here are passed over, and `inverse` knows their transforms all the same.

        Raises:
            TransformError: the other has none, they are here already, a feature is missing or of another shape, or a
                transform fails (for categories that it has not seen, say).
        """
        theirs = self._transforms_of(other)
        table, steps = self.to_arrow(), self._steps
        for fitted in theirs:
            what = described(fitted.transform, fitted.columns, self._label)
            if self._is_passed_over(fitted, table, what):
                steps = (*steps, Step(fitted, {}))
                continue
            check_fits(table, fitted, what)
            made = transformed(fitted.transform, matrix(table, fitted.columns), owners(table, fitted.columns), what)
            if made.shape[1] != fitted.width:
                raise TransformError(
                    f"{what} gives rows of width {made.shape[1]}", available=f"in fitting: {fitted.width}"
                )
            table, steps = put(table, steps, fitted, made, what)
        return self._remade(table, steps)

    def undo_transform(self) -> FeatureSet:
        """A new feature set without the last transform: its columns are, bit by bit, what they were before it.

        What happened to these columns since (a cast) is gone with it. Columns left out since stay out; if the one that
        `into=` made is there and its source is not, the source comes back.

        Raises:
            TransformError: there is none (left).
        """
        *steps, last = self._checked_steps()
        return self._remade(last.undone(self.to_arrow()), tuple(steps))

    def undo_transforms(self) -> FeatureSet:
        """A new feature set without any transform; see `undo_transform`.

        Raises:
            TransformError: there is none (left).
        """
        table = self.to_arrow()
        for step in reversed(self._checked_steps()):
            table = step.undone(table)
        return self._remade(table, ())

    def inverse(self, values: Any, columns: Names) -> np.ndarray:
        """Values of transformed columns, such as predictions, in the units before all transforms.

        The last transform is undone first. Nothing is remembered of it: what was brought back once must not be given
        again. It is NaN where a transform says so of values that it cannot have made.

        Args:
            values: [n, *shape] of any n; several columns joined along the last axis; axes of length 1 do not count.
            columns: which column these values stand for, or several, by their names as they are now.

        Returns:
            the shape given, or that of the column before its transforms where these changed it (text: an object
            array [n]); `values` themselves if no transform concerns the columns.

        Raises:
            TransformError: a transform has no inverse, fails, or does not come apart (PCA for one of three columns).
            ColumnError: there is no such column.
        """
        names = self._named(columns, [name for fitted in self.transforms for name in fitted.results])
        array = np.asarray(values)
        steps = relevant_transforms(self.transforms, names)
        if not steps:
            return array
        parts = split_joined(array, [self._shape_now(name) for name in names], listed(names))
        pieces = dict(zip(names, parts, strict=True))
        for fitted in steps:
            pieces = fitted.undo(pieces, self._label)
        found = join([pieces[name] for name in names if name in pieces] or list(pieces.values()))
        return found.reshape(array.shape) if found.size == array.size and set(pieces) == set(names) else found

    def _named(self, columns: Names, more: Sequence[str] = ()) -> tuple[str, ...]:
        names = names_of(columns)
        for name in names:
            if name not in self.columns and name not in more:
                raise no_column(self._label, name, self.columns)
        if not names or len(set(names)) < len(names):
            raise TransformError(
                f"columns={columns!r} of {self._label!r} names {'one twice' if names else 'none'}",
                available=listed(self.columns),
                hint="name each column once",
            )
        return names

    def _fit_rows(self, fit_on: Any, what: str) -> tuple[str, np.ndarray]:
        if isinstance(fit_on, FeatureSetView) and fit_on.feature_set is self:
            return fit_on.name, fit_on.rows
        if isinstance(fit_on, str):
            return fit_on, self.split(fit_on).rows
        there = f"splits: {listed([*self.splits, 'all'])}"
        remedy = f"write fit_on={next(iter(self.splits), 'all')!r}; 'all' also takes the rows that you evaluate on"
        if fit_on is None:
            raise TransformError(f"{what}: say on which rows it is fitted", available=there, hint=remedy)
        told = "a view of another feature set" if isinstance(fit_on, FeatureSetView) else repr(fit_on)
        raise TransformError(f"{what} cannot be fitted on {told}", available=there, hint=remedy)

    def _new_role(self, names: Sequence[str], role: str | None, into: str | None, what: str) -> str | None:
        """The role asked for, or for a new column that of its sources; None if each keeps its own."""
        if role not in (None, *ROLES):
            raise TransformError(f"{what}: role={role!r} is no role", available=listed(ROLES))
        if into is None:
            return role
        if not isinstance(into, str) or not into or into in self.columns:
            raise TransformError(
                f"{what}: into={into!r} is no name for a new column",
                available=f"columns: {listed(self.columns)}",
                hint="choose another name, or leave into= out to put the result in the place of its column",
            )
        roles = {self.role(name) for name in names}
        if role is None and len(roles) > 1:
            raise TransformError(
                f"{what}: the role of {into!r} is not clear", available=listed(sorted(roles)), hint="say role='feature'"
            )
        return role or roles.pop()

    def _check_tags(self, names: Sequence[str], made: np.ndarray, what: str) -> None:
        """Numbers made of a tag that has none are mostly meant as a feature, and no model would ever see them."""
        texts = [name for name in names if self.role(name) == "tag" and not is_numeric(self.schema.field(name).type)]
        if texts and made.dtype.kind in KINDS:
            raise TransformError(
                f"{what} makes numbers of the tag {texts[0]!r}, which would stay a tag that no model takes",
                available=f"role={listed(map(repr, ROLES))}",
                hint="say role='feature', or role='tag' to keep it one",
            )

    def _transforms_of(self, other: Any) -> tuple[FittedTransform, ...]:
        source = other.feature_set if isinstance(other, FeatureSetView) else other
        if not isinstance(source, Transforming) or not source.transforms:
            raise TransformError(
                f"{self._label!r} cannot be transformed like {other!r}",
                available="it has no transforms",
                hint="give the feature set that fit_transform returned; the one that it was called on stays as it is",
            )
        if set(source.transforms) & set(self.transforms):
            raise TransformError(
                f"{self._label!r} has these transforms already",
                available=listed(self.transforms),
                hint="apply them once",
            )
        return source.transforms

    def _is_passed_over(self, fitted: FittedTransform, table: Any, what: str) -> bool:
        missing = [name for name in fitted.columns if name not in table.column_names]
        if not missing:
            return False
        if len(missing) == len(fitted.columns) and not fitted.makes_features:
            return True
        raise TransformError(
            f"{what} cannot be applied without {listed(missing)}",
            available=f"columns: {listed(table.column_names)}",
            hint="give these columns, or fit a transform of their own to those that may be missing",
        )

    def _checked_steps(self) -> tuple[Step, ...]:
        if not self._steps:
            raise TransformError(
                f"{self._label!r} has no transform to undo",
                available="its columns are as they came",
                hint="undo each transform once; predictions come back with inverse() or prediction(..., undo=True)",
            )
        return self._steps

    def _shape_now(self, name: str) -> tuple[int, ...]:
        for fitted in reversed(self.transforms):
            if name in fitted.results:
                return fitted.result_shapes[fitted.results.index(name)]
        return self.spec(name).shape


def relevant_transforms(transforms: Sequence[FittedTransform], names: Sequence[str]) -> list[FittedTransform]:
    """Those of a feature set's transforms that made the columns of these names, or what they were made of; the last
    first."""
    reached, found = set(names), []
    for fitted in reversed(transforms):
        if reached & set(fitted.results):
            found.append(fitted)
            reached = reached - set(fitted.results) | set(fitted.columns)
    return found
