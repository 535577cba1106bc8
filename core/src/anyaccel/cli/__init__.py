"""The command line: `anyaccel demo`, `devices`, `plugins`, `conform` and `new-plugin`. Needs no framework."""

from anyaccel.cli.command import main

__all__ = ["main"]
