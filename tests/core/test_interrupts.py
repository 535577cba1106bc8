"""Signals wait inside `deferred` and are told by `check`; other threads are left alone."""

from __future__ import annotations

import functools
import importlib
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anyaccel import interrupts
from anyaccel.device import Device
from anyaccel.plugin_loader import built_in_backend
from anyaccel.registry import Registry

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a process cannot send itself signals there")


@pytest.fixture(autouse=True)
def default_handler() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, also where these tests were started in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "the handler is there again"
    signal.signal(signal.SIGINT, before)


def ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_a_signal_waits_for_check() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), interrupts.deferred():
        ctrl_c()
        done.append("after the signal")
        interrupts.check()
        done.append("after the check")
    assert done == ["after the signal"]


def test_a_signal_waits_for_the_end_of_all_that_defers() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), interrupts.deferred():
        with interrupts.deferred():
            ctrl_c()
        done.append("after the inner one")
    assert done == ["after the inner one"]


def test_signals_are_raised_at_once_where_they_are_allowed_also_one_that_waited() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), interrupts.deferred(), interrupts.allowed():
        ctrl_c()
        done.append("after the signal")
    with pytest.raises(KeyboardInterrupt), interrupts.deferred():
        ctrl_c()
        with interrupts.allowed():
            done.append("inside")
    with pytest.raises(KeyboardInterrupt), interrupts.deferred():
        with interrupts.allowed():
            pass
        ctrl_c()
        done.append("deferred again")
        interrupts.check()
    assert done == ["deferred again"]


def test_the_same_signal_is_not_deferred_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "FORCE_SECONDS", 0.01)
    with pytest.raises(KeyboardInterrupt), interrupts.deferred():
        assert not interrupts.was_forced()
        ctrl_c()
        time.sleep(0.02)
        ctrl_c()
        pytest.fail("the second is raised at once")
    assert interrupts.was_forced()
    with interrupts.deferred():
        assert not interrupts.was_forced()


def test_two_signals_at_one_instant_are_one() -> None:
    with pytest.raises(KeyboardInterrupt), interrupts.deferred():
        ctrl_c()
        ctrl_c()
        interrupts.check()


@pytest.fixture
def handling() -> Iterator[Callable[..., None]]:
    """`handling(signal, handler)` sets a handler for the time of a test."""
    before = {}

    def handle(number: int, handler: Callable[..., None]) -> None:
        before[number] = signal.signal(number, handler)

    yield handle
    for number, handler in before.items():
        signal.signal(number, handler)


def test_what_a_handler_of_sigterm_raises_comes_at_the_check(handling: Callable[..., None]) -> None:
    def leave(number: int, frame: object) -> None:
        raise SystemExit(number)

    handling(signal.SIGTERM, leave)
    with pytest.raises(SystemExit) as told, interrupts.deferred():
        os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is not leave
        interrupts.check()
    assert told.value.code == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is leave


def test_a_handler_that_only_notes_the_signal_changes_nothing(handling: Callable[..., None]) -> None:
    noted: list[int] = []
    handling(signal.SIGUSR1, lambda number, frame: noted.append(number))
    with interrupts.deferred():
        os.kill(os.getpid(), signal.SIGUSR1)
        assert noted == []
        interrupts.check()
        assert noted == [signal.SIGUSR1]


def test_a_handler_that_is_set_inside_stays_and_can_be_deferred_too(handling: Callable[..., None]) -> None:
    noted: list[int] = []
    handling(signal.SIGUSR1, lambda number, frame: None)
    with interrupts.deferred():
        signal.signal(signal.SIGUSR1, later := lambda number, frame: noted.append(number))
        os.kill(os.getpid(), signal.SIGUSR1)
        assert noted == [signal.SIGUSR1]
        interrupts.renew()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert noted == [signal.SIGUSR1]
    assert noted == [signal.SIGUSR1] * 2 and signal.getsignal(signal.SIGUSR1) is later


def test_what_a_handler_for_ended_children_raises_is_dropped(handling: Callable[..., None]) -> None:
    """torch's loaders raise in any place of the main thread; the loader that waits tells it better."""

    def killed(number: int, frame: object) -> None:
        raise RuntimeError("DataLoader worker is killed by signal")

    handling(signal.SIGCHLD, killed)
    with interrupts.deferred():
        os.kill(os.getpid(), signal.SIGCHLD)
        interrupts.check()
        with interrupts.allowed():
            os.kill(os.getpid(), signal.SIGCHLD)
    with pytest.raises(RuntimeError, match="killed by signal"):
        os.kill(os.getpid(), signal.SIGCHLD)


