"""The child: makes loops and runs a turn of one when the parent asks for it; between turns it sleeps.

The parent writes one JSON object a line to standard input, and reads one for each. What libraries print goes to
standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from harness.absent import Absent

Turn = Callable[[], float]
START = "import sys; sys.path.insert(0, sys.argv[1]); from harness.worker import main; main()"
"""What the interpreter of a child is given with `-c`; its argument is the folder of this package."""


def main() -> None:
    """Answer until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    turns: dict[str, Turn] = {}
    for line in sys.stdin:
        answers.write(json.dumps(_answer(json.loads(line), turns)) + "\n")
        answers.flush()
    os._exit(0)  # phases may stand still in threads, which nobody waits for


def _answer(asked: dict[str, Any], turns: dict[str, Turn]) -> dict[str, Any]:
    try:
        return _done(asked, turns)
    except (Absent, ModuleNotFoundError) as error:
        return {"absent": f"{error}"}
    except Exception:
        return {"failed": traceback.format_exc()}


def _done(asked: dict[str, Any], turns: dict[str, Turn]) -> dict[str, Any]:
    name = asked["name"]
    began = time.perf_counter()
    if asked["do"] == "make":
        module, _, function = asked["make"].partition(":")
        turns[name] = getattr(importlib.import_module(module), function)(**asked["settings"])
        return {"seconds": time.perf_counter() - began}
    if asked["do"] == "tell":
        told = getattr(turns[name], "told", None)
        return {"told": told() if told is not None else {}}
    return {"seconds": turns[name]()}
