"""Which distribution to install for a known framework that no plugin runs yet.

Besides the device aliases, this is the only place in core that names frameworks.
"""

from __future__ import annotations

import sys

# top-level module of an object's class -> (framework, distribution of its plugin)
HINTS: dict[str, tuple[str, str]] = {
    "torch": ("torch", "anyaccel-torch"),
    "tensorflow": ("tensorflow", "anyaccel-tensorflow"),
    "keras": ("tensorflow", "anyaccel-tensorflow"),
    "jax": ("jax", "anyaccel-jax"),
    "jaxlib": ("jax", "anyaccel-jax"),
    "flax": ("jax", "anyaccel-jax"),
    "optax": ("jax", "anyaccel-jax"),
    "equinox": ("jax", "anyaccel-jax"),
}


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
    """The shell command that installs a distribution."""
    return f"python -m pip install {distribution}"
