"""The commands that this distribution adds to `anyaccel`; each imports its implementation when it runs."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from anyaccel.cli import completion as shell_completion
from anyaccel.cli.base_command import JSON, PLUGIN_TIMEOUT, Command, check_folder


def _finite(ctx: click.Context, parameter: click.Parameter, value: float) -> float:
    if not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a number of seconds.")
    return value


@click.command("doctor", cls=Command, short_help="Check the machine and what is installed.")
@click.option("--probe", is_flag=True, help="Also compute on every device, which initializes it.")
@PLUGIN_TIMEOUT
@JSON
@click.pass_obj
def doctor(left_out: Sequence[Any], probe: bool, timeout: float, as_json: bool) -> None:
    """Diagnose why frameworks cannot use this machine, and show the commands that fix it.

    Imports no framework and initializes no device, unless --probe computes on them. The exit status is 1 if there are
    warnings, and 2 if something does not work.

    \b
    Examples:
      anyaccel doctor
      anyaccel doctor --probe --json
    """
    from anyaccel_devtools.commands.doctor import run

    sys.exit(run(probe, timeout, as_json, left_out))


@click.command("conform", cls=Command, short_help="Test a plugin with the conformance kit.")
@click.argument("name", shell_complete=shell_completion.plugins)
@click.option(
    "--device",
    shell_complete=shell_completion.kinds,
    help="Device, such as cpu or gpu:0; by default the best of the plugin.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=1800,
    show_default=True,
    callback=_finite,
    help="Seconds for each backend.",
)
@click.option(
    "--capability",
    type=click.Choice(["backend", "exchange", "compute", "multi_step", "memory"]),
    multiple=True,
    help="Test only this capability; can be repeated.",
)
@JSON
@click.pass_obj
def conform(
    left_out: Sequence[Any],
    name: str,
    device: str | None,
    timeout: float,
    capability: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run the conformance kit on an installed plugin, and print the results for each of its backends.

    NAME is the name of a plugin, as `anyaccel plugins` lists it, or of its distribution. The kit runs in a separate
    process and needs pytest and hypothesis. The exit status is 1 if a test failed.

    \b
    Examples:
      anyaccel conform numpy
      anyaccel conform numpy --device cpu --json
      anyaccel conform numpy --capability exchange
    """
    from anyaccel_devtools.commands.conform import run

    check_folder()
    sys.exit(run(name, device, timeout, as_json, left_out, capability))


@click.command("new-plugin", cls=Command, short_help="Generate a plugin project.")
@click.argument("name")
@click.option("--kind", type=click.Choice(["chip", "framework"]), default="chip", show_default=True)
@click.option("--path", type=click.Path(path_type=Path), help="Folder to create; by default ./anyaccel-NAME.")
@click.option(
    "--framework",
    shell_complete=shell_completion.frameworks,
    help="For a chip, an installed framework; for a new framework, its name.",
)
@click.option("--base", help="Backend class that a chip derives from, as MODULE:CLASS; the module is imported.")
@click.option("--author", default="", help="Copyright holder; by default the authors of the project.")
@JSON
def new_plugin(
    name: str, kind: str, path: Path | None, framework: str | None, base: str | None, author: str, as_json: bool
) -> None:
    """Generate a plugin project that installs, passes the conformance kit and trains without changes.

    A chip is a new kind of device, NAME, for a framework that has a plugin; its backend derives from that plugin's. A
    new framework computes through the adapter. Both contain a working stand-in to replace with your code; the parts to
    replace are marked.

    \b
    Examples:
      anyaccel new-plugin my_chip
      anyaccel new-plugin my_chip --base anyaccel.numpy_backend:NumpyBackend --author "A. Maker"
      anyaccel new-plugin my_framework --kind framework --path ../my-plugin
    """
    from anyaccel_devtools.commands.new_plugin import run

    check_folder()
    run(name, kind, path, framework, base, author, as_json)


@click.command("env", cls=Command, short_help="Print the information for a bug report.")
@PLUGIN_TIMEOUT
@JSON
@click.pass_obj
def env(left_out: Sequence[Any], timeout: float, as_json: bool) -> None:
    """Print versions, drivers, devices, relevant environment variables and plugins as Markdown, for an issue.

    The output has no host and user names, no folders outside the home folder, no serial numbers, and only those
    environment variables that frameworks and drivers are known to read.

    \b
    Examples:
      anyaccel env
      anyaccel env --json
    """
    from anyaccel_devtools.commands.env import run

    run(timeout, as_json, left_out)
