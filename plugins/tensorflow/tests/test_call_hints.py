"""Calls with arguments that there are not: what the plugin offers says which there are, and which was meant."""

from __future__ import annotations

import pytest
from wrong_calls import check_refused, offered

import anyaccel_tensorflow
from anyaccel.errors import ArgumentError

OF_CORE = {"TensorFlowBackend", "backends"}
"""Core calls them, or makes them, not users."""
OFFERED = offered(anyaccel_tensorflow, of_core=OF_CORE)


@pytest.mark.parametrize("name", sorted(OFFERED))
def test_an_argument_that_there_is_not_is_named(name: str) -> None:
    check_refused(OFFERED[name])


def test_the_hint_works() -> None:
    with pytest.raises(ArgumentError, match=r"Available: output_shape, channels, .* Hint: did you mean 'channels'\?"):
        anyaccel_tensorflow.SequentialCNN(2, chanels=(3,))
    assert list(anyaccel_tensorflow.SequentialCNN(2, channels=(3,)).get_config()["channels"]) == [3]
