"""The state of fitted transforms as plain data and arrays, and back: no pickle, and only known classes."""

from __future__ import annotations

import importlib
import sys
from collections import UserList
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from anyaccel.arguments import shown
from anyaccel.errors import ConfigError, TransformError
from anyaccel.saved_folder.plain_values import HINT, KIND, Arrays, NotPlainError, PlainReader, plain

# Classes of scikit-learn whose whole state is numbers, text, and other transforms of this table.
_SKLEARN = {
    "Binarizer KBinsDiscretizer MaxAbsScaler MinMaxScaler Normalizer OneHotEncoder OrdinalEncoder PolynomialFeatures "
    "PowerTransformer QuantileTransformer RobustScaler SplineTransformer StandardScaler TargetEncoder LabelEncoder "
    "LabelBinarizer FunctionTransformer": "sklearn.preprocessing",
    "FactorAnalysis FastICA IncrementalPCA NMF PCA TruncatedSVD": "sklearn.decomposition",
    "KNNImputer MissingIndicator SimpleImputer": "sklearn.impute",
    "ColumnTransformer": "sklearn.compose",
    "CountVectorizer HashingVectorizer TfidfTransformer TfidfVectorizer": "sklearn.feature_extraction.text",
    "SelectKBest VarianceThreshold": "sklearn.feature_selection",
    "FeatureUnion Pipeline": "sklearn.pipeline",
    "KFold StratifiedKFold": "sklearn.model_selection",
}
_MODULES = {name: module for names, module in _SKLEARN.items() for name in names.split()}
_SCORES = ("chi2", "f_classif", "f_regression", "mutual_info_classif", "mutual_info_regression", "r_regression")
_MODULES["ClassEncoder"] = "anyaccel_sklearn.transforms.class_encoder"
_MODULES["GivenTransformer"] = "anyaccel_sklearn.tables.given_transformer"
_MODULES["TableColumn"] = "anyaccel.fitting.table_columns"
_MODULES["TableTreatment"] = "anyaccel_sklearn.tables.treatment"


def class_of(transform: Any) -> str:
    """Return the class of a transform as text: its name if it is known here, otherwise `module:qualname`."""
    cls = type(transform)
    is_known = f"{cls.__module__}.".startswith(f"{_MODULES.get(cls.__name__, 'none')}.")
    return cls.__name__ if is_known else f"{cls.__module__}:{cls.__qualname__}"


def plain_attributes(transform: Any, arrays: Arrays, prefix: str) -> dict[str, Any]:
    """Return the attributes of a transform as plain data; its number arrays are added to `arrays`, under `prefix`.

    Raises:
        NotPlainError: An attribute is neither plain, an array, nor a transform of a known class.
    """
    return {name: plain(value, arrays, f"{prefix}/{name}", _nested) for name, value in sorted(vars(transform).items())}


def _nested(value: Any, arrays: Arrays, path: str) -> Any:
    if isinstance(value, slice):
        return {KIND: "slice", "items": plain([value.start, value.stop, value.step], arrays, path)}
    if isinstance(value, (set, frozenset)):
        return {KIND: "set", "items": plain(sorted(value), arrays, path)}
    if isinstance(value, UserList):  # the columns of a remainder, before scikit-learn 1.7
        return plain(value.data, arrays, path)
    name = getattr(value, "__name__", "")
    if isinstance(value, np.ufunc) and value is getattr(np, name, None):
        return {KIND: "ufunc", "name": name}
    if name in _SCORES and value is _score(name):
        return {KIND: "score", "name": name}
    if class_of(value) not in _MODULES:
        raise NotPlainError(f"{path}: {shown(value)}")
    return {KIND: "transform", "class": class_of(value), "state": plain_attributes(value, arrays, path)}


def _ufunc(name: Any) -> np.ufunc:
    found = getattr(np, name, None) if isinstance(name, str) else None
    if not isinstance(found, np.ufunc):
        raise ConfigError(f"{shown(name)} is not a function of NumPy for each element", hint=HINT)
    return found


def _score(name: Any) -> Any:
    if name not in _SCORES:
        raise ConfigError(f"{shown(name)} is not a score of features", available=", ".join(_SCORES), hint=HINT)
    return getattr(importlib.import_module("sklearn.feature_selection"), name)


def library_version(transform: Any) -> str:
    """Return name and version of a transform's package, such as `sklearn 1.9.1`; only the name if it has no version."""
    name = type(transform).__module__.partition(".")[0]
    return f"{name} {getattr(sys.modules.get(name), '__version__', '')}".strip()


class TransformReader(PlainReader):
    """Reads values that include transforms.

    Args:
        arrays: Arrays by their names in the plain data.
        allow: Additional classes of transforms that may be named; nothing else is imported.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], allow: Iterable[type] = ()) -> None:
        super().__init__(arrays)
        self._allow = {f"{cls.__module__}:{cls.__qualname__}": cls for cls in allow}

    def transform(self, name: str, state: Any) -> Any:
        """Return a transform of this class in this state.

        Raises:
            ConfigError: The class is not known, or the state is malformed.
        """
        cls = self._class(name)
        if not isinstance(state, Mapping) or not all(isinstance(key, str) for key in state):
            raise ConfigError(f"{shown(state)} is not the state of a {name}", hint=HINT)
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
                f"the transform {name!r} cannot be read; nothing was imported",
                available=", ".join(sorted({*_MODULES, *self._allow})),
                hint=f"if you trust it, import it and pass allow=[{name.rpartition(':')[2]}]; or pass data with this "
                "transform: feature_sets=[data]",
            )
        try:
            return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]
        except ImportError:
            raise TransformError(
                f"the data were transformed by scikit-learn's {name}, but scikit-learn is not installed",
                hint="python -m pip install scikit-learn",
            ) from None


TransformReader.readers = {
    **PlainReader.readers,
    "transform": lambda reader, plain: reader.transform(plain["class"], plain["state"]),
    "ufunc": lambda reader, plain: _ufunc(plain["name"]),
    "score": lambda reader, plain: _score(plain["name"]),
    "slice": lambda reader, plain: slice(*reader.value(plain["items"])),
    "set": lambda reader, plain: set(reader.value(plain["items"])),
}
