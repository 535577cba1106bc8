"""Runs a script of docs/examples/own-loop with each of some arguments, and keeps the weights that it ends with.

Started as `own_loop_script.py SCRIPT FOLDER [ARGUMENT ...]`, by hand or by `anyaccel run`.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import numpy as np
from torch import nn


def run(script: str, folder: Path, arguments: list[str]) -> None:
    """Run the script in a folder, once for each argument; write what its models have become."""
    os.chdir(folder)
    for argument in arguments or [""]:
        sys.argv = [script, argument]
        names = runpy.run_path(script, run_name="__main__")
    models = {name: value for name, value in sorted(names.items()) if isinstance(value, nn.Module)}
    weights = {f"{n}.{key}": value.numpy() for n, model in models.items() for key, value in model.state_dict().items()}
    np.savez(folder / f"weights-{os.environ.get('RANK', 0)}.npz", **weights)


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
