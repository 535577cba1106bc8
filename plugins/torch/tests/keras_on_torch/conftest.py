"""Fixtures of the tests of Keras on torch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def keras_on_cpu() -> Iterator[None]:
    """Keras makes its layers on the CPU, also where there is a GPU."""
    import keras

    with keras.device("cpu"):
        yield
