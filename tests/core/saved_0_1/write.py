"""Write what tests read later, with the anyaccel that is installed: `python tests/core/saved_0_1/write.py [NAME ...]`.

`cases.py` here and in `tests/integration/saved_0_1` has two functions for each name: one writes into a folder, and the
other reads it and gives plain values. The folders are next to `cases.py`; `expected.json` in each holds what its reader
gave when it was written, and the versions that wrote it. All are of anyaccel 0.1.0, commit 78c2a2a2. Folders that are
there are kept. For a new case, run this with that commit; never write a folder again because a test fails.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
FILES = (HERE / "cases.py", HERE.parents[1] / "integration" / "saved_0_1" / "cases.py")
SOFTWARE = ("anyaccel", "numpy", "torch", "jax", "flax", "optax", "equinox", "tensorflow", "tensorflow-cpu", "keras")


def versions() -> dict[str, str]:
    """The versions of what is installed of what may have written a folder."""
    installed = {distribution.name.lower() for distribution in metadata.distributions()}
    return {name: metadata.version(name) for name in SOFTWARE if name in installed}


def write(name: str, case: tuple[Any, Any], folder: Path) -> None:
    """Write a case; what its writer gave, the values of a run that was not broken off, is what its reader gives."""
    write_case, read_case = case
    with tempfile.TemporaryDirectory() as temporary:
        new = Path(temporary, name)
        new.mkdir()
        given = write_case(new)
        values = read_case(Path(shutil.copytree(new, Path(temporary) / "copy")))  # a run that goes on writes there
        for key, value in (given or {}).items():
            are_close = np.allclose(values[key], value, rtol=1e-12, atol=1e-12)  # losses are summed in another order
            assert are_close, f"{name}: {key} is {values[key]} as read, and was {value}"
        (new / "expected.json").write_text(json.dumps({"written_by": versions(), "values": values}) + "\n")
        shutil.copytree(new, folder, ignore=shutil.ignore_patterns(".lock"))


def main(names: list[str]) -> None:
    """Write the cases of these names, or all, that are not there yet."""
    for file in FILES:
        spec = importlib.util.spec_from_file_location("cases", file)
        assert spec is not None and spec.loader is not None
        cases = importlib.util.module_from_spec(spec)
        sys.modules["cases"] = cases
        spec.loader.exec_module(cases)
        for name, case in cases.CASES.items():
            if not (file.parent / name).exists() and (not names or name in names):
                write(name, case, file.parent / name)
                print("written:", file.parent.parent.name, name)


if __name__ == "__main__":
    os.environ |= {
        "KERAS_BACKEND": "tensorflow",
        "JAX_ENABLE_X64": "1",
        "JAX_NUM_CPU_DEVICES": "2",
    }  # as integration tests
    main(sys.argv[1:])
