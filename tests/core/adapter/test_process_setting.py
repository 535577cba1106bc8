"""A setting of the whole process that phases of several threads hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import pytest

from anyaccel.adapter.process_setting import ProcessSetting
from anyaccel.errors import PhaseError

Run = Callable[[Callable[[], Any]], Any]


class Global:
    """What a framework keeps for the whole process."""

    def __init__(self) -> None:
        self.value = "highest"
        self.setting = ProcessSetting("matmul_precision", lambda: self.value, self.write)

    def write(self, value: str) -> None:
        self.value = value

    def held(self, stack: ExitStack, value: str) -> AbstractContextManager[Any]:
        return stack.enter_context(self.setting.hold(value))


@contextmanager
def thread() -> Iterator[Run]:
    """Runs calls in one other thread, which lives until the end."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda call: pool.submit(call).result(30)


def test_the_last_thread_to_let_go_sets_back_what_was_before_the_first() -> None:
    """Also where the first to hold it is the first to let go."""
    held, first, second = Global(), ExitStack(), ExitStack()
    with thread() as elsewhere:
        held.held(first, "medium")
        elsewhere(lambda: held.held(second, "medium"))
        first.close()
        assert held.value == "medium"
        elsewhere(second.close)
    assert held.value == "highest"


def test_another_value_is_refused_while_a_thread_holds_one() -> None:
    held, first = Global(), ExitStack()
    message = r"matmul_precision='high' is requested while a phase in another thread has 'medium'.*the same value"
    with thread() as elsewhere:
        elsewhere(lambda: held.held(first, "medium"))
        with pytest.raises(PhaseError, match=message), held.setting.hold("high"):
            pass
        assert held.value == "medium"
        elsewhere(first.close)
    with held.setting.hold("high"):
        assert held.value == "high"
    assert held.value == "highest"


def test_phases_inside_of_each_other_have_values_of_their_own() -> None:
    held = Global()
    with held.setting.hold("high"):
        with pytest.raises(ValueError, match="fails"), held.setting.hold("medium"):
            assert held.value == "medium"
            raise ValueError("fails")
        assert held.value == "high"
    assert held.value == "highest"
