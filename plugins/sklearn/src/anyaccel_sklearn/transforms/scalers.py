"""Scalers of `fit` by name: those of scikit-learn, imported when they are requested."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from anyaccel.errors import PhaseError
from anyaccel.suggestions import did_you_mean

SCALERS = {
    "standard": "StandardScaler",
    "minmax": "MinMaxScaler",
    "maxabs": "MaxAbsScaler",
    "robust": "RobustScaler",
}
"""Class of `sklearn.preprocessing` for each name."""


def scaler_of(scaler: Any) -> Any:
    """Return a new scaler for a name or the name of a class; other objects are returned unchanged.

    Raises:
        PhaseError: The name is unknown, or scikit-learn is not installed.
    """
    if not isinstance(scaler, str):
        return scaler
    name = {name: short for short, name in SCALERS.items()}.get(scaler, scaler)
    if name not in SCALERS:
        hint = did_you_mean(scaler, SCALERS, "write scaler='standard'")
        raise PhaseError(f"fit: there is no scaler {scaler!r}", available=", ".join(SCALERS), hint=hint)
    try:
        preprocessing = import_module("sklearn.preprocessing")
    except ImportError as error:
        problem = f"fit: scaler={scaler!r} needs scikit-learn, which cannot be imported ({error})"
        raise PhaseError(problem, hint="python -m pip install scikit-learn") from error
    return getattr(preprocessing, SCALERS[name])()
