"""What a training step costs on a GPU: by hand, in other libraries, and here, resident and streamed, in bfloat16.

Run it as `training.py`, where torch has a GPU. JAX multiplies float32 in TF32 there by its own default, torch does not:
rows of the one are not to be compared with those of the other, but for "in TF32".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from harness import Contestant, Table, contest, options, report
from harness.options import Options
from loops.workloads import TITLES, WORKLOADS

BASE = "by hand, torch"
HERE: dict[str, Any] = {"device": "cuda"}


def peers(name: str) -> Iterator[Contestant]:
    """Other libraries, and loops by hand."""
    yield Contestant(BASE, "torch", "loops.in_torch:by_hand", {"name": name, **HERE})
    yield Contestant("by hand again", "torch", "loops.in_torch:by_hand", {"name": name, **HERE})
    yield Contestant("by hand, a CUDA graph", "graph", "loops.in_torch:by_graph", {"name": name})
    for shown, function in (("DataLoader, pinned", "dataloader"), ("Accelerate, pinned", "accelerate")):
        settings = {"name": name, "gathered": True, **HERE}
        yield Contestant(f"{shown}, batches gathered", function, f"loops.in_torch:with_{function}", settings)
    if name == "large":
        yield Contestant(
            "by hand, bfloat16", "torch", "loops.in_torch:by_hand", {"name": name, "autocast": True, **HERE}
        )
    if name != "cnn":
        yield Contestant("by hand, JAX, jitted steps", "jax by hand", "loops.in_jax:by_step", {"name": name})
        yield Contestant("by hand, JAX, a scan", "jax by hand", "loops.in_jax:by_scan", {"name": name})


def ours(name: str) -> Iterator[Contestant]:
    """The modes of anyaccel."""
    yield here(name, "torch", "off")
    yield here(name, "torch", "off", ", streamed", residency="streamed")
    yield here(name, "torch", "steps")
    yield here(name, "torch", "auto")
    yield here(name, "jax", "steps")
    yield here(name, "jax", "auto", ", streamed", residency="streamed")
    if name == "large":
        yield here(name, "torch", "off", ", bfloat16", precision="bf16-mixed")
        yield here(name, "torch", "off", ", in TF32", matmul_precision="high")
        yield here(name, "torch", "steps", ", bfloat16", precision="bf16-mixed")
        yield here(name, "jax", "steps", ", float32", matmul_precision="highest")
        yield here(name, "jax", "steps", ", bfloat16", precision="bf16-mixed")


def here(name: str, framework: str, mode: str, more: str = "", **settings: Any) -> Contestant:
    """A mode of anyaccel. What is not compiled is near 1, and so shares the process of the loop by hand."""
    make = "loops.ours:phase_by_turn" if mode == "off" else "loops.ours:standing_phase"
    process = framework if mode == "off" else f"{framework} {mode}{more}"
    settings = {"name": name, "frameworks": [framework], "compile": mode, "accelerator": "gpu", **settings}
    return Contestant(f"anyaccel, {framework}, {mode}{more}", process, make, settings)


def tables(given: Options) -> Iterator[Table]:
    """One for each network."""
    for name in ("tiny", "cnn", "large"):
        if given.wants(name):
            figures = contest(given.chosen([*peers(name), *ours(name)]), given.rounds(12), given.threads)
            title = f"{TITLES[name]}, {torch.cuda.get_device_name()}"
            yield Table(title, figures, "us a step", 1e6 / WORKLOADS[name].steps, BASE)


if __name__ == "__main__":
    given = options(__doc__)
    if torch.cuda.is_available():
        report("on_gpu", tables(given), given)
    else:
        print("torch has no GPU here: nothing is measured")
