"""What `import anyaccel` loads: nothing heavy."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

HEAVY = {
    *("numpy", "pyarrow", "pandas", "rich", "click", "importlib.metadata"),
    *("torch", "tensorflow", "keras", "jax", "jaxlib", "flax", "optax", "equinox", "mlx", "cupy"),
    *("tensorboard", "wandb"),
}


def loaded_by(statement: str) -> set[str]:
    """The modules that a statement loads in a bare interpreter that has anyaccel's folder on its path."""
    spec = find_spec("anyaccel")
    assert spec is not None
    assert spec.origin is not None
    folder = str(Path(spec.origin).parents[1])
    code = (
        f"import sys; sys.path.append({folder!r}); before = set(sys.modules)\n"
        f"{statement}\n"
        "print(*sorted(set(sys.modules) - before), sep='\\n')"
    )
    # -S: modules loaded by start-up files of the environment would hide those that anyaccel loads.
    answer = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    return set(answer.stdout.split())


def test_import_loads_nothing_heavy() -> None:
    loaded = loaded_by("import anyaccel")
    assert "anyaccel" in loaded
    assert not loaded & HEAVY


def test_the_check_finds_loaded_modules() -> None:
    assert "importlib.metadata" in loaded_by("import importlib.metadata")
