"""Hints of loops of one's own, in torch."""

from __future__ import annotations

import collections
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.capability import Capability
from anyaccel.errors import AnyaccelError, ConfigError
from anyaccel_distributed.own_loop.plain_state import packed, unpacked
from anyaccel_distributed.own_loop.processes import LoopProcesses

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset  # noqa: E402

F = nn.functional


def loop_of(**settings: Any) -> Any:
    return aa.Loop("cpu", framework="torch", **settings)


def parts() -> tuple[Any, Any, Any]:
    net = nn.Linear(2, 1)
    rows = TensorDataset(torch.ones(6, 2), torch.ones(6, 1))
    return net, torch.optim.SGD(net.parameters(), lr=0.1), DataLoader(rows, batch_size=2)


def two_backends() -> list[Any]:
    """As if two frameworks that have loops had been imported."""
    return [SimpleNamespace(framework=name, capability=lambda _: True) for name in ("jax", "torch")]


def test_several_processes(hint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    net, optimizer, loader = parts()
    with monkeypatch.context() as launched:
        for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "x", "MASTER_PORT": "1"}.items():
            launched.setenv(name, value)
        with hint("write loop = aa.Loop(), and loop.prepare(...): see the guide 'Keep your own loop'"):
            aa.prepare(net, optimizer, loader)
    loop = aa.Loop(framework="torch")
    assert loop.prepare(net, optimizer, loader)[0] is net


def test_different_calls(hint: Any) -> None:
    loop = loop_of()

    class OfTwo:
        """As if another process were in another call, or in the same."""

        rank, size, other = 0, 2, "in loop.reduce()"

        def gather(self, value: Any) -> list[Any]:
            return [value, [self.other or value[0], "", value[2]]]

    processes = LoopProcesses(OfTwo(), None, lambda seed: None)
    with hint("make the same calls in all processes, in the same order, and none inside `if loop.is_main_process:`"):
        processes.gather_plain(True, "in loop.any()")
    OfTwo.other = ""
    assert processes.gather_plain(True, "in loop.any()") == [True, True]
    if loop.is_main_process:
        print("no call of all processes")


def test_different_weights(hint: Any) -> None:
    class OfTwo:
        """As if another process had stepped its schedule with another value."""

        rank, size = 0, 2

        def gather(self, value: Any) -> list[Any]:
            *rest, message = value
            return [value, [*rest, packed((*unpacked(message)[:2], {"learning rates of SGD": [0.01]}))]]

    loop = loop_of()
    _, optimizer, loader = loop.prepare(*parts())
    schedule, value = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer), 1.0
    loader.processes = LoopProcesses(OfTwo(), None, lambda seed: None)
    with hint(
        "load and change weights in all processes, and step schedules with one value: schedule.step(loop.reduce(value))"
    ):
        next(iter(loader))
    schedule.step(loop_of().reduce(value))


def test_what_is_prepared(hint: Any) -> None:
    net, optimizer, loader = parts()
    loop = loop_of()
    with hint("write loop.prepare(net, optimizer, loader)"):
        loop.prepare()
    with hint("write net, optimizer, loader = loop.prepare(net, optimizer, loader)"):
        loop.prepare(net, int)
    with hint("prepare a list of batches as another iterable: loop.prepare(net, collections.deque(batches))"):
        loop.prepare(net, list(loader))
    _, batches = loop_of().prepare(parts()[0], collections.deque(loader))
    assert len(list(batches)) == len(loader)
    with hint(
        "prepare the model with its optimizer: net, optimizer = loop.prepare(net, optimizer); a parameter "
        "outside of a model as extra = nn.ParameterList([parameter]), with loop.prepare(net, extra, optimizer)"
    ):
        loop.prepare(optimizer)
    parameter = nn.Parameter(torch.zeros(1))
    with hint("write extra = nn.ParameterList([parameter]), and prepare extra"):
        loop.prepare(parameter)
    extra, other = nn.ParameterList([parameter]), nn.Linear(2, 1)
    both = torch.optim.SGD([*other.parameters(), parameter], lr=0.1)
    other, extra, both = loop_of().prepare(other, extra, both)
    assert both.param_groups[0]["params"][-1] is extra[0]
    dataset = loader.dataset
    with hint("write loader = loop.prepare(DataLoader(dataset, batch_size=32))"):
        loop.prepare(dataset)
    assert len(loop_of().prepare(DataLoader(dataset, batch_size=32))) == 1
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with hint("write net, optimizer, schedule = loop.prepare(net, optimizer, schedule)"):
        loop_of(accumulate=2).prepare(schedule)
    with hint("write batch='global'"):
        loop.prepare(loader, batch="local")
    loop.prepare(loader, batch="global")
    net, optimizer, schedule = loop.prepare(net, optimizer, schedule)
    net, optimizer, loader = loop_of().prepare(*parts())
    net, optimizer = loop_of().prepare(*parts()[:2])


def test_what_another_loop_has_prepared(hint: Any) -> None:
    net, optimizer, loader = parts()
    loop = loop_of(accumulate=2)
    loop.prepare(net, optimizer, loader)
    with hint(
        "prepare each model once, and use the result of prepare(); call loop.close() before you use it in another Loop"
    ):
        loop_of().prepare(net)
    loop.close()
    net, optimizer, loader = loop_of().prepare(net, optimizer, loader)
    for x, y in loader:
        F.mse_loss(net(x), y).backward()
        optimizer.step()


