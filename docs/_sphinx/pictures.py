"""Makes the pictures of the pages: `python docs/_sphinx/pictures.py`, where all three frameworks are installed.

In `docs/_static`, `terminal.svg` is a terminal with the demo and a plan, `three-frameworks.svg` the graph of that plan,
`floors.svg` the floors of core, and the other drawings explain the loop, the lifecycle of a phase, placement, streams
and replicas. They are 400 wide, so that a phone shows them at full size. All are committed, so that pages show them
where the repository is read.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

STATIC = Path(__file__).parents[1] / "_static"
ENVIRONMENT = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "NO_COLOR": "1"}
DEMO = "anyaccel demo --framework torch"
PLAN = "print(experiment.plan(train))  # torch encoder, JAX body, TensorFlow head"


def run_demo() -> str:
    """What the demo prints, without its progress."""
    command = [sys.executable, "-m", *DEMO.split()]
    answer = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=300, check=True)
    return answer.stdout.strip()


def plan_of_three_frameworks() -> tuple[Any, Any]:
    """A graph of torch, JAX and TensorFlow, and the plan to train it."""
    import numpy as np

    import anyaccel as aa
    import anyaccel_jax
    import anyaccel_tensorflow
    import anyaccel_torch

    arrays = {"signal": np.ones((40, 50), "float32"), "y": np.ones(40, "float32")}
    data = aa.FeatureSet.from_dict("signals", arrays, ["signal"], ["y"])
    nodes = [
        aa.ModelNode("encoder", anyaccel_torch.SequentialMLP((16,)), data.reference()),
        aa.ModelNode("body", anyaccel_jax.SequentialMLP((8,)), "encoder"),
        aa.ModelNode("head", anyaccel_tensorflow.SequentialMLP((1,)), "body"),
    ]
    graph = aa.ModelGraph(nodes, aa.Optimizer("adam", lr=1e-3, clip_norm=1.0), label="three-frameworks")
    train = aa.TrainPhase("train", data="all", losses=[aa.AppliedLoss("mse", on="head")])
    return graph, aa.Experiment("picture", graph).plan(train)


def terminal(*parts: tuple[str, str]) -> str:
    """A recorded terminal as SVG: prompts with a command, and what each printed. It loads nothing from elsewhere."""
    console = Console(record=True, width=92, file=StringIO(), force_terminal=True, color_system="truecolor")
    for command, output in parts:
        prompt, _, rest = command.partition(" ")
        console.print(Text.assemble((prompt, "bold green"), " ", (rest, "bold")))
        console.print(Text(output + "\n"), highlight=False)
    return re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title="anyaccel", unique_id="anyaccel"), flags=re.S)


FLOORS = (
    ("cli", "the command line"),
    ("fitting", "fit: one call on a table"),
    ("experiment", "phases over one graph"),
    ("phases", "train, evaluate, fit: load, run, recover"),
    ("results", "tables and predictions"),
    ("graph", "nodes, shapes, plans, segments"),
    ("data", "feature sets, samplers, sources"),
    ("metrics", "measures by name"),
    ("machine", "what the system tells of its devices"),
    ("precision", "dtypes, and scaled losses"),
    ("saved_folder", "a manifest and safetensors"),
)
KERNEL = (
    ("placement", "place, move, scope, devices"),
    ("accelerator", "what users ask for"),
    ("registry, plugin_loader", "backends by framework and kind"),
    ("hookspecs, backend, program, segment", "the contract of plugins"),
    ("specs, device, errors", "values"),
)
BESIDE = (
    ("numpy_backend", "built in"),
    ("adapter", "programs from few functions"),
    ("plugins", "backends and features"),
)


def floors() -> str:
    """The floors of core: each imports only from those below it."""
    boxes = [_box(20, 20 + 46 * i, 420, *floor, fill="#FFFFFF") for i, floor in enumerate(FLOORS)]
    top = 20 + 46 * len(FLOORS) + 34
    boxes += [_box(20, top + 46 * i, 420, *part, fill="#DCEBFA") for i, part in enumerate(KERNEL)]
    boxes += [_box(480, top + 46 * (i + 1), 220, *part, fill="#FDEBD8") for i, part in enumerate(BESIDE)]
    label = f'<text x="20" y="{top - 9}" font-size="12" fill="#33475B">kernel: needs only pluggy and NumPy</text>'
    arrow = f'<path d="M476 {top + 157} h-28 l6 -5 m-6 5 l6 5" fill="none" stroke="#33475B" stroke-width="1.6"/>'
    height = top + 46 * len(KERNEL) + 12
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {height}" width="720" height="{height}" role="img" '
        'aria-label="The floors of core" font-family="system-ui, sans-serif">'
        f'<rect width="720" height="{height}" rx="8" fill="#F4F6F8"/>{label}{arrow}{"".join(boxes)}</svg>\n'
    )


def _box(x: int, y: int, width: int, name: str, text: str, fill: str) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="40" rx="6" fill="{fill}" stroke="#8B95A3"/>'
        f'<text x="{x + 12}" y="{y + 17}" font-size="13" font-weight="600" fill="#1B2733">{name}</text>'
        f'<text x="{x + 12}" y="{y + 33}" font-size="12" fill="#33475B">{text}</text>'
    )


def drawing(label: str, height: int, *parts: str) -> str:
    """A drawing of 400 by `height` on its own background, which is readable on light and dark pages."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 400 {height}" width="400" height="{height}" role="img" '
        f'aria-label="{label}" font-family="system-ui, sans-serif">'
        f'<rect width="400" height="{height}" rx="8" fill="#F4F6F8"/>{"".join(parts)}</svg>\n'
    )


