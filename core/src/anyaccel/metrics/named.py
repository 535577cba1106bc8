"""The metrics that have a name: scikit-learn's, and short ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from anyaccel.metrics import classification, ranking, regression

Measure = Callable[[np.ndarray, np.ndarray], float]

CLASS_METRICS: Mapping[str, Measure] = {
    "accuracy": classification.accuracy,
    "balanced_accuracy": classification.balanced_accuracy,
    **classification.averages("precision", classification.precision),
    **classification.averages("recall", classification.recall),
    **classification.averages("f1", classification.f1),
    **classification.averages("jaccard", classification.jaccard),
    "matthews_corrcoef": classification.matthews_corrcoef,
    "cohen_kappa": classification.cohen_kappa,
    "top_k_accuracy": ranking.top_k(2),
    "top_3_accuracy": ranking.top_k(3),
    "top_5_accuracy": ranking.top_k(5),
    "roc_auc": ranking.roc_auc,
    "roc_auc_ovr": ranking.roc_auc_ovr,
    "roc_auc_ovr_weighted": ranking.roc_auc_ovr_weighted,
    "roc_auc_ovo": ranking.roc_auc_ovo,
    "roc_auc_ovo_weighted": ranking.roc_auc_ovo_weighted,
    "average_precision": ranking.average_precision,
    "log_loss": ranking.log_loss,
    "brier_score": ranking.brier_score,
}
"""Of classes, their scores or probabilities."""

_OF_NUMBERS: Mapping[str, Measure] = {
    "mse": regression.mse,
    "rmse": regression.rmse,
    "mae": regression.mae,
    "r2": regression.r2,
    "root_mean_squared_error": regression.root_mean_squared_error,
    "median_absolute_error": regression.median_absolute_error,
    "max_error": regression.max_error,
    "mean_absolute_percentage_error": regression.mean_absolute_percentage_error,
    "mean_squared_log_error": regression.mean_squared_log_error,
    "root_mean_squared_log_error": regression.root_mean_squared_log_error,
    "explained_variance": regression.explained_variance,
}
METRICS: Mapping[str, Measure] = {**CLASS_METRICS, **_OF_NUMBERS}

SYNONYMS: Mapping[str, str] = {
    **{f"{name}_score": name for name in ("accuracy", "balanced_accuracy", "precision", "recall", "f1", "jaccard")},
    **{f"{name}_score": name for name in ("cohen_kappa", "roc_auc", "average_precision", "r2", "explained_variance")},
    "top_k_accuracy_score": "top_k_accuracy",
    "brier_score_loss": "brier_score",
    "mean_squared_error": "mse",
    "mean_absolute_error": "mae",
    "sparse_categorical_accuracy": "accuracy",
}
"""Names of scikit-learn's functions where METRICS has those of its scorers, or shorter ones; and one of Keras."""

_HIGHER = (CLASS_METRICS.keys() - {"log_loss", "brier_score"}) | {"r2", "explained_variance"}
HIGHER_IS_BETTER = frozenset({*_HIGHER, *(name for name, metric in SYNONYMS.items() if metric in _HIGHER)})
"""Names in METRICS and SYNONYMS of which the highest value is the best; of the others it is the lowest."""


def is_higher_better(figure: str) -> bool | None:
    """Whether a value of an epoch (`loss`, `loss.LABEL`, `val_METRIC`) is the better the higher; None if unknown."""
    plain = figure.removeprefix("val_")
    name = "loss" if plain.startswith("loss.") else plain.rpartition(".")[2]
    return name in HIGHER_IS_BETTER if name in ("loss", *METRICS, *SYNONYMS) else None
