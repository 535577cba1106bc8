"""TableTransform: a transform of columns by name and type, instead of one matrix."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np


class TableTransform(ABC):
    """A transform of Arrow columns of any type to one matrix of numbers, for `FeatureSet.fit_transform(..., into=)`."""

    @abstractmethod
    def fit_table(self, table: Any, rows: np.ndarray) -> np.ndarray:
        """Fit to some rows of an Arrow table, and transform all: float32 [n, k]."""

    @abstractmethod
    def transform_table(self, table: Any) -> np.ndarray:
        """Transform another table with these columns: float32 [n, k]."""
