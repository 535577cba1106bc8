"""Extensions are found in the order of registration, once, whoever asks for them meanwhile."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from anyaccel import extensions
from anyaccel.extensions import extend


@pytest.fixture
def feature(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module with an extension, of a registry of its own."""
    monkeypatch.setattr(extensions, "_registered", {})
    module = ModuleType("a_feature")
    module.extension = object()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_feature", module)
    return module


def test_objects_and_names_come_in_their_order_and_once(feature: ModuleType) -> None:
    first = object()
    for extension in (first, "a_feature:extension", first, "a_feature:extension"):
        extend("point", extension)
    assert extensions.extensions("point") == [first, feature.extension]
    assert extensions.extensions("another") == []


def test_what_is_not_installed_extends_nothing(feature: ModuleType) -> None:
    extend("point", "no_such_feature:extension")
    extend("point", "a_feature:extension")
    assert extensions.extensions("point") == [feature.extension]


def test_one_may_ask_while_another_imports(feature: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in two threads, or where a module asks while it is imported."""
    asked = []

    def imported(name: str) -> ModuleType:
        if not asked:
            asked.append(name)
            assert extensions.extensions("point") == [feature.extension]
        return feature

    monkeypatch.setattr(extensions, "import_module", imported)
    extend("point", "a_feature:extension")
    assert extensions.extensions("point") == [feature.extension]
