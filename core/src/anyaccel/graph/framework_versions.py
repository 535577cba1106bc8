"""Framework versions: which versions of frameworks and model libraries compute the models of a graph."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

from anyaccel.backend import Backend

_OWN = "anyaccel"


def versions_of(backends: Iterable[Backend]) -> Mapping[str, str]:
    """By top-level module, as the modules say that are imported: nothing is imported, and none that says no version."""
    roots = dict.fromkeys(root for backend in backends for root in backend.import_roots if not root.startswith(_OWN))
    found = {root: getattr(sys.modules.get(root), "__version__", None) for root in roots}
    return {root: version for root, version in found.items() if isinstance(version, str)}