def test_profiles(hint: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from anyaccel_devtools.profiles import RECORDING

    def train(profile: Any = None) -> None:
        net, optimizer, loader = (loop := loop_of(profile=profile)).prepare(*parts())
        for _ in loop.epochs(1):
            for x, y in loader:
                loop.backward(F.mse_loss(net(x), y))
                optimizer.step()

    profile = aa.Profile((0, 2), str(tmp_path))
    with hint("write profile=aa.Profile((10, 20), 'traces')"):
        train(profile=(10, 20))
    train(profile=aa.Profile((10, 20), str(tmp_path / "traces")))
    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
        hint("stop the profiler that is running in this process, or leave profile= out"),
    ):
        train(profile)
    train(profile=aa.Profile((0, 2), str(tmp_path / "ended")))
    with RECORDING, hint("profile one at a time"):
        train(profile)
    train(profile=profile)
    assert profile.files
    monkeypatch.setattr("anyaccel_devtools.profiles.ProfilesSteps", type("Unknown", (Capability,), {}))
    with hint("leave profile= out, or use a system profiler"):
        train(profile)
    train()  # without profile


def test_a_row_of_another_process(hint: Any) -> None:
    loop = loop_of()
    model = parts()[0]
    loader = loop.prepare(DataLoader(TensorDataset(torch.ones(1, 2), torch.ones(1, 1))))
    loader.processes.size = 2  # the row is of the second
    with hint("gather the results, each row once: loop.gather(model(x) for x, y in loader)"):
        sum(len(x) for x, y in loader)
    loop.gather(model(x) for x, y in loader)


def test_what_is_divided_already(hint: Any) -> None:
    _, _, loader = parts()
    sampler = DistributedSampler(loader.dataset, num_replicas=2, rank=0)
    with hint("create it without a DistributedSampler; prepare() splits its batches"):
        loop_of().prepare(DataLoader(loader.dataset, sampler=sampler))
    assert len(list(loop_of().prepare(loader))) == 3
    net = nn.DataParallel(nn.Linear(2, 1))
    with hint("prepare the wrapped module: net.module"):
        loop_of().prepare(net)
    assert loop_of().prepare(net.module)


