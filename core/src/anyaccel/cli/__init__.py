"""The command line: `anyaccel demo`, `devices`, `plugins`, `conform`, `new-plugin`, `env` and `completion`.

`main` declares the commands, `console` prints, and each command has a module (or package) of its own. Stands on all
other packages; needs no framework.
"""

from anyaccel.cli.main import main

__all__ = ["main"]
