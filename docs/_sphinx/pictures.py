"""Makes the pictures of the pages: `python docs/_sphinx/pictures.py`, where all three frameworks are installed.

In `docs/_static`, `terminal.svg` is a terminal with the demo and a plan, `three-frameworks.svg` the graph of that plan,
`floors.svg` the floors of core. They are committed, so that pages show them where the repository is
read.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
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
    ("own_loop", "Loop: a loop of your own"),
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


def main() -> None:
    """Write all pictures."""
    (STATIC / "floors.svg").write_text(floors(), encoding="utf-8")
    graph, plan = plan_of_three_frameworks()
    recorded = terminal((f"$ {DEMO}", run_demo()), (f">>> {PLAN}", str(plan)))
    (STATIC / "terminal.svg").write_text(recorded, encoding="utf-8")
    (STATIC / "three-frameworks.svg").write_text(graph.visualize("svg", plan=plan), encoding="utf-8")


if __name__ == "__main__":
    main()