def test_settings(hint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with hint("write accumulate=4"):
        loop_of(accumulate=0)
    assert loop_of(accumulate=4).accumulation_steps == 4
    loop = loop_of()
    loop.prepare(nn.Linear(2, 1))
    with hint("write Loop(accumulate=4)"):
        loop.accumulation_steps = 4
    assert aa.Loop(framework="torch", accumulate=4).accumulation_steps == 4
    with hint("write start=128"):
        loop.find_batch_size(lambda size: size, start=0)
    assert loop.find_batch_size(lambda size: size, start=128) == 128
    with hint("write sharding='full'"):
        loop_of(sharding="half")
    with hint("write sharding='full', or train in a TrainPhase, which offloads"):
        loop_of(sharding="full offload")
    assert loop_of(sharding="full").sharding == "full"
    assert aa.TrainPhase(data="all", residency="streamed")
    with hint("write precision='bf16-mixed', or net.to({}) before prepare()"):
        loop_of(precision="bf16")
    net = nn.Linear(2, 1)
    net.to(torch.bfloat16)
    assert loop_of(precision="bf16-mixed").prepare(net) is net
    monkeypatch.setattr("anyaccel_distributed.own_loop.loop.imported_backends", two_backends)
    with hint("name it: Loop(framework={})"):
        aa.Loop()
    assert aa.Loop(framework="torch").framework == "torch"
    with hint("write 'mean'"):
        loop_of().reduce(1.0, "average")
    assert loop_of().reduce(1.0, "mean") == 1.0


def test_settings_of_phases(hint: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    net, optimizer, loader = parts()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with hint("your loader makes the batches: loader = loop.prepare(loader)"):
        loop_of(batch_size=32)
    with hint("write net, optimizer, schedule = loop.prepare(net, optimizer, schedule)"):
        loop_of(schedule="cosine")
    with hint("write loop.prepare(loader, batch='per_replica')"):
        loop_of(per_replica=True)
    with hint("name the device: Loop('cpu')"):
        aa.Loop(framework="torch", cpu=True)
    assert str(aa.Loop("cpu", framework="torch").accelerator) == "cpu:0"
    with hint("pass it to the framework's engine: options={'gradient_as_bucket_view': True}"):
        loop_of(gradient_as_bucket_view=True)
    assert loop_of(options={"gradient_as_bucket_view": True}).options
    with hint("not needed: parameters without gradients are found"):
        loop_of(find_unused_parameters=True)
    with hint("write precision='fp16-mixed', which scales losses"):
        loop_of(loss_scale=8)
    assert loop_of(precision="fp16-mixed").scaler is not None
    with hint("write precision='bf16-mixed'"):
        loop_of(bf16=True)
    assert loop_of(precision="bf16-mixed").precision == "bf16-mixed"
    with hint("write sharding='full'"):
        loop_of(fsdp=True)
    with hint(
        "a Loop keeps the model on the device: shard it, with sharding='full', or train in a TrainPhase, which offloads"
    ):
        loop_of(offload=True)
    assert loop_of(sharding="full").sharding == "full" and aa.TrainPhase(data="all", residency="streamed")
    with hint("for the same bits on any number of devices, train in a TrainPhase, with deterministic=True"):
        loop_of(deterministic=True)
    assert aa.TrainPhase(data="all", deterministic=True).deterministic
    with hint("write log='runs/a'; each tracker that is installed and turned on logs, too"):
        loop_of(trackers=["tensorboard"])
    loop = loop_of(log="runs/a")
    net, optimizer, schedule = loop.prepare(net, optimizer, schedule)
    loader = loop.prepare(loader, batch="per_replica")
    with hint("write for epoch in loop.epochs(10):"):
        loop_of(epochs=10)
    for epoch in loop.epochs(10):
        loop.log({"epoch": epoch})
    with hint("read loop.tracking.history"):
        _ = loop.history
    assert len(loop.tracking.history) == 10 and Path("runs/a/metrics.jsonl").exists()
    with hint("write for epoch in loop.epochs(10, save='runs/a'):"):
        loop_of(checkpoint="runs/a")
    loop = loop_of()
    net, optimizer, loader = loop.prepare(*parts())
    with hint("write loop.backward(loss), with your own loss and optimizer"):
        loop_of(losses="mse")
    with hint("write if loop.any(loss != loss): break"):
        loop_of(on_nan="stop")
    for _epoch in loop.epochs(10, save="runs/a"):
        for x, y in loader:
            loss = F.mse_loss(net(x), y)
            if loop.any(loss != loss):
                break
            loop.backward(loss)
            optimizer.step()
    with hint("evaluate in your loop: loop.gather(net(x) for x, y in test)"):
        loop_of(validation="val")
    test = loader
    assert loop.gather(net(x) for x, y in test).shape == (6, 1)
    with hint("move the model after loop.close()"):
        loop_of(final_device="cpu")
    loop.close()
    assert net.to("cpu") is net
    with hint("write loop.find_batch_size(train), or accumulate=4"):
        loop_of(microbatching="auto")
    train = int
    assert loop.find_batch_size(train) == 128 and loop_of(accumulate=4).accumulation_steps == 4


def test_words_of_phases(hint: Any, cli: Any, tmp_path: Path) -> None:
    loop = loop_of()
    with hint("read loop.accelerator; `anyaccel doctor` checks the machine"):
        _ = loop.doctor
    assert str(loop.accelerator) == "cpu:0" and "doctor" in cli("doctor", "--help").output
    with hint("a Loop keeps the model on the device; a TrainPhase offloads"):
        _ = loop.offload
    with hint("write with aa.ledger() as moved: around your loop"):
        _ = loop.ledger
    with aa.ledger() as moved:
        list(loop.prepare(parts()[2]))
    assert moved.totals().nbytes == 0
    with hint("write Loop(profile=aa.Profile((10, 20), 'traces'))"):
        _ = loop.profile
    assert aa.Loop("cpu", framework="torch", profile=aa.Profile((10, 20), str(tmp_path / "traces")))
    with hint("write Loop(log='runs/a'); each tracker that is installed and turned on logs, too"):
        _ = loop.trackers
    assert aa.Loop("cpu", framework="torch", log=str(tmp_path / "runs/a"))
    with hint("nothing is known of your loop before it runs; a graph has a plan: experiment.plan(phase)"):
        _ = loop.plan
    rows = {"x": np.ones((4, 2), np.float32), "y": np.ones((4, 1), np.float32)}
    data = aa.FeatureSet.from_dict("data", rows, features="x", target="y")
    graph = aa.ModelGraph([aa.ModelNode("model", nn.Linear(2, 1), data.reference())], aa.Optimizer("sgd", lr=0.1))
    losses = [aa.AppliedLoss("mse", on="model")]
    phase = aa.TrainPhase(data=data, losses=losses, batch_size=2, accelerator="cpu")
    experiment = aa.Experiment("e", graph)
    assert "model" in str(experiment.plan(phase))


def test_words_of_accelerate_and_fabric(hint: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    loop = loop_of()
    with hint("write net = loop.prepare(net)"):
        _ = loop.setup_module
    with hint("write net, optimizer = loop.prepare(net, optimizer)"):
        _ = loop.setup_optimizers
    with hint("write net, optimizer, schedule = loop.prepare(net, optimizer, schedule)"):
        _ = loop.setup
    with hint("write loader = loop.prepare(loader)"):
        _ = loop.prepare_data_loader
    with hint("write loader = loop.prepare(loader, batch='per_replica')"):
        _ = loop.setup_dataloaders
    with hint("write loader = loop.prepare(loader, batch='global')"):
        _ = loop.split_batches
    with hint("not needed: prepare() places whole models"):
        _ = loop.verify_device_map
    with hint("write net.load_state_dict(torch.load('net.pt')) before loop.prepare(net)"):
        _ = loop.load_raw
    with hint("write with torch.device(loop.device):"):
        _ = loop.init_module
    net, optimizer, loader = parts()
    torch.save(net.state_dict(), "net.pt")
    with torch.device(loop.device):
        net = nn.Linear(2, 1)
    net.load_state_dict(torch.load("net.pt"))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    net, optimizer, schedule = loop.prepare(net, optimizer, schedule)
    assert len(list(loop.prepare(loader, batch="per_replica"))) == len(list(loop.prepare(loader, batch="global"))) == 3
    assert loop_of().prepare(nn.Linear(2, 1)).weight.shape == (1, 2)
    loader = loop.prepare(loader)

    with hint("write loop.clip_grad_norm_(net, 1.0), or loop.clip_grad_value_(net, 1.0)"):
        _ = loop.clip_gradients
    with hint("write loop.clip_grad_norm_(net, 1.0), which unscales"):
        _ = loop.unscale_gradients
    with hint("clip in your loop: loop.clip_grad_norm_(net, 1.0), or in the optimizer where a loop has no such call"):
        loop_of(max_grad_norm=1.0)
    with hint("write loop.gather(x), which has each row once, in the order of the data"):
        _ = loop.gather_for_metrics
    with hint("write loop.gather(x, pad=0)"):
        _ = loop.pad_across_processes
    with hint("write loop.reduce(x, 'mean')"):
        _ = loop.all_reduce
    with hint("write if loop.any(is_over): break"):
        _ = loop.set_trigger
    with hint("write loop.accelerator.move(batch)"):
        _ = loop.to_device
    with hint("write loop.log({'loss': loss})"):
        _ = loop.log_dict
    with hint("read loop.is_update"):
        _ = loop.sync_gradients
    with hint("read optimizer.was_skipped"):
        _ = loop.optimizer_step_was_skipped
    for batch in loader:
        x, y = loop.accelerator.move(batch)
        loss = F.mse_loss(net(x), y)
        loop.backward(loss)
        assert loop.is_update
        loop.clip_grad_value_(net, 1.0)
        assert loop.clip_grad_norm_(net, 1.0) is not None
        optimizer.step()
        schedule.step()
        assert not optimizer.was_skipped
        loop.log({"loss": loss})
        assert loop.gather(x).shape == loop.gather(x, pad=0).shape == (2, 2) and loop.reduce(x, "mean").shape == (2, 2)
        is_over = False
        if loop.any(is_over):
            break

    with hint("write loop.barrier()"):
        _ = loop.wait_for_everyone
    with hint("write with loop.main_process_first():"):
        _ = loop.rank_zero_first
    with hint("write if loop.is_main_process:"):
        _ = loop.is_global_zero
    with hint("write if loop.is_local_main_process:"):
        _ = loop.on_local_main_process
    with hint("write if loop.is_local_main_process:, and loop.barrier() after it"):
        _ = loop.local_main_process_first
    with hint("read loop.process_index"):
        _ = loop.rank
    with hint("read loop.local_process_index"):
        _ = loop.local_rank
    with hint("read loop.num_processes"):
        _ = loop.world_size
    with hint("compare loop.process_index"):
        _ = loop.on_process
    with hint("compare loop.local_process_index"):
        _ = loop.on_local_process
    with hint("write if loop.process_index == loop.num_processes - 1:"):
        _ = loop.is_last_process
    with hint("write items[loop.process_index :: loop.num_processes]"):
        _ = loop.split_between_processes
    with loop.main_process_first():
        loop.barrier()
    items = [1, 2, 3]
    assert items[loop.process_index :: loop.num_processes] == items
    assert loop.process_index == loop.local_process_index == loop.num_processes - 1 == 0
    assert loop.is_main_process and loop.is_local_main_process

    with hint("write loop.save('runs/a')"):
        _ = loop.save_state
    with hint("write loop.load('runs/a')"):
        _ = loop.load_state
    with hint("loop.load('runs/a') resumes after the last batch; nothing is skipped by hand"):
        _ = loop.skip_first_batches
    with hint("write loop.prepare(x), or loop.save('runs/a', extra={'x': x})"):
        _ = loop.register_for_checkpointing
    with hint("call your function before loop.save('runs/a') or loop.load('runs/a')"):
        _ = loop.register_save_state_pre_hook
    with hint("name the folder: loop.save(f'runs/{loop.step}')"):
        _ = loop.project_dir
    with hint("write loop.unwrap(net)"):
        _ = loop.unwrap_model
    with hint("delete the objects; loop.close() releases those that it has prepared"):
        _ = loop.free_memory
    loop.prepare(torch.optim.swa_utils.AveragedModel(nn.Linear(1, 1)))
    loop.save("runs/a", extra={"x": 3})
    loop.save(f"runs/{loop.step}")
    assert loop.load("runs/a") == {"x": 3} and loop.load("runs/3") == {}
    assert loop.unwrap(net) is net
    loop.close()

    with hint("write Loop(accumulate=4): gradients are exchanged once an update"):
        _ = loop.no_backward_sync
    with hint("read loop.accumulation_steps"):
        _ = loop.gradient_accumulation_steps
    assert aa.Loop("cpu", framework="torch", accumulate=4).accumulation_steps == 4
    with hint("read loop.precision"):
        _ = loop.mixed_precision
    with hint("read loop.sharding"):
        _ = loop.strategy
    with hint("write Loop(sharding='full')"):
        _ = loop.sharded_model
    with hint("write Loop(seed=0)"):
        _ = loop.seed_everything
    loop = aa.Loop("cpu", framework="torch", sharding="full", seed=0)
    assert (loop.sharding, loop.seed, loop.precision) == ("full", 0, None)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("checkpoint", "it is called 'save'"),
        ("ckpt_path", "it is called 'save'"),
        ("output_dir", "it is called 'save'"),
        ("resume_from", "it is called 'save': the loop resumes from the newest checkpoint in this folder"),
        ("save_total_limit", "it is called 'keep'"),
    ],
)
def test_arguments_of_epochs(tmp_path: Path, word: str, said: str) -> None:
    loop, folder = loop_of(), str(tmp_path / "a")
    message = rf"epochs has no argument '{word}'\. Available: epochs, save, every"
    with pytest.raises(AnyaccelError, match=message) as caught:
        loop.epochs(3, **{word: folder})
    assert getattr(caught.value, "hint", "") == said
    assert list(loop.epochs(3, save=folder, keep=2)) == [0, 1, 2]
    assert list(loop_of().epochs(4, save=folder)) == [3]  # it resumes


def test_losses_that_are_no_tensors(hint: Any) -> None:
    loop = loop_of()
    net, _, _ = loop.prepare(*parts())
    outputs = SimpleNamespace(loss=net(torch.ones(2, 2)).mean())
    with hint("pass its loss: loop.backward(outputs.loss)"):
        loop.backward(outputs)
    loop.backward(outputs.loss, retain_graph=True)
    with hint("pass the loss as the model computed it, not loss.item()"):
        loop.backward(outputs.loss.item())
    loss = outputs.loss
    loop.backward(loss, retain_graph=True)
    outputs = {"loss": loss}
    with hint("pass its loss: loop.backward(outputs['loss'])"):
        loop.backward(outputs)
    loop.backward(outputs["loss"], retain_graph=True)
    losses = (loss, 2 * loss)
    with hint("pass one loss: loop.backward(losses[0]), or their sum: loop.backward(sum(losses))"):
        loop.backward(losses)
    loop.backward(sum(losses))
    assert loss.item() == 1.0 * loss.detach() and net.weight.grad is not None


def test_gradients(hint: Any) -> None:
    net, optimizer, loader = parts()
    loop = loop_of(accumulate=2)
    net, optimizer, loader = loop.prepare(net, optimizer, loader)
    x, y = torch.ones(2, 2), torch.ones(2, 1)
    with hint("prepare the loader, or pass the number: loop.backward(loss * len(x), count=len(x))"):
        loop.backward(F.mse_loss(net(x), y))
    loss = F.mse_loss(net(x), y)
    loop.backward(loss * len(x), count=len(x))
    loop = loop_of(accumulate=2)
    net, optimizer, loader = loop.prepare(*parts())
    for x, y in loader:
        loss = F.mse_loss(net(x), y)
        loss.backward()
        with hint("use loop.backward(loss) instead of loss.backward()"):
            optimizer.step()
        loop.backward(F.mse_loss(net(x), y))
        with hint("pass count= for each loss of the update, or for none"):
            loop.backward(F.mse_loss(net(x), y, reduction="sum"), count=len(x))
        break
    loop = loop_of(accumulate=2)
    net, optimizer, loader = loop.prepare(*parts())
    for x, y in loader:
        loop.backward(F.mse_loss(net(x), y, reduction="sum"), count=len(x))
        optimizer.step()
    frozen, trained = nn.Linear(2, 2), nn.Linear(2, 1)
    for parameter in frozen.parameters():
        parameter.requires_grad_(False)
    net = nn.Sequential(frozen, trained)
    loop = loop_of(accumulate=2)
    net, optimizer, loader = loop.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1), loader.loader)
    frozen.weight.requires_grad_(True)
    with hint("freeze it after loop.prepare(...): parameter.requires_grad_(False)"):
        for x, y in loader:
            loop.backward(F.mse_loss(net(x), y))
            optimizer.step()
    loop.prepare(*parts())
    for parameter in frozen.parameters():
        parameter.requires_grad_(False)
    other, second = nn.Linear(2, 1), None
    loop = loop_of(accumulate=2)
    net, optimizer, loader = loop.prepare(*parts())
    second = torch.optim.SGD(other.parameters(), lr=0.1)
    for x, y in loader:
        with hint("prepare it: net, optimizer = loop.prepare(net, optimizer)"):
            loop.backward(F.mse_loss(other(x), y), other)
        with hint("after the loss, name models: loop.backward(loss, net)"):
            loop.backward(F.mse_loss(net(x), y), optimizer)
        other, second = loop.prepare(other, second)
        with hint("name it: loop.backward(loss, net)"):
            loop.backward(F.mse_loss(net(x), y))
        loss = F.mse_loss(net(x), y)
        loop.backward(loss, net)
        break


