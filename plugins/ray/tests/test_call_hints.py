"""Calls with arguments that there are not: what the plugin offers says which there are, and which was meant."""

from __future__ import annotations

import pytest
from wrong_calls import check_refused, offered

import anyaccel_ray

OFFERED = offered(anyaccel_ray)


@pytest.mark.parametrize("name", sorted(OFFERED))
def test_an_argument_that_there_is_not_is_named(name: str) -> None:
    check_refused(OFFERED[name])