def test_another_thread_does_not_defer_the_signals_of_the_main_thread() -> None:
    inside, over = threading.Event(), threading.Event()

    def defer() -> None:
        with interrupts.deferred():
            inside.set()
            over.wait(10)
            interrupts.check()

    thread = threading.Thread(target=defer)
    thread.start()
    assert inside.wait(10)
    with pytest.raises(KeyboardInterrupt):
        ctrl_c()
    over.set()
    thread.join(10)


def test_a_forked_child_hears_signals_at_once() -> None:
    with interrupts.deferred():
        child = os.fork()
        if not child:
            try:
                ctrl_c()
                os._exit(1)
            except KeyboardInterrupt:
                os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_handler_that_is_saved_and_set_again_inside_leaves_the_first_one_alone(handling: Callable[..., None]) -> None:
    """As a callback does that stops a run in an orderly way; no wrapper stays, however often it does so."""
    handling(signal.SIGUSR1, first := lambda number, frame: None)
    for _ in range(3):
        with interrupts.deferred():
            saved = signal.signal(signal.SIGUSR1, lambda number, frame: None)
            interrupts.renew()
            signal.signal(signal.SIGUSR1, saved)
        assert signal.getsignal(signal.SIGUSR1) is first


def test_a_second_signal_whose_handler_raises_nothing_has_broken_nothing_off(
    monkeypatch: pytest.MonkeyPatch, handling: Callable[..., None]
) -> None:
    monkeypatch.setattr(interrupts, "FORCE_SECONDS", 0.01)
    noted: list[int] = []
    handling(signal.SIGUSR1, lambda number, frame: noted.append(number))
    with interrupts.deferred():
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert noted == [signal.SIGUSR1] and not interrupts.was_forced()


def test_a_forked_child_that_leaves_the_block_can_defer_again() -> None:
    with interrupts.deferred():
        child = os.fork()
    if not child:
        code = 1
        try:
            with interrupts.deferred():
                ctrl_c()
                code = 7
        except KeyboardInterrupt:
            os._exit(code)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_signal_while_an_object_is_freed_is_not_lost() -> None:
    """Python prints what is raised there, and goes on."""

    class Freed:
        def __del__(self) -> None:
            ctrl_c()

    done, printed = [], []
    before = sys.unraisablehook
    sys.unraisablehook = printed.append
    try:
        with pytest.raises(KeyboardInterrupt), interrupts.deferred():
            with interrupts.allowed():
                Freed()
                done.append("freed")
            interrupts.check()
            done.append("after the check")
        assert sys.unraisablehook == printed.append
    finally:
        sys.unraisablehook = before
    assert done == ["freed"] and printed == []


