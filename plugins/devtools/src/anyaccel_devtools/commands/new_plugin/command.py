"""Check the request, create all files in memory, and write the project whole or not at all."""

from __future__ import annotations

import keyword
import re
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from anyaccel.cli.console import print_json, print_line
from anyaccel.device import ALIASES
from anyaccel.errors import ConfigError, FrameworkError
from anyaccel.install_hints import distribution_for
from anyaccel.plugin_loader import BUILT_IN, built_in_backend
from anyaccel_devtools.commands.new_plugin.base_backend import (
    base_for_framework,
    import_base,
    served_kinds,
)
from anyaccel_devtools.commands.new_plugin.project_files import PluginOptions, chip_project, framework_project

MARKER = "REPLACE"
"""Marks every place that the author of a plugin changes, followed by a colon and what to write there."""
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_MAX_LENGTH = 30
_OTHER_PATH = "choose another folder with --path"


def run(
    name: str, kind: str, path: Path | None, framework: str | None, base: str | None, author: str, as_json: bool
) -> None:
    """Write a plugin project.

    Args:
        name: Name of the plugin, and of its kind of device.
        kind: `chip` (a new device for a framework that is supported) or `framework`.
        path: Folder to create; by default `./anyaccel-NAME`.
        framework: The framework of a chip, or the name of a new one.
        base: Backend class that a chip derives from, as `module:Class`.
        author: Holder of the copyright; `""` for the authors of the project.
        as_json: Print JSON instead of text.
    """
    _check_name(name, "plugin")
    if author != author.strip() or not author.isprintable() or len(author) > 100:
        raise ConfigError(
            f"{author!r} cannot be the name of an author",
            hint="use one line of at most 100 characters, without surrounding spaces",
        )
    if kind == "framework":
        if base:
            raise ConfigError("a new framework has no base", hint="leave --base out, or use --kind chip")
        if framework:
            _check_name(framework, "framework")
        files = framework_project(PluginOptions(name, framework or name, author))
        about = {"framework": framework or name}
    else:
        # The named base, else the backend of the framework, else core's NumPy backend.
        backend = import_base(base) if base else base_for_framework(framework or BUILT_IN)
        if framework and backend.cls.framework != framework:
            raise FrameworkError(
                f"{backend.module}:{backend.name} runs {backend.cls.framework}, not {framework}",
                hint="leave --framework out, or name another base",
            )
        kinds = served_kinds(backend)
        if name in kinds:
            raise ConfigError(
                f"an installed plugin already runs {backend.cls.framework} on {name!r}",
                hint=f"choose a name other than {', '.join(kinds)}, or uninstall that plugin",
            )
        options = PluginOptions(name, name if backend.is_built_in else backend.cls.framework, author)
        files = chip_project(options, backend)
        about = {"framework": options.framework, "base": f"{backend.module}:{backend.name}"}
    target = (path or Path(f"anyaccel-{name.replace('_', '-')}")).absolute()
    write_project(target, files)
    _report(name, kind, target, files, about, as_json)


def _check_name(name: str, what: str) -> None:
    if not _NAME.fullmatch(name) or keyword.iskeyword(name) or len(name) > _MAX_LENGTH:
        raise ConfigError(
            f"{name!r} cannot be the name of a {what}",
            available=f"lower-case words such as 'chip' or 'my_chip', of at most {_MAX_LENGTH} characters, "
            "other than keywords of Python",
            hint="choose such a name",
        )
    reserved = {BUILT_IN, *built_in_backend().kinds, "any", *ALIASES}
    if name in reserved:
        raise ConfigError(
            f"the name {name!r} is reserved by core", hint=f"choose a name other than {', '.join(sorted(reserved))}"
        )
    owner = distribution_for(name)
    if owner:
        raise ConfigError(
            f"the name {name!r} is taken by {owner}",
            hint=f"choose another name; for a chip of {name}, run `anyaccel new-plugin NAME --framework {name}`",
        )


def write_project(target: Path, files: Mapping[str, str]) -> None:
    """Write all files or none: they are written to a temporary folder next to the target, which is then renamed.

    Args:
        target: Folder to create; it may exist if it is empty.
        files: Texts by path in the folder.

    Raises:
        ConfigError: the target is not an empty folder, or cannot be written.
    """
    if not target.parent.is_dir():
        raise ConfigError(f"the folder {target.parent} does not exist", hint="create it, or choose another with --path")
    if target.exists() and not target.is_dir():
        raise ConfigError(f"{target} exists and is not a folder", hint=_OTHER_PATH)
    if target.is_dir() and any(target.iterdir()):
        raise ConfigError(f"{target} exists and is not empty", hint=_OTHER_PATH)
    try:
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            project = temporary / target.name
            for name, text in files.items():
                file = project / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, "utf-8", newline="\n")
            if target.is_dir():
                target.rmdir()  # some systems do not replace an empty folder
            project.rename(target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise ConfigError(f"{target} cannot be written ({error})", hint=_OTHER_PATH) from error


def _report(
    name: str, kind: str, target: Path, files: Mapping[str, str], about: Mapping[str, str], as_json: bool
) -> None:
    if as_json:
        places = [{"file": file, "line": line, "text": text} for file, line, text in marked_places(files)]
        values: dict[str, Any] = {"plugin": name, "kind": kind, **about, "path": str(target), "files": list(files)}
        print_json({**values, "replace": places})
        return
    derived = f", derived from {about['base']}" if "base" in about else ""
    print_line(f"{target}: {len(files)} files of the {kind} {name}{derived}")
    for line in (
        f"cd {shlex.quote(str(target))}",
        "python -m pip install --editable . pytest hypothesis",
        "python -m pytest",
        f"anyaccel conform {name}",
    ):
        print_line(f"  {line}")
    print_line(f"What to replace; `grep -rn {MARKER} .` finds what is left:")
    for file, number, text in marked_places(files):
        print_line(f"  {file}:{number}  {text}")
    if kind == "chip" and find_spec(name) is not None:
        print_line(
            f"{name} is an installed package. If it is a framework, not a chip, delete this project and run "
            f"`anyaccel new-plugin {name} --kind framework`"
        )


def marked_places(files: Mapping[str, str]) -> list[tuple[str, int, str]]:
    """Return every place that the author of the plugin changes: file, line counted from 1, and what to write there."""
    return [
        (file, number, line.partition(f"{MARKER}:")[2].strip(" \"',"))
        for file, text in files.items()
        for number, line in enumerate(text.splitlines(), 1)
        if f"{MARKER}:" in line
    ]
