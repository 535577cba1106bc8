"""The command line where pytest is not installed: only `anyaccel conform` needs it."""

from __future__ import annotations

import pytest

WITHOUT_PYTEST = """
import sys
sys.modules["pytest"] = sys.modules["_pytest"] = sys.modules["hypothesis"] = None
from anyaccel.cli.main import group
group(prog_name="anyaccel")
"""


@pytest.mark.parametrize("arguments", [("env", "--json"), ("plugins",), ("new-plugin", "chip")], ids=" ".join)
def test_other_commands_do_not_need_pytest(arguments, python, tmp_path):
    answer = python(WITHOUT_PYTEST, *arguments, cwd=tmp_path)
    assert (answer.returncode, answer.stderr) == (0, "")


def test_conform_says_how_to_install_it(python, tmp_path):
    answer = python(WITHOUT_PYTEST, "conform", "numpy", cwd=tmp_path)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "the conformance kit needs pytest and hypothesis" in answer.stderr
    assert "python -m pip install pytest hypothesis" in answer.stderr
