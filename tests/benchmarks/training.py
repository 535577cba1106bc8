"""What a training step costs: by hand, in other libraries, and here; on several networks, all in one run.

Run it with `nox -s bench`, or `python tests/benchmarks/training.py [--quick] [--blocks N] [--only WORD ...]
[--workloads NAME ...] [--threads N] [--json FILE]` where anyaccel's plugins are installed. Loops of one framework share
a process, others have processes of their own; all take turns, in another order every round. A turn is two epochs, of
which the second counts. What is not installed is left out, and listed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness import Contestant, Table, contest, options, report
from harness.options import Options
from loops.workloads import TITLES, WORKLOADS

BASE = "by hand, torch"
MODES = ("off", "steps", "auto")


def peers(name: str) -> Iterator[Contestant]:
    """Other libraries, and loops by hand."""
    yield Contestant(BASE, "torch", "loops.in_torch:by_hand", {"name": name})
    yield Contestant("by hand again", "torch", "loops.in_torch:by_hand", {"name": name})
    for shown, function in (("DataLoader", "dataloader"), ("Accelerate", "accelerate"), ("Fabric", "fabric")):
        make = f"loops.in_torch:with_{function}"
        process = "torch" if function == "dataloader" else function
        yield Contestant(shown, process, make, {"name": name})
        yield Contestant(f"{shown}, batches gathered", process, make, {"name": name, "gathered": True})
    yield Contestant("Keras fit", "keras", "loops.in_keras:fit", {"name": name})
    yield Contestant("Keras fit, 200 steps a call", "keras", "loops.in_keras:fit", {"name": name, "together": 200})
    if name == "tiny":
        make = "loops.in_modularml:train_phase"
        yield Contestant("ModularML, no bars, no records", "lean", make, {"name": name})
        yield Contestant("ModularML, as it comes", "as it comes", make, {"name": name, "lean": False})
    if name != "cnn":
        yield Contestant("by hand, JAX, jitted steps", "jax by hand", "loops.in_jax:by_step", {"name": name})
        yield Contestant("by hand, JAX, a scan", "jax by hand", "loops.in_jax:by_scan", {"name": name})


def ours(name: str) -> Iterator[Contestant]:
    """The modes of anyaccel, on each framework."""
    yield here(name, "torch", "off")
    if name == "tiny":
        yield here(name, "torch", "off", ", rows in order", shuffle=False)
        yield here(name, "torch", "off", ", a listener to every step", listen=1)
        yield here(name, "torch", "off", ", a listener to every 50th step", listen=50)
        yield here(name, "torch", "off", ", a listener to steps in batches", listen=None)
    for framework in ("torch", "jax", "tensorflow"):
        for mode in MODES:
            if (framework, mode) != ("torch", "off"):
                yield here(name, framework, mode)
    if name != "medium":
        yield here(name, "numpy", "off")


def here(name: str, framework: str, mode: str, more: str = "", **settings: Any) -> Contestant:
    """A mode of anyaccel. What is not compiled is near 1, and so shares the process of the loop by hand."""
    make = "loops.ours:phase_by_turn" if mode == "off" else "loops.ours:standing_phase"
    process = framework if mode == "off" else f"{framework} {mode}"
    settings = {"name": name, "frameworks": [framework], "compile": mode, **settings}
    return Contestant(f"anyaccel, {framework}, {mode}{more}", process, make, settings)


def tables(given: Options) -> Iterator[Table]:
    """One for each network."""
    for name in ("tiny", "medium", "cnn"):
        if given.wants(name):
            taking_part = given.chosen([*peers(name), *ours(name)])
            figures = contest(taking_part, given.rounds(24), given.threads)
            yield Table(TITLES[name], figures, "us a step", 1e6 / WORKLOADS[name].steps, BASE)


if __name__ == "__main__":
    given = options(__doc__)
    report("training", tables(given), given)
