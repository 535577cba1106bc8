"""Offload where the CPU computes: from files, threads, errors, refusals, and the faults that Accelerate has."""

from __future__ import annotations

import copy
import errno
import json
import os
import pickle
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import anyaccel as aa
from anyaccel.errors import (
    AnyaccelError,
    CapabilityError,
    CompileWarning,
    ConfigError,
    OutOfMemoryError,
    StateError,
)
from anyaccel_offload.torch import (
    cpu_offload,
    cpu_offload_with_hook,
    disk_offload,
    dispatch_model,
    infer_auto_device_map,
    init_empty_weights,
    load_checkpoint_and_dispatch,
    offload_of,
    remove_offload,
)
from anyaccel_offload.torch.checkpoint_files import SafetensorsFile
from anyaccel_offload.torch.stored_tensor import StoredTensor

REPOSITORY = Path(__file__).parents[4]


def chain(depth: int = 4, width: int = 16) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(depth)])


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_file(chain().state_dict(), tmp_path / "model.safetensors")
    return tmp_path


def from_files(folder: Path) -> nn.Module:
    with init_empty_weights():
        model = chain()
    return load_checkpoint_and_dispatch(model, folder, {"": "disk"})


X = torch.linspace(-1, 1, 48).view(3, 16)


# -- from files ------------------------------------------------------------------------------------------------------


def test_a_model_is_run_from_the_files_that_it_was_saved_to_and_nothing_is_written(saved: Path) -> None:
    before = {path: path.stat() for path in saved.iterdir()}
    model = from_files(saved)
    with torch.no_grad():
        assert torch.equal(model(X), chain()(X))
    after = {path: path.stat() for path in saved.iterdir()}
    assert after.keys() == before.keys()
    assert all(after[path].st_mtime_ns == before[path].st_mtime_ns for path in before)


