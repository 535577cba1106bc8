"""The table of a phase's settings in the guide to own loops: it has each setting, and what it says of them is so."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import anyaccel as aa
from anyaccel.errors import ArgumentError

pytest.importorskip("anyaccel_torch")

PAGE = Path(__file__).parents[2] / "docs/how-to/keep-your-loop.md"
SECTION = PAGE.read_text("utf-8").partition("## Settings of a training phase")[2].partition("\n## ")[0]
ROWS = [[cell.strip() for cell in row.split("|")[1:3]] for row in SECTION.splitlines() if row.startswith("| `")]
CELL_OF = {name: cell for names, cell in ROWS for name in re.findall(r"`(\w+)`", names)}
OF_LOOP = set(inspect.signature(aa.Loop).parameters)
SAME = "the same argument of `Loop`"


def test_each_setting_of_a_phase_has_a_row() -> None:
    assert set(CELL_OF) == set(inspect.signature(aa.TrainPhase).parameters)


@pytest.mark.parametrize("name", CELL_OF)
def test_a_setting_that_a_loop_lacks_is_an_error_that_leads_on(name: str) -> None:
    if name in OF_LOOP:
        assert CELL_OF[name].startswith(SAME) or f"Loop({name}=" in CELL_OF[name]
        return
    with pytest.raises(ArgumentError, match=f"Loop has no argument {name!r}. Hint: ") as raised:
        aa.Loop("cpu", framework="torch", **{name: 1})
    assert "use one of these names" not in str(raised.value)


@pytest.mark.parametrize("call", re.findall(r"`(?:\w+ = )?(?:if )?loop\.(\w+)|Loop\((\w+)=", SECTION))
def test_what_the_table_writes_exists(call: tuple[str, str]) -> None:
    method, argument = call
    loop = aa.Loop("cpu", framework="torch")
    of_jax = method == "compile"
    assert argument in OF_LOOP if argument else of_jax or hasattr(loop, method)
