"""The same script by every launcher that is here: the numbers are those of one process, in torch, JAX and TensorFlow.

mpirun is that of Open MPI or MPICH where it is installed; the variables of srun, but of mpirun where there is not a
table, are set by a stand-in. The sessions `launchers` of nox install what they run.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytestmark = [
    pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed"),
    pytest.mark.skipif(sys.platform == "win32", reason="launchers of POSIX"),
    pytest.mark.slow,
]

HERE = Path(__file__).parent
SCRIPTS = HERE / "replica_scripts.py"
FULL = os.environ.get("ANYACCEL_TEST_FULL") == "1"
MPIRUN = shutil.which("mpirun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def stand_in(name: str) -> list[str]:
    """The command of a launcher that is not installed."""
    return [sys.executable, str(HERE / "stand_in_launchers.py"), name, "2"]


LAUNCHERS = {
    "srun": stand_in("srun"),
    "mpirun": stand_in("open_mpi") if MPIRUN is None else [MPIRUN, "-n", "2"],
    "mpich": stand_in("mpich"),
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
    "anyaccel": [sys.executable, "-m", "anyaccel", "run", "--replicas", "2"],
}
OTHERS = ("jax", "tensorflow")
PYTHON_IS_GIVEN = ("torchrun", "anyaccel")
SAMPLE = ["srun"]


def told(folder: Path, size: int) -> list[Any]:
    """What each process told."""
    return [json.loads((folder / f"unused-{rank}.json").read_text()) for rank in range(size)]


def run(launcher: list[str], folder: Path, script: Path = SCRIPTS) -> subprocess.CompletedProcess[str]:
    """Run a script; as root, too, where Open MPI asks for permission, and on fewer cores than processes."""
    way = ["unused", str(folder)] if script == SCRIPTS else [str(folder), "plain"]
    allowed = {
        "ANYACCEL_TEST_FULL": "0",  # which other frameworks train for long
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
    command = [*launcher, str(script), *way]
    env = {**os.environ, **allowed}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What one process tells."""
    folder = tmp_path_factory.mktemp("alone")
    assert run([sys.executable], folder).returncode == 0
    return told(folder, 1)[0]


@pytest.mark.parametrize("name", [*LAUNCHERS] if FULL else SAMPLE)
def test_the_same_script_gives_the_numbers_of_one_process(alone: Any, tmp_path: Path, name: str) -> None:
    python = [] if name in PYTHON_IS_GIVEN else [sys.executable]
    answer = run([*LAUNCHERS[name], *python], tmp_path)
    assert answer.returncode == 0, answer.stderr
    for one in told(tmp_path, 2):
        assert one["loss"] == pytest.approx(alone["loss"], rel=1e-6)
        for own, other in zip(one["weights"], alone["weights"], strict=True):
            np.testing.assert_allclose(own, other, atol=2e-6)


@pytest.mark.whole
@pytest.mark.parametrize("name", [*LAUNCHERS])
def test_own_loops_give_the_numbers_of_one_process(tmp_path: Path, name: str) -> None:
    python = [] if name in PYTHON_IS_GIVEN else [sys.executable]
    results = []
    for number, launcher in enumerate(([sys.executable], [*LAUNCHERS[name], *python])):
        file = tmp_path / f"{number}.json"
        command = [*launcher, str(HERE / "own_loop_script.py"), str(file), "ragged", "gathered"]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env={**os.environ})
        assert answer.returncode == 0, answer.stderr
        results.append(json.loads(file.read_text()))
    alone, together = results
    assert together["gathered"] == alone["gathered"]
    for own, other in zip(together["ragged"], alone["ragged"], strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-6, atol=1e-9)


@pytest.mark.sampled
def test_own_loops_of_spawned_functions_give_the_numbers_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("anyaccel_distributed")
    from anyaccel_distributed import spawn

    monkeypatch.syspath_prepend(str(HERE))
    tell = importlib.import_module("own_loop_script").tell
    told = []
    for replicas in (1, 2):
        file = tmp_path / f"{replicas}.json"
        spawn(tell, replicas=replicas, arguments={"file": str(file), "names": ["ragged", "gathered"]})
        told.append(json.loads(file.read_text()))
    alone, together = told
    assert together["gathered"] == alone["gathered"]
    for own, other in zip(together["ragged"], alone["ragged"], strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-6, atol=1e-9)


SESSION = """
import json, sys
import torch
from torch.nn import functional as F
import anyaccel as aa
from anyaccel_distributed import spawn

x = torch.randn(107, 4, generator=torch.Generator().manual_seed(0))
rows = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), 16)

class Net(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x).tanh()

def train(prepare, backward):
    torch.manual_seed(1)
    net = Net(4, 1)
    net, optimizer, loader = prepare(net, torch.optim.Adam(net.parameters(), lr=0.1), rows)
    for _ in range(2):
        for inputs, targets in loader:
            optimizer.zero_grad()
            backward(F.mse_loss(net(inputs), targets))
            optimizer.step()
    return [parameter.tolist() for parameter in net.parameters()]

def in_processes(file):
    loop = aa.Loop("cpu", framework="torch")
    weights = train(loop.prepare, loop.backward)
    if loop.is_main_process:
        with open(file, "w") as stream:
            json.dump([loop.num_processes, weights], stream)

file = FILE
spawn(in_processes, replicas=2, arguments={"file": file})
with open(file) as stream:
    told = json.load(stream)
by_hand = train(lambda *objects: objects, lambda loss: loss.backward())
print(json.dumps([*told, by_hand]))
"""


def test_a_function_of_an_interactive_session_trains_its_loop_in_two_processes_as_by_hand(tmp_path: Path) -> None:
    pytest.importorskip("anyaccel_distributed")
    session = SESSION.replace("FILE", repr(str(tmp_path / "weights.json")))
    session = re.sub(r"\n+", "\n", session)  # there, an empty line ends a statement
    session = re.sub(r"\n(?=\S)", "\n\n", session)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-i", "-q"]
    answer = subprocess.run(
        command, input=session, capture_output=True, text=True, timeout=240, check=False, env=environment
    )
    assert answer.returncode == 0, answer.stderr
    processes, weights, by_hand = json.loads(answer.stdout.splitlines()[-1])
    assert processes == 2
    for own, other in zip(weights, by_hand, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-6, atol=1e-7)


@pytest.fixture(scope="module", params=OTHERS)
def other(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The script of another framework, and what one process tells of it."""
    pytest.importorskip(f"anyaccel_{request.param}")
    script = HERE.parents[1] / request.param / "tests" / "replica_script.py"
    folder = tmp_path_factory.mktemp(request.param)
    assert run([sys.executable], folder, script).returncode == 0
    return script, json.loads((folder / "plain-0.json").read_text())


@pytest.mark.skipif(not FULL, reason="the plugins' own tests start a sample")
@pytest.mark.parametrize("name", [*LAUNCHERS])
def test_other_frameworks_give_the_numbers_of_one_process(other: tuple[Path, Any], tmp_path: Path, name: str) -> None:
    script, alone = other
    python = [] if name in PYTHON_IS_GIVEN else [sys.executable]
    answer = run([*LAUNCHERS[name], *python], tmp_path, script)
    assert answer.returncode == 0, answer.stderr
    both = [json.loads((tmp_path / f"plain-{rank}.json").read_text()) for rank in range(2)]
    assert both[0] == both[1]
    np.testing.assert_allclose(both[0]["epochs"], alone["epochs"], rtol=1e-6)
