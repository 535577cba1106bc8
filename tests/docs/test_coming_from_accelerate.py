"""The page for users of Accelerate and Fabric: all of theirs is on it, and all that it names of ours is there."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import anyaccel as aa

from .named_calls import Unknown, check, code

PAGE = Path(__file__).parents[2] / "docs/how-to/coming-from-accelerate.md"
CALL = re.compile(r"(\w+)(?:\((.*)\))?")
ANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def rows(library: str) -> list[list[str]]:
    """The cells of each row of the tables of a library."""
    found, is_its_own = [], False
    for line in PAGE.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if cells[:1] == [f"`{library}`"]:
            is_its_own = True
        elif not cells:
            is_its_own = False
        elif is_its_own and not cells[0].startswith("---"):
            found.append(cells)
    return found


def on_the_page(library: str) -> set[str]:
    """`name` and `name(argument)` for each that the first cells of a library's rows name."""
    names = set()
    for cells in rows(library):
        for text in code(cells[0]):
            match = CALL.fullmatch(text)
            assert match, f"{text!r} is neither a name nor a call"
            names |= {match[1], *(f"{match[1]}({word})" for word in re.findall(r"\w+", match[2] or ""))}
    return names


def public(kind: type) -> set[str]:
    """`name` of each public method and property of a class, and `name(argument)`; of the class itself, too."""
    members = {name: inspect.getattr_static(kind, name) for name in dir(kind) if not name.startswith("_")}
    names = set(members)
    for name, member in {**members, kind.__name__: kind.__init__}.items():
        function = getattr(member, "__func__", member)
        if callable(function):
            parameters = inspect.signature(function).parameters.values()
            names |= {
                f"{name}({parameter.name})"
                for parameter in parameters
                if parameter.name != "self" and not parameter.name.startswith("_") and parameter.kind not in ANY
            }
    return names


@pytest.mark.parametrize(
    ("library", "name"), [("accelerate", "Accelerator"), ("lightning_fabric", "Fabric")], ids=["Accelerate", "Fabric"]
)
def test_all_of_theirs_is_in_a_row(library: str, name: str) -> None:
    theirs = public(getattr(pytest.importorskip(library), name))
    assert len(theirs) > 60
    assert sorted(theirs - on_the_page(library)) == []
    extra = {
        text
        for text in on_the_page(library) - theirs
        if not re.search(r"\((args|kwargs|\w+_kwargs|objects|models|optimizers|dataloaders)\)", text)
    }
    assert sorted(extra - {name}) == [], "no version of today has these"


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """What the expressions of the page stand on."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("anyaccel_torch")
    loop = aa.Loop("cpu", framework="torch")
    net = torch.nn.Linear(1, 1)
    net, optimizer = loop.prepare(net, torch.optim.SGD(net.parameters()))
    return {"aa": aa, "loop": loop, "optimizer": optimizer}


def ours() -> Iterator[str]:
    for library in ("accelerate", "lightning_fabric"):
        for cells in rows(library):
            yield from code(cells[1])


def test_all_of_ours_is_there(names: dict[str, Any]) -> None:
    wrong, n_checked = [], 0
    for text in ours():
        try:
            n_names = check(text, names)
        except Unknown as error:
            wrong.append(str(error))
        else:
            assert n_names, f"{text}: names nothing of ours"
            n_checked += 1
    assert wrong == [] and n_checked > 80


def test_the_error_of_a_loop_that_lacks_one_of_theirs_says_what_its_row_says(names: dict[str, Any]) -> None:
    loop, n_hints, wrong = names["loop"], 0, []
    for library in ("accelerate", "lightning_fabric"):
        for cells in rows(library):
            calls = [match[1] for text in code(cells[0]) if (match := CALL.fullmatch(text))]
            meant = set(re.findall(r"(?:loop|aa|optimizer)\.(\w+)", cells[1]))
            for name in calls:
                if name in ("Accelerator", "Fabric") or hasattr(loop, name):
                    continue
                with pytest.raises(AttributeError) as caught:
                    getattr(loop, name)
                said = set(re.findall(r"\w+", str(caught.value).partition(". Hint: ")[2]))
                n_hints += 1
                if not said or (meant and not meant & said):
                    wrong.append(str(caught.value))
    assert wrong == [] and n_hints > 70


def test_calls_of_ours_in_the_text_are_there(names: dict[str, Any]) -> None:
    text = PAGE.read_text("utf-8")
    for owner, name in set(re.findall(r"`(?:with |if )?(loop|aa)\.(\w+)", text)):
        assert hasattr(names[owner], name), f"{owner}.{name}"


@pytest.mark.parametrize(
    "text", ["loop.gathered(x)", "loop.gather(x, padding=0)", "aa.Loops()", "aa.Loop(acumulate=3)"]
)
def test_what_is_not_there_is_found(text: str, names: dict[str, Any]) -> None:
    with pytest.raises(Unknown):
        check(text, names)


def test_every_row_says_how_they_differ_in_few_words() -> None:
    for library in ("accelerate", "lightning_fabric"):
        assert len(rows(library)) > 30
        for cells in rows(library):
            assert len(cells) == 3 and all(cells), cells
            assert len(cells[2].split()) <= 25, cells[2]
            assert code(cells[1]) or len(cells[2]) > 5, f"{cells[0]}: the way out is missing"
