"""Records the pictures of the front page: `python docs/_sphinx/pictures.py`, where all three frameworks are installed.

`docs/_static/terminal.svg` is a terminal with the demo and a plan; `docs/_static/three-frameworks.svg` is the graph of
that plan. Both are committed, so that pages show them where the repository is read.
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


def main() -> None:
    """Write both pictures."""
    graph, plan = plan_of_three_frameworks()
    recorded = terminal((f"$ {DEMO}", run_demo()), (f">>> {PLAN}", str(plan)))
    (STATIC / "terminal.svg").write_text(recorded, encoding="utf-8")
    (STATIC / "three-frameworks.svg").write_text(graph.visualize("svg", plan=plan), encoding="utf-8")


if __name__ == "__main__":
    main()
