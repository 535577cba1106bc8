"""The public names of the plugin for optuna: `tests/public_face` has the lines that are compared."""

from __future__ import annotations

import public_face


def test_the_public_face_is_as_it_is_written():
    changes = public_face.changes("anyaccel_optuna")
    assert not changes, f"{changes}\n{public_face.HOW_TO_WRITE}"
