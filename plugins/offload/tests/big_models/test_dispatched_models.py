"""What users do with a dispatched model: save, move, convert, copy and pickle it, or read why that is refused."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_model
from torch import nn

from anyaccel.errors import CapabilityError, ConfigError, MoveError, OutOfMemoryError, StateError
from anyaccel_offload.torch import (
    ModelHook,
    add_hook_to_module,
    check_device_map,
    cpu_offload,
    cpu_offload_with_hook,
    disk_offload,
    dispatch_model,
    get_state_dict_offloaded_model,
    hook_of,
    infer_auto_device_map,
    init_empty_weights,
    load_checkpoint_and_dispatch,
    load_checkpoint_in_model,
    offload_of,
    remove_offload,
    set_module_tensor_to_device,
)

from .tiny_transformers import MODELS, built

IDS = torch.arange(3, 11).view(1, 8)


def output(model: Any) -> torch.Tensor:
    given = {"decoder_input_ids": IDS[:, :3]} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        made: torch.Tensor = model(input_ids=IDS, **given)[0]
    return made


def on_the_host(model: Any, folder: Path) -> Any:
    return cpu_offload(model, "cpu")


def on_disk(model: Any, folder: Path) -> Any:
    return disk_offload(model, folder / "weights", "cpu")


def by_a_map(model: Any, folder: Path) -> Any:
    """Host memory for some blocks, and the files of a checkpoint for the others."""
    save_model(model, str(folder / "model.safetensors"))
    with init_empty_weights():
        empty = type(model)(model.config).eval()
    total = sum(parameter.nbytes for parameter in model.parameters())
    memory = {"cpu": int(0.8 * total), "disk": "1GB"}
    load_checkpoint_and_dispatch(empty, folder / "model.safetensors", "auto", memory, strict=False)
    assert {"cpu", "disk"} == set(empty.hf_device_map.values())
    return empty


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("way", [on_the_host, on_disk, by_a_map])
def test_a_saved_model_has_all_weights(way: Callable[..., Any], name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    plain: Any = built(name)
    expected = output(plain)
    model = way(built(name), tmp_path)
    shown = getattr(model, "hf_device_map", None)
    for sizes in ({}, {"max_shard_size": "10KB"}):
        model.save_pretrained(tmp_path / f"saved{len(sizes)}", **sizes)
        loaded = type(plain).from_pretrained(tmp_path / f"saved{len(sizes)}").eval()
        assert torch.equal(output(loaded), expected)
    assert getattr(model, "hf_device_map", None) is shown and torch.equal(output(model), expected)
    for parameter in plain.parameters():
        parameter.data.mul_(2)
    model.save_pretrained(tmp_path / "others", state_dict=plain.state_dict())
    assert torch.equal(output(type(plain).from_pretrained(tmp_path / "others").eval()), output(plain))
    remove_offload(model)
    assert "save_pretrained" not in vars(model)


class Saves(nn.Sequential):
    """A class of another library, without `state_dict=`."""

    def save_pretrained(self, folder: Path) -> None:
        torch.save(self.state_dict(), folder / "weights.pt")


def test_a_class_that_cannot_save_weights_in_files_says_so(tmp_path: Path) -> None:
    model: Any = Saves(nn.Linear(2, 2))
    dispatch_model(model, {"": "cpu"}, force_hooks=True)
    model.save_pretrained(tmp_path)
    assert torch.equal(torch.load(tmp_path / "weights.pt")["0.weight"], model[0].weight)
    remove_offload(model)
    disk_offload(model, tmp_path / "new", "cpu")
    with pytest.raises(MoveError, match=r"Saves.save_pretrained has no state_dict=.*get_state_dict_offloaded_model"):
        model.save_pretrained(tmp_path)


def test_weights_that_the_host_cannot_hold_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = disk_offload(nn.Linear(8, 8), tmp_path / "new", "cpu")
    monkeypatch.setattr("anyaccel_offload.torch.offload.host_memory", lambda: (2**30, 100))
    with pytest.raises(OutOfMemoryError, match=r"weights in files need 288 B, and the host has 100 B.*one at a time"):
        get_state_dict_offloaded_model(model)
    assert [value.clone().shape for value in model.state_dict().values()] == [(8, 8), (8,)]  # as the hint says


def net() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


X = torch.linspace(-1, 1, 12).view(3, 4)
CHANGES: dict[str, Callable[[nn.Module], Any]] = {
    "half": lambda model: model.half(),
    "to a dtype": lambda model: model.to(torch.bfloat16),
    "to a device": lambda model: model.to("cpu"),
    "to meta": lambda model: model.to("meta"),
    "cpu": lambda model: model.cpu(),
    "to_empty": lambda model: model.to_empty(device="cpu"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_with_weights_elsewhere_is_not_moved_and_computes_on(change: str, tmp_path: Path) -> None:
    model = disk_offload(net(), tmp_path / "new", "cpu")
    with torch.no_grad():
        expected = net()(X)
        with pytest.raises(MoveError, match=r"offloaded, and can be neither moved nor converted.*remove_offload"):
            CHANGES[change](model)
        assert torch.equal(model(X), expected)


def test_a_model_whose_weights_all_stay_is_converted_and_not_moved() -> None:
    model: Any
    model, plain = dispatch_model(net(), {"": "cpu"}, force_hooks=True), net().double()
    assert torch.equal(model.double()(X.double()), plain(X.double())) and offload_of(model) is not None
    assert torch.equal(model.to("cpu")(X.double()), plain(X.double()))
    with pytest.raises(MoveError, match="neither moved nor converted"):
        model.to("meta")
    model.zero_grad()
    remove_offload(model)
    assert model.to("meta")[0].weight.is_meta


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps], ids=["deepcopy", "pickle"])
@pytest.mark.parametrize("way", [on_the_host, on_disk])
def test_a_dispatched_model_is_not_copied(
    way: Callable[..., Any], copied: Callable[[Any], Any], tmp_path: Path
) -> None:
    model = way(net(), tmp_path)
    with pytest.raises(CapabilityError, match=r"neither pickled nor copied.*remove_offload"):
        copied(model)
    remove_offload(model)
    again = copied(model) if copied is copy.deepcopy or way is on_the_host else copy.copy(model)
    again = pickle.loads(again) if isinstance(again, bytes) else again
    with torch.no_grad():
        assert torch.equal(again(X), net()(X))


def test_a_dispatched_model_is_released_at_once() -> None:
    """What refuses moves holds no reference to the model, so that no collection is waited for."""
    gc.collect()
    gc.disable()
    try:
        model: Any = cpu_offload(net(), "cpu")
        parameter = weakref.ref(model[0].weight)
        del model
        assert parameter() is None
    finally:
        gc.enable()


def test_without_a_device_whole_models_take_turns_on_the_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    model, hook = cpu_offload_with_hook(net())
    with torch.no_grad():
        assert torch.equal(model(X), net()(X))
    hook.remove()
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 3)
    with pytest.raises(ValueError, match=r"cuda:3"):
        cpu_offload_with_hook(net())


# -- deliberate differences from Accelerate, each with its row on the page ---------------------------------------------

PAGE = Path(__file__).parents[4] / "docs/how-to/big-models.md"


def between_calls(folder: Path) -> None:
    model = disk_offload(net(), folder / "new", "cpu")
    assert not any(parameter.is_meta for parameter in model.parameters())
    assert torch.equal(model[0].weight.detach().clone(), net()[0].weight)
    assert not any(hasattr(module, "_hf_hook") for module in model.modules())


class Scales(nn.Linear):
    """Writes to its weight, as RWKV does when it is first called."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weight.div_(2)
        return super().forward(x)


