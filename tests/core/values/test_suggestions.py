"""Suggestions: an unknown word gets the closest known one, or another hint."""

from __future__ import annotations

import pytest

from anyaccel.suggestions import did_you_mean


@pytest.mark.parametrize(
    ("given", "settings", "text"),
    [
        ("trian", {}, "did you mean 'train'?"),
        ("zzz", {}, "use one of these names"),
        ("zzz", {"otherwise": "make one"}, "make one"),
        (7, {}, "did you mean '77'?"),
        ("trbbb", {}, "use one of these names"),
        ("trbbb", {"cutoff": 0.3}, "did you mean 'train'?"),
        ("trian", {"cutoff": 0.9}, "use one of these names"),
    ],
)
def test_an_unknown_word_gets_the_closest_one(given, settings, text):
    assert did_you_mean(given, ["train", "test", 77], **settings) == text
