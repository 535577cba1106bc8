"""A loop of one's own that ends within an epoch goes on to the losses that it would have had."""

from __future__ import annotations

import copy
import json
import os
import runpy
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import anyaccel as aa
from anyaccel.errors import ConfigError, PhaseError, StateError

SCRIPT = Path(__file__).with_name("own_loop_killed.py")
train = runpy.run_path(str(SCRIPT))["train"]


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("stop", [1, 7, 8, 11])  # in the third epoch, from what was written after the second
def test_losses_dropout_and_rows_are_those_of_the_undisturbed_run(tmp_path: Path, seed: int | None, stop: int) -> None:
    whole = train(None, 0, 0, seed)
    first = train(str(tmp_path), stop, 0, seed)
    assert first == whole[: len(first)]
    again = train(str(tmp_path), stop + 2, 0, seed)
    assert again[0][0] == (stop - 1) // 2 * 2  # what it was killed within was not asked to be saved yet
    rest = train(str(tmp_path), 0, 0, seed)
    assert rest == whole[-len(rest) :]


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.whole)])
def test_processes_of_which_one_is_killed_go_on_with_their_workers(tmp_path: Path, size: int) -> None:
    def told(folder: str, stop: int) -> Any:
        file = tmp_path / f"{stop}{folder == '-'}.json"
        command = [
            sys.executable,
            "-m",
            "anyaccel",
            "run",
            "--replicas",
            str(size),
            str(SCRIPT),
            folder,
            str(stop),
            str(file),
        ]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env={**os.environ})
        assert (answer.returncode == 0) == (stop == 0), answer.stderr
        return json.loads(file.read_text()) if stop == 0 else answer.stderr

    whole = told("-", 0)
    assert f"replica {size - 1} ended" in told(str(tmp_path / "run"), 7)
    rest = told(str(tmp_path / "run"), 0)
    assert rest[0][0] in (4, 6) and rest == whole[-len(rest) :]


def parts(width: int = 1) -> tuple[nn.Module, torch.optim.Optimizer, DataLoader[Any]]:
    net = nn.Linear(2, width)
    rows = TensorDataset(torch.zeros(6, 2), torch.zeros(6, width))
    return net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), DataLoader(rows, batch_size=2)


def saved(folder: Path, **extra: Any) -> aa.Loop:
    loop = aa.Loop("cpu", framework="torch")
    net, optimizer, loader = loop.prepare(*parts())
    for x, y in loader:
        loop.backward(nn.functional.mse_loss(net(x), y))
        optimizer.step()
    loop.save(folder, extra=extra)
    return loop


class Counter:
    def __init__(self, value: Any = 0) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


def test_what_else_is_saved(tmp_path: Path) -> None:
    saved(tmp_path, best=0.5, names=["a", ("b", None)], counter=Counter(3))
    loop, counter = aa.Loop("cpu", framework="torch"), Counter()
    _, optimizer, _ = loop.prepare(*parts())
    extra = loop.load(tmp_path, extra={"counter": counter})
    assert (loop.step, counter.value, extra["best"], extra["names"]) == (3, 3, 0.5, ["a", ("b", None)])
    assert next(iter(optimizer.state.values()))["momentum_buffer"] is not None
    with pytest.raises(StateError, match="no extra 'other'"):
        loop.load(tmp_path, extra={"other": counter})


def test_wrong_checkpoints_are_errors_that_say_what_is_there(tmp_path: Path) -> None:
    first = saved(tmp_path / "a")
    with pytest.raises(StateError, match="has checkpoints of another run"):
        saved(tmp_path / "a")
    first.save(tmp_path / "a")
    loop = aa.Loop("cpu", framework="torch")
    loop.prepare(*parts(width=3))
    with pytest.raises(StateError, match=r"'weight' has shape \[1, 2\] there, but \[3, 2\] here"):
        loop.load(tmp_path / "a")
    loop = aa.Loop("cpu", framework="torch")
    loop.prepare(nn.Sequential(nn.Linear(2, 1)))
    with pytest.raises(StateError, match="has 1 loaders, but this loop 0"):
        loop.load(tmp_path / "a")
    with pytest.raises(ConfigError, match="no checkpoint of a loop"):
        loop.load(tmp_path / "b")
    with pytest.raises(StateError, match="'extra/x' is a object, which only pickle could write"):
        first.save(tmp_path / "c", extra={"x": object()})
    assert not (tmp_path / "c").exists()