def writes_to_a_file(folder: Path) -> None:
    model = disk_offload(nn.Sequential(Scales(4, 4)), folder / "new", "cpu")
    with torch.no_grad(), pytest.raises(CapabilityError, match="writes to a weight that stays in a file"):
        model(X)


def names_that_do_not_match(folder: Path) -> None:
    torch.save({**net().state_dict(), "foo": X}, folder / "model.bin")
    with pytest.raises(StateError, match=r"unexpected: foo.*strict=False"):
        load_checkpoint_in_model(net(), folder / "model.bin")
    with pytest.warns(UserWarning, match="unexpected: foo"):
        load_checkpoint_in_model(net(), folder / "model.bin", strict=False)


def an_index_of_names_alone(folder: Path) -> None:
    torch.save(net().state_dict(), folder / "model.bin")
    (folder / "weights.index.json").write_text(json.dumps(dict.fromkeys(net().state_dict(), "model.bin")))
    with pytest.raises(StateError, match="is not an index of shards"):
        load_checkpoint_in_model(net(), folder / "weights.index.json")


def written_again(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"load_checkpoint_and_dispatch\(model, FILES, device_map, offload_folder="):
        load_checkpoint_in_model(net(), folder, {"": "disk"}, offload_folder=folder)  # type: ignore[call-arg]