def test_each_byte_is_read_once_in_a_pass_and_headers_never_again(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = from_files(saved)
    read = SafetensorsFile.read
    counted: Counter[str] = Counter()

    def counting(self: SafetensorsFile, begin: int, into: memoryview) -> None:
        counted["bytes"] += into.nbytes
        read(self, begin, into)

    monkeypatch.setattr(SafetensorsFile, "read", counting)
    with torch.no_grad():
        model(X)
    assert counted["bytes"] == sum(p.numel() * 4 for p in model.parameters())


def test_gradients_of_weights_in_files_are_those_of_the_plain_model_and_a_step_is_refused(saved: Path) -> None:
    plain, model = chain(), from_files(saved)
    plain(X).square().sum().backward()
    model(X).square().sum().backward()
    for name, value in plain.named_parameters():
        assert torch.equal(model.get_parameter(name).grad, value.grad), name
    with pytest.raises(CapabilityError, match="files are never changed"):
        torch.optim.SGD(model.parameters(), lr=0.1).step()


def test_a_model_larger_than_the_memory_that_it_may_have_runs_from_disk(tmp_path: Path) -> None:
    """Whole, 6 GiB, with `python tests/benchmarks/disk_offload.py`, which also measures the rate."""
    size = "6" if os.environ.get("ANYACCEL_TEST_FULL") == "1" else "0.19"
    script = REPOSITORY / "tests/benchmarks/disk_offload.py"
    if not script.exists() or not hasattr(os, "posix_fadvise"):
        pytest.skip("needs the repository, on Linux")
    command = [sys.executable, str(script), "--gib", size, "--rounds", "1", "--folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["model_mib"] > 1.45 * figures["cap_mib"] and figures["peak_mib"] < figures["cap_mib"]
    assert figures["written_bytes"] == 0


def test_a_changed_file_is_refused_and_the_model_is_as_it_was(saved: Path) -> None:
    model = from_files(saved)
    path = saved / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(StateError, match="was changed while its tensors were in use"), torch.no_grad():
        model(X)
    assert all(isinstance(p, StoredTensor) for p in model.parameters())


def test_an_offload_folder_with_files_is_refused(tmp_path: Path) -> None:
    """Accelerate computes with the weights of the first model."""
    folder = tmp_path / "weights"
    disk_offload(chain(), folder)
    other = chain()
    with torch.no_grad():
        other[0][0].weight.zero_()
    with pytest.raises(StateError, match="is not an empty folder"):
        disk_offload(other, folder)
    with torch.no_grad():
        assert torch.equal(other(X), other(X))


@pytest.mark.parametrize(
    ("number", "said", "hint"),
    [
        (errno.ENOSPC, "No space left on device", "use a folder with more space"),
        (errno.EACCES, "Permission denied", "use a writable folder"),
    ],
)
def test_a_folder_that_cannot_be_written_leaves_the_model_as_it_was(
    number: int, said: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from anyaccel.saved_folder import tensor_file

    def refuse(*_: Any) -> None:
        raise OSError(number, said)

    monkeypatch.setattr(tensor_file, "write", refuse)
    model = chain()
    with pytest.raises(StateError, match=rf"cannot be written.*{said}.*{hint}"):
        disk_offload(model, tmp_path / "new")
    assert not list((tmp_path / "new").iterdir())
    assert torch.equal(model(X), chain()(X))


# -- threads and refusals --------------------------------------------------------------------------------------------


def count_wrong(model: nn.Module, calls: int = 50) -> int:
    plain, wrong = chain(), []

    def requests() -> None:
        with torch.no_grad():
            for _ in range(calls):
                try:
                    wrong.extend([1] * (not torch.equal(model(X), plain(X))))
                except Exception:
                    wrong.append(1)

    threads = [threading.Thread(target=requests) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return len(wrong)


def test_four_threads_get_right_results(saved: Path) -> None:
    assert count_wrong(from_files(saved)) == 0


@pytest.mark.parametrize("how", [pickle.dumps, copy.deepcopy])
def test_an_offloaded_model_is_not_pickled_or_copied(how: Callable[[Any], Any], saved: Path) -> None:
    model = from_files(saved)
    with pytest.raises(AnyaccelError) as raised:
        how(model)
    assert "remove_offload" in raised.value.hint or "save the values" in raised.value.hint


def test_an_offloaded_model_is_not_compiled(saved: Path) -> None:
    model = from_files(saved)
    compiled = torch.compile(model, backend="eager")
    is_told = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)  # before, torch leaves the message out
    message = "cannot be compiled" if is_told else "_refuse_compiling"
    with pytest.raises(Exception, match=message), torch.no_grad():
        compiled(X)
    with torch.no_grad():
        assert torch.equal(model(X), chain()(X))


def test_the_names_and_values_of_an_offloaded_model_are_those_of_the_plain_one(saved: Path) -> None:
    state = from_files(saved).state_dict()
    assert {name: value.clone().tolist() for name, value in state.items()} == {
        name: value.tolist() for name, value in chain().state_dict().items()
    }


def test_what_is_offloaded_is_not_offloaded_again_until_its_hooks_are_removed(saved: Path) -> None:
    model = from_files(saved)
    with pytest.raises(StateError, match="already offloaded"):
        cpu_offload(model)
    assert offload_of(model) is not None
    assert remove_offload(model) is model and offload_of(model) is None
    with pytest.raises(StateError, match="is not offloaded"):
        remove_offload(model)
    with torch.no_grad():
        assert torch.equal(model(X), chain()(X))  # each weight is read by the operator that uses it


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: dispatch_model(None, {"": "cpu"}), "model"),
        (lambda: dispatch_model(nn.ReLU(), {"": "cpu"}), "has no weights"),
        (lambda: dispatch_model(chain(), {"0": "cpu"}), "no device for"),
        (lambda: dispatch_model(chain(), {"": "cpu", "9": "cpu"}), "which the model does not have"),
        (lambda: dispatch_model(chain(), {"": "disk"}), "no folder is set"),
        (lambda: dispatch_model(chain(), {"": "nonsense"}), "not a device"),
        (lambda: dispatch_model(chain(), {"": "cpu", "0.0.weight": "disk"}, offload_dir="x"), "splits '0.0'"),
        (lambda: cpu_offload(chain(), "disk"), "cannot compute"),
        (lambda: cpu_offload(chain(), pinned_memory=-1), "pinned_memory"),
        (lambda: cpu_offload(chain(), offload_buffers=1), "offload_buffers"),
        (lambda: cpu_offload(chain(), skip_keys=1), "skip_keys"),
        (lambda: cpu_offload_with_hook(chain(), prev_module_hook=1), "prev_module_hook"),
        (lambda: disk_offload(chain(), None), "offload_dir"),
        (lambda: load_checkpoint_and_dispatch(chain(), "x", "somehow"), "device_map"),
        (lambda: load_checkpoint_and_dispatch(chain(), "x", max_memory={0: 1}), "needs a planned device_map"),
        (lambda: infer_auto_device_map(chain(), {0: "20 apples"}), "is not a size"),
        (lambda: infer_auto_device_map(chain(), {}), "max_memory"),
        (lambda: infer_auto_device_map(chain(), offload="gpu"), "offload"),
        (lambda: infer_auto_device_map(chain(), headroom=2), "headroom"),
        (lambda: infer_auto_device_map(chain(), inputs=["text"]), "cannot be called"),
    ],
)
def test_wrong_arguments_are_refused_with_what_to_do(call: Callable[[], Any], says: str) -> None:
    with pytest.raises(AnyaccelError, match=says) as raised:
        call()
    assert raised.value.hint


