"""The command line: core's commands, and those of installed distributions.

`main` declares the commands, `console` prints, and each command has its own module (or package). Stands on all
other packages; needs no framework. Importing it loads none of them, so that the commands' child processes start fast.
"""

from anyaccel.lazy_attributes import lazy_attributes

__getattr__, __dir__ = lazy_attributes(__name__, {"main": ".main"})

__all__ = ["main"]  # of the module of that name
