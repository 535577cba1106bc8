"""Subjects that plugins publish, so that the kit can be run on them where they are installed.

A plugin names its Subject in the entry-point group `anyaccel.conformance`:

    [project.entry-points."anyaccel.conformance"]
    chip = "anyaccel_chip.conformance:ChipSubject"

The name is that of the plugin. A plugin with several backends has a Subject for each, called `PLUGIN.FRAMEWORK`, or
`PLUGIN.FRAMEWORK.KIND` where two of them serve one framework. The module may import pytest: only the kit imports it.
"""

from __future__ import annotations

import re

from anyaccel.backend import Backend
from anyaccel.plugin import Plugin

GROUP = "anyaccel.conformance"


def canonical(distribution: str) -> str:
    """The name of a distribution as indexes compare it: `My_Chip` is `my-chip`."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def published(plugin: Plugin, backend: Backend) -> str:
    """The Subject that a plugin's own distribution publishes for one of its backends: `module:Class`, `""` if none."""
    from importlib.metadata import entry_points

    own = canonical(plugin.distribution)
    there = {
        each.name: each.value for each in entry_points(group=GROUP) if each.dist and canonical(each.dist.name) == own
    }
    return next((there[name] for name in _names(plugin, backend) if name in there), "")


def _names(plugin: Plugin, backend: Backend) -> list[str]:
    """By which name a backend's Subject may be published, the most exact first."""
    framework = f"{plugin.name}.{backend.framework}"
    names = [*(f"{framework}.{kind}" for kind in backend.kinds), framework]
    return [*names, plugin.name] if len(plugin.backends) == 1 else names