def test_batches(hint: Any) -> None:
    class Longer(list[Any]):
        def __iter__(self) -> Any:
            return iter([torch.ones(1)])

    class Batches:
        def __init__(self, length: int) -> None:
            self._length = length

        def __iter__(self) -> Any:
            return iter([torch.ones(1, 2)])

        def __len__(self) -> int:
            return self._length

    with hint("return the number of batches from __len__, or leave it out"):
        list(loop_of().prepare(Batches(2)))
    assert len(list(loop_of().prepare(Batches(1)))) == 1
    loop = loop_of()
    with hint("gather only values with one row per row of the batch; sum other values: loop.reduce(x, 'sum')"):
        loop.gather(torch.ones(1) for _ in loop.prepare([torch.ones(3, 2)].__iter__()))
    x = torch.ones(1)
    assert loop.reduce(x, "sum") == 1.0


def test_checkpoints(hint: Any, tmp_path: Path) -> None:
    loop = loop_of(accumulate=2)
    net, optimizer, loader = loop.prepare(*parts())
    for x, y in loader:
        loop.backward(F.mse_loss(net(x), y))
        if not loop.is_update:
            with hint("write if loop.is_update: loop.save(...), after optimizer.step()"):
                loop.save(tmp_path / "a")
        optimizer.step()
        if loop.is_update:
            loop.save(tmp_path / "a")
    with hint("resume from them: loop.load(FOLDER); or save into another folder"):
        loop_of().save(tmp_path / "a")
    loop.load(tmp_path / "a")
    with hint("write one: loop.save(FOLDER)"):
        loop.load(tmp_path / "b")
    loop.save(tmp_path / "b")

    class Kept:
        def __init__(self, value: Any) -> None:
            self.value = value

        def state_dict(self) -> dict[str, Any]:
            return {"value": self.value}

    with hint(
        "return only numbers, text, tensors, and dicts, lists and tuples of these from state_dict() of the object"
    ):
        loop.save(tmp_path / "c", extra={"kept": Kept(object())})
    kept = Kept({"a": [1, "text", (np.ones(2),)]})
    loop.save(tmp_path / "c", extra={"kept": kept})
    assert kept.state_dict()["value"]["a"][1] == loop.load(tmp_path / "c")["kept"]["value"]["a"][1]
    from anyaccel.phases.process_group import SingleProcess
    from anyaccel_distributed.own_loop.loop_folder import LoopFolder
    from anyaccel_distributed.own_loop.processes import LoopProcesses

    folder = LoopFolder(tmp_path / "c", LoopProcesses(SingleProcess(), None, lambda seed: None))
    with hint("resume with Loop(framework={})"):
        folder.newest("jax")
    assert folder.newest(aa.Loop(framework="torch").framework) is not None


