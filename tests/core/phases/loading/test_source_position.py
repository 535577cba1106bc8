"""Rows that are read again, compared with those that were drawn before a checkpoint."""

from __future__ import annotations

import numpy as np
import pytest

from anyaccel.phases.loading.loader import is_close


@pytest.mark.parametrize(
    ("before", "now", "close"),
    [
        ([0.123456, -2.5], [0.123457, -2.5], True),  # computed on another machine
        ([0.123456, -2.5], [0.124, -2.5], False),
        ([50_000.0, 3.0], [50_001.0, 3.0], False),  # ids of tokens, which no machine rounds
        ([50_000.0, 3.0], [50_000.0, 3.0], True),
        ([np.nan, 0.5], [np.nan, 0.5], True),
        ([0.5], [0.5, 0.5], False),
    ],
)
def test_rows_of_another_machine_are_close_and_other_ids_are_not(
    before: list[float], now: list[float], close: bool
) -> None:
    assert is_close(np.array([before]), np.array([now])) is close
