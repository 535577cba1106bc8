"""What is not used is not imported, and old imports work."""

from __future__ import annotations

import subprocess
import sys

import anyaccel.testing
from anyaccel.doctor import Machine
from anyaccel.transfer_ledger import ledger

import anyaccel_devtools.testing
from anyaccel.machine import Machine as MachineOfCore
from anyaccel.plugin_testing import TinyBackend

CODE = """
import sys
import numpy as np
import anyaccel as aa

x = np.ones((8, 2), "float32")
aa.place(x, "cpu"), aa.move(x, "cpu"), aa.devices()
aa.fit(aa.SequentialMLP((1,)), (x, x[:, :1]), loss="mse", epochs=1, progress="none")
print(*[name for name in sys.modules if name.startswith("anyaccel_devtools")])
"""


def test_placing_and_fitting_imports_none_of_it():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_imports_of_0_1_give_the_same_objects():
    assert anyaccel.testing is anyaccel_devtools.testing and anyaccel.testing.TinyBackend is TinyBackend
    assert Machine is MachineOfCore and ledger is anyaccel.ledger