def test_an_empty_model_is_refused() -> None:
    with init_empty_weights():
        model = chain()
    calls = (
        lambda: cpu_offload(model),
        lambda: disk_offload(model, "never"),
        lambda: dispatch_model(model, {"": "cpu"}),
    )
    for call in calls:
        with pytest.raises(AnyaccelError, match="no values"):
            call()
    assert not Path("never").exists()


# -- phases ----------------------------------------------------------------------------------------------------------


def results_of(model: nn.Module, kind: str, device: str) -> dict[str, float]:
    columns = {"x": X.numpy(), "y": X.numpy()[:, :1]}
    data = aa.FeatureSet.from_dict("data", columns, ["x"], ["y"])
    data.add_splits({"train": range(3), "val": range(3)})
    graph = aa.ModelGraph([aa.ModelNode("net", model, data.reference())], aa.Optimizer("adam", lr=0.01))
    losses, experiment = aa.AppliedLoss("mse", on="net"), aa.Experiment("test", graph, progress="none")
    if kind == "train":
        steps = aa.SimpleSampler(1)
        experiment.run_phase(
            aa.TrainPhase("t", data="train", losses=losses, sampler=steps, epochs=2, accelerator=device)
        )
    found = experiment.run_phase(aa.EvalPhase("e", data="val", losses=losses, accelerator=device))
    return dict(found.losses)


def with_one_output() -> nn.Sequential:
    return nn.Sequential(*chain(), nn.Linear(16, 1))


def test_an_offloaded_model_is_evaluated_in_a_phase(tmp_path: Path) -> None:
    assert results_of(disk_offload(with_one_output(), tmp_path / "w"), "eval", "cpu") == results_of(
        with_one_output(), "eval", "cpu"
    )


def test_steps_of_an_offloaded_node_are_not_compiled() -> None:
    model = cpu_offload(with_one_output(), "cpu")
    data = aa.FeatureSet.from_dict("data", {"x": X.numpy(), "y": X.numpy()[:, :1]}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("net", model, data.reference())], "adam")
    losses = aa.AppliedLoss("mse", on="net")
    phase = aa.TrainPhase("train", data=data, losses=losses, compile="steps", accelerator="cpu")
    with pytest.warns(
        CompileWarning, match="run uncompiled: .* weights of node 'net' are offloaded, and copied for each step"
    ):
        aa.Experiment("test", graph, progress="none").run_phase(phase)


# -- planned maps ----------------------------------------------------------------------------------------------------


