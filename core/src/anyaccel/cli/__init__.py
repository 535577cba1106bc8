"""The command line: `anyaccel demo`, `devices` and `plugins`. Works with no framework installed."""

from anyaccel.cli.command import main

__all__ = ["main"]
