"""A file or folder that cannot be read or written is an error of the system, not one of a model of TensorFlow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import anyaccel as aa


class Cached(tf.Module):
    """Keeps something in a folder when it is called."""

    def __init__(self, folder: Path, make: Any) -> None:
        super().__init__()
        self.weight, self.folder, self.make = tf.Variable(tf.ones([4, 1])), str(folder), make

    def __call__(self, x: Any) -> Any:
        self.make(self.folder)
        return x @ self.weight


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda folder: Path(folder).mkdir(exist_ok=True), NotADirectoryError),
        (tf.io.gfile.makedirs, tf.errors.FailedPreconditionError),
    ],
    ids=["python", "tensorflow"],
)
def test_a_folder_that_a_model_cannot_write(tmp_path: Path, make: Any, kind: Any) -> None:
    (tmp_path / "file").touch()
    columns = {"x": np.ones((8, 4), "float32"), "y": np.ones((8, 1), "float32")}
    data = aa.FeatureSet.from_dict("data", columns, ["x"], ["y"])
    with pytest.raises(kind, match=f"{tmp_path}/file") as caught:
        aa.fit(Cached(tmp_path / "file/cache", make), data, loss="mse", epochs=1)
    assert "node 'model'" in caught.value.__notes__[-1]
    (tmp_path / "file").unlink()
    (tmp_path / "file").mkdir()
    assert aa.fit(Cached(tmp_path / "file/cache", make), data, loss="mse", epochs=1).results.loss
