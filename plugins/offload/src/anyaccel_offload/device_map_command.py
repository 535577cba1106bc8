"""Declares `anyaccel device-map`."""

from __future__ import annotations

import sys

import click

from anyaccel.cli.base_command import JSON, Command


@click.command("device-map", cls=Command, short_help="Plan a model that is larger than a device.")
@click.argument("reference", metavar="MODULE:FACTORY")
@click.option("--on", help="A machine in words, such as '8x H100-80GB mem=1TB', instead of this one.")
@click.option("--file", type=click.Path(), help="A machine in a JSON file, instead of this one.")
@click.option(
    "--offload",
    default="cpu",
    show_default=True,
    type=click.Choice(["no", "cpu", "disk"]),
    help="Where weights may rest that do not fit.",
)
@click.option("--training", is_flag=True, help="Count gradients and optimizer state as well.")
@click.option(
    "--input", "inputs", multiple=True, help="An input of a call, such as 'int64[1,128]', one for each argument."
)
@JSON
def device_map(
    reference: str,
    on: str | None,
    file: str | None,
    offload: str,
    training: bool,
    inputs: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show which device computes each block of a model, where its weights rest, and what a step costs.

    FACTORY is a function without arguments that makes the model. The module is run, which the command says; the model
    is built without memory for its weights, and nothing is placed. The exit status is 0 if it fits, and 1 if not.

    \b
    Examples:
      anyaccel device-map model.py:build --on "2x 24GB, cpu 64GB"
      anyaccel device-map project.model:build --on "4x A100-80GB" --offload no --input "int64[1,128]"
    """
    from anyaccel import Inventory
    from anyaccel.errors import ConfigError
    from anyaccel_offload.device_map_report import run_device_map

    if on is not None and file is not None:
        raise ConfigError("--on and --file both give a machine", hint="leave one out")
    machine = (
        Inventory.from_file(file) if file is not None else Inventory.detect() if on is None else Inventory.parse(on)
    )
    sys.exit(run_device_map(reference, machine, offload=offload, training=training, inputs=inputs, as_json=as_json))
