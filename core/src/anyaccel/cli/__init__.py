"""The command line: `anyaccel demo`, `devices`, `plugins`, `conform`, `new-plugin`, `env` and `completion`.

Needs no framework. Stands on every package of core: `testing`, `results`, `phases`, `graph`, `data` and
`numpy_backend`.
"""

from anyaccel.cli.main import main

__all__ = ["main"]
