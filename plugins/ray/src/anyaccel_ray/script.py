"""Script: runs a script or module in a worker of Ray, as `python` would."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anyaccel.errors import AnyaccelError


class ScriptError(AnyaccelError):
    """A script ended with an exit status other than 0."""


def run_script(settings: Mapping[str, Any]) -> None:
    """Run a script or module in the folder of the command.

    Args:
        settings: `target`, `is_module`, `arguments`, `folder`, and `environment`, the variables for the script.

    Raises:
        ScriptError: it ended with another exit status than 0.
        Exception: any exception of the script.
    """
    os.environ.update(settings["environment"])
    target, folder = settings["target"], settings["folder"]
    os.chdir(folder)
    sys.argv = [target, *settings["arguments"]]
    try:
        if settings["is_module"]:
            sys.path.insert(0, folder)
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(target).resolve().parent))
            runpy.run_path(target, run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise ScriptError(f"{target} ended with exit status {end.code}", hint="see its output") from end
