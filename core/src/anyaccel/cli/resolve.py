"""`anyaccel resolve`: which devices a request gets, and why not the others."""

from __future__ import annotations

from anyaccel.cli.console import print_json, print_line, print_table
from anyaccel.errors import ConfigError
from anyaccel.requests import DeviceRequest, Inventory


def run(request: str, on: str | None, file: str | None, strict: bool, export: str | None, as_json: bool) -> int:
    """Print the candidates for a request; returns the exit status, 1 if none is chosen.

    Args:
        request: as the user wrote it.
        on: an inventory in words; None for this machine.
        file: an inventory in a file.
        strict: the first wish or nothing.
        export: print the request as this scheduler writes it, and look at no machine.
        as_json: print JSON instead of a table.
    """
    if on is not None and file is not None:
        raise ConfigError("--on and --file both give a machine", hint="leave one out")
    parsed = DeviceRequest.parse(request)
    if export is not None:
        if on is not None or file is not None or strict:
            raise ConfigError("--export looks at no machine", hint="leave --on, --file and --strict out")
        print_json(parsed.export(export))
        return 0
    inventory = Inventory.from_file(file) if file is not None else on
    allocation = parsed.resolve(inventory, strict=strict)
    if as_json:
        print_json(allocation.to_dict())
    else:
        rows = [
            ("*" if each.chosen else "", each.wish, each.label, ", ".join(map(str, each.devices)), each.reason)
            for each in allocation.candidates
        ]
        print_table(("", "wish", "on", "devices", "why"), rows)
        chosen = allocation.chosen
        if chosen is None:
            print_line(f"nothing fits {allocation.request!r}", style="red")
        else:
            print_line(f"{allocation.request!r} is {', '.join(map(str, chosen.devices))}")
    return 0 if allocation.chosen else 1
