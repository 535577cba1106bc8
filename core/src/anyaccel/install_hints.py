"""What to install for a framework that nobody serves yet. Besides the alias table, core names none elsewhere."""

from __future__ import annotations

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


def distribution_for(framework: str) -> str:
    """The distribution that serves a framework, `""` if none is known."""
    return next((dist for name, dist in HINTS.values() if name == framework), "")


def install_line(distribution: str) -> str:
    """The command that installs a distribution."""
    return f"python -m pip install {distribution}"
