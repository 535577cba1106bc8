"""Runs scripts of docs/examples/own-loop, and keeps what each prints and the weights that it ends with.

Started as `own_loop_script.py FOLDER SCRIPT[=ARGUMENT,ARGUMENT] ...`, by hand or by `anyaccel run`. A script is run in
a folder with its name, once for each argument.
"""

from __future__ import annotations

import io
import os
import runpy
import sys
from contextlib import chdir, redirect_stdout
from pathlib import Path

import numpy as np
from torch import nn


def run(script: str, folder: Path, arguments: list[str]) -> None:
    """Run the script in the folder, once for each argument; write what its models have become."""
    folder.mkdir(exist_ok=True)
    with chdir(folder), redirect_stdout(io.StringIO()) as printed:
        for argument in arguments:
            sys.argv = [script, argument]
            names = runpy.run_path(script, run_name="__main__")
    models = {name: value for name, value in sorted(names.items()) if isinstance(value, nn.Module)}
    weights = {f"{n}.{key}": value.numpy() for n, model in models.items() for key, value in model.state_dict().items()}
    rank = os.environ.get("RANK", 0)
    np.savez(folder / f"weights-{rank}.npz", **weights)
    (folder / f"printed-{rank}.txt").write_text(printed.getvalue(), "utf-8")


if __name__ == "__main__":
    folder, *scripts = sys.argv[1:]
    for text in scripts:
        script, _, arguments = text.partition("=")
        run(script, Path(folder, Path(script).stem), arguments.split(","))
