"""`anyaccel new-plugin`: a project that installs and passes the kit, to put one's own chip or framework into."""

from __future__ import annotations

import keyword
import re
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anyaccel.cli.bases import REFERENCE, Base, kinds_served, named, serving
from anyaccel.cli.console import print_json, print_line
from anyaccel.cli.projects import Wish, chip_project, framework_project
from anyaccel.device import ALIASES
from anyaccel.errors import ConfigError, FrameworkError
from anyaccel.install_hints import HINTS, distribution_for
from anyaccel.registry import BUILT_IN

_WORD = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_LONGEST = 30
_OWN = {BUILT_IN, *REFERENCE.cls.kinds, "any", *ALIASES}


def run(
    name: str, kind: str, path: Path | None, framework: str | None, base: str | None, author: str, as_json: bool
) -> None:
    """Check everything, make all texts, and only then write them."""
    _check_name(name, "plugin")
    _check_author(author)
    if kind == "framework":
        if base:
            raise ConfigError("a new framework has no base", hint="leave --base out, or write --kind chip")
        files = framework_project(Wish(name, _new_framework(framework or name), author))
        about = {"framework": framework or name}
    else:
        found = _base(name, framework, base)
        wish = Wish(name, name if found.is_reference else found.cls.framework, author)
        files = chip_project(wish, found)
        about = {"framework": wish.framework, "base": f"{found.module}:{found.name}"}
    target = (path or Path(f"anyaccel-{name.replace('_', '-')}")).absolute()
    write(target, files)
    _tell(name, kind, target, files, about, as_json)


def _check_name(name: str, what: str) -> None:
    if not _WORD.fullmatch(name) or keyword.iskeyword(name) or len(name) > _LONGEST:
        raise ConfigError(
            f"{name!r} cannot be the name of a {what}",
            available=f"names are lower-case words such as 'chip' or 'my_chip', of at most {_LONGEST} characters, "
            "and no keywords of Python",
            hint="choose such a name",
        )
    if name in _OWN:
        raise ConfigError(f"{name!r} is core's own word", available=", ".join(sorted(_OWN)), hint="choose another name")
    served = HINTS[name][1] if name in HINTS else distribution_for(name)
    if served:
        raise ConfigError(
            f"the name {name!r} is taken: {served} serves it",
            hint=f"choose another name; for a chip of {name}, `anyaccel new-plugin NAME --framework {name}`",
        )


def _check_author(author: str) -> None:
    if author != author.strip() or not author.isprintable() or len(author) > 100:
        raise ConfigError(
            f"{author!r} cannot be the name of an author",
            available="one line of at most 100 characters, without spaces around",
        )


def _new_framework(framework: str) -> str:
    _check_name(framework, "framework")
    return framework


def _base(name: str, framework: str | None, base: str | None) -> Base:
    """What a chip derives from: what was named, else what serves the framework, else core's own backend."""
    found = named(base) if base else serving(framework) if framework and framework != BUILT_IN else REFERENCE
    if framework and found.cls.framework != framework:
        raise FrameworkError(
            f"{found.module}:{found.name} does not serve {framework}",
            available=f"it serves {found.cls.framework}",
            hint="leave --framework out, or name another base",
        )
    kinds = kinds_served(found)
    if name in kinds:
        raise ConfigError(
            f"{found.cls.framework} is served on {name!r} already",
            available=f"it is served on {', '.join(kinds)}",
            hint="choose another name, or uninstall the plugin that serves it",
        )
    return found


def write(target: Path, files: Mapping[str, str]) -> None:
    """Write a project whole, or not at all: it is made beside the target, and then given its name.

    Raises:
        ConfigError: the target is there and not an empty folder, or cannot be written.
    """
    if not target.parent.is_dir():
        raise ConfigError(f"there is no folder {target.parent}", hint="make it first, or choose another with --path")
    if target.exists() and not target.is_dir():
        raise ConfigError(f"{target} is there and no folder", hint="choose another with --path")
    if target.is_dir() and any(target.iterdir()):
        raise ConfigError(f"{target} is there and not empty", hint="choose another with --path")
    try:
        _write(target, files)
    except OSError as error:
        raise ConfigError(f"{target} cannot be written ({error})", hint="choose another with --path") from error


def _write(target: Path, files: Mapping[str, str]) -> None:
    beside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        whole = beside / target.name
        for name, text in files.items():
            file = whole / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, "utf-8", newline="\n")
        if target.is_dir():
            target.rmdir()  # an empty folder cannot be replaced on every system
        whole.rename(target)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _tell(
    name: str, kind: str, target: Path, files: Mapping[str, str], about: Mapping[str, str], as_json: bool
) -> None:
    if as_json:
        told: dict[str, Any] = {"plugin": name, "kind": kind, **about, "path": str(target), "files": list(files)}
        print_json(told)
        return
    by = f", derived from {about['base']}" if "base" in about else ""
    print_line(f"{target}: {len(files)} files of the {kind} {name}{by}")
    for line in (
        f"cd {shlex.quote(str(target))}",
        "python -m pip install --editable . pytest hypothesis",
        "python -m pytest",
        f"anyaccel conform {name}",
        "grep -rn REPLACE .     # what is yours to do",
    ):
        print_line(f"  {line}")
