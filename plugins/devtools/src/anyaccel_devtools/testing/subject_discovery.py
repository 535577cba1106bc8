"""Finds the Subjects that plugins publish for the kit as entry points. Needs no pytest."""

from __future__ import annotations

import re

from anyaccel.backend import Backend
from anyaccel.distributions import entry_points
from anyaccel.plugin_loader import Plugin

GROUP = "anyaccel.conformance"  # entry-point group in which plugins publish their Subjects


def canonical_name(distribution: str) -> str:
    """Return a distribution's name as package indexes compare it: `My_Chip` is `my-chip`."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def published_subject(plugin: Plugin, backend: Backend) -> str:
    """Return the Subject that a plugin's own distribution publishes for a backend, as `module:Class`; `""` if none."""
    distribution = canonical_name(plugin.distribution)
    subjects = {
        entry.name: entry.value
        for entry in entry_points(GROUP)
        if entry.dist and canonical_name(entry.dist.name) == distribution
    }
    return next((subjects[name] for name in _entry_names(plugin, backend) if name in subjects), "")


def _entry_names(plugin: Plugin, backend: Backend) -> list[str]:
    """Return names under which a backend's Subject may be published, the most specific first."""
    framework = f"{plugin.name}.{backend.framework}"
    names = [*(f"{framework}.{kind}" for kind in backend.kinds), framework]
    return [*names, plugin.name] if len(plugin.backends) == 1 else names