def test_checkpoints_need_a_folder(hint: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with hint("write save='runs/a'"):
        next(loop_of().epochs(1, every=5))
    assert list(loop_of().epochs(2, save=None, every=5)) == [0, 1]
    loop = loop_of()
    net, optimizer, loader = loop.prepare(*parts())
    for _ in loop.epochs(1, save="runs/a", every=5):
        for x, y in loader:
            loop.backward(F.mse_loss(net(x), y))
            optimizer.step()
    assert any((tmp_path / "runs/a").iterdir())


def accumulated(change: Any = None, loss: Any = None) -> Any:
    """The weights after updates over two batches of two rows, with a short last update."""
    torch.manual_seed(0)
    loop = loop_of(accumulate=2)
    net, optimizer = nn.Linear(2, 2), None
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    rows = TensorDataset(torch.arange(12.0).reshape(6, 2), torch.tensor([0, 1, 1, 1, 0, 1]))
    net, optimizer, loader = loop.prepare(net, optimizer, DataLoader(rows, batch_size=2))
    for x, y in loader:
        if loss is None:
            loop.backward(F.cross_entropy(net(x), y))
        else:
            loss(loop, net(x), y)
        if change is not None:
            change(loop, net)
        optimizer.step()
        optimizer.zero_grad()
    return net.weight.detach()


def test_gradients_that_change_while_they_are_sums_are_warned_of() -> None:
    def by_torch(loop: Any, net: Any) -> None:
        nn.utils.clip_grad_norm_(net.parameters(), 0.01)

    for change in (by_torch, lambda loop, net: net.zero_grad()):
        with pytest.warns(UserWarning, match="before the loop has divided them") as caught:
            changed = accumulated(change)
        assert "use loop.clip_grad_norm_(net, 1.0) and optimizer.zero_grad()" in str(caught[0].message)
        assert not torch.allclose(changed, accumulated())
    accumulated(lambda loop, net: loop.clip_grad_norm_(net, 1.0))  # warnings are errors here


def scaled(clip: Any) -> Any:
    """The weights after one update with a loss scale."""
    torch.manual_seed(0)
    loop = loop_of(precision="fp16-mixed")
    net, optimizer, loader = loop.prepare(*parts())
    for x, y in loader:
        loop.backward(F.mse_loss(net(x), y) / 100)
        clip(loop, net)
        optimizer.step()
        break
    return net.weight.detach()


def test_gradients_that_are_clipped_with_their_loss_scale_are_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"the loss scale.*use loop.clip_grad_norm_\(net, 1.0\)"):
        wrong = scaled(lambda loop, net: nn.utils.clip_grad_norm_(net.parameters(), 1e-2))
    assert not torch.allclose(wrong, scaled(lambda loop, net: loop.clip_grad_norm_(net, 1e-2)), atol=1e-4)


