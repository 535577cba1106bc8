"""Calls with arguments that there are not: what the plugin offers says which there are, and which was meant."""

from __future__ import annotations

from pathlib import Path

import pytest
from wrong_calls import check_refused, offered

import anyaccel_tensorboard
from anyaccel.errors import ArgumentError

OF_CORE = {"before_placement", "epoch_end", "phase_end", "phase_start"}
"""Core calls them, or makes them, not users."""
OFFERED = offered(anyaccel_tensorboard, of_core=OF_CORE)


@pytest.mark.parametrize("name", sorted(OFFERED))
def test_an_argument_that_there_is_not_is_named(name: str) -> None:
    check_refused(OFFERED[name])


def test_the_hints_work(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"TensorBoard has no argument 'log_dir'\. Available: folder, .*'folder'"):
        anyaccel_tensorboard.TensorBoard(log_dir=tmp_path)
    assert anyaccel_tensorboard.TensorBoard(folder=tmp_path).folder == tmp_path
    with pytest.raises(ArgumentError, match=r"Hint: it is called 'folder'"), anyaccel_tensorboard.log_to(path=tmp_path):
        pass
    with anyaccel_tensorboard.log_to(folder=None) as scope:
        assert scope.target is None
