"""The state of fitted transforms as plain data and arrays, and back: no pickle, and only classes that are known."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from anyaccel.arguments import shown
from anyaccel.errors import ConfigError, TransformError

# Classes of scikit-learn whose whole state is numbers, text, and other transforms of this table.
_SKLEARN = {
    "Binarizer KBinsDiscretizer MaxAbsScaler MinMaxScaler Normalizer OneHotEncoder OrdinalEncoder PolynomialFeatures "
    "PowerTransformer QuantileTransformer RobustScaler SplineTransformer StandardScaler": "sklearn.preprocessing",
    "FactorAnalysis FastICA IncrementalPCA NMF PCA TruncatedSVD": "sklearn.decomposition",
    "MissingIndicator SimpleImputer": "sklearn.impute",
    "SelectKBest VarianceThreshold": "sklearn.feature_selection",
    "Pipeline": "sklearn.pipeline",
}
_MODULES = {name: module for names, module in _SKLEARN.items() for name in names.split()}
_MODULES["ClassEncoder"] = "anyaccel.data.transforms.class_encoder"
_KIND = "$"
_PLAIN = (str, bool, int, type(None))
_HINT = "give the folder or the dict as it was written"


class NotPlainError(Exception):
    """An object whose state is not plain: a function, say, or an object of an unknown class."""


def class_of(transform: Any) -> str:
    """The class of a transform as text: its name if it is known here, else `module:qualname`."""
    cls = type(transform)
    is_known = f"{cls.__module__}.".startswith(f"{_MODULES.get(cls.__name__, 'none')}.")
    return cls.__name__ if is_known else f"{cls.__module__}:{cls.__qualname__}"


def plain_attributes(transform: Any, arrays: dict[str, np.ndarray], prefix: str) -> dict[str, Any]:
    """The attributes of a transform as plain data; its arrays of numbers are added to `arrays`, under `prefix`.

    Raises:
        NotPlainError: an attribute is neither plain, an array, nor a transform of a known class.
    """
    return {name: plain(value, arrays, f"{prefix}/{name}") for name, value in sorted(vars(transform).items())}


def plain(value: Any, arrays: dict[str, np.ndarray], path: str) -> Any:
    """A value as plain data, ready for JSON; see `plain_attributes`."""
    if isinstance(value, _PLAIN) and type(value) in _PLAIN:
        return value
    for kind, (cls, write) in _WRITERS.items():
        if isinstance(value, cls):
            return {_KIND: kind, **write(value, arrays, path)}
    if type(value) is float:
        return value if math.isfinite(value) else {_KIND: "float", "value": repr(value)}
    if type(value) is list:
        return [plain(item, arrays, f"{path}/{index}") for index, item in enumerate(value)]
    if class_of(value) in _MODULES:
        return {_KIND: "transform", "class": class_of(value), "state": plain_attributes(value, arrays, path)}
    raise NotPlainError(f"{path}: {shown(value)}")


def _write_array(value: np.ndarray, arrays: dict[str, np.ndarray], path: str) -> dict[str, Any]:
    if value.dtype.kind in "biuf":
        is_transposed = value.flags.f_contiguous and not value.flags.c_contiguous
        arrays[path] = np.array(value.T if is_transposed else value, order="C")
        return {"name": path, "transposed": is_transposed}  # the order of axes decides the last bit of a product
    if value.dtype.kind not in "OU":
        raise NotPlainError(f"{path}: an array of {value.dtype}")
    items = [plain(item, arrays, f"{path}/{index}") for index, item in enumerate(value.reshape(-1).tolist())]
    return {"dtype": value.dtype.str, "shape": list(value.shape), "items": items}


def _write_type(value: type, arrays: dict[str, np.ndarray], path: str) -> dict[str, Any]:
    if not issubclass(value, (np.number, np.bool_)):
        raise NotPlainError(f"{path}: {shown(value)}")
    return {"name": np.dtype(value).name}


def _write_dict(value: dict[Any, Any], arrays: dict[str, np.ndarray], path: str) -> dict[str, Any]:
    items = [[key, own] for key, own in value.items()]
    return {"items": plain(items, arrays, path)}


def _write_tuple(value: tuple[Any, ...], arrays: dict[str, np.ndarray], path: str) -> dict[str, Any]:
    if type(value) is not tuple:
        raise NotPlainError(f"{path}: {shown(value)}")
    return {"items": plain(list(value), arrays, path)}


def _write_scalar(value: Any, arrays: dict[str, np.ndarray], path: str) -> dict[str, Any]:
    if value.dtype.kind not in "biuf":
        raise NotPlainError(f"{path}: {shown(value)}")
    return {"dtype": value.dtype.name, "value": plain(value.item(), arrays, path)}


_Writer = Callable[[Any, dict[str, np.ndarray], str], dict[str, Any]]
_WRITERS: dict[str, tuple[type, _Writer]] = {
    "array": (np.ndarray, _write_array),
    "scalar": (np.generic, _write_scalar),
    "dtype": (np.dtype, lambda value, arrays, path: {"name": value.str}),
    "type": (type, _write_type),
    "dict": (dict, _write_dict),
    "tuple": (tuple, _write_tuple),
}


class PlainReader:
    """Reads what `plain_attributes` wrote.

    Args:
        arrays: by the names that the plain data have for them.
        allow: classes of transforms that may be named besides those known here; nothing else is imported.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], allow: Iterable[type] = ()) -> None:
        self._arrays = arrays
        self._allow = {f"{cls.__module__}:{cls.__qualname__}": cls for cls in allow}

    def transform(self, name: str, state: Any) -> Any:
        """A transform of this class in this state.

        Raises:
            ConfigError: the class is not known, or the state is malformed.
        """
        cls = self._class(name)
        if not isinstance(state, Mapping) or not all(isinstance(key, str) for key in state):
            raise ConfigError(f"{shown(state)} is not the state of a {name}", hint=_HINT)
        made: Any = object.__new__(cls)
        vars(made).update({key: self.value(value) for key, value in state.items()})
        return made

    def _class(self, name: Any) -> type:
        name = name if isinstance(name, str) else shown(name)
        if name in self._allow:
            return self._allow[name]
        module = _MODULES.get(name)
        if module is None:
            raise ConfigError(
                f"the transform {name!r} is not one that can be read; nothing was imported",
                available=", ".join(sorted({*_MODULES, *self._allow})),
                hint=f"if you trust it, import it: allow=[{name.rpartition(':')[2]}]; or give data that have it: "
                "feature_sets=[data]",
            )
        try:
            return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]
        except ImportError:
            raise TransformError(
                f"the data were transformed by scikit-learn's {name}, and scikit-learn is not installed",
                hint="python -m pip install scikit-learn",
            ) from None

    def value(self, given: Any) -> Any:
        """A value of a state.

        Raises:
            ConfigError: it is malformed.
        """
        if isinstance(given, list):
            return [self.value(item) for item in given]
        if not isinstance(given, Mapping):
            return given
        try:
            return _READERS[given[_KIND]](self, given)
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{shown(given)} is not a value as it was saved", hint=_HINT) from error

    def array(self, given: Mapping[str, Any]) -> np.ndarray:
        """An array: of numbers by its name, or of text and objects by its items."""
        if "name" in given:
            array = np.array(self._arrays[given["name"]], order="C")
            return array.T if given["transposed"] else array
        flat = np.empty(len(given["items"]), dtype=object)
        flat[:] = self.value(given["items"])
        return flat.reshape(given["shape"]).astype(np.dtype(given["dtype"]))


def _read_scalar(reader: PlainReader, given: Mapping[str, Any]) -> Any:
    return np.dtype(given["dtype"]).type(reader.value(given["value"]))


_READERS: dict[str, Callable[[PlainReader, Mapping[str, Any]], Any]] = {
    "array": lambda reader, given: reader.array(given),
    "scalar": _read_scalar,
    "dtype": lambda reader, given: np.dtype(given["name"]),
    "type": lambda reader, given: np.dtype(given["name"]).type,
    "dict": lambda reader, given: {reader.value(key): reader.value(value) for key, value in given["items"]},
    "tuple": lambda reader, given: tuple(reader.value(given["items"])),
    "float": lambda reader, given: float(given["value"]),
    "transform": lambda reader, given: reader.transform(given["class"], given["state"]),
}


def library_version(transform: Any) -> str:
    """Name and version of the package that a transform comes from, such as `sklearn 1.9.1`; the name if it has none."""
    name = type(transform).__module__.partition(".")[0]
    return f"{name} {getattr(sys.modules.get(name), '__version__', '')}".strip()
