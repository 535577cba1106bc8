"""The commands that this distribution adds to `anyaccel`; each imports its implementation when it runs."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from anyaccel.cli import completion as shell_completion
from anyaccel.cli.base_command import JSON, PLUGIN_TIMEOUT, Command, PlainCommand, check_folder


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


_FOLDER = click.argument("folder")


@click.group("checkpoint", short_help="Inspect saved graphs and checkpoints.")
def checkpoint() -> None:
    """List, show, compare, verify and convert what `graph.save` and `TrainPhase(checkpoint=...)` wrote.

    FOLDER is the folder of a Checkpoint, one checkpoint in it, or a saved graph; also a URL, if fsspec is installed.
    Only `convert` to a framework's own file needs a framework.

    \b
    Examples:
      anyaccel checkpoint list runs/a
      anyaccel checkpoint verify runs/a
    """


@checkpoint.command(cls=PlainCommand, name="list", short_help="List the checkpoints of a run.")
@_FOLDER
@JSON
def list_command(folder: str, as_json: bool) -> None:
    """List the checkpoints in FOLDER, oldest first: how far each is, its score, size and time.

    The score is the value of `keep_best`, where lower is better; without `keep_best` no score is shown.

    \b
    Examples:
      anyaccel checkpoint list runs/a
      anyaccel checkpoint list runs/a --json
    """
    from anyaccel_devtools.commands import checkpoint as commands

    commands.list_checkpoints(folder, as_json)


@checkpoint.command(cls=PlainCommand, short_help="Show the content of a checkpoint or saved graph.")
@_FOLDER
@JSON
def show(folder: str, as_json: bool) -> None:
    """Show the content of FOLDER: position, nodes, versions, and all arrays; for a run, its newest checkpoint.

    With --json, the whole configuration, too. The arrays themselves are not read.

    \b
    Examples:
      anyaccel checkpoint show runs/a
      anyaccel checkpoint show runs/a/epoch-000004-step-000000000 --json
    """
    from anyaccel_devtools.commands import checkpoint as commands

    commands.show(folder, as_json)


@checkpoint.command(cls=PlainCommand, short_help="Compare two checkpoints or saved graphs.")
@click.argument("first")
@click.argument("second")
@JSON
def diff(first: str, second: str, as_json: bool) -> None:
    """Show in what FIRST and SECOND differ: configuration, position, and arrays by their largest absolute difference.

    The exit status is 0 if they are the same, and 1 if they differ.

    \b
    Examples:
      anyaccel checkpoint diff runs/a runs/b
      anyaccel checkpoint diff saved runs/a --json
    """
    from anyaccel_devtools.commands import checkpoint as commands

    sys.exit(commands.diff(first, second, as_json))


@checkpoint.command(cls=PlainCommand, short_help="Check every byte of a run's checkpoints or of a saved graph.")
@_FOLDER
@JSON
def verify(folder: str, as_json: bool) -> None:
    """Read all files in FOLDER and compare them with their hashes.

    The exit status is 1 if something is damaged; the file, and the tensor in it, are named.

    \b
    Examples:
      anyaccel checkpoint verify runs/a
      anyaccel checkpoint verify runs/a --json
    """
    from anyaccel_devtools.commands import checkpoint as commands

    sys.exit(commands.verify(folder, as_json))


@checkpoint.command(cls=Command, short_help="Export the weights to one file for other tools.")
@_FOLDER
@click.argument("file")
@click.option("--node", help="Only this node. By default all nodes, with the prefix NODE. if there are several.")
@JSON
def convert(folder: str, file: str, node: str | None, as_json: bool) -> None:
    """Write the parameters and buffers in FOLDER into FILE: .safetensors, or .pt with the plugin for torch; or a URL.

    The names come from the model. A parameter that a model has under several names is written under the first.

    \b
    Examples:
      anyaccel checkpoint convert runs/a net.safetensors
      anyaccel checkpoint convert saved head.pt --node head
    """
    from anyaccel_devtools.commands import checkpoint as commands

    commands.convert(folder, file, node, as_json)


_GRAPH = click.option("--graph", help="Name of the graph or experiment, if the module has several.")
_ON = click.option("--on", help="A machine in words, such as '8x H100-80GB mem=1TB', instead of this one.")
_FILE = click.option("--file", type=click.Path(), help="A machine in a JSON file, instead of this one.")


def _about_a_phase(command: Callable[..., None]) -> Callable[..., Any]:
    for option in (_FILE, _ON, _GRAPH):
        command = option(command)
    return command


@click.command("plan", cls=Command, short_help="Plan a phase of a module, for this machine or another.")
@click.argument("reference", metavar="MODULE:PHASE")
@_about_a_phase
@click.option("--advise", is_flag=True, help="Check the phase against common practice, with figures.")
@click.option("--save", type=click.Path(), help="Write the plan to a file, as JSON.")
@click.option("--compare", type=click.Path(), help="Show the differences from a saved plan.")
@click.option("--html", type=click.Path(), help="Write a report to a file: memory, graph and edges.")
@JSON
def plan(
    reference: str,
    graph: str | None,
    on: str | None,
    file: str | None,
    advise: bool,
    save: str | None,
    compare: str | None,
    html: str | None,
    as_json: bool,
) -> None:
    """Show where each node of a phase goes and why, what crosses in each step, and the memory of each device.

    The module is run, which the command says; nothing is placed. The exit status is 0 if everything fits, 1 if
    something does not, and 3 if something is not covered.

    \b
    Examples:
      anyaccel plan train.py:train
      anyaccel plan project.train:train --on "2x A100-80GB mem=256GB" --advise
      anyaccel plan train.py:train --save plan.json
      anyaccel plan train.py:train --compare plan.json --html plan.html
    """
    from anyaccel_devtools.commands.plan import Output, PlanTarget, run_plan

    target = PlanTarget(reference=reference, graph=graph, on=on, file=file)
    sys.exit(run_plan(target, Output(advise=advise, save=save, compare=compare, html=html, as_json=as_json)))


@click.command("explain", cls=Command, short_help="Explain the placement of a node.")
@click.argument("reference", metavar="MODULE:PHASE")
@click.argument("node")
@_about_a_phase
@JSON
def explain(reference: str, node: str, graph: str | None, on: str | None, file: str | None, as_json: bool) -> None:
    """Explain the device of a node, and why other devices were not chosen.

    \b
    Examples:
      anyaccel explain train.py:train head
      anyaccel explain train.py:train head --on "8x H100-80GB"
    """
    from anyaccel_devtools.commands.plan import PlanTarget, run_explain

    sys.exit(run_explain(PlanTarget(reference=reference, graph=graph, on=on, file=file), node, as_json))


@click.command("estimate", cls=Command, short_help="Estimate the memory of a phase.")
@click.argument("reference", metavar="MODULE:PHASE")
@_about_a_phase
@JSON
def estimate(reference: str, graph: str | None, on: str | None, file: str | None, as_json: bool) -> None:
    """Show the memory that a phase takes on each device, by category. The exit status is the same as for `anyaccel
    plan`.

    \b
    Examples:
      anyaccel estimate train.py:train
      anyaccel estimate train.py:train --on "1x T4" --json
    """
    from anyaccel_devtools.commands.plan import PlanTarget, run_estimate

    sys.exit(run_estimate(PlanTarget(reference=reference, graph=graph, on=on, file=file), as_json))