def _arrow(*points: tuple[int, int]) -> str:
    """A line through points, with a head at the last one."""
    (x0, y0), (x1, y1) = points[-2:]
    dx, dy = (x1 > x0) - (x1 < x0), (y1 > y0) - (y1 < y0)
    left, right = (x1 - 6 * dx - 4 * dy, y1 - 6 * dy + 4 * dx), (x1 - 6 * dx + 4 * dy, y1 - 6 * dy - 4 * dx)
    line = " L".join(f"{x} {y}" for x, y in points)
    head = " L".join(f"{x} {y}" for x, y in (left, (x1, y1), right))
    return f'<path d="M{line} M{head}" fill="none" stroke="#33475B" stroke-width="1.6"/>'


def _note(x: int, y: int, text: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" font-size="12" fill="#33475B" text-anchor="{anchor}">{text}</text>'


def _column(x: int, width: int, top: int, parts: Sequence[tuple[str, str]], fill: str = "#FFFFFF") -> str:
    """Boxes below each other, with arrows between them."""
    tops = [top + 58 * i for i in range(len(parts))]
    boxes = [_box(x, y, width, *part, fill=fill) for y, part in zip(tops, parts, strict=True)]
    return "".join(boxes + [_arrow((x + width // 2, y - 18), (x + width // 2, y)) for y in tops[1:]])


def loop() -> str:
    """What a training phase does in an epoch."""
    group = '<rect x="20" y="78" width="330" height="196" rx="8" fill="#DCEBFA" stroke="#8B95A3"/>'
    parts = (("Take a batch", "rows on the device, or a streamed block"), ("Forward, losses, backward", "gradients"))
    steps = _column(36, 298, 106, (*parts, ("Update", "optimizer and schedule")))
    after = (("Callbacks: steps_done", "with the losses of these steps"), ("Validate", "if the phase has a validation"))
    return drawing(
        "The loop of a training phase",
        480,
        _box(20, 20, 330, "Draw the order of the rows", "from the seed and the epoch", fill="#FFFFFF"),
        _arrow((185, 60), (185, 78)),
        group + _note(36, 97, "one call runs many steps") + steps,
        _arrow((185, 274), (185, 292)),
        _column(20, 330, 292, (*after, ("Callbacks: epoch_end", "checkpoint, early stopping"))),
        _arrow((350, 312), (366, 312), (366, 176), (350, 176)),
        _arrow((350, 428), (384, 428), (384, 40), (350, 40)),
        _note(20, 468, "inner arrow: next call of the epoch; outer arrow: next epoch"),
    )


LIFECYCLE = (
    ("Check the phase", "arguments, graph, data", "phase_start"),
    ("Plan", "devices, shapes, memory", "before_placement"),
    ("Place", "models on their devices", "after_placement"),
    ("Load", "data in place, programs built", "after_loading"),
    ("Begin an epoch", "order of the rows", "epoch_start"),
    ("Compute steps", "many in one call", "step_end, steps_done"),
    ("End an epoch", "losses, validation", "epoch_end"),
    ("End", "results; also after an error", "phase_end"),
)


def lifecycle() -> str:
    """The parts of a phase, and the hooks that are called."""
    boxes = _column(20, 220, 44, [part[:2] for part in LIFECYCLE])
    hooks = "".join(
        f'<path d="M240 {64 + 58 * i} h12" stroke="#8B95A3" stroke-width="1.6"/>' + _note(258, 68 + 58 * i, part[2])
        for i, part in enumerate(LIFECYCLE)
    )
    again = _arrow((20, 412), (8, 412), (8, 296), (20, 296))
    heads = _note(20, 30, "a training phase") + _note(258, 30, "hook that is called")
    return drawing("The lifecycle of a phase", 44 + 58 * len(LIFECYCLE), heads, boxes, hooks, again)


PLACEMENT = (
    ("accelerator of the node?", 'ModelNode(..., accelerator="gpu:0")'),
    ("policy of the phase?", "a function or a plugin chooses"),
    ("accelerator of the phase?", 'TrainPhase(..., accelerator="gpu")'),
    ("ANYACCEL_DEVICE?", "an environment variable"),
)


def placement() -> str:
    """Which setting decides the device of a node."""
    boxes = _column(20, 290, 20, (*PLACEMENT, ("CPU", "the default")))
    yes = "".join(_arrow((310, 40 + 58 * i), (344, 40 + 58 * i)) for i in range(len(PLACEMENT)))
    words = "".join(_note(350, 44 + 58 * i, "use it") for i in range(len(PLACEMENT)))
    no = "".join(_note(173, 74 + 58 * i, "not set") for i in range(len(PLACEMENT)))
    return drawing("The device of a node", 312, boxes, yes, words, no)


def streams() -> str:
    """The streams of a triplet sampler, and the nodes that read them."""
    names = ("anchor", "positive", "negative")
    nodes = [_box(20 + 124 * i, 96, 112, name, "a node", fill="#DCEBFA") for i, name in enumerate(names)]
    reads = [_arrow((76 + 124 * i, 60), (76 + 124 * i, 96)) for i in range(3)]
    words = [_note(82 + 124 * i, 82, name) for i, name in enumerate(("a row", "same", "other"))]
    shares = [f'<path d="M{76 + 124 * i} 136 v18" stroke="#33475B" stroke-width="1.6"/>' for i in range(3)]
    return drawing(
        "Streams of a sampler",
        260,
        _box(20, 20, 360, "TripletSampler", "a batch of each stream in every step", fill="#FFFFFF"),
        *reads,
        *words,
        *nodes,
        *shares,
        _box(20, 154, 360, "one encoder", "the same model object, so the same parameters", fill="#FDEBD8"),
        _arrow((200, 194), (200, 212)),
        _box(20, 212, 360, "triplet loss", "compares the three outputs", fill="#FFFFFF"),
    )


def replicas() -> str:
    """How replicas share a batch."""
    own = (("48 rows", "its part of the batch"), ("Forward, backward", "the same model"))
    return drawing(
        "A step of two replicas",
        338,
        _box(20, 20, 360, "Batch of 96 rows", "the same order for any number of replicas", fill="#FFFFFF"),
        _arrow((105, 60), (105, 92)),
        _arrow((295, 60), (295, 92)),
        _note(111, 80, "replica 0") + _note(301, 80, "replica 1"),
        _column(20, 170, 92, own, fill="#DCEBFA") + _column(210, 170, 92, own, fill="#DCEBFA"),
        _arrow((105, 190), (105, 212)),
        _arrow((295, 190), (295, 212)),
        _box(20, 212, 360, "Average the gradients", "weighted by rows, so the mean is over 96 rows", fill="#FDEBD8"),
        _arrow((105, 252), (105, 280)),
        _arrow((295, 252), (295, 280)),
        _box(20, 280, 170, "Update", "equal parameters", fill="#DCEBFA"),
        _box(210, 280, 170, "Update", "equal parameters", fill="#DCEBFA"),
    )


DRAWINGS = (floors, loop, lifecycle, placement, streams, replicas)


def main() -> None:
    """Write all pictures."""
    for draw in DRAWINGS:
        (STATIC / f"{draw.__name__}.svg").write_text(draw(), encoding="utf-8")
    graph, plan = plan_of_three_frameworks()
    recorded = terminal((f"$ {DEMO}", run_demo()), (f">>> {PLAN}", str(plan)))
    (STATIC / "terminal.svg").write_text(recorded, encoding="utf-8")
    (STATIC / "three-frameworks.svg").write_text(graph.visualize("svg", plan=plan), encoding="utf-8")


if __name__ == "__main__":
    main()
