"""Plans as JSON: written with a version, and read from files of others without trust."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from anyaccel.arguments import shown
from anyaccel.errors import ConfigError
from anyaccel.saved_folder import strict_json

FORMAT, VERSION = "anyaccel plan", 1
LARGEST = 16 << 20  # bytes


def written(plain: Mapping[str, Any]) -> str:
    """A plan as plain data as JSON text, which depends on nothing else."""
    return json.dumps({"format": FORMAT, "version": VERSION, **plain}, indent=2, allow_nan=False) + "\n"


def parsed(text: str | bytes) -> dict[str, Any]:
    """The plain data of a plan in JSON text. No code is run from it, and its size and depth are bounded.

    Raises:
        ConfigError: it is too large, no JSON, or of another format or version.
    """
    if not isinstance(text, (str, bytes)):
        raise ConfigError(f"{shown(text)} is not JSON text", hint="give what plan.to_json() made")
    content = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(content) > LARGEST:
        raise ConfigError(f"a plan of {len(content)} bytes is too large", cause=f"at most {LARGEST} are read")
    try:
        value = strict_json.parse(content)
    except ValueError as error:
        raise ConfigError(f"the plan is not JSON: {error}", hint="give what plan.to_json() made") from None
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise ConfigError(f"{shown(value, 80)} is no plan", hint="give what plan.to_json() made")
    if value.get("version") != VERSION:
        problem = f"the plan has version {shown(value.get('version'), 40)}"
        raise ConfigError(problem, available=f"version {VERSION}", hint="make it again with this anyaccel")
    return {name: part for name, part in value.items() if name not in ("format", "version")}
