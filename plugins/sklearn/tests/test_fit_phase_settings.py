"""Settings of a FitPhase are written once, as those of other phases: signature, text, table and configuration."""

from __future__ import annotations

import inspect
import json
import re

import pytest

from anyaccel import Accelerator, AppliedLoss, FitPhase
from anyaccel.errors import PhaseError
from anyaccel.phases import Phase
from anyaccel.phases.settings import UNSAVED


def test_its_label_has_a_default() -> None:
    assert FitPhase(data="all").label == "fit"


def test_every_setting_is_in_the_signature_the_text_and_the_table() -> None:
    parameters = inspect.signature(FitPhase).parameters
    assert set(inspect.signature(Phase).parameters) <= set(parameters) == set(FitPhase.settings)
    text = inspect.getdoc(FitPhase) or ""
    assert not [name for name in parameters if f"\n    {name}:" not in text]


def test_a_phase_of_a_split_has_every_setting_with_its_text() -> None:
    own = dict(inspect.signature(FitPhase).parameters)
    split = dict(inspect.signature(FitPhase.from_split).parameters)
    assert split.pop("split").kind is own.pop("data").kind is inspect.Parameter.KEYWORD_ONLY
    assert split == own
    for name in own:
        text = r"(?m)^    " + name + r": ([\s\S]*?)(?=^    \w+: |\Z)"
        here, there = (re.search(text, inspect.getdoc(of) or "") for of in (FitPhase.from_split, FitPhase))
        assert here and there and (here[1].split() == there[1].split() or name == "label"), name
    settings = {"nodes": ["net"], "batch_size": 3, "accelerator": "cpu"}
    assert FitPhase.from_split(split="a", **settings).get_config() == FitPhase(data="a", **settings).get_config()
    assert FitPhase.from_split(split="a", **settings).accelerator == Accelerator("cpu")


@pytest.mark.parametrize(
    "phase",
    [
        FitPhase("f", data="all"),
        FitPhase("f", data="all", nodes=["a"], batch_size=3, accelerator="gpu:0"),
        FitPhase("f", data="train", nodes=["est"], batch_size=3, accelerator="mps"),
        FitPhase("f", data="train", compile="steps", residency="streamed"),
    ],
)
def test_it_comes_back_from_its_configuration(phase: FitPhase) -> None:
    config = json.loads(json.dumps(phase.get_config()))
    again = Phase.from_config(config)
    assert type(again) is FitPhase and json.loads(json.dumps(again.get_config())) == config
    assert again.accelerator == phase.accelerator
    for name, setting in FitPhase.settings.items():
        value = setting.save(phase, getattr(phase, name))
        assert (config.get(name) == value) if value is not UNSAVED else (name not in config)


@pytest.mark.parametrize(
    ("name", "given", "hint"),
    [("compile", "fast", "use one of these"), ("residency", "stream", "did you mean 'streamed'?")],
)
def test_unknown_values_are_refused(name: str, given: str, hint: str) -> None:
    with pytest.raises(PhaseError) as caught:
        FitPhase("p", data="train", **{name: given})
    assert caught.value.problem == f"phase 'p': unknown {name}={given!r}" and caught.value.hint == hint


def test_settings_of_other_phases_are_refused() -> None:
    with pytest.raises(PhaseError, match=r"FitPhase has no setting 'microbatching'\. Available: "):
        FitPhase("p", data="train", microbatching="exact")
    with pytest.raises(PhaseError, match="is a FitPhase, which takes no losses"):
        FitPhase("f", data="train", losses=[AppliedLoss("mse")])
