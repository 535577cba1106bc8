"""Replicas of a function, where there is no script."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from anyaccel.errors import ConfigError, FrameworkError
from anyaccel_distributed import spawn


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """As a notebook imports a file that lies beside it."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return importlib.import_module("spawned")


def test_a_function_is_called_in_all_and_its_output_is_shown(
    module: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spawn(module.tell, replicas=2, arguments={"folder": str(tmp_path), "text": "there"})
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["there", "there"]
    assert sorted(capsys.readouterr().out.splitlines()) == ["replica 0 of 2: there", "replica 1 of 2: there"]


def test_the_traceback_of_one_that_fails_is_in_the_error(module: ModuleType) -> None:
    with pytest.raises(
        FrameworkError, match=r"(?s)spawned\.fail: a replica of 2 ended.*ValueError: a fault of its own"
    ):
        spawn(module.fail, replicas=2)


def local(of: Any = None) -> Any:
    """A function within a function."""

    def inner() -> None:
        """Cannot be imported."""

    return inner


@pytest.mark.parametrize("function", [local(), lambda: None, print])
def test_a_function_that_cannot_be_imported_is_refused(function: Any) -> None:
    with pytest.raises(ConfigError, match=r"another process cannot import .*Hint: write the function into a file"):
        spawn(function, replicas=2)


@pytest.mark.parametrize("replicas", [0, -1, True, 2.0, "2"])
def test_wrong_numbers_of_replicas_are_refused(module: ModuleType, replicas: Any) -> None:
    with pytest.raises(ConfigError, match=r"is not a number of processes\. Hint: write replicas=2"):
        spawn(module.tell, replicas=replicas)


def test_what_json_does_not_have_is_refused(module: ModuleType) -> None:
    with pytest.raises(ConfigError, match=r"the arguments are not JSON values.*Hint: pass numbers"):
        spawn(module.tell, replicas=2, arguments={"folder": Path()})
    with pytest.raises(ConfigError, match="is not a function"):
        spawn(None, replicas=2)  # type: ignore[arg-type]
