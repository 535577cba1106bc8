"""Extensions are found in the order of registration, once."""

from __future__ import annotations

import pytest

from anyaccel import extensions
from anyaccel.extensions import extend


def test_extensions_come_in_their_order_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions, "_registered", {})
    first, second = object(), object()
    for extension in (first, second, first):
        extend("point", extension)
    assert extensions.extensions("point") == [first, second]
    assert extensions.extensions("another") == []
