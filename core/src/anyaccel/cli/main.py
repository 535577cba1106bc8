"""The commands and their options; what they do stands in the modules they call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click

from anyaccel.cli import completion as completing
from anyaccel.errors import AnyaccelError

_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else, on standard output.")


class _Command(click.Command):
    """A command whose errors are told in one paragraph, or as JSON where that is asked for, with exit status 2."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, list(args))
        except click.UsageError as error:
            if "--json" not in args:
                raise
            from anyaccel.cli.console import print_json

            print_json({"error": {"type": type(error).__name__, "message": error.format_message()}})
            sys.exit(2)

    def invoke(self, ctx: click.Context) -> Any:
        if ctx.params.get("as_json"):
            _load_plugins()
        try:
            return super().invoke(ctx)
        except AnyaccelError as error:
            from anyaccel.cli.console import print_error

            print_error(error, as_json=bool(ctx.params.get("as_json")))
            sys.exit(2)


def _load_plugins() -> None:
    """What plugins print while they are imported is no part of the JSON on standard output."""
    from anyaccel.registry import registry

    with redirect_stdout(sys.stderr):
        registry().load()


def _command(**attributes: Any) -> Callable[[Callable[..., Any]], click.Command]:
    return group.command(cls=_Command, **attributes)


def _version() -> str:
    try:
        return version("anyaccel")
    except PackageNotFoundError:  # run from its sources
        return "not installed"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(_version(), prog_name="anyaccel")
def group() -> None:
    """Say where once, wire models of any framework into a graph, run phases.

    \b
    Examples:
      anyaccel devices          what is on this machine
      anyaccel demo             train and test a small graph on the best of it
      anyaccel plugins --json   what is installed, for a script
      anyaccel conform numpy    whether a plugin keeps its promises
      anyaccel new-plugin chip  a plugin of your own, to begin with
      anyaccel env              what to paste into a bug report
    """


@_command(short_help="Train and test a small graph.")
@click.option(
    "--framework",
    shell_complete=completing.frameworks,
    help="Who computes; by default an installed framework, else the embedded numpy.",
)
@click.option(
    "--device",
    shell_complete=completing.kinds,
    help="Where, such as cpu, gpu:0 or mps; by default the best that the framework has.",
)
@click.option("--epochs", type=click.IntRange(min=1), default=20, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@_JSON
def demo(framework: str | None, device: str | None, epochs: int, seed: int, as_json: bool) -> None:
    """Train a two-node graph on 1,797 images of handwritten digits, and test it.

    Shows the plan, the progress, the test accuracy and the steps per second.

    \b
    Examples:
      anyaccel demo
      anyaccel demo --device cpu --epochs 5
      anyaccel demo --framework numpy --json
    """
    from anyaccel.cli.demo import run

    run(framework, device, epochs, seed, as_json)


@_command(short_help="List the devices of this machine.")
@click.option("--framework", shell_complete=completing.frameworks, help="Only this one.")
@_JSON
def devices(framework: str | None, as_json: bool) -> None:
    """List the devices of this machine, for every framework that is served.

    Each framework is asked in a process of its own, so that nothing is initialised here and none can stop the others.

    \b
    Examples:
      anyaccel devices
      anyaccel devices --framework numpy --json
    """
    from anyaccel.cli.devices import run

    run(framework, as_json)


@_command(short_help="List the plugins, and what is wrong with one.")
@_JSON
def plugins(as_json: bool) -> None:
    """List the plugins: what each serves, and for a broken one the cause and the remedy.

    Exit status is 1 if one is broken.

    \b
    Examples:
      anyaccel plugins
      anyaccel plugins --json
    """
    from anyaccel.cli.plugins import run

    sys.exit(run(as_json))


@_command(short_help="Test a plugin by the conformance kit.")
@click.argument("name", shell_complete=completing.plugins)
@click.option(
    "--device",
    shell_complete=completing.kinds,
    help="Where, such as cpu or gpu:0; by default the best that the plugin has.",
)
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), default=1800, show_default=True, help="Seconds."
)
@_JSON
def conform(name: str, device: str | None, timeout: float, as_json: bool) -> None:
    """Run the conformance kit on an installed plugin, and print a score card of each of its backends.

    NAME is that of a plugin, as `anyaccel plugins` lists it, or of its distribution. It runs in a process of its own.
    Exit status is 1 if a test failed. The kit needs pytest and hypothesis.

    \b
    Examples:
      anyaccel conform numpy
      anyaccel conform numpy --device cpu --json
    """
    from anyaccel.cli.conform import run

    sys.exit(run(name, device, timeout, as_json))


@_command(name="new-plugin", short_help="Write a plugin project to begin with.")
@click.argument("name")
@click.option("--kind", type=click.Choice(["chip", "framework"]), default="chip", show_default=True)
@click.option("--path", type=click.Path(path_type=Path), help="Where to; by default ./anyaccel-NAME.")
@click.option(
    "--framework",
    shell_complete=completing.frameworks,
    help="Who computes: for a chip an installed one, for a new framework its name.",
)
@click.option("--base", help="What a chip derives from, as MODULE:CLASS; the module is imported, and so run.")
@click.option("--author", default="", help="Who holds the copyright; by default the authors of the project.")
@_JSON
def new_plugin(
    name: str, kind: str, path: Path | None, framework: str | None, base: str | None, author: str, as_json: bool
) -> None:
    """Write a plugin project that installs, passes the conformance kit and trains as it is.

    A chip is a new kind of device, NAME, for a framework that a plugin serves already: its backend is derived from. A
    new framework computes through the adapter. In both, a stand-in works until yours takes its place, and what is yours
    to do is marked.

    \b
    Examples:
      anyaccel new-plugin my_chip
      anyaccel new-plugin my_chip --base anyaccel.numpy_backend:NumpyBackend --author "A. Maker"
      anyaccel new-plugin my_framework --kind framework --path ../my-plugin
    """
    from anyaccel.cli.new_plugin import run

    run(name, kind, path, framework, base, author, as_json)


@_command(short_help="LogEvent what a bug report should say.")
@_JSON
def env(as_json: bool) -> None:
    """Print versions, drivers, visible devices, environment variables that matter, and plugins, as Markdown.

    Made to be pasted into an issue: no names of hosts and users, of paths the last part or what is below the home
    folder, no serial numbers, and of the environment only variables that frameworks and drivers are known to read.

    \b
    Examples:
      anyaccel env
      anyaccel env --json
    """
    from anyaccel.cli.env import run

    run(as_json)


@_command(short_help="Print the script that completes commands in a shell.")
@click.argument("shell", type=click.Choice(completing.SHELLS))
def completion(shell: str) -> None:
    """Print the script that completes commands, options and names in a shell.

    Put its line into the start-up file of the shell: ~/.bashrc, ~/.zshrc or ~/.config/fish/config.fish.

    \b
    Examples:
      anyaccel completion bash
      anyaccel completion fish

    \b
    The lines:
      eval "$(anyaccel completion bash)"
      eval "$(anyaccel completion zsh)"
      anyaccel completion fish | source
    """
    completing.run(shell, group)


def main() -> None:
    """Run the command line."""
    group(prog_name="anyaccel")
