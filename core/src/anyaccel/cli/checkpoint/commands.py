"""Declares `anyaccel checkpoint` and its commands; each imports its implementation when it runs."""

from __future__ import annotations

import sys

import click

from anyaccel.cli.base_command import JSON, Command, PlainCommand

_FOLDER = click.argument("folder")


@click.group(short_help="Inspect saved graphs and checkpoints.")
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
    from anyaccel.cli.checkpoint.listing import run

    run(folder, as_json)


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
    from anyaccel.cli.checkpoint.contents import run

    run(folder, as_json)


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
    from anyaccel.cli.checkpoint.differences import run

    sys.exit(run(first, second, as_json))


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
    from anyaccel.cli.checkpoint.verification import run

    sys.exit(run(folder, as_json))


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
    from anyaccel.cli.checkpoint.conversion import run

    run(folder, file, node, as_json)