class HeadFirst(nn.Module):
    """Registered in another order than it computes in, with a buffer of a container and a tie."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 16, bias=False)
        self.body = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.embed = nn.Linear(16, 16, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scalar", torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x) * self.scalar
        for layer in self.body:
            x = layer(x)
        y: Tensor = self.head(x)
        return y


def test_a_map_follows_the_order_of_execution_and_counts_ties_once() -> None:
    model = HeadFirst()
    layer = 4 * (16 * 16 + 16)
    found = infer_auto_device_map(
        model, {0: 2 * layer + 4000, 1: 2 * layer + 4000}, inputs=[X], headroom=0, offload="no"
    )
    assert list(found) == ["embed", "body.0", "body.1", "body.2", "body.3", "head", "scalar"]
    assert set(found.values()) == {"cuda:0", "cuda:1"}
    total = sum(share.nbytes["tied"] for share in found.plan.devices)
    assert total - 4 in (1024, 2048)  # for each device that computes with it, once; and the scalar


def test_a_planned_map_names_all_tensors_also_those_outside_of_blocks() -> None:
    """Accelerate's map forgets such a buffer where the model is divided."""
    torch.manual_seed(9)
    model = HeadFirst()
    want = model(X).detach()
    found = infer_auto_device_map(model, {"cpu": 10**6}, inputs=[X])
    assert found["scalar"] == "cpu"
    assert torch.equal(dispatch_model(model, found)(X), want)


def test_nothing_is_put_elsewhere_where_all_fits_and_a_model_that_does_not_fit_is_refused_or_spilled() -> None:
    block = 4 * 2 * 10_240  # as in the anchors: four layers of 40 kB on two devices of 85 kB
    model = nn.Sequential(*[nn.Linear(100, 100, bias=False) for _ in range(4)])
    found = infer_auto_device_map(model, {0: 85_000, 1: 85_000, "cpu": 10**9}, headroom=0)
    assert Counter(found.values()) == {"cuda:0": 2, "cuda:1": 2} and block
    with pytest.raises(OutOfMemoryError, match="does not fit"):
        infer_auto_device_map(model, {0: 85_000, "cpu": 10**9}, headroom=0, offload="no")
    spilled = infer_auto_device_map(model, {0: "125KB", "cpu": "1GiB"}, headroom=0, offload="cpu")
    assert set(spilled.values()) == {"cuda:0", "cpu"}  # the device is used: two slots and a block that stays


def test_a_cast_is_counted_as_it_will_be() -> None:
    """Accelerate counts a float16 model that is loaded as float32 by half."""
    model = nn.Linear(100, 100, bias=False).half()
    found = infer_auto_device_map(model, {"cpu": 10**6}, dtype=torch.float32)
    assert found.plan.devices[0].nbytes["parameters"] == 40_000
    with pytest.raises(ConfigError, match="dtype"):
        infer_auto_device_map(model, dtype=torch.int8)


def test_a_map_is_carried_out_where_the_cpu_computes(saved: Path) -> None:
    with init_empty_weights():
        model = chain()
    load_checkpoint_and_dispatch(model, saved, "auto", {"cpu": 2200, "disk": 10**9}, no_split_module_classes=["Linear"])
    assert any(isinstance(p, StoredTensor) for p in model.parameters())
    with torch.no_grad():
        assert torch.equal(model(X), chain()(X))


# -- Accelerate's faults, seen there ---------------------------------------------------------------------------------


def test_what_accelerate_computes_with_a_stale_folder_is_wrong(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerate.disk_offload(chain(), str(tmp_path))
    other = chain()
    with torch.no_grad():
        other[0][0].weight.zero_()
        want = other(X)
        accelerate.disk_offload(other, str(tmp_path))
        assert not torch.allclose(other(X), want)


def test_accelerate_trains_nothing() -> None:
    accelerate = pytest.importorskip("accelerate")
    model = accelerate.cpu_offload(chain())
    model(X).sum().backward()
    assert all(p.grad is None for p in model.parameters())
