"""What it costs that an encoder is of torch and its head of JAX, beside the same graph in one framework.

Run it as `training.py`. Both nodes are nodes in every case: in one framework they are one segment, and many steps may
be one call; over two, every step goes there and back.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness import Contestant, Table, contest, options, report
from harness.options import Options
from loops.workloads import TITLES, WORKLOADS

BASE = "torch, torch"
PAIRS = (("torch", "torch"), ("jax", "jax"), ("torch", "jax"), ("jax", "torch"))


def graphs(name: str) -> Iterator[Contestant]:
    """The graph over every pair, uncompiled, all in one process."""
    for pair in PAIRS:
        settings = {"name": name, "frameworks": pair, "compile": "off"}
        yield Contestant(", ".join(pair), "both", "loops.ours:phase_by_turn", settings)


def tables(given: Options) -> Iterator[Table]:
    """One for each network."""
    for name in ("tiny", "medium"):
        if given.wants(name):
            figures = contest(given.chosen(graphs(name)), given.rounds(12), given.threads)
            title = f"{TITLES[name]}, hidden layers and head"
            yield Table(title, figures, "us a step", 1e6 / WORKLOADS[name].steps, BASE)


if __name__ == "__main__":
    given = options(__doc__)
    report("two_frameworks", tables(given), given)
