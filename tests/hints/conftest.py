"""The fixture `hint`, by which a test provokes an error, reads its hint, and then follows it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from click.testing import CliRunner, Result

import anyaccel
from anyaccel.cli.main import group


class Printed:
    """Where a hint is not in an exception but printed, the text: `printed.text = result.output`."""

    text: str | None = None


@pytest.fixture
def hint() -> Callable[..., AbstractContextManager[Printed]]:
    """`with hint(TEXT):` expects an error with this hint, in which `{}` stands for what is filled in.

    What comes after the block must do what the hint says, and name each call, keyword, option and variable that it
    names; test_every_hint.py checks that.
    """

    @contextmanager
    def expect(text: str) -> Iterator[Printed]:
        printed = Printed()
        pattern = ".*".join(re.escape(part) for part in text.split("{}"))
        try:
            yield printed
        except Exception as error:
            message = getattr(error, "hint", "") or str(error)
            if not re.search(pattern, message, re.DOTALL):
                raise
            return
        if printed.text is None:
            pytest.fail(f"no error, so that nobody reads: {text}")
        assert re.search(pattern, re.sub(r"\s+", " ", printed.text), re.DOTALL), printed.text

    return expect


@pytest.fixture
def cli() -> Callable[..., Result]:
    """Runs a command of `anyaccel` in this process: `cli("devices").output`."""

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(group, arguments, prog_name="anyaccel", catch_exceptions=False)  # type: ignore[arg-type]

    return run


@pytest.fixture(autouse=True)
def no_device_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Devices that a hint makes for its test are gone afterwards: other tests would get them."""
    simulate, made = anyaccel.simulate, []

    def recorded(*arguments: object, **settings: object) -> object:
        made.append(simulate(*arguments, **settings))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr(anyaccel, "simulate", recorded)
    yield
    for simulation in made:
        simulation.close()