def test_an_unknown_resume_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PhaseError, match="unknown resume='yes'"):
        next(iter(aa.Loop("cpu", framework="torch").epochs(1, save=tmp_path, resume="yes")))


def test_an_accumulation_is_not_saved_halfway(tmp_path: Path) -> None:
    loop = aa.Loop("cpu", framework="torch", accumulate=2)
    net, _, loader = loop.prepare(*parts())
    for x, y in loader:
        loop.backward(nn.functional.mse_loss(net(x), y))
        break
    with pytest.raises(StateError, match=r"if loop\.is_update: loop\.save"):
        loop.save(tmp_path)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_an_update_is_not_saved_between_its_gradients_and_its_step(tmp_path: Path, accumulate: int) -> None:
    loop = aa.Loop("cpu", framework="torch", accumulate=accumulate)
    net, optimizer, loader = loop.prepare(*parts())
    for _ in loop.epochs(1, save=tmp_path / "run", every=1):
        for number, (x, y) in enumerate(loader):
            loop.backward(nn.functional.mse_loss(net(x), y))
            if loop.is_update:
                with pytest.raises(StateError, match="accumulated gradients would be lost"):
                    loop.save(tmp_path / "by hand")
            if number:  # the first batch is left without a step
                optimizer.step()
            optimizer.zero_grad()
    loop.save(tmp_path / "by hand")
    steps = {int(name.name[5:14]) for name in (tmp_path / "run").iterdir()}
    assert steps == {1, 2}


def test_an_epoch_that_ends_within_an_update_is_saved_after_it(tmp_path: Path) -> None:
    loop = aa.Loop("cpu", framework="torch", accumulate=2)
    net, optimizer, loader = loop.prepare(*parts())
    steps = []
    for _ in loop.epochs(2, save=tmp_path):
        for x, y in loader:
            loop.backward(nn.functional.mse_loss(net(x), y))
            optimizer.step()
            optimizer.zero_grad()
            steps.append(loop.step)
            if len(steps) == 1:
                break
    assert steps == [0, 1, 1, 2]
    assert [folder.name[:14] for folder in sorted(tmp_path.iterdir())] == ["step-000000001", "step-000000002"]


