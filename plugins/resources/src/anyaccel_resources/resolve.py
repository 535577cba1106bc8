"""`anyaccel resolve`: which devices a request gets, and why not the others."""

from __future__ import annotations

import sys

import click

from anyaccel.cli.base_command import JSON, PlainCommand
from anyaccel.cli.console import print_json, print_line, print_table
from anyaccel.errors import ConfigError
from anyaccel_resources.device_request import DeviceRequest
from anyaccel_resources.exports import FORMATS
from anyaccel_resources.inventory import Inventory


@click.command(cls=PlainCommand, short_help="Show the devices that a request gets, and the reasons.")
@click.argument("request")
@click.option("--on", help="A machine in words, such as '8x H100-80GB mem=1TB', instead of this one.")
@click.option("--file", type=click.Path(), help="A machine in a JSON file, instead of this one.")
@click.option("--strict", is_flag=True, help="Only the first alternative.")
@click.option(
    "--export", type=click.Choice(list(FORMATS)), help="Print the request in the format of this scheduler, as JSON."
)
@JSON
def resolve(request: str, on: str | None, file: str | None, strict: bool, export: str | None, as_json: bool) -> None:
    """Show every candidate for a request, the chosen one, and why each other was not.

    Nothing is initialized, and no framework is imported. The exit status is 1 if the machine has nothing that fits.

    \b
    Examples:
      anyaccel resolve "H100:2, A100-80GB, any"
      anyaccel resolve "{L4, A10G}" --on "1x L4, 1x A10G"
      anyaccel resolve "40GB+:2 mem=64GB" --file node.json --json
      anyaccel resolve "H100:8, A100-80GB:8" --export modal
    """
    if on is not None and file is not None:
        raise ConfigError("both --on and --file describe a machine", hint="leave one out")
    parsed = DeviceRequest.parse(request)
    if export is not None:
        if on is not None or file is not None or strict:
            raise ConfigError("--export does not use a machine", hint="leave --on, --file and --strict out")
        print_json(parsed.export(export))
        return
    inventory = Inventory.from_file(file) if file is not None else on
    allocation = parsed.resolve(inventory, strict=strict)
    if as_json:
        print_json(allocation.to_dict())
    else:
        rows = [
            (
                "*" if candidate.chosen else "",
                candidate.wish,
                candidate.label,
                ", ".join(map(str, candidate.devices)),
                candidate.reason,
            )
            for candidate in allocation.candidates
        ]
        print_table(("", "wish", "on", "devices", "why"), rows)
        chosen = allocation.chosen
        if chosen is None:
            print_line(f"nothing fits {allocation.request!r}", style="red")
        else:
            print_line(f"{allocation.request!r} is {', '.join(map(str, chosen.devices))}")
    sys.exit(0 if allocation.chosen else 1)
