"""Extensions are found in the order of registration, once; two are an error where only one can be."""

from __future__ import annotations

import pytest

from anyaccel import extensions
from anyaccel.errors import PluginError
from anyaccel.extensions import extend, sole_extension


def test_extensions_come_in_their_order_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions, "_registered", {})
    first, second = object(), object()
    for extension in (first, second, first):
        extend("point", extension)
    assert extensions.extensions("point") == [first, second]
    assert extensions.extensions("another") == []


def test_two_extensions_of_a_point_that_can_have_one_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions, "_registered", {})
    assert sole_extension("point") is None
    extend("point", "first")
    assert sole_extension("point") == "first"
    extend("point", "second")
    with pytest.raises(PluginError, match="'first' and 'second' both extend 'point'"):
        sole_extension("point")
