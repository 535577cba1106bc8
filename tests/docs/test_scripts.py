"""Scripts that pages show and offer for download run, each from its file, and print what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
SHOWN = re.compile(r"^`{3,}\{literalinclude\} (\S+)$|\{download\}`[^`<]*<([^>`]+)>`", re.MULTILINE)
SCALE_OUT = "examples/scale-out"
ONE, TWO = (), ("-m", "anyaccel", "run", "--replicas", "2")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "3")
# By script: how it is started. Each way prints what the page shows.
STARTED: dict[str, tuple[tuple[str, ...], ...]] = {
    "train": (ONE, TWO),
    "sharded": (TWO,),
    "shard_one_node": (TWO,),
    "tensor_parallel": (ONE, TWO),
    "restarted": (TORCHRUN,),
    "jax_devices": (ONE,),
}
# What test_own_loop_scripts.py, test_coming_from.py and test_five_tasks.py run.
RUN_ELSEWHERE = ("examples/own-loop/", "examples/coming-from/", "examples/five-tasks/")
# Nobody is told of the usage; sockets of Ray need short paths.
SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "PYTHONWARNINGS": "ignore"}


def shown_scripts() -> set[str]:
    """The scripts that pages include or offer, by their paths in docs/."""
    found = set()
    for page in DOCS.rglob("*.md"):
        for included, offered in SHOWN.findall(page.read_text("utf-8")):
            path = (page.parent / (included or offered)).resolve()
            assert path.is_file(), f"{page}: there is no {path}"
            found.add(path.relative_to(DOCS).as_posix())
    return found


def run(script: str, folder: Path, *launcher: str) -> str:
    """Run a script in a folder, and return what it prints."""
    settings = {**os.environ, **SETTINGS, "OMP_NUM_THREADS": "1", "HOME": str(folder), "PYTHONUTF8": "1"}
    settings["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="ray-")
    command = [sys.executable, *launcher, str(DOCS / script)]
    answer = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, timeout=400, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


def test_optuna_in_two_processes(tmp_path: Path) -> None:
    pytest.importorskip("anyaccel_optuna")
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(run, "examples/tuning/optuna_study.py", tmp_path) for _ in range(2)]
    counts = [int(one.result().partition(" trials so far, the best: {'lr':")[0]) for one in runs]
    assert max(counts) == 16 and min(counts) >= 8


@pytest.mark.whole  # plugins/ray starts Ray in each run
def test_ray_tune(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    printed = run("examples/tuning/ray_tune.py", tmp_path)
    page = (DOCS / "how-to/hyperparameter-search.md").read_text("utf-8")
    shown = re.search(r"ray_tune.py>`. It prints:\n\n```text\n(.*?)```", page, re.DOTALL)
    assert shown and shown[1] in printed


def shown_output(script: str) -> str:
    """What how-to/scale-out.md shows after the command that starts a script."""
    page = (DOCS / "how-to/scale-out.md").read_text("utf-8")
    shown = re.search(rf" {script}.py\n```\n\n```text\n(.*?)```", page, re.DOTALL)
    assert shown, script
    return shown[1]


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("script", STARTED)
def test_scripts_of_several_processes(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("anyaccel_distributed", "anyaccel_torch", "anyaccel_jax"):
        pytest.importorskip(module)
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")
    for number, launcher in enumerate(STARTED[script]):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert run(f"{SCALE_OUT}/{script}.py", folder, *launcher) == shown_output(script)


@pytest.mark.slow
def test_a_function_that_is_defined_beside_spawn(tmp_path: Path) -> None:
    for module in ("anyaccel_distributed", "anyaccel_torch"):
        pytest.importorskip(module)
    page = (DOCS / "how-to/scale-out.md").read_text("utf-8")
    block = r"### Run in a notebook\n.*?```python\n(.*?)```\n\n```text\n(.*?)```"
    shown = re.search(block, page, re.DOTALL)
    assert shown
    main = tmp_path / "main.py"
    main.write_text(shown[1])
    assert run(str(main), tmp_path) == shown[2]


def test_every_script_that_a_page_shows_is_run() -> None:
    tested = set(re.findall(r'run(?:\(|, )"(examples/[^"]+)"', Path(__file__).read_text("utf-8")))
    tested |= {f"{SCALE_OUT}/{name}.py" for name in STARTED}
    others = {script for script in shown_scripts() if not script.startswith(RUN_ELSEWHERE)}
    assert others == tested