def bytes_alone(folder: Path) -> None:
    """The layers have 160 and 72 bytes, and take 512 each; a tenth of the memory stays free."""
    memory = {0: 1100, "cpu": 0}
    assert len(infer_auto_device_map(net(), memory, headroom=0)) == 2
    with pytest.raises(OutOfMemoryError):
        infer_auto_device_map(net(), memory, offload="no")


def an_idle_device(folder: Path) -> None:
    with pytest.raises(OutOfMemoryError, match="largest that stays together, '0', needs 512 B"):
        infer_auto_device_map(net(), {0: 300, "cpu": "1GB"})


def an_unknown_name(folder: Path) -> None:
    with pytest.raises(ConfigError, match="names 'x', which the model does not have"):
        check_device_map(net(), {"": "cpu", "x": 0})


class Counts(ModelHook):
    def __init__(self) -> None:
        self.calls = self.errors = 0

    def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return args, kwargs

    def on_error(self, module: nn.Module) -> None:
        self.errors += 1


def hooks_of_torch(folder: Path) -> None:
    layer, hook = nn.Linear(4, 2), Counts()
    add_hook_to_module(layer, hook)
    assert hook_of(layer) is hook and "forward" not in vars(layer) and not hasattr(layer, "_hf_hook")
    layer.forward = lambda x: x.reshape(-1, 4)  # type: ignore[method-assign]
    layer(X)
    with pytest.raises(RuntimeError):
        layer(torch.ones(3))
    assert (hook.calls, hook.errors) == (2, 1)


def moved(folder: Path) -> None:
    model = cpu_offload(net(), "cpu")
    with pytest.raises(MoveError, match=r"offloaded, and can be neither moved nor converted.*remove_offload"):
        model.to("meta")
    with pytest.raises(MoveError, match="neither moved nor converted"):
        dispatch_model(net(), {"": "cpu"}, force_hooks=True).to("meta")
    kept = dispatch_model(net(), {"": "cpu"}, force_hooks=True).double()
    assert kept[0].weight.dtype == torch.float64  # type: ignore[union-attr]


def copied(folder: Path) -> None:
    model = cpu_offload(net(), "cpu")
    for copying in (copy.deepcopy, pickle.dumps):
        with pytest.raises(CapabilityError, match=r"neither pickled nor copied.*remove_offload\(model\)"):
            copying(model)