def test_other_errors_while_an_object_is_freed_are_printed_as_before() -> None:
    class Freed:
        def __del__(self) -> None:
            raise ValueError("of its own")

    printed: list[object] = []
    before = sys.unraisablehook
    sys.unraisablehook = lambda error: printed.append(error.exc_value)
    try:
        with interrupts.deferred(), interrupts.allowed():
            Freed()
    finally:
        sys.unraisablehook = before
    assert [str(error) for error in printed] == ["of its own"]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module that sends Ctrl-C while it is imported, twice if told so."""
    text = "import os, signal, sys, time\nos.kill(os.getpid(), signal.SIGINT)\n"
    text += "if TWICE:\n    time.sleep(0.05)\n    os.kill(os.getpid(), signal.SIGINT)\nwhole = True\n"
    (tmp_path / "interrupted_module.py").write_text(text.replace("TWICE", "hasattr(sys, 'interrupted_twice')"))
    monkeypatch.syspath_prepend(tmp_path)
    yield "interrupted_module"
    sys.modules.pop("interrupted_module", None)


def test_an_import_is_not_broken_off(module: str) -> None:
    with pytest.raises(KeyboardInterrupt), interrupts.deferred():
        with interrupts.allowed():
            importlib.import_module(module)
        assert sys.modules[module].whole
        interrupts.check()
        pytest.fail("the signal waits for the check")
    assert module in sys.modules


def test_a_second_signal_breaks_off_an_import(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "interrupted_twice", True, raising=False)
    monkeypatch.setattr(interrupts, "FORCE_SECONDS", 0.01)
    with pytest.raises(KeyboardInterrupt), interrupts.deferred(), interrupts.allowed():
        importlib.import_module(module)
    assert module not in sys.modules


def test_what_is_run_within_an_import_can_be_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that trains may be imported itself."""
    text = "import os, signal\nfrom anyaccel import interrupts\nwith interrupts.deferred(), interrupts.allowed():\n"
    (tmp_path / "imported_script.py").write_text(f"{text}    os.kill(os.getpid(), signal.SIGINT)\n    reached = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyboardInterrupt) as told:
        importlib.import_module("imported_script")
    assert "reached" not in told.traceback[-1].frame.f_globals and "imported_script" not in sys.modules


def test_a_plugin_is_not_blamed_for_what_a_handler_raises(handling: Callable[..., None]) -> None:
    class Backend(type(built_in_backend())):  # type: ignore[misc]
        def devices(self) -> tuple[Device, ...]:
            os.kill(os.getpid(), signal.SIGTERM)
            return (Device("cpu"),)

    def leave(number: int, frame: object) -> None:
        raise SystemExit(number)

    handling(signal.SIGTERM, leave)
    registry = Registry(Backend, list)
    with pytest.raises(SystemExit) as told, interrupts.deferred():
        with interrupts.allowed():
            assert registry.devices() == [("numpy", Device("cpu"))]
        interrupts.check()
    assert told.value.code == signal.SIGTERM and not any(plugin.is_broken for plugin in registry.plugins)


@pytest.mark.parametrize("method", ["devices", "owns", "import"])
@pytest.mark.parametrize("wrap", [lambda handler: handler, functools.partial], ids=["function", "partial"])
def test_nor_is_it_outside_a_phase(handling: Callable[..., None], method: str, wrap: Callable[..., Any]) -> None:
    """There the handler raises at once, and the same call gives its answer afterwards."""
    signals = [signal.SIGTERM]

    def interrupted(when: str) -> None:
        while when == method and signals:
            os.kill(os.getpid(), signals.pop())

    class Backend(type(built_in_backend())):  # type: ignore[misc]
        def devices(self) -> tuple[Device, ...]:
            interrupted("devices")
            return (Device("cpu"),)

        def owns(self, obj: object) -> bool:
            interrupted("owns")
            return bool(super().owns(obj))

    class Entry:
        name, value, dist = "other", "other", None

        def load(self) -> object:
            interrupted("import")
            return types.SimpleNamespace()

    def leave(number: int, frame: object) -> None:
        raise SystemExit(number)

    handling(signal.SIGTERM, wrap(leave))
    registry = Registry(Backend, lambda: [Entry()])  # type: ignore[list-item]
    with pytest.raises(SystemExit, match=str(int(signal.SIGTERM))):
        registry.devices()
        registry.owners(np.zeros(1))
    assert registry.devices() == [("numpy", Device("cpu"))] and registry.owners(np.zeros(1)) == ("numpy",)
    assert not any(plugin.is_broken for plugin in registry.plugins)


def test_a_plugin_that_leaves_by_itself_is_blamed_also_where_signals_have_handlers(
    handling: Callable[..., None],
) -> None:
    class Backend(type(built_in_backend())):  # type: ignore[misc]
        def devices(self) -> tuple[Device, ...]:
            raise SystemExit(3)

    handling(signal.SIGTERM, lambda number, frame: None)
    registry = Registry(Backend, list)
    assert registry.devices() == []
    assert [plugin.cause for plugin in registry.plugins] == ["devices() of its backend for numpy raised SystemExit: 3"]


@pytest.mark.parametrize("error", [None, ValueError])
def test_a_signal_that_a_compiler_swallows_waits_again(error: type[Exception] | None) -> None:
    done = []

    def compiler() -> None:
        try:
            ctrl_c()
        except BaseException:
            if error is not None:
                raise error("not compiled") from None

    with pytest.raises(KeyboardInterrupt), interrupts.deferred():
        try:
            with interrupts.allowed(may_catch=False):
                compiler()
        except ValueError:
            done.append("error")
        done.append("after the compiler")
        interrupts.check()
        done.append("after the check")
    assert done == (["error"] if error else []) + ["after the compiler"]


def test_a_signal_that_a_hook_catches_does_not_come_again() -> None:
    with interrupts.deferred(), interrupts.allowed(), pytest.raises(KeyboardInterrupt):
        ctrl_c()
