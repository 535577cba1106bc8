"""Settings of phases are written once: the signature names them, and a table checks, saves, reads and compares them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from anyaccel import AppliedLoss, EvalPhase, TrainPhase
from anyaccel.errors import ConfigError, PhaseError
from anyaccel.phases import Phase
from anyaccel.phases.settings import UNSAVED, Setting, integer, same

KINDS = pytest.mark.parametrize("kind", [TrainPhase, EvalPhase])


def parameters(function: Any, *left_out: str) -> list[str]:
    return [str(each) for name, each in inspect.signature(function).parameters.items() if name not in left_out]


@KINDS
def test_each_setting_of_a_signature_is_in_the_table(kind: type[Phase]) -> None:
    assert set(inspect.signature(kind).parameters) == set(kind.settings)


@KINDS
def test_a_split_takes_the_same_settings(kind: Any) -> None:
    assert parameters(kind.from_split, "split") == parameters(kind, "data")
    assert "data" not in inspect.signature(kind.from_split).parameters


@KINDS
def test_a_saved_phase_has_each_setting_that_is_saved(kind: Any) -> None:
    phase = kind("p", data="train")
    saved = phase.get_config()
    again = Phase.from_config(saved)
    assert again.get_config() == saved
    for name, setting in kind.settings.items():
        value = setting.save(phase, getattr(phase, name))
        assert (saved.get(name) == value) if value is not UNSAVED else (name not in saved)


class MarginPhase(TrainPhase):
    """Trains with a margin."""

    kind = "test.margin"
    settings: ClassVar[Mapping[str, Setting]] = {
        **TrainPhase.settings,
        "margin": Setting(integer(2), compare=same),
        "note": Setting(),
    }

    def __init__(self, label: str = "margin", *, data: Any, margin: int = 4, note: str = "", **settings: Any) -> None:
        super().__init__(label, data=data, **settings)
        self.margin, self.note = self.settings["margin"].check(self, "margin", margin), note


del Phase.kinds["test.margin"]  # other tests count the kinds


def test_a_setting_of_ones_own_is_checked_saved_read_and_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(Phase.kinds, "test.margin", MarginPhase)
    phase = MarginPhase(data="train", losses=AppliedLoss("mse", on="net"), margin=8, note="a")
    assert (phase.margin, phase.label, phase.data) == (8, "margin", "train")
    with pytest.raises(PhaseError, match="margin=1 is not an int of at least 2"):
        MarginPhase(data="train", margin=1)
    with pytest.raises(PhaseError, match=r"MarginPhase has no setting 'margn'.*did you mean 'margin'"):
        MarginPhase(data="train", margn=1)
    config = phase.get_config()
    assert (config["type"], config["margin"], config["note"]) == ("test.margin", 8, "a")
    assert (
        Phase.from_config({name: config[name] for name in ("type", "label", "data", "margin", "sampler")}).margin == 8
    )
    with pytest.raises(ConfigError, match="no setting 'margn'"):
        Phase.from_config({"type": "test.margin", "label": "m", "data": "train", "margn": 2})