def test_a_damaged_checkpoint_is_left_out_by_name(tmp_path: Path) -> None:
    whole = train(None, 0, 0, 7)
    train(str(tmp_path), 7, 0, 7)
    *_, before, newest = sorted(folder.name for folder in tmp_path.iterdir())
    file = next((tmp_path / newest).glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.warns(RuntimeWarning, match=f"the run resumes from {before}: .*{file.name}"):
        rest = train(str(tmp_path), 0, 0, 7)
    assert rest[0][0] == int(before[5:14]) and rest == whole[-len(rest) :]
    for manifest in tmp_path.glob("*/manifest.json"):
        manifest.write_text("{")
    with pytest.raises(StateError, match=r"no checkpoint in .* can be read"):
        train(str(tmp_path), 0, 0, 7)


def test_the_batch_size_is_halved_while_memory_runs_out() -> None:
    tried = []

    def train(batch_size: int) -> int:
        tried.append(batch_size)
        if batch_size > 20:
            raise torch.OutOfMemoryError("CUDA out of memory") if batch_size > 40 else MemoryError("8 bytes")
        return batch_size

    loop = aa.Loop("cpu", framework="torch")
    assert loop.find_batch_size(train, start=64) == 16 and tried == [64, 32, 16]
    with pytest.raises(MemoryError):
        loop.find_batch_size(lambda size: np.empty(2**59, np.int8), start=2)
    with pytest.raises(ValueError, match="wrong"):
        loop.find_batch_size(wrong)


def test_nothing_of_a_failed_call_is_left_in_the_loop(tmp_path: Path) -> None:
    def train(batch_size: int) -> tuple[Any, int]:
        net, optimizer, loader = loop.prepare(*parts())
        first = net.weight.tolist()
        for number, (x, y) in enumerate(loader):
            loop.backward(nn.functional.mse_loss(net(x), y))
            optimizer.step()
            if batch_size > 20 and number == 1:
                raise MemoryError("8 bytes")
        return first, loop.step

    loop = aa.Loop("cpu", framework="torch", seed=3, precision="bf16-mixed", accumulate=2)
    first, steps = loop.find_batch_size(train, start=64)
    loop.save(tmp_path)
    again = aa.Loop("cpu", framework="torch", seed=3)
    again.prepare(*parts())
    again.load(tmp_path)  # it has one model, optimizer and loader
    assert steps == again.step == 2
    aa.Loop("cpu", framework="torch", seed=3)
    assert first == nn.Linear(2, 1).weight.tolist(), "each call begins with the same random numbers"


def test_a_loop_that_is_closed_gives_back_what_another_prepares(tmp_path: Path) -> None:
    net, optimizer, loader = parts()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    before = type(schedule), "forward" in vars(net)
    loop = aa.Loop("cpu", framework="torch", precision="bf16-mixed", accumulate=3)
    loop.prepare(net, optimizer, schedule, loader)
    copied: Any = copy.deepcopy(net)
    with torch.no_grad():
        copied.weight.zero_()
        copied.bias.fill_(2.0)
    assert copied(torch.ones(1, 2)).tolist() == [[2.0]], "a copy computes with its own weights"
    with pytest.raises(ConfigError, match=r"prepared already.*loop\.close\(\)"):
        aa.Loop("cpu", framework="torch").prepare(net)
    loop.close()
    assert before == (type(schedule), "forward" in vars(net)) and net(torch.ones(1, 2)).dtype == torch.float32
    second = aa.Loop("cpu", framework="torch")
    net, optimizer, schedule, loader = second.prepare(net, optimizer, schedule, loader)
    for x, y in loader:
        second.backward(nn.functional.mse_loss(net(x), y))
        optimizer.step()
        schedule.step()
    assert (second.step, schedule.last_epoch, loop.step) == (3, 3, 0)


def wrong(batch_size: int) -> None:
    raise ValueError("wrong")


def test_what_a_checkpoint_lacks_is_warned_of_once(tmp_path: Path) -> None:
    def saved(name: str, *, with_optimizer: bool, with_schedule: bool, **extra: Any) -> list[str]:
        net = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        objects = [net, optimizer][: 1 + with_optimizer] + [schedule] * with_schedule
        loop = aa.Loop("cpu", framework="torch")
        loop.prepare(*objects)
        loop.backward(net(torch.ones(1, 2)).mean())
        optimizer.step()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                loop.save(tmp_path / name, extra=extra and {"schedule": extra["of"](schedule)})
        return [str(warning.message) for warning in caught]

    hint = "Hint: write net, optimizer, schedule = loop.prepare(net, optimizer, schedule)"
    lacks = "was not prepared, so that no checkpoint has its state, and a run that resumes differs."
    assert saved("a", with_optimizer=True, with_schedule=False) == [f"a schedule of SGD {lacks} {hint}"]
    assert saved("b", with_optimizer=False, with_schedule=False) == [f"the optimizer of Linear {lacks} {hint}"]
    assert saved("c", with_optimizer=True, with_schedule=True) == []
    assert saved("d", with_optimizer=True, with_schedule=False, of=lambda schedule: schedule) == []
    assert saved("e", with_optimizer=True, with_schedule=False, of=lambda schedule: schedule.state_dict()) == []
    loop = aa.Loop("cpu", framework="torch")
    net = loop.prepare(nn.Linear(2, 1))
    assert net(torch.ones(1, 2)).shape == (1, 1)
    loop.save(tmp_path / "evaluated")
