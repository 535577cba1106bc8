"""Fitted transforms as values: their input and output columns, and their inverse for predictions."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anyaccel.arguments import shown
from anyaccel.data.roles import listed
from anyaccel.errors import ConfigError, TransformError
from anyaccel.printable import printable
from anyaccel.saved_folder.plain_values import NotPlainError, plain
from anyaccel_sklearn.transforms.class_encoder import ClassEncoder
from anyaccel_sklearn.transforms.plain_state import TransformReader, class_of, library_version, plain_attributes
from anyaccel_sklearn.transforms.sklearn_calls import described, inverted, narrowed
from anyaccel_sklearn.transforms.table_transform import TableTransform

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FittedTransform:
    """A transform that was fitted to columns of a feature set; `data.transforms` lists them, oldest first.

    Attributes:
        transform: The fitted object, a copy of the user's object.
        columns: Names of its input columns, joined in this order.
        results: Names of the columns that it creates: the same, or the one passed as `into=`.
        fit_on: Name of the split or view whose rows it was fitted to; `"all"` for all rows.
        role: The role requested for its results; None keeps the role of each column.
        makes_features: Whether a result is a feature of the data that it was fitted to. shapes: Shape per sample of
            each of `columns`; `()` for text.
        result_shapes: Shape per sample of each of `results`.
    """

    transform: Any
    columns: tuple[str, ...]
    results: tuple[str, ...]
    fit_on: str
    role: str | None
    makes_features: bool
    shapes: tuple[Shape, ...]
    result_shapes: tuple[Shape, ...]
    fillers: np.ndarray = field(repr=False)  # [3, numbers], all in the range of the output in fitting

    def __repr__(self) -> str:
        into = "" if self.results == self.columns else f" into {', '.join(self.results)}"
        name = type(self.transform).__name__
        return printable(f"FittedTransform({name} on {', '.join(self.columns)}{into}, fitted on {self.fit_on!r})")

    @property
    def class_labels(self) -> tuple[Any, ...]:
        """Labels that it encodes as class indices; `()` for other transforms."""
        return tuple(self.transform.classes_) if isinstance(self.transform, ClassEncoder) else ()

    @property
    def width(self) -> int:
        """Number of numbers in a row of its results."""
        return sum(map(math.prod, self.result_shapes))

    def is_like(self, other: FittedTransform) -> bool:
        """Return whether another transform does the same: it is this one, or has an equal state and columns."""
        described, others = ((side.columns, side.results, side.shapes, side.result_shapes) for side in (self, other))
        return described == others and same_state(self.transform, other.transform)

    def get_config(self, arrays: dict[str, np.ndarray], prefix: str) -> dict[str, Any]:
        """Return this transform as plain data; its number arrays are added to `arrays`, under `prefix`.

        `state` is None if the class of the transform is unknown or its state is not plain data. The transform can then
        be compared by `fillers`, which are in the range of its output, but it cannot be read. `probe` is its output for
        artificial rows.
        """
        state_arrays: dict[str, np.ndarray] = {}
        try:
            state: Any = plain_attributes(self.transform, state_arrays, prefix)
        except (NotPlainError, TypeError, RecursionError) as error:
            if isinstance(self.transform, TableTransform):  # raw rows could not be predicted otherwise
                raise ConfigError(
                    f"the result of preprocess= for the columns {listed(self.columns)} cannot be saved: {error}",
                    cause="a folder can store only transformers of scikit-learn with a state of numbers, text and "
                    "functions of NumPy, without pickle",
                    hint="write preprocess='auto', or use such transformers: FunctionTransformer(numpy.log1p)",
                ) from error
            state, state_arrays = None, {}
        arrays.update(state_arrays)
        return {
            "class": class_of(self.transform),
            "columns": list(self.columns),
            "results": list(self.results),
            "fit_on": self.fit_on,
            "role": self.role,
            "makes_features": self.makes_features,
            "shapes": [list(shape) for shape in self.shapes],
            "result_shapes": [list(shape) for shape in self.result_shapes],
            "library": library_version(self.transform),
            "state": state,
            "fillers": plain(self.fillers, arrays, f"{prefix}/fillers"),
            "probe": plain(_probe(self), arrays, f"{prefix}/probe"),
        }

    def undo(self, pieces: Mapping[str, np.ndarray], label: str) -> dict[str, np.ndarray]:
        """Return the columns before this transform, [n, *shape] by name, from some of its results and other columns.

        Results that are not in `pieces` are filled with values of their range; if these matter, an error is raised.

        Raises:
            TransformError: It has no inverse, or none for these columns alone.
        """
        what = described(self.transform, self.columns, label)
        names = [name for name in self.results if name in pieces]
        tries = self.fillers[: 1 if len(names) == len(self.results) else None]
        first, *others = [self._before(pieces, names, filler, what) for filler in tries]
        for other in others:
            if not all(_same(first[name], other[name]) for name in first):
                missing = [name for name in self.results if name not in pieces]
                raise TransformError(
                    f"{what} cannot be inverted for {', '.join(names)} alone: the result depends on "
                    f"{', '.join(missing)}",
                    hint=f"pass all of {', '.join(self.results)} together, or fit a transform to each column",
                )
        rest = {name: values for name, values in pieces.items() if name not in self.results}
        twice = [name for name in first if name in rest]
        if twice:
            raise TransformError(
                f"undoing {what} returns {', '.join(twice)}, which is also among the given columns",
                hint="undo the columns one at a time",
            )
        return {**rest, **first}

    def _before(
        self, pieces: Mapping[str, np.ndarray], names: Sequence[str], filler: np.ndarray, what: str
    ) -> dict[str, np.ndarray]:
        first = pieces[names[0]]
        n, fillers = len(first), split_flat(filler[None], self.result_shapes)
        flat = [
            (pieces[name] if name in pieces else np.repeat(part, n, axis=0)).reshape(n, math.prod(part.shape[1:]))
            for name, part in zip(self.results, fillers, strict=True)
        ]
        before = inverted(self.transform, np.concatenate(flat, axis=1), sum(map(math.prod, self.shapes)), what)
        parts = dict(zip(self.columns, split_flat(narrowed(before, first.dtype), self.shapes), strict=True))
        return {name: parts[name] for name in names} if self.results == self.columns else parts


def result_layout(
    columns: Sequence[str], shapes: Sequence[Shape], width: int, into: str | None, what: str
) -> tuple[tuple[str, ...], tuple[Shape, ...]]:
    """Return names and shapes of the columns that a transform creates, of `width` numbers per row together."""
    same = width == sum(map(math.prod, shapes))
    if into is not None or len(columns) == 1:
        return (into or columns[0],), (shapes[0] if same and len(columns) == 1 else (width,),)
    if not same:
        raise TransformError(
            f"{what} returns rows of width {width}, which do not match these {len(columns)} columns",
            cause=f"their total width is {sum(map(math.prod, shapes))}",
            hint="name the one new column with into='NAME', or transform the columns one by one",
        )
    return tuple(columns), tuple(shapes)


def fillers_of(output: np.ndarray) -> np.ndarray:
    """Return three rows [3, k] in the range of each of the k numbers of `output` [n, k]: lowest, any, highest."""
    if output.dtype == np.object_ or output.dtype.kind in "US":
        output = np.array([sorted(column, key=str) for column in output.T.tolist()], dtype=object).T
        return output[[0, len(output) // 2, -1]]
    return np.stack([np.fmin.reduce(output), output[len(output) // 2], np.fmax.reduce(output)])


def split_flat(flat: np.ndarray, shapes: Sequence[Shape]) -> list[np.ndarray]:
    """Return columns [n, *shape] from their numbers side by side, [n, numbers]."""
    ends = np.cumsum([math.prod(shape) for shape in shapes])[:-1]
    parts = np.split(flat, ends, axis=1)
    return [part.reshape(len(flat), *shape) for part, shape in zip(parts, shapes, strict=True)]


def split_joined(values: np.ndarray, shapes: Sequence[Shape], what: str) -> list[np.ndarray]:
    """Return columns [n, *shape] from one array that joins them along the last axis, as in models."""
    leads = {_as_tensor(shape)[:-1] for shape in shapes}
    joined = shapes[0] if len(shapes) == 1 else (*min(leads), sum(_as_tensor(shape)[-1] for shape in shapes))
    if not values.ndim or len(leads) > 1 or _without_ones(values.shape[1:]) != _without_ones(joined):
        raise TransformError(
            f"values of shape {['n', *values.shape[1:]] if values.ndim else []} do not match {what}",
            cause=f"shapes per sample: {', '.join(str(list(shape)) for shape in shapes)}",
            hint="name the columns of these values",
        )
    if len(shapes) == 1:
        return [values.reshape(len(values), *joined)]
    ends = np.cumsum([_as_tensor(shape)[-1] for shape in shapes])[:-1]
    parts = np.split(values.reshape(len(values), *joined), ends, axis=-1)
    return [part.reshape(len(values), *shape) for part, shape in zip(parts, shapes, strict=True)]


def _as_tensor(shape: Shape) -> Shape:
    return shape or (1,)


def _without_ones(shape: Shape) -> Shape:
    return tuple(extent for extent in shape if extent != 1)


def _same(first: np.ndarray, second: np.ndarray) -> bool:
    return np.array_equal(first, second, equal_nan=first.dtype.kind == "f")


# -- whether two fitted objects are in the same state ------------------------------------------------------------------


def same_state(first: Any, second: Any) -> bool:
    """Return whether two objects are the same, or equal in type and state: arrays by value, others by attributes.

    Objects that cannot be compared, such as one that refers to itself, count as different.
    """
    try:
        return _equal(first, second)
    except (RecursionError, TypeError, ValueError):
        return False


def _equal(first: Any, second: Any) -> bool:
    if first is second:
        return True
    if type(first) is not type(second):
        return False
    if isinstance(first, np.ndarray):
        if first.dtype != second.dtype or first.shape != second.shape:
            return False
        if first.dtype == np.object_:
            return _equal(first.tolist(), second.tolist())
        return bool(((first == second) | ((first != first) & (second != second))).all())
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(_equal(value, second[key]) for key, value in first.items())
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(_equal, first, second))
    if hasattr(first, "__dict__") and not isinstance(first, type):
        return _equal(vars(first), vars(second))
    return bool(first == second) or bool(first != first and second != second)


# -- saved files of fitted transforms ----------------------------------------------------------------------------------


_KEYS = {
    *("class", "columns", "results", "fit_on", "role", "makes_features", "shapes", "result_shapes", "library"),
    *("state", "fillers", "probe"),
}
_PROBE = np.array([[0.0], [1.0], [0.5]])


def read_transform(config: Any, reader: TransformReader) -> FittedTransform:
    """Return the fitted transform of a configuration from `get_config`.

    Raises:
        ConfigError: It is malformed, its class is not known, or it returns other numbers than when it was written.
        TransformError: Its library is not installed.
    """
    if not isinstance(config, Mapping) or set(config) != _KEYS:
        raise ConfigError(f"{shown(config)} is not the configuration of a transform", hint="pass it unchanged")
    if config["state"] is None:
        raise ConfigError(
            f"the data were transformed by {config['class']} on {', '.join(config['columns'])}, which cannot be stored",
            cause="a file can store only transforms of scikit-learn with a state of numbers and text",
            hint="pass data with these transforms: feature_sets=[data]",
        )
    fitted = FittedTransform(
        transform=reader.transform(config["class"], config["state"]),
        columns=tuple(config["columns"]),
        results=tuple(config["results"]),
        fit_on=config["fit_on"],
        role=config["role"],
        makes_features=config["makes_features"],
        shapes=tuple(map(tuple, config["shapes"])),
        result_shapes=tuple(map(tuple, config["result_shapes"])),
        fillers=reader.value(config["fillers"]),
    )
    _check_probe(fitted, reader.value(config["probe"]), config["library"])
    return fitted


def _probe(fitted: FittedTransform) -> np.ndarray | None:
    """Return the output of a transform for artificial rows, as an object array; None if it refuses such rows."""
    width = sum(int(np.prod(shape)) for shape in fitted.shapes)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            output = fitted.transform.transform(np.repeat(_PROBE, width, axis=1))
        return np.asarray(output.toarray() if hasattr(output, "toarray") else output, dtype=np.float64).astype(object)
    except Exception:  # any error of a library for values that it does not know
        return None


def _check_probe(fitted: FittedTransform, expected: np.ndarray | None, library: str) -> None:
    now = _probe(fitted)
    if expected is None or (now is not None and _close(now, expected)):
        return
    raise ConfigError(
        f"{fitted!r} does not return the same numbers as when it was saved",
        cause=f"saved with {library}; installed is {library_version(fitted.transform)}",
        hint=f"install {library.replace(' ', '==').replace('sklearn', 'scikit-learn')}, "
        "or pass data with these transforms: feature_sets=[data]",
    )


def _close(first: np.ndarray, second: np.ndarray) -> bool:
    pair = (first.astype(np.float64), second.astype(np.float64))
    return first.shape == second.shape and np.allclose(*pair, rtol=1e-5, atol=1e-8, equal_nan=True)
