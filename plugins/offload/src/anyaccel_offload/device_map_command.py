"""The command `anyaccel device-map`."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from anyaccel.arguments import shown
from anyaccel.cli.base_command import JSON, Command
from anyaccel.cli.console import print_json, print_line, print_table
from anyaccel.cli.module_objects import load_object
from anyaccel.device import Device
from anyaccel.errors import AnyaccelError, CapabilityError, ConfigError, OutOfMemoryError
from anyaccel.registry import registry
from anyaccel.segment import TensorSpec
from anyaccel_offload.planner import OffloadModels, OffloadPlan, OffloadRequest

if TYPE_CHECKING:
    pass


@click.command("device-map", cls=Command, short_help="Plan a model that is larger than a device.")
@click.argument("reference", metavar="MODULE:FACTORY")
@click.option("--on", help="A machine in words, such as '8x H100-80GB mem=1TB', instead of this one.")
@click.option("--file", type=click.Path(), help="A machine in a JSON file, instead of this one.")
@click.option(
    "--offload",
    default="cpu",
    show_default=True,
    type=click.Choice(["no", "cpu", "disk"]),
    help="Where to store weights that do not fit.",
)
@click.option("--training", is_flag=True, help="Include gradients and optimizer state.")
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
    """Show the device of each block of a model, the place of its weights, and the cost of a step.

    FACTORY is a function without arguments that returns the model. The command runs its module and reports it; the
    model is built without memory for its weights, and nothing is placed. The exit status is 0 if it fits, and 1 if not.

    \b
    Examples:
      anyaccel device-map model.py:build --on "2x 24GB, cpu 64GB"
      anyaccel device-map project.model:build --on "4x A100-80GB" --offload no --input "int64[1,128]"
    """
    from anyaccel import Inventory
    from anyaccel.errors import ConfigError

    if on is not None and file is not None:
        raise ConfigError("--on and --file both give a machine", hint="leave one out")
    machine = (
        Inventory.from_file(file) if file is not None else Inventory.detect() if on is None else Inventory.parse(on)
    )
    sys.exit(run_device_map(reference, machine, offload=offload, training=training, inputs=inputs, as_json=as_json))


# -- The output of `anyaccel device-map`: the places of the blocks of a model that is larger than a device -------------


FITS, DOES_NOT_FIT = 0, 1
"""Exit statuses; 2 means another error."""
_SPEC = re.compile(r"([a-z]+[0-9]*)\[([0-9]+(?:,[0-9]+)*)\]")


def run_device_map(
    reference: str, inventory: Any, *, offload: str, training: bool, inputs: Sequence[str], as_json: bool
) -> int:
    """Print the places of a model's blocks, and return the exit status.

    Args:
        reference: `module:object`: a model, or a function without arguments that returns one.
        inventory: Machine to plan for.
        offload: Where weights that do not fit may be offloaded: `"no"`, `"cpu"` or `"disk"`.
        training: Whether gradients, optimizer state and activations are included.
        inputs: Inputs of a call, such as `"int64[1,128]"`.
        as_json: Whether to print JSON.

    Raises:
        AnyaccelError: No model is found, or its framework cannot split it.
    """
    specs = tuple(map(_spec, inputs))
    model = _model(reference)
    framework = registry().owners(model)[0]
    kinds = [listed.device.kind for listed in inventory.devices]
    serving = [
        backend for backend in registry().backends if backend.framework == framework and set(backend.kinds) & set(kinds)
    ]
    serving.sort(key=lambda backend: min(kinds.index(kind) for kind in backend.kinds if kind in kinds))
    if not serving or serving[0].capability(OffloadModels) is None:
        raise CapabilityError(
            f"{framework} cannot split models on {inventory}",
            cause="its plugin lacks the capability 'offload'",
            hint="use a framework with it, or make the blocks nodes of a graph",
        )
    backend = serving[0]
    # Bytes of each device that computes; those of the host if the CPU computes.
    results = {
        str(e.device): e.nbytes for e in inventory.devices if e.device.kind in backend.kinds and e.device.kind != "cpu"
    }
    if not results:
        results = {"cpu": inventory.host_nbytes}
    unknown = [name for name, nbytes in results.items() if not nbytes]
    if unknown:
        raise ConfigError(
            f"the memory of {unknown[0]} is unknown", hint="specify it: --on '2x 24GB, cpu 64GB', or --on 'cpu 64GB'"
        )
    memory = results
    device = Device.parse(next(iter(memory)))
    host = {"cpu": inventory.host_nbytes} if inventory.host_nbytes else {}
    free: dict[str, int | None] = {"cpu": None, "disk": None}
    request = OffloadRequest(offload=offload, training=training, max_memory=host | memory, free=free, inputs=specs)
    try:
        plan = backend.required(OffloadModels).plan_offload(model, device, request)
    except OutOfMemoryError as error:
        if as_json:
            print_json({"fits": False, "machine": str(inventory), "problem": str(error)})
        else:
            print_line(f"for {inventory}: {error}", style="red")
        return DOES_NOT_FIT
    if not specs:
        note = "blocks are in registration order; use --input for the order of their computation"
        plan = replace(plan, notes=(*plan.notes, note))
    _print(plan, inventory, as_json)
    return FITS


def _spec(text: str) -> TensorSpec:
    match = _SPEC.fullmatch(text.replace(" ", ""))
    if match is None:
        raise ConfigError(f"--input {shown(text)} is not a tensor", hint="write its dtype and shape: 'int64[1,128]'")
    return TensorSpec(tuple(map(int, match.group(2).split(","))), match.group(1))


def _model(reference: str) -> Any:
    """Return a model of a module, without memory for its weights if it is built here."""
    _, found = load_object(reference)
    if not isinstance(found, type) and registry().owners(found):
        return found
    if not callable(found):
        problem = f"{reference} is a {type(found).__name__}, not a model or a function that returns one"
        raise ConfigError(problem, hint="name a function without arguments that returns the model")
    offloads = {backend.framework: backend.capability(OffloadModels) for backend in registry().backends}
    try:
        with ExitStack() as stack, redirect_stdout(sys.stderr):
            for offload in filter(None, offloads.values()):
                stack.enter_context(offload.empty_weights())
            model = found()
    except AnyaccelError:
        raise
    except Exception as error:
        problem = f"{reference}() fails: {type(error).__name__}: {error}"
        raise ConfigError(problem, hint="name a function without arguments that returns the model") from error
    if isinstance(model, type) or not registry().owners(model):
        problem = f"{reference}() returns a {type(model).__name__}, which no installed plugin supports as a model"
        raise ConfigError(problem, hint="return the model, or install the plugin of its framework")
    return model


def _print(plan: OffloadPlan, inventory: Any, as_json: bool) -> None:
    if as_json:
        entries = {block.name: block.tier or str(block.device) for block in plan.blocks}
        print_json({"fits": True, "machine": str(inventory), "device_map": entries, "plan": plan.to_dict()})
        return
    section = plan.section("the model")
    print_line(f"for {inventory}: {section.summary}")
    print_table(section.head, section.rows)
    for note in section.notes:
        print_line(f"note: {note}")
