"""What the environment says about the processes of one run."""

from __future__ import annotations

import pytest

from anyaccel.errors import ConfigError
from anyaccel.replicas import Launched, launched

WHOLE = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def test_a_process_of_a_launcher_knows_its_rank() -> None:
    assert launched(WHOLE) == Launched(rank=1, size=3)


@pytest.mark.parametrize("missing", sorted(WHOLE))
def test_without_all_four_variables_a_process_is_on_its_own(missing: str) -> None:
    assert launched({name: value for name, value in WHOLE.items() if name != missing}) is None


def test_a_single_process_is_on_its_own() -> None:
    assert launched({**WHOLE, "RANK": "0", "WORLD_SIZE": "1"}) is None


def test_the_environment_of_this_process_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in WHOLE.items():
        monkeypatch.setenv(name, value)
    assert launched() == Launched(rank=1, size=3)


def test_a_rank_beyond_the_replicas_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"RANK=3 and WORLD_SIZE=3\. Available: ranks 0 to 2\. Hint: start all"):
        launched({**WHOLE, "RANK": "3"})


@pytest.mark.parametrize(
    ("name", "text"), [("RANK", "one"), ("RANK", "-1"), ("WORLD_SIZE", "0"), ("WORLD_SIZE", "2.5")]
)
def test_what_is_no_number_is_refused(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=rf"the environment has {name}='{text}', which is no number of processes"):
        launched({**WHOLE, name: text})
