"""A hint that shows code, a call or an argument is followed by a test, or left out with a reason."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from .inventory import Followed, Hint, all_followed, all_hints, followed_in, hints_of

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LEFT_OUT: dict[str, list[str]] = tomllib.loads((HERE / "left_out.toml").read_text("utf-8"))


def reasons() -> dict[str, str]:
    """The texts of hints that no test follows, with the reason."""
    return {text: reason for reason, texts in LEFT_OUT.items() for text in texts}


def test_every_hint_that_shows_code_is_followed() -> None:
    followed = {entry.text for entry in all_followed(ROOT)}
    missing = [hint for hint in all_hints(ROOT) if hint.shows_code and hint.text not in {*followed, *reasons()}]
    assert not missing, "no test follows:\n" + "\n".join(map(str, missing))


def test_what_follows_a_hint_names_what_the_hint_names() -> None:
    wrong = {entry.place: names for entry in all_followed(ROOT) if (names := entry.names_left_out())}
    assert not wrong


def test_nothing_is_left_out_that_is_followed_or_gone() -> None:
    texts = {hint.text for hint in all_hints(ROOT)}
    followed = {entry.text for entry in all_followed(ROOT)}
    assert not reasons().keys() - texts and not reasons().keys() & followed
    assert not followed - texts, "no source says so any more"


@pytest.mark.parametrize(
    ("source", "texts"),
    [
        ("raise E('no', hint='write x=1')", ["write x=1"]),
        ("raise E('no', hint=f'write {name}=1')", ["write {}=1"]),
        ("raise E('no', hint='a' if b else f'c{d}')", ["a", "c{}"]),
        ("HINT = 'call f()'\nraise E('no', hint=HINT)", ["call f()"]),
        ("USE = 'call f()'\nraise E('no', hint=USE)", ["call f()"]),
        ("attribute_hints = {'open unlock': 'use lift()'}", ["use lift()"]),
        ("def _hint(x):\n    return f'use {x}' or 'none'", ["use {}", "none"]),
        ("raise E('no', hint=did_you_mean(name, names, 'give two'))", ["give two"]),
        ("raise E('no', hint=error.hint) from error", []),
    ],
)
def test_hints_are_found_in_sources(source: str, texts: list[str]) -> None:
    assert list(dict.fromkeys(hint.text for hint in hints_of(source, "module.py"))) == texts


@pytest.mark.parametrize(
    ("text", "shows"),
    [
        ("write x=1", True),
        ("call f() first", True),
        ("use 'mse'", True),
        ("run `anyaccel devices`", True),
        ("set ANYACCEL_DEVICE", True),
        ("leave checkpoint out", True),
        ("use more rows", False),
        ("name {} in the plan", False),
    ],
)
def test_code_in_hints_is_seen(text: str, shows: bool) -> None:
    assert Hint(text, "module.py", 1).shows_code is shows


@pytest.mark.parametrize(
    ("after", "left_out"),
    [("right(mode='max').stop()", []), ("right(how='max')", ["mode", "stop"]), ("pass", ["mode", "stop"])],
)
def test_a_test_that_does_not_do_what_the_hint_says_is_seen(after: str, left_out: list[str]) -> None:
    source = f"""def test_it(hint):\n    with hint("write mode='max', or call stop()"):\n        wrong()\n    {after}"""
    (entry,) = followed_in(source, "test_it.py")
    assert isinstance(entry, Followed) and entry.names_left_out() == left_out
