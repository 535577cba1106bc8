"""Replicas of a function, where there is no script."""

from __future__ import annotations

import importlib
import linecache
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from anyaccel.errors import ConfigError, FrameworkError
from anyaccel_distributed import spawn
from anyaccel_distributed.own_loop import Loop


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


CELL = """
from pathlib import Path
import os

def place():
    return f"replica {os.environ['RANK']} of {os.environ['WORLD_SIZE']}"

class Note:
    def __init__(self, text):
        self.text = text

note = Note("from the notebook")

def tell(folder, text):
    Path(folder, os.environ["RANK"]).write_text(f"{place()}: {note.text}, {text}")
    if text == "bad":
        raise ValueError(note.text)
"""


@pytest.fixture
def cell() -> Iterator[dict[str, Any]]:
    """Names of a session that has run a cell: its source is in `linecache`, where IPython keeps it, and in no file."""
    name = "<cell 1>"
    linecache.cache[name] = (len(CELL), None, CELL.splitlines(keepends=True), name)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(CELL, name, "exec"), names)  # noqa: S102 - as a session does
    yield names
    del linecache.cache[name]


def test_a_function_of_a_notebook_is_copied_with_what_it_uses(cell: dict[str, Any], tmp_path: Path) -> None:
    spawn(cell["tell"], replicas=2, arguments={"folder": str(tmp_path), "text": "good"})
    said = [(tmp_path / rank).read_text() for rank in "01"]
    assert said == [f"replica {rank} of 2: from the notebook, good" for rank in "01"]


def test_the_traceback_of_a_notebook_shows_the_lines_of_its_cell(cell: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(FrameworkError) as raised:
        spawn(cell["tell"], replicas=1, arguments={"folder": str(tmp_path), "text": "bad"})
    text = str(raised.value)
    assert text.startswith("tell: a replica of 1 ended with exit status 1")
    assert "in tell\n    raise ValueError(note.text)\n" in text and "ValueError: from the notebook" in text


def test_functions_without_a_name_in_a_module_are_copied(
    module: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "closure"

    def within(folder: str) -> None:
        module.tell(folder, text)

    for function in (within, lambda folder: module.tell(folder, text), partial(module.tell, text=text)):
        spawn(function, replicas=2, arguments={"folder": str(tmp_path)})
        assert sorted(capsys.readouterr().out.splitlines()) == [f"replica {rank} of 2: closure" for rank in "01"]


def test_what_cannot_be_copied_is_named() -> None:
    number, lock = 1, threading.Lock()

    def train() -> None:
        with lock:
            print(number)

    what = r"train' cannot be copied into another process: its variable 'lock': TypeError: cannot pickle '_thread.lock'"
    with pytest.raises(ConfigError, match=rf"{what}.* Hint: create open files, loops, locks and the like inside"):
        spawn(train, replicas=2)
    with pytest.raises(ConfigError, match=r"cannot be copied into another process: TypeError: cannot pickle"):
        spawn(partial(print, lock), replicas=2)


def test_a_loop_is_not_copied_to_train_alone() -> None:
    loop = object.__new__(Loop)  # of no framework: none is needed to refuse it

    def train() -> None:
        loop.print("trains")

    with pytest.raises(ConfigError, match=r"its variable 'loop': TypeError: cannot pickle a Loop: it belongs to"):
        spawn(train, replicas=2)


@pytest.mark.parametrize("replicas", [0, -1, True, 2.0, "2"])
def test_wrong_numbers_of_replicas_are_refused(module: ModuleType, replicas: Any) -> None:
    with pytest.raises(ConfigError, match=r"is not a number of processes\. Hint: write replicas=2"):
        spawn(module.tell, replicas=replicas)


def test_what_json_does_not_have_is_refused(module: ModuleType) -> None:
    with pytest.raises(ConfigError, match=r"the arguments are not JSON values.*Hint: pass numbers"):
        spawn(module.tell, replicas=2, arguments={"folder": Path()})
    with pytest.raises(ConfigError, match="is not a function"):
        spawn(None, replicas=2)  # type: ignore[arg-type]