@pytest.mark.parametrize("settings", [{"accumulate": 2}, {"precision": "fp16-mixed"}])
def test_a_loop_that_calls_backward_of_the_loss_alone_is_warned_of(settings: Any) -> None:
    loop, (net, _, loader) = loop_of(**settings), parts()
    net, loader = loop.prepare(net, loader)
    hint = r"Hint: to train it, write net, optimizer = loop\.prepare\(net, optimizer\), and loop\.backward\(loss\)"
    with pytest.warns(UserWarning, match=rf"Linear has gradients of loss\.backward\(\).*{hint}"):
        F.mse_loss(net(torch.ones(2, 2)), torch.ones(2, 1)).backward()
    net, _, loader = loop_of(**settings).prepare(*parts())
    for x, y in loader:
        F.mse_loss(net(x), y).backward()  # the step is an error


def test_factors_of_a_loss_that_the_loop_has_itself_are_warned_of() -> None:
    scaler = torch.amp.GradScaler("cpu")
    hint = r"leave your GradScaler out, and write Loop\(precision='fp16-mixed'\) and loop\.backward\(loss\)"
    for settings in ({"accumulate": 2}, {"precision": "fp16-mixed"}):
        loop = loop_of(**settings)
        net, optimizer, loader = loop.prepare(*parts())
        for x, y in loader:
            with pytest.warns(UserWarning, match=rf"multiplied by 65536, as by a GradScaler.*Hint: {hint}"):
                loop.backward(scaler.scale(F.mse_loss(net(x), y)))
            break
    loop = aa.Loop("cpu", framework="torch", precision="fp16-mixed")
    net, optimizer, loader = loop.prepare(*parts())
    for x, y in loader:
        loss = F.mse_loss(net(x), y)
        loop.backward(loss)
        optimizer.step()
    with pytest.warns(
        UserWarning, match=r"divided by 2, the number of batches.*Hint: pass the mean over the rows"
    ) as w:
        accumulated(loss=lambda loop, outputs, targets: loop.backward(F.cross_entropy(outputs, targets) / 2))
    assert "a factor of the loss itself as loop.backward(loss * (1 / 2))" in str(w[0].message)
    accumulated(loss=lambda loop, outputs, targets: loop.backward(F.cross_entropy(outputs, targets) * (1 / 2)))
    accumulated(loss=lambda loop, outputs, targets: loop.backward(F.cross_entropy(outputs, targets) / 3))
    accumulated(loss=lambda loop, outputs, targets: loop.backward((outputs.mean() + outputs.square().mean()) / 2))
    for weight in (1024, 1024.0, torch.tensor(1000.0)):  # a weight of the user, in or near a power of two
        accumulated(loss=lambda loop, outputs, targets: loop.backward(outputs.mean() * weight))  # noqa: B023


