"""What to install for a framework that nobody serves yet. Besides the alias table, core names none elsewhere."""

from __future__ import annotations

import sys

# top-level module of an object's class -> (framework, distribution that serves it)
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


# Keras computes by one of these, which it is told before it is imported.
_KERAS = {"torch": "torch", "tensorflow": "tensorflow", "jax": "jax"}


def hint_of(cls: type) -> tuple[str, str, str] | None:
    """For a class of a known framework: the framework, what serves it, and what else to know; None for all others."""
    for base in cls.__mro__:
        root = str(base.__module__).partition(".")[0]
        if root == "keras":
            return _of_keras()
        if root in HINTS:
            return (*HINTS[root], "")
    return None


def _of_keras() -> tuple[str, str, str]:
    config = getattr(sys.modules.get("keras"), "config", None)
    framework = _KERAS.get(config.backend() if config is not None else "", "tensorflow")
    return framework, distribution_for(framework), f"Keras computes by {framework} here, as KERAS_BACKEND says"


def distribution_for(framework: str) -> str:
    """The distribution that serves a framework, `""` if none is known."""
    return next((dist for name, dist in HINTS.values() if name == framework), "")


def install_line(distribution: str) -> str:
    """The command that installs a distribution."""
    return f"python -m pip install {distribution}"
