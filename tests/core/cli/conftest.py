"""Fixtures of tests of commands."""

from __future__ import annotations

from command_line import _isolated as _isolated
from command_line import call as call
from command_line import environment as environment
from command_line import python as python
from command_line import spawn as spawn
from command_line import terminal as terminal
