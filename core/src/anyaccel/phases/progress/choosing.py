"""Which Progress a choice means here."""

from __future__ import annotations

import os
import sys
from typing import Any

from anyaccel.errors import PhaseError
from anyaccel.phases.progress.base import Progress
from anyaccel.phases.progress.log import LineProgress
from anyaccel.phases.progress.notebook import HTMLProgress, in_notebook
from anyaccel.phases.progress.rich import RichProgress

_BY_NAME = {"rich": RichProgress, "html": HTMLProgress, "lines": LineProgress, "none": Progress}


def progress_for(choice: Any) -> Progress:
    """A Progress by choice.

    Args:
        choice: `"auto"`: HTML in a notebook, bars if standard error is a terminal, else a line every ten seconds;
            `"rich"`, `"html"`, `"lines"`, `"none"`; or a Progress object.

    Raises:
        PhaseError: none of these; or HTML where there is no notebook.
    """
    if isinstance(choice, Progress):
        return choice
    if choice == "auto":
        return _here()
    if not isinstance(choice, str) or choice not in _BY_NAME:
        raise PhaseError(
            f"progress={choice!r}", available="'auto', 'rich', 'html', 'lines', 'none', or a Progress object"
        )
    if choice == "html" and not in_notebook():
        raise PhaseError("progress='html' draws in a notebook, and no kernel runs this", hint="write progress='auto'")
    return _BY_NAME[choice]()


def _here() -> Progress:
    if in_notebook():
        return HTMLProgress()
    return RichProgress() if _is_terminal() and os.environ.get("TERM") not in ("dumb", "unknown") else LineProgress()


def _is_terminal() -> bool:
    try:
        return sys.stderr is not None and sys.stderr.isatty()
    except (ValueError, AttributeError):  # it was closed, or something stands in for it that is no whole stream
        return False
