"""ClassEncoder: class labels of any kind as indices 0, 1, ..., and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from anyaccel.arguments import shown
from anyaccel.data.roles import listed
from anyaccel.errors import TransformError
from anyaccel_sklearn.tables.text_values import check_text_classes


class ClassEncoder:
    """A transform of one column of class labels (text, bools or integers) to int64 indices, in sorted order.

    `classes_` has the labels, an array [k] in the order of their indices. `anyaccel.fit` creates it for text targets.

    >>> import numpy as np
    >>> from anyaccel_sklearn.transforms.class_encoder import ClassEncoder
    >>> labels = np.array([["b"], ["a"], ["b"]], object)
    >>> ClassEncoder().fit(labels).transform(labels).tolist()
    [[1], [0], [1]]
    """

    @staticmethod
    def check_labels(name: str, column: Any) -> None:
        """Refuse a column of text whose values are hardly names of classes; see `check_text_classes`."""
        check_text_classes(name, column)

    def fit(self, x: np.ndarray) -> ClassEncoder:
        """Record the labels of `x` [n, 1].

        Raises:
            TransformError: A label is missing, or labels are of several kinds.
        """
        labels = x.reshape(-1).tolist()
        if any(label is None or label != label for label in labels):
            row = next(i for i, label in enumerate(labels) if label is None or label != label)
            raise TransformError(
                f"the class label of row {row} is missing", hint="leave such rows out (pandas: table.dropna())"
            )
        try:
            classes = sorted(set(labels))
        except TypeError:
            kinds = ", ".join(sorted({type(label).__name__ for label in labels}))
            raise TransformError(f"class labels have several types: {kinds}", hint="convert them to one type") from None
        self.classes_ = np.empty(len(classes), dtype=object)
        self.classes_[:] = classes
        return self

    def transform(self, x: np.ndarray) -> np.ndarray:
        """Return the indices of labels [n, 1], int64 [n, 1].

        Raises:
            TransformError: A label was not in the fitted data.
        """
        index = {label: number for number, label in enumerate(self.classes_.tolist())}
        labels = x.reshape(-1).tolist()
        unseen = next((label for label in labels if label not in index), None)
        if unseen is not None or None in labels:
            raise TransformError(
                f"the class {shown(unseen)} was not among the fitted classes",
                available=listed(map(shown, index)),
                hint="leave these rows out, or also train on rows of this class",
            )
        return np.array([index[label] for label in labels], dtype=np.int64).reshape(-1, 1)

    def inverse_transform(self, y: Any) -> np.ndarray:
        """Return the labels of indices [n, 1], an object array [n, 1]; values are rounded to the nearest index.

        Raises:
            TransformError: A value is NaN or not an index of a class, for example if a model has more outputs than
                classes.
        """
        indices, last = np.rint(np.asarray(y, dtype=np.float64)), len(self.classes_) - 1
        wrong = indices[~((indices >= 0) & (indices <= last))]
        if wrong.size:
            raise TransformError(
                f"{wrong[0]:g} is not the index of a class",
                available=f"0 to {last}: {listed(self.classes_)}",
                hint=f"use a model with {last + 1} outputs, one for each class",
            )
        return np.asarray(self.classes_[indices.astype(np.int64)])
