"""What a loop of one's own shows by the words of phases: profiles, the ledger of transfers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import anyaccel as aa
from anyaccel.adapter.step_profiler import read_trace
from anyaccel.errors import ConfigError, FrameworkError


def train(loop: aa.Loop, epochs: int = 2, *, by_epochs: bool = True) -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    rows = TensorDataset(torch.ones(8, 2), torch.ones(8, 1))
    net, optimizer, loader = loop.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1), DataLoader(rows, 2))
    for _ in loop.epochs(epochs) if by_epochs else range(epochs):
        for x, y in loader:
            loop.backward(nn.functional.mse_loss(net(x), y))
            optimizer.step()
            optimizer.zero_grad()


def names(profile: aa.Profile) -> list[str]:
    (file,) = profile.files
    return [event["name"] for event in read_trace(file) if event.get("ph") == "X"]


@pytest.mark.parametrize(("steps", "accumulate"), [((0, 2), 1), ((3, 5), 1), ((1, 3), 2)])
def test_the_updates_that_are_asked_for_are_recorded(tmp_path: Path, steps: tuple[int, int], accumulate: int) -> None:
    profile = aa.Profile(steps, str(tmp_path / "traces"))
    train(aa.Loop("cpu", framework="torch", accumulate=accumulate, profile=profile))
    found = names(profile)
    assert {name for name in found if name.startswith("step ")} == {f"step {n}" for n in range(*steps)}
    assert found.count("Sequential 0") == accumulate * 2
    assert found.count("aten::mse_loss") == accumulate * 2


def test_a_run_that_ends_before_writes_what_it_has(tmp_path: Path) -> None:
    profile = aa.Profile((2, 9), str(tmp_path))
    loop = aa.Loop("cpu", framework="torch", profile=profile)
    train(loop, 1, by_epochs=False)
    assert not profile.files
    loop.close()
    assert {name for name in names(profile) if name.startswith("step ")} == {"step 2", "step 3", "step 4"}


def test_what_is_no_profile_and_a_profiler_that_runs_are_errors(tmp_path: Path) -> None:
    wrong: Any = (10, 20)
    with pytest.raises(ConfigError, match=r"profile=aa\.Profile\(\(10, 20\), 'traces'\)"):
        aa.Loop("cpu", framework="torch", profile=wrong)
    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
        pytest.raises(FrameworkError, match="the profiler of torch does not start"),
    ):
        train(aa.Loop("cpu", framework="torch", profile=aa.Profile((0, 1), str(tmp_path))))
    profile = aa.Profile((0, 1), str(tmp_path))
    train(aa.Loop("cpu", framework="torch", profile=profile))
    assert profile.files, "nothing is left that would keep another from recording"


def test_a_loop_on_a_cpu_moves_nothing() -> None:
    loop = aa.Loop("cpu", framework="torch", accumulate=2)
    with aa.ledger() as moved:
        train(loop)
    assert moved.totals().nbytes == 0 and "torch" not in moved.not_covered
    with aa.no_transfers(["torch"], partial=True):
        train(aa.Loop("cpu", framework="torch"))
