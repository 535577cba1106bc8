"""Data of four times the device's capacity, streamed, beside the same data on a device that holds them.

Run it as `training.py`. Devices are simulated ones of torch: their memory is bounded and counted, their values are
computed by torch's own code for the CPU. On the CPU itself `residency=` alone makes the difference. A turn is two
epochs, of which the second counts; the losses of all epochs are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from harness import Contestant, Figures, Table, contest, options, report
from harness.options import Options
from loops.workloads import TITLES, WORKLOADS

MAKE = "loops.on_simulated:standing_phase"


def on_simulated(name: str) -> Iterator[Contestant]:
    """A device that holds a quarter of the data, and devices that hold all of them."""
    work = WORKLOADS[name]
    capacity = work.rows * (work.features[0] + 1)  # floats of 4 bytes, and a quarter of them
    common: dict[str, Any] = {"name": name, "frameworks": ["torch"], "compile": "off"}
    yield Contestant("resident", "roomy", MAKE, {**common, "residency": "resident"})
    yield Contestant("streamed, room for all", "roomy", MAKE, {**common, "residency": "streamed"})
    for residency in ("streamed", "auto"):
        shown = f"{residency}, room for a quarter"
        yield Contestant(shown, f"small {residency}", MAKE, {**common, "capacity": capacity, "residency": residency})


def on_cpu(name: str) -> Iterator[Contestant]:
    """The CPU, with each residency."""
    common: dict[str, Any] = {"name": name, "frameworks": ["torch"], "compile": "off"}
    for residency in ("resident", "streamed"):
        settings = {**common, "residency": residency}
        yield Contestant(residency, "cpu", "loops.ours:standing_phase", settings)


def tables(given: Options) -> Iterator[Table]:
    """The simulated device, then the CPU."""
    name = "tiny" if given.quick else "wide"
    for where, contestants in (("a simulated device", on_simulated(name)), ("the CPU", on_cpu(name))):
        figures = contest(given.chosen(contestants), given.rounds(8), given.threads)
        compare_losses(figures)
        yield Table(f"{TITLES[name]}, torch, {where}", figures, "ms a step", 1e3 / WORKLOADS[name].steps, "resident")


def compare_losses(figures: Mapping[str, Figures]) -> None:
    """Say of each whether its losses are those of the first, in place of the losses themselves."""
    there = [one.told for one in figures.values() if one.told]
    for told in reversed(there):  # the first last, with which the others are compared
        told["losses_equal"] = told["losses"] == there[0]["losses"]
    for told in there:
        print(f"losses equal: {told['losses_equal']} ({len(told.pop('losses'))} epochs); {told['events']}")


if __name__ == "__main__":
    given = options(__doc__)
    report("streaming", tables(given), given)
