"""Fitted transforms as configuration: what a saved graph knows of the transforms of its data."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from anyaccel.arguments import shown
from anyaccel.data.transforms.fitted_transform import FittedTransform
from anyaccel.data.transforms.plain_state import (
    NotPlainError,
    PlainReader,
    class_of,
    library_version,
    plain,
    plain_attributes,
)
from anyaccel.errors import ConfigError

_KEYS = {
    *("class", "columns", "results", "fit_on", "role", "makes_features", "shapes", "result_shapes", "library"),
    *("state", "fillers", "probe"),
}
_COMPARED = ("class", "columns", "results", "shapes", "result_shapes", "state", "fillers")
_PROBE = np.array([[0.0], [1.0], [0.5]])


def transform_config(fitted: FittedTransform, arrays: dict[str, np.ndarray], prefix: str) -> dict[str, Any]:
    """A fitted transform as plain data; its arrays of numbers are added to `arrays`, under `prefix`.

    `state` is None if the class of the transform is not known or its state is not plain. It can be compared then, by
    `fillers`, which are in the range of its output, but not be read. `probe` is its output for made-up numbers.
    """
    own: dict[str, np.ndarray] = {}
    try:
        state: Any = plain_attributes(fitted.transform, own, prefix)
    except (NotPlainError, TypeError, RecursionError):
        state, own = None, {}
    arrays.update(own)
    return {
        "class": class_of(fitted.transform),
        "columns": list(fitted.columns),
        "results": list(fitted.results),
        "fit_on": fitted.fit_on,
        "role": fitted.role,
        "makes_features": fitted.makes_features,
        "shapes": [list(shape) for shape in fitted.shapes],
        "result_shapes": [list(shape) for shape in fitted.result_shapes],
        "library": library_version(fitted.transform),
        "state": state,
        "fillers": plain(fitted.fillers, arrays, f"{prefix}/fillers"),
        "probe": plain(_probe(fitted), arrays, f"{prefix}/probe"),
    }


def read_transform(config: Any, reader: PlainReader) -> FittedTransform:
    """The fitted transform of a configuration from `transform_config`.

    Raises:
        ConfigError: malformed, of a class that is not known, or it gives other numbers than when it was written.
        TransformError: its library is not installed.
    """
    if not isinstance(config, Mapping) or set(config) != _KEYS:
        raise ConfigError(f"{shown(config)} is not the configuration of a transform", hint="give it as it was written")
    if config["state"] is None:
        raise ConfigError(
            f"the data were transformed by {config['class']} on {', '.join(config['columns'])}, which no file can hold",
            cause="a file holds transforms of scikit-learn whose state is numbers and text",
            hint="give data that are transformed so: feature_sets=[data]",
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


def differences(written: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """The keys in which two configurations of transforms differ that matter for the numbers; arrays aside."""
    return [key for key in _COMPARED if written.get(key) != current.get(key)]


def shown_transform(config: Mapping[str, Any]) -> str:
    """A transform in messages: `StandardScaler on x, y`."""
    return f"{config.get('class')} on {', '.join(config.get('columns', ()))}"


def _probe(fitted: FittedTransform) -> np.ndarray | None:
    """The output of a transform for made-up rows, as objects, which are no array of a state; None if it takes none."""
    width = sum(int(np.prod(shape)) for shape in fitted.shapes)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            output = fitted.transform.transform(np.repeat(_PROBE, width, axis=1))
        return np.asarray(output.toarray() if hasattr(output, "toarray") else output, dtype=np.float64).astype(object)
    except Exception:  # whatever a library raises for values that it does not know
        return None


def _check_probe(fitted: FittedTransform, expected: np.ndarray | None, library: str) -> None:
    now = _probe(fitted)
    if expected is None or (now is not None and _close(now, expected)):
        return
    raise ConfigError(
        f"{fitted!r} does not give the numbers that it gave when it was saved",
        cause=f"saved with {library}; installed is {library_version(fitted.transform)}",
        hint=f"install {library.replace(' ', '==').replace('sklearn', 'scikit-learn')}, "
        "or give data that are transformed so: feature_sets=[data]",
    )


def _close(first: np.ndarray, second: np.ndarray) -> bool:
    pair = (first.astype(np.float64), second.astype(np.float64))
    return first.shape == second.shape and np.allclose(*pair, rtol=1e-5, atol=1e-8, equal_nan=True)
