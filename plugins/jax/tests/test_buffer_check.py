"""Buffers that training changes, where batches are accumulated: told by name, for models of each library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Train = Callable[..., tuple[Any, np.ndarray]]


def of_linen(request: pytest.FixtureRequest) -> Any:
    linen = request.getfixturevalue("linen")

    class Net(linen.Module):  # type: ignore[name-defined,misc]
        @linen.compact  # type: ignore[untyped-decorator]
        def __call__(self, x: Any, train: bool = False) -> Any:
            return linen.SpectralNorm(linen.Dense(1))(x, update_stats=train)

    return Net()


def of_keras(request: pytest.FixtureRequest) -> Any:
    keras = request.getfixturevalue("keras")
    return keras.Sequential([keras.Input((3,)), keras.layers.SpectralNormalization(keras.layers.Dense(1))])


@pytest.mark.parametrize("make", [of_linen, of_keras])
def test_accumulated_batches_change_a_buffer_once_each_and_are_told(
    make: Callable[[Any], Any], request: pytest.FixtureRequest, train: Train
) -> None:
    expected = (
        r"phase 't' accumulates batches, and the buffer 'net/buffers/.*in every call of the model, 2 times per "
        r"step"
    )
    with pytest.warns(UserWarning, match=expected) as told:
        train(make(request), epochs=1, accumulate=2)
    assert len(told) == 1 and str(told[0].message).endswith("or leave accumulate out")