def test_losses_of_which_no_term_is_a_sum_over_rows_are_silent() -> None:
    """Here rows, outputs and the first axis of the weights are equally many."""

    def trained(loss: Any, batch_size: int = 2, n_outputs: int = 2) -> None:
        loop, net = loop_of(accumulate=2), nn.Linear(2, n_outputs)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        rows = TensorDataset(torch.ones(6, 2), torch.ones(6, n_outputs))
        net, optimizer, loader = loop.prepare(net, optimizer, DataLoader(rows, batch_size=batch_size))
        for x, y in loader:
            loop.backward(loss(net, F.mse_loss(net(x), y)))
            optimizer.step()
            optimizer.zero_grad()

    def of_steps(net: Any, mean: torch.Tensor) -> torch.Tensor:
        loss = mean
        for _ in range(2000):  # deeper than Python's stack
            loss = loss + mean / 2000
        return loss

    def doubled(net: Any, mean: torch.Tensor) -> torch.Tensor:
        for _ in range(64):  # 2**64 paths
            mean = mean + mean
        return mean * 2**-64

    trained(lambda net, mean: mean + net.weight.square().sum())
    trained(lambda net, mean: mean + sum(parameter.abs().sum() for parameter in net.parameters()))
    trained(lambda net, mean: mean + F.mse_loss(net.weight, torch.zeros(2, 2), reduction="sum"))
    trained(of_steps)
    trained(doubled)
    trained(lambda net, mean: mean - doubled(net, mean) + mean)
    trained(lambda net, mean: net(torch.ones(1, 2)).sum(), batch_size=1)
    with pytest.warns(UserWarning, match="is a sum over rows"):
        trained(lambda net, mean: mean + net(torch.ones(2, 2)).square().sum())


def test_gradients_of_another_model_that_are_removed_are_no_change(recwarn: Any) -> None:
    """Two models in one loss, with a loss scale: each optimizer removes what the other's loss has left."""
    loop = loop_of(precision="fp16-mixed")
    nets = [nn.Linear(2, 2), nn.Linear(2, 1)]
    optimizers = [torch.optim.SGD(net.parameters(), lr=1e-3) for net in nets]
    maker, critic, of_maker, of_critic, loader = loop.prepare(*nets, *optimizers, parts()[2])
    for _ in range(2):
        for x, _ in loader:
            of_critic.zero_grad()
            loop.backward(critic(x).mean() - critic(maker(x).detach()).mean())
            of_critic.step()
            of_maker.zero_grad()
            loop.backward(critic(maker(x)).mean())
            of_maker.step()
    assert not [str(warning.message) for warning in recwarn if "gradients" in str(warning.message)]


@pytest.mark.parametrize("settings", [{"accumulate": 2}, {"precision": "fp16-mixed"}])
def test_an_optimizer_that_was_not_prepared_is_warned_of(settings: Any) -> None:
    loop, (net, optimizer, loader), teacher = loop_of(**settings), parts(), nn.Linear(1, 1)
    net, loader, teacher = loop.prepare(net, loader, teacher)
    message = "Linear has gradients, but no optimizer of its parameters was prepared"
    with pytest.warns(UserWarning, match=message) as caught:
        for x, y in loader:
            loop.backward(F.mse_loss(net(x), y))
            break
    hint = "write net, optimizer = loop.prepare(net, optimizer); for a model that is not trained, "
    assert f"{hint}loop.prepare(net, frozen=True)" in str(caught[0].message)
    loop, (net, optimizer, loader), teacher = loop_of(**settings), parts(), nn.Linear(1, 1)
    net, optimizer = loop.prepare(net, optimizer)
    teacher, loader = loop.prepare(teacher, frozen=True), loop.prepare(loader)
    for x, y in loader:
        loop.backward(F.mse_loss(teacher(net(x)), y))
        optimizer.step()


