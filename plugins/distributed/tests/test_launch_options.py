"""How long replicas wait for each other."""

from __future__ import annotations

import pytest

from anyaccel.errors import ConfigError
from anyaccel_distributed import replica_timeout


def test_the_time_that_a_replica_waits_is_a_setting() -> None:
    assert replica_timeout({}) is None
    assert replica_timeout({"ANYACCEL_REPLICA_TIMEOUT": "2.5"}) == 2.5


@pytest.mark.parametrize("text", ["soon", "0", "-1", "inf", "nan"])
def test_a_time_that_is_no_number_of_seconds_is_refused(text: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"ANYACCEL_REPLICA_TIMEOUT='{text}' is not a number of seconds.*Hint: set it to"
    ):
        replica_timeout({"ANYACCEL_REPLICA_TIMEOUT": text})
