"""Which distribution to install for a known framework that no plugin runs yet.

Besides the device aliases, this is the only place in core that names frameworks.
"""

from __future__ import annotations

import sys

_ROOTS = {"torch": "torch", "tensorflow": "tensorflow keras", "jax": "jax jaxlib flax optax equinox"}
HINTS = {root: (framework, f"anyaccel-{framework}") for framework, roots in _ROOTS.items() for root in roots.split()}
"""By top-level module of an object's class: its framework, and the distribution of the plugin."""


def hint_of(cls: type) -> tuple[str, str, str] | None:
    """Framework, distribution and an explanation (may be empty) for a class of a known framework; else None."""
    for base in cls.__mro__:
        root = str(base.__module__).partition(".")[0]
        if root == "keras":
            return _keras_hint()
        if root in HINTS:
            return (*HINTS[root], "")
    return None


def _keras_hint() -> tuple[str, str, str]:
    config = getattr(sys.modules.get("keras"), "config", None)
    name = config.backend() if config is not None else ""
    framework = name if name in HINTS else "tensorflow"
    return framework, distribution_for(framework), f"KERAS_BACKEND makes Keras compute with {framework} here"


def distribution_for(framework: str) -> str:
    """The distribution whose plugin runs a framework, `""` if none is known."""
    return next((distribution for name, distribution in HINTS.values() if name == framework), "")


def install_line(distribution: str) -> str:
    """How to install a distribution; the plugins of this project come from its repository until they are on PyPI."""
    if distribution not in (name for _, name in HINTS.values()):
        return f"python -m pip install {distribution}"
    folder = f"./plugins/{distribution.removeprefix('anyaccel-')}"
    return f"python -m pip install {folder} in anyaccel's repository ({distribution} is not on PyPI yet)"
