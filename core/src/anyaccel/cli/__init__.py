"""The command line: `anyaccel demo`, `devices`, `plugins`, `conform`, `new-plugin`, `env` and `completion`.

Needs no framework.
"""

from anyaccel.cli.main import main

__all__ = ["main"]
