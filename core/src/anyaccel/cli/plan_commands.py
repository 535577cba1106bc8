"""Declares `anyaccel plan`, `explain` and `estimate`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

from anyaccel.cli.base_command import JSON, Command

_GRAPH = click.option("--graph", help="Name of the graph or experiment, if the module has several.")
_ON = click.option("--on", help="A machine in words, such as '8x H100-80GB mem=1TB', instead of this one.")
_FILE = click.option("--file", type=click.Path(), help="A machine in a JSON file, instead of this one.")


def _about_a_phase(command: Callable[..., None]) -> Callable[..., Any]:
    for option in (_FILE, _ON, _GRAPH):
        command = option(command)
    return command


@click.command(cls=Command, short_help="Plan a phase of a module, for this machine or another.")
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
    from anyaccel.cli.plan import Output, PlanTarget, run_plan

    target = PlanTarget(reference=reference, graph=graph, on=on, file=file)
    sys.exit(run_plan(target, Output(advise=advise, save=save, compare=compare, html=html, as_json=as_json)))


@click.command(cls=Command, short_help="Explain the placement of a node.")
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
    from anyaccel.cli.plan import PlanTarget, run_explain

    sys.exit(run_explain(PlanTarget(reference=reference, graph=graph, on=on, file=file), node, as_json))


@click.command(cls=Command, short_help="Estimate the memory of a phase.")
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
    from anyaccel.cli.plan import PlanTarget, run_estimate

    sys.exit(run_estimate(PlanTarget(reference=reference, graph=graph, on=on, file=file), as_json))