def saved(folder: Path) -> None:
    pytest.importorskip("transformers")
    plain: Any = built("llama")
    disk_offload(model := built("llama"), folder / "new", "cpu")
    for name, saving in (("plain", plain), ("offloaded", model)):
        saving.save_pretrained(folder / name)
    files = sorted(path.name for path in (folder / "plain").iterdir())
    assert files == sorted(path.name for path in (folder / "offloaded").iterdir())
    assert all((folder / "plain" / name).read_bytes() == (folder / "offloaded" / name).read_bytes() for name in files)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("anyaccel_offload.torch.offload.host_memory", lambda: (2**30, 100))
        with pytest.raises(OutOfMemoryError, match="weights in files need"):
            model.save_pretrained(folder / "too large")  # type: ignore[operator]


def on_simulated_devices(*names: str) -> Callable[[Path], None]:
    """What needs devices is tested on simulated ones, in a process of its own."""

    def named(folder: Path) -> None:
        text = (Path(__file__).parent / "test_offload_on_devices.py").read_text("utf-8")
        assert all(f"\ndef test_{name}(" in text for name in names)

    return named


def names_of_devices(folder: Path) -> None:
    planned = infer_auto_device_map(net(), {0: "1MB", "cpu": 0})
    assert set(planned.values()) == {"cuda:0"}


def words_of_messages(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"which has shape .*\[8, 4\].*Hint: pass a value with the shape"):
        set_module_tensor_to_device(net(), "0.weight", "cpu", torch.ones(2, 2))


DIFFERENCES: dict[str, Callable[[Path], None]] = {
    "offloaded weights are `meta` tensors between calls": between_calls,
    "modules have `_hf_hook` and another `forward`": hooks_of_torch,
    "`model.to()` warns, or moves a part": moved,
    "`copy.deepcopy` and pickles include the hooks": copied,
    "`save_pretrained` reads `weights_map`": saved,
    "buffers that a forward writes to are lost": writes_to_a_file,
    "`load_checkpoint_in_model` has `strict=False`": names_that_do_not_match,
    "an index without `weight_map`": an_index_of_names_alone,
    '`load_checkpoint_in_model(offload_folder=)` writes `"disk"` weights again': written_again,
    "maps count bytes": bytes_alone,
    "a device that holds no block is left out, and the model computes on the CPU": an_idle_device,
    "`check_device_map` warns of unknown names": an_unknown_name,
    "`cpu_offload` and `AlignDevicesHook(offload=True)` copy each tensor when it is used": on_simulated_devices(
        "at_most_two_slots_are_used_beside_the_activations",
        "inference_takes_the_larger_of_copy_and_compute_and_the_first_copy",
        "a_tied_weight_stays_on_its_device_and_is_moved_once",
    ),
    "maps name devices by numbers": names_of_devices,
    "messages of errors": words_of_messages,
    "each block moves its inputs": on_simulated_devices("inputs_move_once_and_not_for_each_layer"),
}


def rows() -> list[list[str]]:
    table = PAGE.read_text("utf-8").partition("### What differs, and why")[2].partition("\n\nOutputs return")[0]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table.splitlines() if "|" in line][2:]


def test_each_difference_on_the_page_has_a_reason_and_a_test() -> None:
    assert [row[0] for row in rows() if len(row) != 3 or not row[2]] == []
    assert sorted(row[0] for row in rows()) == sorted(DIFFERENCES)


@pytest.mark.parametrize("row", DIFFERENCES)
def test_a_difference_is_so(row: str, tmp_path: Path) -> None:
    DIFFERENCES[row](tmp_path)


def test_a_checkpoint_whose_names_transformers_converts_is_loaded_by_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    plain: Any = built("mixtral")
    expected = output(plain)
    plain.save_pretrained(tmp_path)
    with init_empty_weights():
        model = type(plain)(plain.config).eval()
    with pytest.raises(StateError, match="does not fit MixtralForCausalLM"):
        load_checkpoint_and_dispatch(model, tmp_path, {"": "cpu"})
    loaded = dispatch_model(type(plain).from_pretrained(tmp_path).eval(), {"": "cpu"}, force_hooks=True)
    assert torch.equal(output(loaded), expected)
