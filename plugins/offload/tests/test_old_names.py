"""The modules of version 0.1 give what is here, and say so where this distribution is not installed."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

OLD = {
    "anyaccel_torch.big_models": ("anyaccel_offload.torch", "load_checkpoint_and_dispatch"),
    "anyaccel_jax.big_models": ("anyaccel_offload.jax", "OffloadedChain"),
    "anyaccel.planner": ("anyaccel_offload.planner", "plan_blocks"),
}

WITHOUT = """
import sys

class NotThere:
    def find_spec(self, name, path=None, target=None):
        if name == "anyaccel_offload":
            raise ModuleNotFoundError(name=name)

import anyaccel
sys.meta_path.insert(0, NotThere())
try:
    import {name}
except ImportError as error:
    assert str(error).startswith("{name} needs anyaccel-offload, which is not installed. Hint: "), error
else:
    raise AssertionError
assert not {{"torch", "jax"}} & sys.modules.keys()
"""


@pytest.mark.parametrize("name", OLD)
def test_an_old_name_gives_what_is_here(name: str) -> None:
    module, public = OLD[name]
    old, new = importlib.import_module(name), importlib.import_module(module)
    assert getattr(old, public) is getattr(new, public)
    assert public in dir(old)
    with pytest.raises(AttributeError):
        old.no_such_name  # noqa: B018


@pytest.mark.parametrize("name", OLD)
def test_an_old_name_says_which_distribution_is_missing(name: str) -> None:
    code = [sys.executable, "-c", WITHOUT.format(name=name)]
    done = subprocess.run(code, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