def test_a_loss_that_is_no_mean_over_rows_is_warned_of() -> None:
    weight = torch.tensor([1.0, 5.0])

    def as_mean(loop: Any, outputs: Any, targets: Any) -> None:
        loop.backward(F.cross_entropy(outputs, targets, weight=weight))

    def as_sum(loop: Any, outputs: Any, targets: Any) -> None:
        total = F.cross_entropy(outputs, targets, weight=weight, reduction="sum")
        loop.backward(total, count=weight[targets].sum().item())

    def ignoring(loop: Any, outputs: Any, targets: Any) -> None:
        loop.backward(F.cross_entropy(outputs, targets, ignore_index=0))

    def as_sum_of_rows(loop: Any, outputs: Any, targets: Any) -> None:
        loop.backward(F.cross_entropy(outputs, targets, reduction="sum") + outputs.square().mean())

    def as_sum_of_all(loop: Any, outputs: Any, targets: Any) -> None:
        loop.backward((outputs.square()).sum())

    for summed in (as_sum_of_rows, as_sum_of_all):
        with pytest.warns(UserWarning, match=r"is a sum over rows.*pass the sum and its divisor: loop.backward\(total"):
            accumulated(loss=summed)
    accumulated(loss=lambda loop, outputs, targets: loop.backward(torch.stack([outputs.mean()] * 3).sum()))
    with pytest.warns(UserWarning, match=r"divided by the sum of class weights.*loop.backward\(total, count=n\)"):
        mean = accumulated(loss=as_mean)
    with pytest.warns(UserWarning, match="the number of targets that are not ignored"):
        accumulated(loss=ignoring)
    exact = accumulated(loss=as_sum)
    torch.manual_seed(0)
    net = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x, y = torch.arange(12.0).reshape(6, 2), torch.tensor([0, 1, 1, 1, 0, 1])
    for part in (slice(0, 4), slice(4, 6)):
        optimizer.zero_grad()
        F.cross_entropy(net(x[part]), y[part], weight=weight).backward()
        optimizer.step()
    assert torch.allclose(exact, net.weight, atol=1e-6) and not torch.allclose(mean, net.weight, atol=1e-6)


def test_names_of_a_loop(hint: Any) -> None:
    with hint("write loop = Loop(), and loop.backward(loss)"):
        _ = aa.Fabric
    with hint("your own training loop has it: loop = anyaccel.Loop('cpu'), and loop.prepare(model, optimizer, loader)"):
        aa.Accelerator("cpu").prepare()  # type: ignore[attr-defined]
    loop, (model, optimizer, loader) = aa.Loop("cpu", framework="torch"), parts()
    model, optimizer, loader = loop.prepare(model, optimizer, loader)
    for x, y in loader:
        loop.backward(F.mse_loss(model(x), y))
        optimizer.step()
    assert loop.step == len(loader)


def test_precision_by_other_names(hint: Any) -> None:
    with hint("write fit(..., precision='bf16-mixed'), or Loop(precision='bf16-mixed')"):
        _ = aa.GradScaler
    net, x = nn.Linear(2, 1), np.ones((4, 2), "float32")
    fitted = aa.fit(net, (x, x[:, :1]), loss="mse", epochs=1, precision="bf16-mixed", progress="none")
    assert fitted.results.loss.size == 1 and aa.Loop("cpu", framework="torch", precision="bf16-mixed").step == 0


def test_epochs_that_have_run_are_an_error_instead_of_no_training(hint: Any) -> None:
    loop = loop_of()
    assert list(loop.epochs(2)) == [0, 1]
    with hint("count all epochs of the loop: loop.epochs({}); for another training, write another Loop()"):
        list(loop.epochs(2))
    assert list(loop.epochs(4)) == [2, 3]
    another = aa.Loop("cpu", framework="torch")
    assert list(another.epochs(2)) == [0, 1]


def test_a_framework_is_no_device(hint: Any) -> None:
    with hint("{} is a framework: write framework={}, and a device such as 'cpu'"):
        aa.Loop("torch", framework="torch")
    assert aa.Loop("cpu", framework="torch").num_processes == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            lambda: loop_of().log("loss"),
            r"log\(\) needs values by name, not 'loss'\. Hint: write loop\.log\(\{'loss': loss\}\)\.",
        ),
        (lambda: loop_of(seed="x"), r"Loop: seed='x' is not an int\. Hint: write seed=0\."),
        (lambda: loop_of(log=3), r"Loop: log=3 is not the name of a folder\. Hint: write log='runs/a'\."),
        (lambda: list(loop_of().epochs("3")), r"epochs='3' is not an int of at least 0\. Hint: write epochs=10\."),
    ],
)
def test_wrong_types_of_settings(wrong: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        wrong()
    assert list(loop_of(seed=0, log=None).epochs(2)) == [0, 1]


def test_a_loop_needs_no_framework_if_only_one_is_imported(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torch, anyaccel as aa\naa.devices('cpu')\nprint(aa.Loop('cpu'), 'jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.strip() == "Loop('cpu:0', framework='torch') False"
